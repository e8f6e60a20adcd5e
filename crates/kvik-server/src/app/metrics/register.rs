//! Registration of metrics.

use prometheus_client::registry::{Metric, Registry};

/// Registers a metric.
pub(super) fn add<M>(registry: &mut Registry, name: &str, help: &str) -> M
where
    M: Default + Clone + Metric,
{
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}
