//! `/v1/cache`: cached prefixes, their tiers and their use; eviction and pinning by hand.
//!
//! A tenant sees and changes its own prefixes, the administrator all of them.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, Query as Parameters, State},
    http::StatusCode,
};
use kvik_cache::{BLOCK_POSITIONS, PinId, PinInfo, PrefixInfo, PrefixOrder, TenantId, Token};
use kvik_engine::api::{Request, Unpin};
use kvik_engine::schedule::prefix::common_prefix;
use kvik_engine::stats::{DiskRole, DiskStats, EngineStats, HostStats};
use kvik_memory::settle::Learning;
use kvik_session::Chat;
use serde::{Deserialize, Serialize};

use super::{
    named::{Named, only, shared_tokens},
    prompts::{blocking, engine, kept},
};
use crate::{
    accounts::tenants::{Share, Tenant},
    api::request::parts::FromBody,
    app::{
        body::JsonBody,
        chat_text,
        keys::Caller,
        rate_limits,
        report::{cache::ByTier, usage::Usage},
        settled,
        state::App,
    },
    described::JsonSchema,
    http::{answer::words, error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum time that a client waits for evicted data to be erased on disk; the rest is erased after the
/// answer.
const ERASE_TIME: Duration = Duration::from_secs(5);
/// Default and maximum number of listed prefixes.
const LISTED: usize = 20;
const LISTED_MAX: usize = 1000;

words! {
    CacheWord = "cache";
    EvictedWord = "cache.evicted";
    PinnedWord = "cache.pinned";
    ClearedWord = "cache.cleared";
    UnpinnedWord = "cache.unpinned";
    List = "list";
}

/// A summary of the cache, and its top prefixes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CacheList {
    object: CacheWord,
    prefixes: Vec<Prefix>,
    /// For the admin.
    #[serde(flatten)]
    tiers: Option<Tiers>,
}

/// What the tiers hold of all tenants.
#[derive(Debug, Serialize, JsonSchema)]
struct Tiers {
    ram: Ram,
    /// Copies in the host's memory of what a GPU computes with; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Host>,
    /// Null without a disk.
    disk: Option<Disk>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RamTier")]
struct Ram {
    bytes: usize,
    used_bytes: usize,
    blocks: usize,
    cached_blocks: usize,
    tokens: usize,
    pinned_blocks: usize,
    pinned_blocks_limit: usize,
    evicted_blocks: u64,
    /// Of the prompt tokens of clients that were reused or computed, the share of the reused ones.
    hit_rate: f64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HostTier")]
struct Host {
    bytes: usize,
    used_bytes: usize,
    blocks: usize,
    used_blocks: usize,
    bytes_per_second: Option<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DiskTier")]
struct Disk {
    /// False where this process reads what another one writes.
    writes: bool,
    /// The process that writes instead, where it is known.
    writer_pid: Option<u32>,
    bytes: usize,
    used_bytes: usize,
    blocks: usize,
    used_blocks: usize,
    found_at_start: u64,
    written_blocks: u64,
    /// What is written: `all`, `reused` or `auto`.
    write_policy: &'static str,
    /// Blocks of conversations that wait in RAM until they are worth writing or leave it.
    waiting_blocks: usize,
    /// Bytes written today (UTC), by all that has used the directory.
    written_bytes_today: u64,
    /// What a year comes to at the mean rate of the days so far.
    written_bytes_per_year: u64,
    read_blocks: u64,
    faults: u64,
    evicted_blocks: u64,
    bytes_per_second: Option<f64>,
    prefill_tokens_per_second: Option<f64>,
}

/// A prefix of the cache.
#[derive(Debug, Serialize, JsonSchema)]
struct Prefix {
    /// How it begins; null where a tenant must not see it.
    text: Option<String>,
    tokens: usize,
    blocks: usize,
    bytes: usize,
    hits: u32,
    tenant: String,
    in_use: bool,
    /// Null of one that is in use.
    idle_s: Option<f64>,
    pinned: bool,
    priority: i8,
    expires_in_s: Option<f64>,
}

/// What was dropped.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CacheEvicted")]
pub(crate) struct Evicted {
    object: EvictedWord,
    tokens: usize,
    blocks: usize,
    pins: usize,
    /// Names of the kept prompts that begin so.
    prompts: Vec<String>,
}

/// What was pinned.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CachePinned")]
pub(crate) struct Pinned {
    object: PinnedWord,
    tokens: usize,
    computed_tokens: usize,
    usage: Usage,
}

/// What is pinned.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Pins {
    object: List,
    data: Vec<Pin>,
    /// For the admin.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<PinnedBlocks>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Pin {
    id: u64,
    /// How it begins; null where a tenant must not see it.
    text: Option<String>,
    tokens: usize,
    blocks: usize,
    bytes: usize,
    tenant: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct PinnedBlocks {
    pinned: usize,
    limit: usize,
}

/// How many pins were taken back.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CacheUnpinned")]
pub(crate) struct Unpinned {
    object: UnpinnedWord,
    pins: usize,
}

/// How much was dropped.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CacheCleared")]
pub(crate) struct Cleared {
    object: ClearedWord,
    blocks: ByTier,
}

/// The parameters of the list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wanted {
    limit: Option<usize>,
    /// `blocks` or `hits`.
    order: Option<String>,
    /// By which the shelf has chosen the model already, here and below.
    #[serde(rename = "model")]
    _model: Option<String>,
}

/// The parameters of the list, as the OpenAPI document describes them.
pub(super) const LIST_PARAMETERS: [(&str, &str); 2] =
    [("limit", "Prefixes at most; 20 where nothing is asked for"), ("order", "`blocks` or `hits`")];

/// `GET /v1/cache`: a summary and the top prefixes.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Parameters(wanted): Parameters<Wanted>,
) -> Result<Json<CacheList>> {
    let order = match wanted.order.as_deref() {
        None | Some("blocks") => PrefixOrder::Blocks,
        Some("hits") => PrefixOrder::Reuses,
        Some(_) => return Err(ApiError::field("order", "`order` is `blocks` or `hits`")),
    };
    let limit = wanted.limit.unwrap_or(LISTED).min(LISTED_MAX);
    blocking(move || {
        let (prefixes, now) = engine(&app)?.prefixes(order, mine(&caller), limit)?;
        let stats = app.serving.engine.stats();
        let shown = prefixes.iter().map(|prefix| shown_prefix(&app, &caller, &stats, prefix, now)).collect();
        let tiers = || Tiers {
            ram: ram(&stats),
            host: stats.disk.as_ref().and_then(|it| host(it, &stats)),
            disk: stats.disk.as_ref().filter(|it| it.is_on_disk()).map(|it| disk(it, &stats)),
        };
        Ok(Json(CacheList { object: CacheWord, prefixes: shown, tiers: caller.admin.then(tiers) }))
    })
    .await
}

/// `POST /v1/cache/evict`: evicts a prompt and everything that begins with it, pinned or not, from RAM and
/// disk. Pinned prompts that begin with it keep their names and are computed again at the next start.
pub(crate) async fn evict(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Evicted>> {
    let caller = body.caller.clone();
    let tenant = caller.tenant.clone();
    let names = app.read(body, move |app, body| names(app, &tenant, body)).await?;
    blocking(move || {
        let (mut blocks, mut pins) = (0, 0);
        for tokens in &names {
            let evicted = engine(&app)?.evict(&kept(&app, tokens.clone(), &caller.tenant))?;
            (blocks, pins) = (blocks + evicted.blocks, pins + evicted.pins);
        }
        let begins = |tokens: &Vec<Token>| names.iter().any(|name| tokens.starts_with(name));
        let of_tenant = app.registry.of(&caller.tenant.name).into_iter();
        let prompts: Vec<String> =
            of_tenant.filter(|(_, record)| begins(&record.tokens)).map(|(name, _)| name).collect();
        let tokens = names.last().map_or(0, Vec::len);
        Ok(Json(Evicted { object: EvictedWord, tokens, blocks, pins, prompts }))
    })
    .await
}

/// `POST /v1/cache/pin`: computes a prompt and keeps it until it is evicted or unpinned by hand.
pub(crate) async fn pin(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Pinned>> {
    let caller = body.caller.clone();
    rate_limits::check_tokens(&caller.tenant, app.now())?;
    let tenant = caller.tenant.clone();
    let prompt =
        app.read(body, move |app, body| Ok(kept(app, Named::from_body(body)?.tokens(app)?, &tenant))).await?;
    let (report, usage) = app.compute(&caller, prompt.request()).await?;
    let (tokens, computed) = (prompt.tokens.len(), report.computed_tokens);
    Ok(Json(Pinned { object: PinnedWord, tokens, computed_tokens: computed, usage }))
}

/// `GET /v1/cache/pins`: the pins and their owners, oldest first, and the pin limit.
pub(crate) async fn pins(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Pins>> {
    blocking(move || {
        let pins = engine(&app)?.pins(mine(&caller), LISTED_MAX)?;
        let stats = app.serving.engine.stats();
        let data = pins.iter().map(|pin| shown_pin(&app, &caller, &stats, pin)).collect();
        let blocks = PinnedBlocks { pinned: stats.cache.pinned, limit: stats.cache.pinned_max };
        Ok(Json(Pins { object: List, data, blocks: caller.admin.then_some(blocks) }))
    })
    .await
}

/// `DELETE /v1/cache/pins/{id}`: removes one pin; its blocks can be evicted from then on.
pub(crate) async fn unpin(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Unpinned>> {
    let pin = id.parse().map(|id| Unpin::One(PinId(id)));
    let pin = pin.map_err(|_| ApiError::field("id", format!("`{id}` is not the number of a pin")))?;
    let tenant = mine(&caller);
    let count = blocking(move || Ok(engine(&app)?.unpin(pin, tenant)?)).await?;
    if count == 0 {
        let message = format!("there is no pin {id}; GET /v1/cache/pins lists them");
        return Err(ApiError::new(StatusCode::NOT_FOUND, Some("pin_not_found"), message));
    }
    Ok(unpinned(count))
}

/// The parameter of `DELETE /v1/cache/pins`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Whose {
    tenant: Option<String>,
    #[serde(rename = "model")]
    _model: Option<String>,
}

/// The parameter of `DELETE /v1/cache/pins`, as the OpenAPI document describes it.
pub(super) const UNPIN_PARAMETERS: [(&str, &str); 1] = [("tenant", "Whose pins; with the admin's key")];

/// `DELETE /v1/cache/pins`: removes all pins of the caller's tenant. With the administrator's key, removes
/// those of the named tenant, or all.
pub(crate) async fn unpin_all(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Parameters(whose): Parameters<Whose>,
) -> Result<Json<Unpinned>> {
    let tenant = match (whose.tenant, caller.admin) {
        (None, _) => mine(&caller),
        (Some(name), false) if name == caller.tenant.name => mine(&caller),
        (Some(_), false) => return Err(ApiError::admins_only().at("tenant")),
        (Some(name), true) => {
            let tenant = app.keys().tenants().named(&name);
            let message = format!(
                "there is no tenant `{name}`; DELETE /v1/cache/pins/{{id}} removes a pin of one that is gone"
            );
            Some(tenant.ok_or_else(|| ApiError::field("tenant", message))?.id)
        }
    };
    blocking(move || Ok(unpinned(engine(&app)?.unpin(Unpin::All, tenant)?))).await
}

fn unpinned(count: usize) -> Json<Unpinned> {
    Json(Unpinned { object: UnpinnedWord, pins: count })
}

/// `DELETE /v1/cache`: drops everything that is neither in use nor pinned, of a tenant or, for the
/// administrator, of all.
pub(crate) async fn clear(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Cleared>> {
    blocking(move || {
        let salt = (!caller.admin).then(|| caller.tenant.salt());
        let engine = engine(&app)?;
        let (ram, disk) = engine.clear_cache(salt)?;
        if salt.is_none() {
            // Returns the memory of free blocks to the system until they are used again.
            engine.trim(usize::MAX)?;
        }
        // Waits until the dropped blocks are erased from disk.
        engine.until_erased(ERASE_TIME)?;
        app.server.forget_settled((!caller.admin).then_some(&*caller.tenant.name))?;
        Ok(Json(Cleared { object: ClearedWord, blocks: ByTier::new(ram, disk) }))
    })
    .await
}

/// Returns the tenant whose prefixes a caller may see and change; none, for the administrator, means all.
pub(super) fn mine(caller: &Caller) -> Option<TenantId> {
    (!caller.admin).then_some(caller.tenant.id)
}

/// Returns the prefixes that a body of a tenant names, that of its own text last. They include every pin that a request
/// with the same body has left, and what it was computed as: with answers as they were generated, and settled.
fn names(app: &App, tenant: &Tenant, body: &Body) -> Result<Vec<Vec<Token>>> {
    match Named::from_body(body)? {
        Named::Conversation(conversation) => {
            let chat = conversation.chat()?;
            let mut moved = chat.clone();
            let notes = settled::settle((app, &tenant.name), &mut moved, Some(true), Learning::Off);
            let mut names = if notes.is_empty() { Vec::new() } else { names_of(app, tenant, &moved)? };
            names.extend(names_of(app, tenant, &chat)?);
            Ok(names)
        }
        Named::Prompt(fields) => {
            let prompt = only(fields)?;
            let tokens = prompt.encode(app)?;
            let generated = prompt.is_text().then(|| as_generated(app, tenant, tokens.clone()));
            Ok(generated.filter(|generated| *generated != tokens).into_iter().chain([tokens]).collect())
        }
    }
}

/// Returns the prefixes that a conversation names: a request pins it as it was sent, and a named prompt pins the prefix that
/// all continuations share.
fn names_of(app: &App, tenant: &Tenant, chat: &Chat) -> Result<Vec<Vec<Token>>> {
    let own = [chat_text::tokens(&app.serving, chat)?, shared_tokens(app, chat)?];
    let generated = own.clone().map(|tokens| as_generated(app, tenant, tokens));
    let generated = if generated == own { Vec::new() } else { with_shared(generated) };
    Ok(generated.into_iter().chain(with_shared(own)).collect())
}

/// Puts what two prefixes share before them.
fn with_shared([asked, goes_on]: [Vec<Token>; 2]) -> Vec<Vec<Token>> {
    let both = asked[..common_prefix(&asked, &goes_on)].to_vec();
    // A prefix shorter than a block identifies nothing.
    let both = (both.len() >= BLOCK_POSITIONS).then_some(both);
    both.into_iter().chain([asked, goes_on]).collect()
}

/// Returns a prompt of a tenant with the tokens of answers in it as they were generated.
fn as_generated(app: &App, tenant: &Tenant, prompt: Vec<Token>) -> Vec<Token> {
    let mut request = Request { prompt_is_text: true, ..Request::new(prompt, 1) };
    tenant.sign(&mut request);
    app.serving.engine.as_generated(&mut request);
    request.prompt
}

fn ram(stats: &EngineStats) -> Ram {
    Ram {
        bytes: stats.kv_bytes,
        used_bytes: stats.kv_used_bytes(),
        blocks: stats.cache.blocks,
        cached_blocks: stats.cache.shared,
        tokens: stats.cache.tokens,
        pinned_blocks: stats.cache.pinned,
        pinned_blocks_limit: stats.cache.pinned_max,
        evicted_blocks: stats.cache.totals.evicted,
        hit_rate: stats.counters.hit_rate(),
    }
}

fn host(disk: &DiskStats, stats: &EngineStats) -> Option<Host> {
    let (HostStats { blocks, used, .. }, block_bytes) = (disk.host?, block_bytes(stats));
    Some(Host {
        bytes: blocks * block_bytes,
        used_bytes: used * block_bytes,
        blocks,
        used_blocks: used,
        bytes_per_second: disk.host_load_rate,
    })
}

fn disk(disk: &DiskStats, stats: &EngineStats) -> Disk {
    let block_bytes = block_bytes(stats);
    let totals = &disk.tier.totals;
    let (writes, writer_pid) = match disk.role {
        DiskRole::Writer => (true, None),
        DiskRole::Reader { of } => (false, of),
    };
    Disk {
        writes,
        writer_pid,
        bytes: disk.tier.slots * block_bytes,
        used_bytes: disk.tier.used * block_bytes,
        blocks: disk.tier.slots,
        used_blocks: disk.tier.used,
        found_at_start: totals.adopted,
        written_blocks: totals.written,
        write_policy: disk.writes.policy.name(),
        waiting_blocks: disk.writes.waiting_blocks,
        written_bytes_today: disk.writes.today_bytes,
        written_bytes_per_year: disk.writes.year_bytes,
        read_blocks: totals.read,
        faults: totals.write_faults + totals.read_faults,
        evicted_blocks: totals.evicted,
        bytes_per_second: disk.load_rate,
        prefill_tokens_per_second: disk.compute_rate,
    }
}

fn shown_prefix(
    app: &App,
    caller: &Caller,
    stats: &EngineStats,
    prefix: &PrefixInfo,
    now: Duration,
) -> Prefix {
    let ago = |then: Duration| now.saturating_sub(then).as_secs_f64();
    Prefix {
        text: text(app, caller, &prefix.first_tokens),
        tokens: prefix.tokens,
        blocks: prefix.blocks,
        bytes: prefix.blocks * block_bytes(stats),
        hits: prefix.reuses,
        tenant: app.keys().tenants().name_of(prefix.tenant).into(),
        in_use: prefix.last_use.is_none() && !prefix.pinned,
        idle_s: prefix.last_use.map(ago),
        pinned: prefix.pinned,
        priority: prefix.priority,
        expires_in_s: prefix.expires.map(|at| at.saturating_sub(now).as_secs_f64()),
    }
}

fn shown_pin(app: &App, caller: &Caller, stats: &EngineStats, pin: &PinInfo) -> Pin {
    Pin {
        id: pin.id.0,
        text: text(app, caller, &pin.first_tokens),
        tokens: pin.tokens,
        blocks: pin.blocks,
        bytes: pin.blocks * block_bytes(stats),
        tenant: app.keys().tenants().name_of(pin.tenant).into(),
    }
}

pub(super) fn block_bytes(stats: &EngineStats) -> usize {
    stats.kv_bytes / stats.cache.blocks.max(1)
}

/// Returns the beginning of a prefix as text. Tenants that share one cache see only numbers, because the
/// owner of a text in it is unknown.
fn text(app: &App, caller: &Caller, head: &[Token]) -> Option<String> {
    may_read(caller).then(|| app.serving.texts.tokenizer.decode(head))
}

/// True if a caller may read the text of the prefixes that it sees.
pub(super) fn may_read(caller: &Caller) -> bool {
    caller.admin || caller.tenant.share != Share::Shared
}
