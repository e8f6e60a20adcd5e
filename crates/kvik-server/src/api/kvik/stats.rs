//! `GET /v1/stats`: totals of requests and reuse since the start, and the current contents of the cache.
//!
//! It is designed to be polled every second: it searches nothing and waits for nothing.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{Extension, Json, extract::State};
use kvik_engine::stats::{DiskStats, EngineStats};
use serde::Serialize;

use super::cache::block_bytes;
use crate::{
    app::{keys::Caller, report::cache::ByTier, state::App, tally::Counts},
    described::JsonSchema,
    http::answer::words,
};

words! {
    StatsWord = "stats";
}

/// Totals since the start, and what the cache holds.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Stats {
    object: StatsWord,
    /// Unix time, seconds.
    time: f64,
    started: f64,
    scope: Scope,
    tokens: Tokens,
    requests: Requests,
    /// For the admin.
    queue: Option<Queue>,
    /// For the admin.
    kv: Option<Kv>,
}

/// Whose numbers these are.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Scope {
    Server,
    Tenant,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Tokens {
    prompt: u64,
    cached: u64,
    by_tier: ByTier<u64>,
    /// Prompt tokens that were computed. Together with `cached` less than `prompt` where requests were given up.
    computed: u64,
    generated: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Requests {
    answered: u64,
    failed: u64,
    refused: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Queue {
    running: usize,
    waiting: usize,
    parallel: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Kv {
    ram: KvRam,
    /// Null without a disk.
    disk: Option<KvDisk>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct KvRam {
    bytes: usize,
    capacity_bytes: usize,
    pinned_bytes: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct KvDisk {
    bytes: usize,
    capacity_bytes: usize,
}

/// Answers with totals. A tenant sees only its own; the queue and the cache would reveal other tenants.
pub(crate) async fn route(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Json<Stats> {
    let engine = caller.admin.then(|| app.serving.engine.stats());
    let counts = app.server.tally.of((!caller.admin).then_some(&caller.tenant.name));
    Json(Stats {
        object: StatsWord,
        time: seconds(SystemTime::now()),
        started: seconds(app.server.tally.started),
        scope: if caller.admin { Scope::Server } else { Scope::Tenant },
        tokens: tokens(&counts, engine.as_ref().filter(|_| !app.server.has_several_models())),
        requests: Requests { answered: counts.answered, failed: counts.failed, refused: counts.refused },
        queue: engine.as_ref().map(|engine| queue(engine, app.serving.model.parallel)),
        kv: engine.as_ref().map(kv),
    })
}

/// Counts prompts when their answer ends. Generated tokens count at once if the statistics of the server's only engine
/// are available.
fn tokens(counts: &Counts, engine: Option<&EngineStats>) -> Tokens {
    let Counts { prompt_tokens, cached_tokens, loaded, computed_tokens, generated_tokens, .. } = *counts;
    Tokens {
        prompt: prompt_tokens,
        cached: cached_tokens,
        by_tier: ByTier::of(cached_tokens, loaded),
        computed: computed_tokens,
        generated: engine.map_or(generated_tokens, |engine| engine.counters.generated_tokens),
    }
}

fn queue(engine: &EngineStats, parallel: usize) -> Queue {
    Queue { running: engine.running, waiting: engine.waiting, parallel }
}

fn kv(engine: &EngineStats) -> Kv {
    let block_bytes = block_bytes(engine);
    let disk = |disk: &DiskStats| KvDisk {
        bytes: disk.tier.used * block_bytes,
        capacity_bytes: disk.tier.slots * block_bytes,
    };
    Kv {
        ram: KvRam {
            bytes: engine.kv_used_bytes(),
            capacity_bytes: engine.kv_bytes,
            pinned_bytes: engine.cache.pinned * block_bytes,
        },
        disk: engine.disk.as_ref().map(disk),
    }
}

/// Returns a Unix time in seconds.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
