//! Metrics of retention. The only label is the name of a policy, of which there are few.

use kvik_engine::api::Retained;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::register::add;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    policy: &'static str,
}

/// Positions retained and dropped in complete answers.
pub(super) struct RetainMetrics {
    requests: Family<PolicyLabels, Counter>,
    kept: Family<PolicyLabels, Counter>,
    dropped: Family<PolicyLabels, Counter>,
    tightened: Family<PolicyLabels, Counter>,
}

impl RetainMetrics {
    pub(super) fn new(r: &mut Registry) -> RetainMetrics {
        RetainMetrics {
            requests: add(r, "retain_requests", "Prompts answered by sequences that forgot, by policy"),
            kept: add(r, "retain_positions_kept", "Positions that their heads kept when they forgot last"),
            dropped: add(r, "retain_positions_dropped", "Positions that their heads had dropped by then"),
            tightened: add(r, "retain_tightened", "Times that they forgot because memory was short"),
        }
    }

    pub(super) fn answered(&self, retained: &Retained) {
        let labels = PolicyLabels { policy: retained.retention.policy.name() };
        self.requests.get_or_create(&labels).inc();
        self.kept.get_or_create(&labels).inc_by(retained.kept);
        self.dropped.get_or_create(&labels).inc_by(retained.dropped);
        self.tightened.get_or_create(&labels).inc_by(retained.tightened.len() as u64);
    }
}
