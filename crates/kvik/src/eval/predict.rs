//! Perplexity, and divergence from the exact variant: the first half of a window is read and a part of it retained, the
//! second half is predicted.

use kvik_engine::retain::lab::Variant;

use super::exam::{Exam, retentions};
use super::results::{ResultRow, TextCell};
use super::setting::{Setting, Sight};
use super::windows::Window;

/// Maximum logits of one batch, over all variants: 64 MiB.
const LOGITS_MAX: usize = 1 << 24;
/// Maximum tokens computed at a time.
const TOKENS_MAX: usize = 64;

impl Exam {
    /// Predicts a window under every setting, and compares with `exact`, which keeps everything in 32-bit floats. Text has
    /// no question that could be seen, so of two settings that differ in that only one predicts.
    pub(crate) fn predict(&mut self, exact: &mut Exam, window: &Window, task: &str, rows: &mut [ResultRow]) {
        let (first, second) = window.tokens.split_at(window.middle);
        let chosen: Vec<usize> = (0..rows.len()).filter(|&row| predicts(row, rows)).collect();
        self.read(first, retentions(&chosen, rows));
        exact.read(first, []);
        let everything = exact.decision(None);
        for group in self.decide(&chosen, rows, second.len()) {
            let mut variants = self.keep(&group, rows);
            let mut twin = [exact.lab().keep(&everything, None)];
            let cells = self.compare(exact, &mut variants, &mut twin, window);
            variants.into_iter().for_each(|variant| self.lab().drop(variant));
            twin.into_iter().for_each(|variant| exact.lab().drop(variant));
            for (decided, cell) in group.iter().zip(cells) {
                rows[decided.row].texts.entry(task.to_owned()).or_default().add(&cell);
            }
        }
    }

    /// Predicts the second half of a window with all variants, in pieces whose logits fit in memory.
    fn compare(
        &mut self,
        exact: &mut Exam,
        variants: &mut [Variant],
        twin: &mut [Variant],
        window: &Window,
    ) -> Vec<TextCell> {
        let mut cells = vec![TextCell { windows: 1, ..TextCell::default() }; variants.len()];
        let (middle, last) = (window.middle, window.tokens.len() - 1);
        let mut start = middle;
        while start < last {
            let end = last.min(start + piece_tokens(variants.len(), self.vocab()));
            let piece = &window.tokens[start..=end];
            let truth = exact.lab().score(twin, piece).swap_remove(0);
            let truth: Vec<Vec<f32>> = truth.iter().map(|logits| log_softmax(logits)).collect();
            for (cell, logits) in cells.iter_mut().zip(self.lab().score(variants, piece)) {
                for ((logits, truth), index) in logits.iter().zip(&truth).zip(start + 1..) {
                    let logits = log_softmax(logits);
                    let nll = -f64::from(logits[window.tokens[index] as usize]);
                    cell.predicted(index - middle, window.answers[index], nll, divergence(truth, &logits));
                }
            }
            start = end;
        }
        cells
    }
}

/// Whether a row predicts text: it has not seen the question, or there is no such row of the same retention.
fn predicts(row: usize, rows: &[ResultRow]) -> bool {
    let setting = &rows[row].setting;
    let twin = Setting { sight: Sight::Unseen, ..setting.clone() };
    setting.sight == Sight::Unseen || rows.iter().all(|other| other.setting != twin)
}

/// Tokens to compute at a time so that the logits of `variants` fit in memory.
pub(super) fn piece_tokens(variants: usize, vocab: usize) -> usize {
    (LOGITS_MAX / (variants * vocab).max(1)).clamp(1, TOKENS_MAX)
}

/// Log-probabilities of logits.
pub(super) fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    let base = max + sum.ln() as f32;
    logits.iter().map(|&logit| logit - base).collect()
}

/// The divergence of `other` from `exact`, both log-probabilities, nats.
fn divergence(exact: &[f32], other: &[f32]) -> f64 {
    exact.iter().zip(other).map(|(&p, &q)| f64::from(p.exp() * (p - q))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_sum_to_one_and_diverge_from_others_only() {
        let logits = [3.0, -1.0, 200.0, 199.5, f32::MIN / 4.0];
        let one = log_softmax(&logits);
        let sum: f64 = one.iter().map(|&p| f64::from(p).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        assert_eq!(divergence(&one, &one), 0.0);
        let half = log_softmax(&[0.0, 0.0]);
        let skewed = log_softmax(&[0.0, 3f32.ln()]);
        // ln 2 less the mean of ln 4 and ln 4/3.
        let expect = 0.5 * (2f64.ln() * -2.0 + 4f64.ln() + (4f64 / 3.0).ln());
        assert!((divergence(&half, &skewed) - expect).abs() < 1e-6);
    }

    #[test]
    fn of_settings_that_differ_in_the_question_one_predicts() {
        let row = |text: &str, sight| {
            let setting = Setting { retention: Some(text.parse().unwrap()), sight };
            ResultRow::new(setting, "f32".to_owned())
        };
        let (seen, unseen) = (Sight::Seen, Sight::Unseen);
        let rows = [row("keydiff:0.5", unseen), row("keydiff:0.5", seen), row("keydiff:0.3", seen)];
        let found: Vec<bool> = (0..rows.len()).map(|index| predicts(index, &rows)).collect();
        assert_eq!(found, [true, false, true]);
    }

    #[test]
    fn pieces_fit_the_room_for_logits() {
        for (variants, vocab) in [(1, 4096), (120, 4096), (120, 151_936), (5000, 151_936)] {
            let tokens = piece_tokens(variants, vocab);
            assert!(tokens == 1 || tokens * variants * vocab <= LOGITS_MAX);
            assert!((1..=TOKENS_MAX).contains(&tokens));
        }
    }
}
