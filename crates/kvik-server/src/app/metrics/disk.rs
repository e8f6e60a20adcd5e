//! Metrics of the cache tiers below the memory that the model computes in.

use kvik_engine::stats::{DiskRole, DiskStats, HostStats};
use prometheus_client::{metrics::counter::Counter, registry::Registry};

use super::{
    per_model::{ModelLabels, PerModel, put, store},
    register::add,
};

/// Set from the engine's numbers at each scrape; all zero without a disk.
pub(crate) struct DiskMetrics {
    writes: PerModel,
    slots: PerModel,
    used: PerModel,
    writing: PerModel,
    waiting: PerModel,
    written_today: PerModel,
    written_year: PerModel,
    loads: PerModel,
    wishes: PerModel,
    load_rate: PerModel,
    host: PerModel,
    host_used: PerModel,
    host_load_rate: PerModel,
    adopted: PerModel<Counter>,
    written: PerModel<Counter>,
    write_faults: PerModel<Counter>,
    read: PerModel<Counter>,
    read_faults: PerModel<Counter>,
    evicted: PerModel<Counter>,
    expired: PerModel<Counter>,
}

impl DiskMetrics {
    pub(crate) fn new(r: &mut Registry) -> DiskMetrics {
        DiskMetrics {
            writes: add(
                r,
                "disk_writer",
                "1 if this process writes the disk cache, 0 if it reads that of another one or there is none",
            ),
            slots: add(r, "disk_blocks", "Blocks that the disk has room for"),
            used: add(r, "disk_blocks_used", "Blocks on disk"),
            writing: add(r, "disk_writes_pending", "Blocks on their way to the disk"),
            waiting: add(
                r,
                "disk_blocks_waiting",
                "Blocks of conversations that wait in RAM to be written, if it pays, before they leave it",
            ),
            written_today: add(r, "disk_written_bytes_today", "Bytes written to the disk today (UTC)"),
            written_year: add(
                r,
                "disk_written_bytes_per_year",
                "Bytes that a year would come to at the mean rate of the days so far",
            ),
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
            adopted: add(r, "disk_blocks_adopted", "Blocks found on disk at the start"),
            written: add(r, "disk_blocks_written", "Blocks written"),
            write_faults: add(r, "disk_write_faults", "Blocks that could not be written"),
            read: add(r, "disk_blocks_read", "Blocks read back"),
            read_faults: add(r, "disk_read_faults", "Blocks that were not what they should be"),
            evicted: add(r, "disk_blocks_evicted", "Blocks that went from the disk for want of space"),
            expired: add(r, "disk_blocks_expired", "Blocks that outlived their time on disk"),
        }
    }

    /// Clears all models.
    pub(super) fn clear(&self) {
        self.gauges().iter().for_each(|family| family.clear());
        self.counters().iter().for_each(|family| family.clear());
    }

    /// Adds the numbers of a model.
    pub(super) fn add(&self, labels: &ModelLabels, stats: Option<&DiskStats>) {
        let (gauges, counters) = stats.map(numbers).unwrap_or_default();
        self.gauges().into_iter().zip(gauges).for_each(|(gauge, value)| put(gauge, labels, value));
        self.counters().into_iter().zip(counters).for_each(|(counter, value)| store(counter, labels, value));
    }

    fn gauges(&self) -> [&PerModel; 13] {
        [
            &self.writes,
            &self.slots,
            &self.used,
            &self.writing,
            &self.waiting,
            &self.written_today,
            &self.written_year,
            &self.loads,
            &self.wishes,
            &self.load_rate,
            &self.host,
            &self.host_used,
            &self.host_load_rate,
        ]
    }

    fn counters(&self) -> [&PerModel<Counter>; 7] {
        [
            &self.adopted,
            &self.written,
            &self.write_faults,
            &self.read,
            &self.read_faults,
            &self.evicted,
            &self.expired,
        ]
    }
}

/// The values of the gauges and of the counters, in their order.
fn numbers(stats: &DiskStats) -> ([usize; 13], [u64; 7]) {
    let (tier, totals) = (&stats.tier, &stats.tier.totals);
    let host = stats.host.unwrap_or(HostStats { blocks: 0, used: 0, is_last: false });
    let rate = |rate: Option<f64>| rate.unwrap_or_default() as usize;
    let gauges = [
        usize::from(stats.role == DiskRole::Writer && stats.is_on_disk()),
        tier.slots,
        tier.used,
        stats.writing,
        stats.writes.waiting_blocks,
        stats.writes.today_bytes as usize,
        stats.writes.year_bytes as usize,
        stats.loads,
        stats.prefetch_candidates,
        rate(stats.load_rate),
        host.blocks,
        host.used,
        rate(stats.host_load_rate),
    ];
    let counters = [
        totals.adopted,
        totals.written,
        totals.write_faults,
        totals.read,
        totals.read_faults,
        totals.evicted,
        totals.expired,
    ];
    (gauges, counters)
}
