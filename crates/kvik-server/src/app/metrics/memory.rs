//! Metrics of conversations that outgrow the context.

use kvik_memory::{
    context::summaries::Flaw,
    memory::{Observer, ReadPart, SummaryOutcome},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{Metrics, register::add};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TurnLabels {
    read: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SummaryLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlawLabels {
    flaw: &'static str,
}

/// Turns and summaries of conversations, and work pending in the background.
pub(crate) struct MemoryMetrics {
    turns: Family<TurnLabels, Counter>,
    quotes: Counter,
    summaries: Family<SummaryLabels, Counter>,
    made: Family<KindLabels, Counter>,
    refused: Family<FlawLabels, Counter>,
    pending: Gauge,
}

impl MemoryMetrics {
    pub(super) fn new(r: &mut Registry) -> MemoryMetrics {
        MemoryMetrics {
            turns: add(r, "memory_turns", "Turns by what was read of the conversation: all, summary, end"),
            quotes: add(r, "memory_quotes", "Exchanges that were quoted at a question"),
            summaries: add(
                r,
                "memory_summaries",
                "Summaries that were due, by what became of them: made, empty, failed",
            ),
            made: add(
                r,
                "memory_summaries_made",
                "Summaries that were made, by how their text came about: summary, facts, extracted",
            ),
            refused: add(
                r,
                "memory_summaries_refused",
                "Texts of the model that were not used as a summary, by their flaw: empty, repeats_itself, repeats_answers, other_language, forgets, says_nothing, too_long",
            ),
            pending: add(r, "memory_pending", "Summaries and conversations that are computed behind answers"),
        }
    }

    /// Counts a turn that reads `quotes` exchanges in addition to recent messages.
    pub(crate) fn turn(&self, read: ReadPart, quotes: usize) {
        let read = match read {
            ReadPart::End => "end",
            ReadPart::Summary => "summary",
            ReadPart::All => "all",
        };
        self.turns.get_or_create(&TurnLabels { read }).inc();
        self.quotes.inc_by(quotes as u64);
    }

    /// Counts a summary by its outcome.
    pub(crate) fn summary(&self, outcome: SummaryOutcome) {
        let outcome = match outcome {
            SummaryOutcome::Made(kind) => {
                self.made.get_or_create(&KindLabels { kind: kind.name() }).inc();
                "made"
            }
            SummaryOutcome::Empty => "empty",
            SummaryOutcome::Failed => "failed",
        };
        self.summaries.get_or_create(&SummaryLabels { outcome }).inc();
    }

    /// Sets the number of summaries and conversations that are being computed in the background.
    pub(crate) fn set_pending(&self, pending: usize) {
        self.pending.set(pending as i64);
    }
}

impl Observer for Metrics {
    fn turn(&self, read: ReadPart, quotes: usize) {
        self.memory.turn(read, quotes);
    }

    fn refused(&self, flaw: Flaw) {
        self.memory.refused.get_or_create(&FlawLabels { flaw: flaw.name() }).inc();
    }

    fn summary(&self, outcome: SummaryOutcome) {
        self.memory.summary(outcome);
    }
}
