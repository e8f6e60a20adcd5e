//! `GET /v1/stats`: what was asked and reused since the start, and what the cache holds now.
//!
//! It is meant to be read each second: nothing is searched, and nobody waits for it.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{Extension, Json, extract::State};
use kvik_engine::stats::{DiskStats, EngineStats};
use serde_json::{Value, json};

use super::cache::block_bytes;
use crate::app::{keys::Caller, state::App, tally::Counts};

/// Answers with totals. A tenant sees its own; the queue and the cache would tell it of others.
pub(crate) async fn route(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Json<Value> {
    let engine = caller.admin.then(|| app.serving.engine.stats());
    let counts = app.tally.of((!caller.admin).then_some(&caller.tenant.name));
    Json(json!({
        "object": "stats",
        "time": seconds(SystemTime::now()),
        "started": seconds(app.tally.started),
        "scope": if caller.admin { "server" } else { "tenant" },
        "tokens": tokens(&counts, engine.as_ref()),
        "requests": {"answered": counts.answered, "failed": counts.failed, "refused": counts.refused},
        "queue": engine.as_ref().map(|engine| queue(engine, app.serving.model.parallel)),
        "kv": engine.as_ref().map(kv),
    }))
}

/// Prompts count when their answer ends. What is generated counts at once where the engine says it.
fn tokens(counts: &Counts, engine: Option<&EngineStats>) -> Value {
    let Counts { prompt_tokens, cached_tokens, disk_tokens, generated_tokens, .. } = *counts;
    json!({
        "prompt": prompt_tokens,
        "cached": cached_tokens,
        "by_tier": {"ram": cached_tokens.saturating_sub(disk_tokens), "disk": disk_tokens},
        "generated": engine.map_or(generated_tokens, |engine| engine.counters.generated_tokens),
    })
}

fn queue(engine: &EngineStats, parallel: usize) -> Value {
    json!({"running": engine.running, "waiting": engine.waiting, "parallel": parallel})
}

fn kv(engine: &EngineStats) -> Value {
    let block_bytes = block_bytes(engine);
    let disk = |disk: &DiskStats| json!({"bytes": disk.tier.used * block_bytes, "capacity_bytes": disk.tier.slots * block_bytes});
    json!({
        "ram": {
            "bytes": engine.kv_owned_bytes + engine.kv_shared_bytes,
            "capacity_bytes": engine.kv_bytes,
            "pinned_bytes": engine.cache.pinned * block_bytes,
        },
        "disk": engine.disk.as_ref().map(disk),
    })
}

/// Unix time.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
