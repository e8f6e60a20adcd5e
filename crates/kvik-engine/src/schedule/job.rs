//! An open request: its event sink, its open choices and its report.

use std::time::Duration;

use kvik_cache::StopReason;

use super::prefix::Reused;
use crate::api::{
    ChoiceTokens, Event, EventSink, FinishReason, GeneratedToken, Report, RequestError, Retained,
};
use crate::panics::contain;

/// The id of a request; later ones are larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobId(pub(super) u64);

/// A request that has not ended.
pub(super) struct Job {
    sink: Box<dyn EventSink>,
    listening: bool,
    /// Choices that have not ended.
    pub(super) open: u32,
    pub(super) choices: u32,
    /// True if it is a background request.
    pub(super) background: bool,
    /// True if it is work of idle time, without a client.
    pub(super) in_idle_time: bool,
    pub(super) report: Report,
    pub(super) times: Times,
}

/// Times of its events, on the scheduler's clock.
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
            in_idle_time: false,
            report: Report { prompt_tokens, ..Report::default() },
            times: Times { submitted: now, admitted: None, first_token: None, last_token: None },
        }
    }

    /// Whether it is a client's: neither of the background nor of idle time.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.background && !self.in_idle_time
    }

    /// Whether the client has gone.
    pub(super) fn is_closed(&self) -> bool {
        !self.listening || contain(|| self.sink.is_closed()).unwrap_or(true)
    }

    /// Number of sequences of the request now: choices other than the first start with the first token.
    pub(super) fn sequences(&self) -> usize {
        if self.times.first_token.is_some() { self.open as usize } else { 1 }
    }

    /// Records that the prefill begins; `reused` says why no more of the prompt was known.
    pub(super) fn admitted(&mut self, now: Duration, reused: Reused) {
        self.times.admitted = Some(now);
        self.report.queued = now.saturating_sub(self.times.submitted);
        self.report.cache = Some(reused.stop);
        self.report.evicted = reused.evicted;
    }

    pub(super) fn prefill_progress(&mut self, done: usize, total: usize) {
        self.send(Event::Prefill { cached: self.report.cached_tokens, done, total });
    }

    /// Records that the prompt is computed.
    pub(super) fn prefill_done(&mut self, now: Duration) {
        if let (Some(admitted), None) = (self.times.admitted, self.times.first_token) {
            self.report.prefill = now.saturating_sub(admitted);
            self.times.first_token = Some(now);
        }
    }

    /// Records a generated token of a choice, which may be its first one.
    pub(super) fn token(&mut self, choice: u32, is_first: bool, now: Duration) {
        let decoded = usize::from(!is_first);
        self.count(choice, ChoiceTokens { generated: 1, decoded, ..ChoiceTokens::default() });
        self.times.last_token = Some(now);
        let first = self.times.first_token.unwrap_or(now);
        self.report.decode = now.saturating_sub(first);
    }

    /// Adds to the counts of a choice and to those of all.
    pub(super) fn count(&mut self, choice: u32, new: ChoiceTokens) {
        let (index, report) = (choice as usize, &mut self.report);
        if report.choices.len() <= index {
            report.choices.resize(index + 1, ChoiceTokens::default());
        }
        let own = &mut report.choices[index];
        for (own, all, new) in [
            (&mut own.generated, &mut report.generated_tokens, new.generated),
            (&mut own.decoded, &mut report.decoded_tokens, new.decoded),
            (&mut own.drafted, &mut report.drafted_tokens, new.drafted),
            (&mut own.accepted, &mut report.accepted_tokens, new.accepted),
        ] {
            *own += new;
            *all += new;
        }
    }

    pub(super) fn text(&mut self, choice: u32, text: String, tokens: Vec<GeneratedToken>) {
        if !text.is_empty() || !tokens.is_empty() {
            self.send(Event::Text { choice, text, tokens });
        }
    }

    /// Sends the result of a request that wants a vector instead of text.
    pub(super) fn vector(&mut self, vector: Vec<f32>) {
        self.send(Event::Vector(vector));
    }

    /// Ends one choice.
    pub(super) fn finished(&mut self, choice: u32, reason: FinishReason) {
        self.open -= 1;
        self.send(Event::Finished { choice, reason });
    }

    /// Sends the report after all choices have ended. A client that left during the last step has it too: it is charged
    /// for what was computed.
    pub(super) fn done(mut self) {
        if !self.listening {
            return self.give_up();
        }
        let report = self.report.clone();
        self.send(Event::Done(report));
    }

    pub(super) fn failed(mut self, error: RequestError) {
        self.give_up();
        self.send(Event::Failed(error));
    }

    /// Ends a request whose client has gone.
    pub(super) fn cancelled(mut self) {
        self.give_up();
    }

    /// Summary of the request for the log, one line.
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
            rate(report.decoded_tokens, report.decode),
            report.retained.as_deref().map_or_else(String::new, kept),
            millis(report.queued),
            millis(now.saturating_sub(self.times.submitted)),
        )
    }

    fn give_up(&mut self) {
        // The sink may panic, but its client has gone and cannot be notified.
        let _ = contain(|| self.sink.given_up(&self.report));
    }

    /// Sends an event; a sink that panics counts as closed.
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
