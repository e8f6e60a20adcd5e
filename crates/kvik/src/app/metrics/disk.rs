//! Metrics of the tiers below the memory that is computed with.

use kvik_engine::stats::{DiskStats, HostStats};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use std::sync::atomic::Ordering;

use super::register::add;

/// Set from the engine's numbers when they are asked for; all zero where there is no disk.
pub(crate) struct DiskMetrics {
    slots: Gauge,
    used: Gauge,
    writing: Gauge,
    loads: Gauge,
    wishes: Gauge,
    load_rate: Gauge,
    host: Gauge,
    host_used: Gauge,
    host_load_rate: Gauge,
    compute_rate: Gauge,
    adopted: Counter,
    written: Counter,
    write_faults: Counter,
    read: Counter,
    read_faults: Counter,
    evicted: Counter,
    expired: Counter,
}

impl DiskMetrics {
    pub(crate) fn new(r: &mut Registry) -> DiskMetrics {
        DiskMetrics {
            slots: add(r, "disk_blocks", "Blocks that the disk has room for"),
            used: add(r, "disk_blocks_used", "Blocks on disk"),
            writing: add(r, "disk_writes_pending", "Blocks on their way to the disk"),
            loads: add(r, "disk_loads", "Prefixes that are being read"),
            wishes: add(r, "disk_prefixes_to_warm", "Prefixes still to be brought back since the start"),
            load_rate: add(r, "disk_load_bytes_per_second", "Measured speed of loading, 0 before the first"),
            host: add(r, "host_blocks", "Blocks that the host's memory has room for, where a GPU computes"),
            host_used: add(r, "host_blocks_used", "Blocks in the host's memory, where a GPU computes"),
            host_load_rate: add(
                r,
                "host_load_bytes_per_second",
                "Measured speed of loading from the host's memory",
            ),
            compute_rate: add(r, "prefill_tokens_per_second", "Measured speed of computing prompts"),
            adopted: add(r, "disk_blocks_adopted", "Blocks found on disk at the start"),
            written: add(r, "disk_blocks_written", "Blocks written"),
            write_faults: add(r, "disk_write_faults", "Blocks that could not be written"),
            read: add(r, "disk_blocks_read", "Blocks read back"),
            read_faults: add(r, "disk_read_faults", "Blocks that were not what they should be"),
            evicted: add(r, "disk_blocks_evicted", "Blocks that went from the disk for want of space"),
            expired: add(r, "disk_blocks_expired", "Blocks that outlived their time on disk"),
        }
    }

    pub(crate) fn set(&self, stats: &DiskStats) {
        let (tier, totals) = (&stats.tier, &stats.tier.totals);
        let host = stats.host.unwrap_or(HostStats { blocks: 0, used: 0, is_last: false });
        let gauges = [
            (&self.slots, tier.slots),
            (&self.used, tier.used),
            (&self.writing, stats.writing),
            (&self.loads, stats.loads),
            (&self.wishes, stats.prefetch_candidates),
            (&self.load_rate, stats.load_rate.unwrap_or_default() as usize),
            (&self.host, host.blocks),
            (&self.host_used, host.used),
            (&self.host_load_rate, stats.host_load_rate.unwrap_or_default() as usize),
            (&self.compute_rate, stats.compute_rate.unwrap_or_default() as usize),
        ];
        for (gauge, value) in gauges {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let counters = [
            (&self.adopted, totals.adopted),
            (&self.written, totals.written),
            (&self.write_faults, totals.write_faults),
            (&self.read, totals.read),
            (&self.read_faults, totals.read_faults),
            (&self.evicted, totals.evicted),
            (&self.expired, totals.expired),
        ];
        counters.into_iter().for_each(|(counter, value)| counter.inner().store(value, Ordering::Relaxed));
    }
}
