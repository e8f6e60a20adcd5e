//! A request while the engine has it: its listener, its open choices and its report.

use std::time::Duration;

use kvik_cache::StopReason;

use super::prefix::Reused;
use crate::api::{Event, EventSink, FinishReason, GeneratedToken, Report, RequestError, Retained};
use crate::panics::contain;

/// Names a request; later ones are larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobId(pub(super) u64);

/// A request that has not ended.
pub(super) struct Job {
    sink: Box<dyn EventSink>,
    listening: bool,
    /// Choices that have not ended.
    pub(super) open: u32,
    pub(super) choices: u32,
    /// Whether nobody waits for it.
    pub(super) background: bool,
    pub(super) report: Report,
    pub(super) times: Times,
}

/// When things happened, on the scheduler's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) submitted: Duration,
    pub(super) admitted: Option<Duration>,
    pub(super) first_token: Option<Duration>,
    pub(super) last_token: Option<Duration>,
}

impl Job {
    pub(super) fn new(sink: Box<dyn EventSink>, prompt_tokens: usize, choices: u32, now: Duration) -> Job {
        Job {
            sink,
            listening: true,
            open: choices,
            choices,
            background: false,
            report: Report { prompt_tokens, ..Report::default() },
            times: Times { submitted: now, admitted: None, first_token: None, last_token: None },
        }
    }

    /// Whether nobody listens any more.
    pub(super) fn is_closed(&self) -> bool {
        !self.listening || contain(|| self.sink.is_closed()).unwrap_or(true)
    }

    /// Sequences that it consists of now: choices other than the first begin with the first token.
    pub(super) fn sequences(&self) -> usize {
        if self.times.first_token.is_some() { self.open as usize } else { 1 }
    }

    /// Its prefill begins; `reused` tells why no more of the prompt was known.
    pub(super) fn admitted(&mut self, now: Duration, reused: Reused) {
        self.times.admitted = Some(now);
        self.report.admitted_at = now;
        self.report.queued = now.saturating_sub(self.times.submitted);
        self.report.cache = Some(reused.stop);
        self.report.evicted = reused.evicted;
    }

    pub(super) fn prefill_progress(&mut self, done: usize, total: usize) {
        self.send(Event::Prefill { cached: self.report.cached_tokens, done, total });
    }

    /// The prompt is computed.
    pub(super) fn prefill_done(&mut self, now: Duration) {
        if let (Some(admitted), None) = (self.times.admitted, self.times.first_token) {
            self.report.prefill = now.saturating_sub(admitted);
            self.times.first_token = Some(now);
        }
    }

    /// A token was generated.
    pub(super) fn token(&mut self, now: Duration) {
        self.report.generated_tokens += 1;
        self.times.last_token = Some(now);
        let first = self.times.first_token.unwrap_or(now);
        self.report.decode = now.saturating_sub(first);
    }

    pub(super) fn text(&mut self, choice: u32, text: String, tokens: Vec<GeneratedToken>) {
        if !text.is_empty() || !tokens.is_empty() {
            self.send(Event::Text { choice, text, tokens });
        }
    }

    /// What it wants instead of text is there.
    pub(super) fn vector(&mut self, vector: Vec<f32>) {
        self.send(Event::Vector(vector));
    }

    /// One choice has ended.
    pub(super) fn finished(&mut self, choice: u32, reason: FinishReason) {
        self.open -= 1;
        self.send(Event::Finished { choice, reason });
    }

    /// All choices have ended: sends the report.
    pub(super) fn done(mut self) {
        let report = self.report.clone();
        self.send(Event::Done(report));
    }

    pub(super) fn failed(mut self, error: RequestError) {
        self.give_up();
        self.send(Event::Failed(error));
    }

    /// Nobody listens any more.
    pub(super) fn cancelled(mut self) {
        self.give_up();
    }

    /// One line about it, for people.
    pub(super) fn summary(&self, now: Duration) -> String {
        let report = &self.report;
        let reuse = report.cache.map_or("not admitted", why);
        format!(
            "prefill {} tokens, {} reused ({reuse}), {:.1} ms, {:.0} tok/s; \
             generated {} tokens, {:.1} tok/s{}; queued {:.1} ms, total {:.1} ms",
            report.prompt_tokens,
            report.cached_tokens,
            millis(report.prefill),
            rate(report.computed_tokens, report.prefill),
            report.generated_tokens,
            rate(report.generated_tokens.saturating_sub(1), report.decode),
            report.retained.as_deref().map_or_else(String::new, kept),
            millis(report.queued),
            millis(now.saturating_sub(self.times.submitted)),
        )
    }

    fn give_up(&mut self) {
        // It has no way to say that it panicked, and there is nobody to tell.
        let _ = contain(|| self.sink.given_up(&self.report));
    }

    /// A listener that panics does not listen any more.
    fn send(&mut self, event: Event) {
        self.listening = self.listening && contain(|| self.sink.send(event)).unwrap_or(false);
    }
}

fn kept(retained: &Retained) -> String {
    let Retained { retention, kept, dropped, tightened, .. } = retained;
    let share = *kept as f64 / (kept + dropped).max(1) as f64;
    let times = match tightened.len() {
        0 => String::new(),
        times => format!(", memory was short {times} times"),
    };
    format!("; {retention} kept {kept} positions, {:.0}%{times}", 100.0 * share)
}

fn why(stop: StopReason) -> &'static str {
    match stop {
        StopReason::Complete => "all known",
        StopReason::FirstSeen => "the rest is new",
        StopReason::Diverged => "then it differs from what is known",
        StopReason::Evicted => "the rest was evicted",
        _ => "the rest is not known",
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
