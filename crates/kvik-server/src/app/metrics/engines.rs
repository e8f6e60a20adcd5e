//! Metrics of engines, one for each model in memory.

use std::sync::atomic::{AtomicU64, Ordering};

use kvik_cache::BLOCK_POSITIONS;
use kvik_engine::stats::{DraftSource, EngineStats};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

use super::{
    disk::DiskMetrics,
    per_model::{ModelLabels, PerModel, put, store},
    register::add,
    remote::RemoteMetrics,
};

/// Set from the engines' numbers at each scrape.
pub(super) struct EngineMetrics {
    ended: PerModel<Counter>,
    drafted: PerModel<Counter>,
    accepted: PerModel<Counter>,
    preemptions: PerModel<Counter>,
    step_seconds: PerModel<Counter<f64, AtomicU64>>,
    model_seconds: PerModel<Counter<f64, AtomicU64>>,
    waiting: PerModel,
    running: PerModel,
    kv_bytes: PerModel,
    kv_used_bytes: PerModel,
    kv_usage: PerModel<Gauge<f64, AtomicU64>>,
    block_tokens: PerModel,
    blocks: PerModel,
    blocks_free: PerModel,
    blocks_cached: PerModel,
    blocks_owned: PerModel,
    blocks_withheld: PerModel,
    tree_tokens: PerModel,
    compute_rate: PerModel,
    disk: DiskMetrics,
    remote: RemoteMetrics,
}

impl EngineMetrics {
    pub(super) fn new(r: &mut Registry) -> EngineMetrics {
        EngineMetrics {
            ended: add(
                r,
                "requests_ended",
                "Requests of clients by how they ended: completed, cancelled, failed",
            ),
            drafted: add(r, "drafted_tokens", "Tokens that were tried beside the next one, by source"),
            accepted: add(r, "draft_accepted_tokens", "Of these, tokens that came next"),
            preemptions: add(
                r,
                "preemptions",
                "Sequences that gave up their blocks for others and came back",
            ),
            step_seconds: add(r, "step_seconds", "Time of steps that computed something"),
            model_seconds: add(r, "model_seconds", "Of it, time that the model took"),
            waiting: add(r, "requests_waiting", "Requests that wait for admission"),
            running: add(r, "requests_running", "Sequences that are computed now"),
            kv_bytes: add(r, "kv_budget_bytes", "Memory for keys and values"),
            kv_used_bytes: add(r, "kv_used_bytes", "Of it, memory that holds something"),
            kv_usage: add(
                r,
                "kv_usage_ratio",
                "Share of the blocks that running requests use, as routers read it: not what is only cached or pinned",
            ),
            block_tokens: add(r, "block_tokens", "Positions of a block"),
            blocks: add(r, "blocks_total", "Blocks of 16 positions in the budget"),
            blocks_free: add(r, "blocks_free", "Blocks that hold nothing"),
            blocks_cached: add(r, "blocks_cached", "Blocks in the prefix tree, each counted once"),
            blocks_owned: add(r, "blocks_owned", "Blocks that belong to one running sequence"),
            blocks_withheld: add(
                r,
                "blocks_withheld",
                "Blocks whose memory windows and states take, of running sequences and in the cache",
            ),
            tree_tokens: add(r, "tree_tokens", "Tokens in the prefix tree"),
            compute_rate: add(
                r,
                "prefill_tokens_per_second",
                "Measured speed of computing prompts, 0 before the first",
            ),
            disk: DiskMetrics::new(r),
            remote: RemoteMetrics::new(r),
        }
    }

    /// Replaces all numbers: a model that is no longer in memory has none.
    pub(super) fn set(&self, engines: &[(Option<String>, EngineStats)]) {
        self.clear();
        for (model, stats) in engines {
            self.add(&ModelLabels::of(model.as_deref()), stats);
        }
    }

    fn clear(&self) {
        let EngineMetrics {
            ended,
            drafted,
            accepted,
            preemptions,
            step_seconds,
            model_seconds,
            disk,
            remote,
            ..
        } = self;
        [ended, drafted, accepted, preemptions].iter().for_each(|family| family.clear());
        [step_seconds, model_seconds].iter().for_each(|family| family.clear());
        self.kv_usage.clear();
        self.gauges().iter().for_each(|family| family.clear());
        disk.clear();
        remote.clear();
    }

    fn gauges(&self) -> [&PerModel; 12] {
        [
            &self.waiting,
            &self.running,
            &self.kv_bytes,
            &self.kv_used_bytes,
            &self.block_tokens,
            &self.blocks,
            &self.blocks_free,
            &self.blocks_cached,
            &self.blocks_owned,
            &self.blocks_withheld,
            &self.tree_tokens,
            &self.compute_rate,
        ]
    }

    fn add(&self, labels: &ModelLabels, stats: &EngineStats) {
        let done = &stats.counters;
        let ended = [("completed", done.completed), ("cancelled", done.cancelled), ("failed", done.failed)];
        for (outcome, value) in ended {
            store(&self.ended, &labels.with("outcome", outcome), value);
        }
        self.disk.add(labels, stats.disk.as_ref());
        self.remote.add(labels, stats.remote);
        let drafts = [(&self.drafted, done.drafted_tokens), (&self.accepted, done.accepted_tokens)];
        for (counter, tokens) in drafts {
            for (source, tokens) in DraftSource::ALL.iter().zip(tokens) {
                store(counter, &labels.with("source", source.name()), tokens);
            }
        }
        store(&self.preemptions, labels, done.preemptions);
        for (counter, time) in [(&self.step_seconds, done.step_time), (&self.model_seconds, done.model_time)]
        {
            let counter = counter.get_or_create(labels);
            counter.inner().store(time.as_secs_f64().to_bits(), Ordering::Relaxed);
        }
        let cache = &stats.cache;
        let usage = cache.in_use as f64 / cache.blocks.max(1) as f64;
        self.kv_usage.get_or_create(labels).set(usage);
        let values = [
            stats.waiting,
            stats.running,
            stats.kv_bytes,
            stats.kv_used_bytes(),
            BLOCK_POSITIONS,
            cache.blocks,
            cache.free,
            cache.shared,
            cache.owned,
            cache.withheld,
            cache.tokens,
            stats.compute_rate.unwrap_or_default() as usize,
        ];
        self.gauges().into_iter().zip(values).for_each(|(gauge, value)| put(gauge, labels, value));
    }
}
