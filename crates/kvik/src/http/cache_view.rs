//! `/v1/cache`: what is kept, where, how often it was used; and dropping or pinning it by hand.
//!
//! A tenant sees and touches its own prefixes, the admin all.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Query as Parameters, State},
};
use kvik_cache::{PrefixInfo, PrefixOrder};
use kvik_engine::{
    prompts::KeptPrompt,
    stats::{DiskStats, EngineStats},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    app::App,
    body::JsonBody,
    error::ApiError,
    keys::Caller,
    prompts::{blocking, engine, kept, tokens},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Prefixes that are listed where nothing is asked for, and at most.
const LISTED: usize = 20;
const LISTED_MAX: usize = 1000;

/// The parameters of the list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wanted {
    limit: Option<usize>,
    /// `blocks` or `hits`.
    order: Option<String>,
}

/// `GET /v1/cache`: a summary and the top prefixes.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Parameters(wanted): Parameters<Wanted>,
) -> Result<Json<Value>> {
    let order = match wanted.order.as_deref() {
        None | Some("blocks") => PrefixOrder::Blocks,
        Some("hits") => PrefixOrder::Reuses,
        Some(_) => return Err(ApiError::field("order", "`order` is `blocks` or `hits`")),
    };
    let limit = wanted.limit.unwrap_or(LISTED).min(LISTED_MAX);
    blocking(move || {
        // A tenant's own may stand anywhere among all of them.
        let among = if caller.admin { limit } else { usize::MAX };
        let (prefixes, now) = engine(&app)?.prefixes(order, among)?;
        let mine = prefixes.iter().filter(|prefix| caller.admin || prefix.tenant == caller.tenant.id);
        let stats = app.serving.engine.stats();
        let data: Vec<Value> =
            mine.take(limit).map(|prefix| prefix_json(&app, &stats, prefix, now)).collect();
        let mut answer = json!({"object": "cache", "prefixes": data});
        if caller.admin {
            answer["ram"] = ram(&stats);
            answer["disk"] = stats.disk.as_ref().map_or(Value::Null, |disk| disk_json(disk, &stats));
        }
        Ok(Json(answer))
    })
    .await
}

/// `POST /v1/cache/evict`: drops what is known of a prompt, in RAM and on disk.
pub(crate) async fn evict(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    let prompt = prompt(&app, body).await?;
    blocking(move || {
        let blocks = engine(&app)?.invalidate(&prompt)?;
        Ok(Json(json!({"object": "cache.evicted", "tokens": prompt.tokens.len(), "blocks": blocks})))
    })
    .await
}

/// `POST /v1/cache/pin`: computes a prompt and keeps it until it is evicted by hand.
pub(crate) async fn pin(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    let prompt = prompt(&app, body).await?;
    blocking(move || {
        let report = engine(&app)?.cache_system_prompt(&prompt)?;
        let (tokens, computed) = (prompt.tokens.len(), report.computed_tokens);
        Ok(Json(json!({"object": "cache.pinned", "tokens": tokens, "computed_tokens": computed})))
    })
    .await
}

/// `DELETE /v1/cache`: drops all that is neither in use nor pinned, of a tenant or, for the admin, of all.
pub(crate) async fn clear(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>> {
    blocking(move || {
        let salt = (!caller.admin).then(|| caller.tenant.salt());
        let (ram, disk) = engine(&app)?.clear_cache(salt)?;
        Ok(Json(json!({"object": "cache.cleared", "blocks": {"ram": ram, "disk": disk}})))
    })
    .await
}

/// What a body describes, as the caller's tenant has it.
async fn prompt(app: &Arc<App>, body: JsonBody) -> Result<KeptPrompt> {
    let caller = body.caller.clone();
    app.read(body, move |app, mut fields| Ok(kept(tokens(app, &mut fields)?, &caller.tenant))).await
}

fn ram(stats: &EngineStats) -> Value {
    let totals = &stats.cache.totals;
    json!({
        "bytes": stats.kv_bytes,
        "used_bytes": stats.kv_owned_bytes + stats.kv_shared_bytes,
        "blocks": stats.cache.blocks,
        "cached_blocks": stats.cache.shared,
        "tokens": stats.cache.tokens,
        "evicted_blocks": totals.evicted,
        "hit_rate": rate(stats.counters.reused_tokens, stats.counters.prompt_tokens),
    })
}

fn disk_json(disk: &DiskStats, stats: &EngineStats) -> Value {
    let block_bytes = stats.kv_bytes / stats.cache.blocks.max(1);
    let totals = &disk.tier.totals;
    json!({
        "bytes": disk.tier.slots * block_bytes,
        "used_bytes": disk.tier.used * block_bytes,
        "blocks": disk.tier.slots,
        "used_blocks": disk.tier.used,
        "found_at_start": totals.adopted,
        "written_blocks": totals.written,
        "read_blocks": totals.read,
        "faults": totals.write_faults + totals.read_faults,
        "evicted_blocks": totals.evicted,
        "bytes_per_second": disk.load_rate,
        "prefill_tokens_per_second": disk.compute_rate,
    })
}

fn rate(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn prefix_json(app: &App, stats: &EngineStats, prefix: &PrefixInfo, now: std::time::Duration) -> Value {
    let block_bytes = stats.kv_bytes / stats.cache.blocks.max(1);
    let ago = |then: std::time::Duration| now.saturating_sub(then).as_secs_f64();
    json!({
        "text": app.serving.tokenizer.decode(&prefix.head),
        "tokens": prefix.tokens,
        "blocks": prefix.blocks,
        "bytes": prefix.blocks * block_bytes,
        "hits": prefix.reuses,
        "tenant": app.keys().tenants().name_of(prefix.tenant),
        "in_use": prefix.last_use.is_none() && !prefix.pinned,
        "idle_s": prefix.last_use.map(ago),
        "pinned": prefix.pinned,
        "priority": prefix.priority,
        "expires_in_s": prefix.expires.map(|at| at.saturating_sub(now).as_secs_f64()),
    })
}
