//! Metrics of conditions that keep a server from answering: a stuck engine, a log that is not drained.

use std::sync::atomic::{AtomicU64, Ordering};

use kvik_model::pulse::Life;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

use super::register::add;

/// Set at each scrape.
pub(crate) struct LifeMetrics {
    last_step: Gauge<f64, AtomicU64>,
    log_dropped: Counter,
}

impl LifeMetrics {
    pub(super) fn new(r: &mut Registry) -> LifeMetrics {
        LifeMetrics {
            last_step: add(
                r,
                "engine_last_step_seconds",
                "Time since the engine's thread last said that it goes on; 0 while there is no work",
            ),
            log_dropped: add(r, "log_lines_dropped", "Lines of the log that nobody read in time"),
        }
    }

    /// Sets the state of the engine, and the number of log lines dropped since the start.
    pub(crate) fn set(&self, life: Life, log_dropped: u64) {
        self.last_step.set(life.age.as_secs_f64());
        self.log_dropped.inner().store(log_dropped, Ordering::Relaxed);
    }
}
