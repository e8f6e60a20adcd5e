//! Times of one prompt alone: the cost of observing while it is read, and the time that a shorter cache saves in
//! decoding.

use std::time::Instant;

use kvik_cache::Token;
use kvik_cache::retain::Retention;

use super::exam::Exam;
use super::results::SpeedReport;

/// Decode steps that are timed.
pub(super) const STEPS: usize = 32;

impl Exam {
    /// Reads a prompt for one retention, compresses it, and decodes a few tokens.
    pub(crate) fn time(&mut self, prompt: &[Token], retention: Option<Retention>) -> SpeedReport {
        let start = Instant::now();
        let first = self.read(prompt, retention);
        let read = start.elapsed();
        let decision = self.decision(retention.as_ref());
        let mut variants = [self.lab().keep(&decision, retention.as_ref())];
        let start = Instant::now();
        self.lab().answer(&mut variants, &[first], STEPS, &[]);
        let decode = start.elapsed();
        variants.into_iter().for_each(|variant| self.lab().drop(variant));
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        SpeedReport { tokens: prompt.len(), read_ms: ms(read), decode_ms: ms(decode) / STEPS as f64 }
    }
}
