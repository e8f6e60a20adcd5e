//! Metrics of the store that nodes share.

use kvik_engine::stats::RemoteStats;
use prometheus_client::{metrics::counter::Counter, registry::Registry};

use super::{
    per_model::{ModelLabels, PerModel, put, store},
    register::add,
};

/// Set from the engine's numbers at each scrape; all zero without a shared store.
pub(super) struct RemoteMetrics {
    up: PerModel,
    writing: PerModel,
    counters: [PerModel<Counter>; 9],
}

impl RemoteMetrics {
    pub(super) fn new(r: &mut Registry) -> RemoteMetrics {
        RemoteMetrics {
            up: add(r, "remote_up", "1 while the store that nodes share answers"),
            writing: add(r, "remote_writes_pending", "Blocks on their way to the store that nodes share"),
            counters: [
                add(r, "remote_lookups", "Prompts looked up in the store that nodes share"),
                add(r, "remote_hits", "Of these, prompts of which something was there"),
                add(r, "remote_blocks_read", "Blocks read from the store that nodes share"),
                add(r, "remote_bytes_read", "Bytes of these, as they were sent"),
                add(r, "remote_blocks_written", "Blocks written to the store that nodes share"),
                add(r, "remote_bytes_written", "Bytes of these, as they were sent"),
                add(r, "remote_blocks_dropped", "Blocks offered to it that were not written"),
                add(r, "remote_faults", "Lookups, reads and writes that failed or came too late"),
                add(r, "remote_corrupt", "Values that were not what they should be"),
            ],
        }
    }

    /// Clears all models.
    pub(super) fn clear(&self) {
        [&self.up, &self.writing].iter().for_each(|family| family.clear());
        self.counters.iter().for_each(|family| family.clear());
    }

    /// Adds the numbers of a model.
    pub(super) fn add(&self, labels: &ModelLabels, stats: Option<RemoteStats>) {
        let stats = stats.unwrap_or_default();
        put(&self.up, labels, usize::from(stats.is_up));
        put(&self.writing, labels, stats.writing_blocks);
        let counts = [
            stats.lookups,
            stats.hits,
            stats.read_blocks,
            stats.read_bytes,
            stats.written_blocks,
            stats.written_bytes,
            stats.dropped_blocks,
            stats.faults,
            stats.corrupt,
        ];
        self.counters.iter().zip(counts).for_each(|(counter, value)| store(counter, labels, value));
    }
}
