//! Metrics of turns that are computed behind answers.

use kvik_session::AheadCounts;
use prometheus_client::{metrics::counter::Counter, registry::Registry};

use super::{
    per_model::{ModelLabels, PerModel, store},
    register::add,
};

/// Set from the models' numbers at each scrape; absent until something was computed.
pub(crate) struct AheadMetrics {
    computed: PerModel<Counter>,
    used: PerModel<Counter>,
}

impl AheadMetrics {
    pub(super) fn new(r: &mut Registry) -> AheadMetrics {
        AheadMetrics {
            computed: add(r, "ahead_tokens", "Tokens of next turns that were computed behind answers"),
            used: add(r, "ahead_used_tokens", "Of these, tokens that the next turn found"),
        }
    }

    /// Replaces the numbers of all models.
    pub(crate) fn set(&self, models: impl Iterator<Item = (Option<String>, AheadCounts)>) {
        let AheadMetrics { computed, used } = self;
        [computed, used].iter().for_each(|family| family.clear());
        for (model, counts) in models.filter(|(_, counts)| counts.computed > 0) {
            let labels = ModelLabels::of(model.as_deref());
            store(computed, &labels, counts.computed);
            store(used, &labels, counts.used);
        }
    }
}
