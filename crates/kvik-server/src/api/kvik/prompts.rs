//! `/v1/prompts`: named prompts that are computed ahead and pinned.
//!
//! The prompt of a conversation is the prefix that all requests continuing it share: its template is rendered
//! with two different questions at the end, and the tokens before they diverge are the prompt.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
};
use kvik_cache::{BLOCK_POSITIONS, TenantId, Token, retain::Retention, whole_blocks};
use kvik_engine::api::{AdapterMix, Cached, Evicted, PinnedPrompt, Report, RequestError, Retained};
use kvik_engine::engine::Engine;
use kvik_memory::deletions::{Deletion, Owner};
use kvik_text::tokenizer::encoding_for;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    named::Named,
    prompt_answers::{DeletedWord, List, PromptDeleted, PromptKept, PromptList, PromptState, PromptWord},
};
use crate::{
    accounts::tenants::{DEFAULT_NAME, Tenant},
    api::request::{
        parts::{FromBody, Part},
        retain::{RetainField, fault, refused},
    },
    app::{
        body::JsonBody,
        keys::Caller,
        prompt_log::FirstNotes,
        prompts::{Change, PromptBody, PromptKey, PromptRecord, RetainedRecord, record_bytes, sha256},
        rate_limits,
        report::{
            retain::{self, RetainReport},
            usage::Usage,
        },
        shelf::Shelf,
        state::App,
    },
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};
use kvik_serving::retaining::Reach;

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum bytes of a name.
const NAME_MAX: usize = 128;
/// Name of the retention field in a body.
const RETAIN: &str = "retain";
/// Fields of a body that are recorded beside those of its prompt, to compute it again after a change of the model.
const WRITTEN_BESIDE: [&str; 2] = ["public", RETAIN];

/// All fields of a body.
pub(super) type Fields = (PublicField, RetainPart, Named);

/// Who may read a kept prompt.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct PublicField {
    /// Tenants in the mode `public-prompts` share the prompt.
    #[serde(default)]
    public: bool,
}

impl Part for PublicField {}

/// What is kept of a prompt.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RetainPart {
    /// Which tokens are kept, for requests that read them with `kvik.kept_prefix`; all where nothing is said.
    retain: Option<RetainField>,
}

impl Part for RetainPart {}

/// `PUT /v1/prompts/{name}`: computes and pins a prompt; does nothing if it is pinned already. It is a
/// regular request: rate-limited, billed, and cancelled if the client disconnects.
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<PromptKept>> {
    let caller = body.caller.clone();
    rate_limits::check_tokens(&caller.tenant, app.now())?;
    let asked = asked(&app, name, body).await?;
    compute(&app, &caller, asked).await.map(Json)
}

/// Pins a prompt for a caller, like the route above.
pub(crate) async fn keep(app: &Arc<App>, caller: &Caller, name: String, body: Value) -> Result<PromptKept> {
    rate_limits::check_tokens(&caller.tenant, app.now())?;
    let (of, tenant) = (app.clone(), caller.tenant.clone());
    let read = move || encoding_for(tenant.id, || Asked::read(&of, &tenant, name, &Body::of(&body)?));
    let asked = blocking(read).await?;
    compute(app, caller, asked).await
}

/// Returns the tokens that a caller has pinned under a name.
pub(crate) fn kept_tokens(app: &App, caller: &Caller, name: &str) -> Option<Vec<Token>> {
    app.registry.get(&key(&caller.tenant, name)).map(|record| record.tokens.clone())
}

/// Evicts a prompt and everything that begins with it.
pub(crate) async fn evict(app: Arc<App>, caller: &Caller, tokens: Vec<Token>) -> Result<Evicted> {
    let prompt = kept(&app, tokens, &caller.tenant);
    blocking(move || Ok(engine(&app)?.evict(&prompt)?)).await
}

/// Computes a prompt if necessary, and records it.
async fn compute(app: &Arc<App>, caller: &Caller, asked: Asked) -> Result<PromptKept> {
    let asked = Arc::new(asked);
    may_publish(app, caller, &asked.key, asked.public)?;
    let (of, work) = (app.clone(), asked.clone());
    let step = blocking(move || work.begin(&of)).await?;
    let (report, usage) = match step {
        Step::Kept { cached_tokens } => (Report { cached_tokens, ..Report::default() }, None),
        Step::Compute { .. } => {
            let (report, usage) = app.compute(caller, asked.prompt.request()).await?;
            (report, Some(usage))
        }
    };
    let app = app.clone();
    blocking(move || {
        asked.write_down(&app, &step, &report)?;
        Ok(asked.shown(&app, &report, usage))
    })
    .await
}

/// `POST /v1/prompts/{name}/check`: whether the body is the prompt pinned under this name.
pub(crate) async fn check(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<PromptState>> {
    let caller = body.caller.clone();
    let asked = asked(&app, name, body).await?;
    blocking(move || {
        let record = app.registry.get(&asked.key).ok_or_else(|| unknown(&asked.key.name))?;
        let mut state = state(&app, &asked.key.name, &record, &caller.tenant)?;
        let sha256 = match asked.says_retain {
            true => asked.sha256,
            // Without `retain`, only the prompts are compared.
            false => {
                let retention = record.retention();
                sha256(&app.serving.model.digest, &PinnedPrompt { retention, ..asked.prompt })
            }
        };
        state.changed = Some(record.sha256 != sha256);
        Ok(Json(state))
    })
    .await
}

/// Reads the prompt that a caller names.
async fn asked(app: &Arc<App>, name: String, body: JsonBody) -> Result<Asked> {
    let caller = body.caller.clone();
    app.read(body, move |app, body| Asked::read(app, &caller.tenant, name, body)).await
}

/// `GET /v1/prompts`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<PromptList>> {
    blocking(move || {
        let all = app.registry.of(&caller.tenant.name);
        let states = all.iter().map(|(name, record)| state(&app, name, record, &caller.tenant));
        Ok(Json(PromptList { object: List, data: states.collect::<Result<_>>()? }))
    })
    .await
}

/// `GET /v1/prompts/{name}`
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<PromptState>> {
    blocking(move || {
        let record = app.registry.get(&key(&caller.tenant, &name)).ok_or_else(|| unknown(&name))?;
        state(&app, &name, &record, &caller.tenant).map(Json)
    })
    .await
}

/// `DELETE /v1/prompts/{name}`: releases a prompt, and deletes what was computed for it everywhere.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(shelf): Extension<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<PromptDeleted>> {
    let key = key(&caller.tenant, &name);
    let owner = blocking(move || remove(&app, &caller, &key)).await?;
    let pending = shelf.is_pending(owner).await;
    Ok(Json(PromptDeleted { object: DeletedWord, name, deleted: !pending, pending }))
}

/// Removes a prompt from the names and from the cache, and returns the owner of what is left of it to delete.
fn remove(app: &App, caller: &Caller, key: &PromptKey) -> Result<Owner> {
    may_publish(app, caller, key, false)?;
    let server = &app.server;
    // Carried out before the name is gone, its deletion would find the prompt kept.
    let _held = server.hold_deletions()?;
    let of_caller = |record: &PromptRecord| of_record(app, record, &caller.tenant);
    let prompt = app.registry.get(key).map(|record| of_caller(&record)).ok_or_else(|| unknown(&key.name))?;
    let owner = Owner::new(&caller.tenant.name, "prompt").part();
    let notes = FirstNotes::new(server.prompt_log.clone(), owner.clone());
    // What is shorter than a block begins the blocks of others, which are not its own.
    if !whole_blocks(&prompt.tokens).is_empty() && !is_held(app, key, &prompt) {
        let noted = server.prompt_log.note(prompt.salt, &owner, &prompt.tokens);
        noted.map_err(|error| {
            ApiError::internal(format!("what is to be deleted cannot be noted: {error}; try again"))
        })?;
    }
    server.deletions.begin(&owner, Deletion::default().removed())?;
    notes.keep();
    let record = app.registry.remove(key)?.ok_or_else(|| unknown(&key.name))?;
    publish(app)?;
    release(app, key, &of_caller(&record))?;
    Ok(owner)
}

/// Computes the pinned prompts that the disk does not have, at the start. A prompt whose tokens have changed
/// with the model is computed again.
pub fn restore(app: &App) {
    for (key, record) in app.registry.all() {
        let Some(tenant) = app.keys().tenants().named(&key.tenant) else {
            tracing::warn!("the kept prompt `{}` belongs to the unknown tenant `{}`", key.name, key.tenant);
            continue;
        };
        let body = Body::parse(&record.body.text().to_owned().into());
        let asked = body.and_then(|body| Asked::read(app, &tenant, key.name.clone(), &body));
        if let Err(error) = asked.and_then(|asked| asked.keep(app)) {
            tracing::warn!("the prompt `{}` cannot be kept any more: {}", key.name, error);
        }
    }
    if let Err(error) = publish(app) {
        tracing::warn!("public prompts are not shared: {error}");
    }
}

/// A prompt to pin, or to compare with a pinned one.
struct Asked {
    key: PromptKey,
    body: PromptBody,
    public: bool,
    prompt: PinnedPrompt,
    sha256: String,
    /// True if the body contains `retain`.
    says_retain: bool,
}

/// The work that a prompt needs.
enum Step {
    /// None: the prompt is computed and pinned. What no pin covers may be evicted.
    Kept { cached_tokens: usize },
    /// Compute the prompt, which was computed `builds` times before.
    Compute { builds: u64 },
}

impl Asked {
    fn read(app: &App, tenant: &Tenant, name: String, body: &Body) -> Result<Asked> {
        check_name(&name)?;
        let (PublicField { public }, RetainPart { retain }, named) = Fields::from_body(body)?;
        let retention = retain.as_ref().map(|field| retention(app, field)).transpose()?.flatten();
        let prompt = PinnedPrompt { retention, ..kept(app, named.tokens(app)?, tenant) };
        check_part(app, &prompt, public)?;
        let written = [Named::fields(body), &WRITTEN_BESIDE].concat();
        let body = PromptBody::of(&body.copy(&written)?);
        let sha256 = sha256(&app.serving.model.digest, &prompt);
        let says_retain = retain.is_some();
        Ok(Asked { key: key(tenant, &name), body, public, prompt, sha256, says_retain })
    }

    /// Determines the work to do, and checks that there is room for it. The previous prompt with this name
    /// stays until the new one is computed.
    fn begin(&self, app: &App) -> Result<Step> {
        let change = app.registry.change(&self.key, &self.sha256);
        app.registry.check_room(&self.key, record_bytes(&self.body, &self.prompt.tokens))?;
        match change {
            Change::New => Ok(Step::Compute { builds: 0 }),
            Change::None => {
                let there = engine(app)?.is_cached(&self.prompt)?;
                let builds = app.registry.get(&self.key).map_or(0, |record| record.builds);
                let is_kept = there.pinned && there.ram >= lasting(&self.prompt.tokens);
                Ok(if is_kept { Step::Kept { cached_tokens: there.ram } } else { Step::Compute { builds } })
            }
            Change::Replaces(old) => {
                let before = self.before(app, &old);
                // The same tokens with other adapters: releasing the old prompt later would release both.
                if is_same(&before, &self.prompt) {
                    release(app, &self.key, &before)?;
                }
                Ok(Step::Compute { builds: old.builds })
            }
        }
    }

    /// Computes the prompt if necessary, without billing, and records it.
    fn keep(&self, app: &App) -> Result<()> {
        let step = self.begin(app)?;
        let report = match step {
            Step::Kept { .. } => Report::default(),
            Step::Compute { .. } => engine(app)?.cache_system_prompt(&self.prompt)?,
        };
        self.write_down(app, &step, &report)
    }

    /// Records the prompt and updates the public prompts. A different prompt that had this name is released.
    fn write_down(&self, app: &App, step: &Step, report: &Report) -> Result<()> {
        let builds = match step {
            Step::Kept { .. } => app.registry.get(&self.key).map_or(0, |record| record.builds),
            Step::Compute { builds } => builds + u64::from(report.computed_tokens > 0),
        };
        let (body, public, sha256) = (self.body.clone(), self.public, self.sha256.clone());
        let retained = self.retained(app, report);
        let retained =
            self.prompt.retention.zip(retained).map(|(retention, it)| RetainedRecord::of(&retention, &it));
        let tokens = self.prompt.tokens.clone();
        let lora = app.serving.lora.written(self.prompt.adapters.as_ref());
        let record = PromptRecord { body, public, sha256, tokens, builds, retained, lora };
        let there = app.registry.get(&self.key).map(|there| self.before(app, &there));
        let kept = app.registry.keep(&self.key, record).inspect_err(|_| {
            // A prompt without a record is not kept.
            if there.is_none_or(|there| !is_same(&there, &self.prompt)) {
                let _ = release(app, &self.key, &self.prompt);
            }
        });
        let before = kept?;
        publish(app)?;
        let before = before.filter(|before| before.sha256 != self.sha256);
        match before.map(|before| self.before(app, &before)) {
            Some(before) if !is_same(&before, &self.prompt) => release(app, &self.key, &before),
            _ => Ok(()),
        }
    }

    /// Returns the prompt that its tenant pinned under its name before.
    fn before(&self, app: &App, record: &PromptRecord) -> PinnedPrompt {
        let PinnedPrompt { salt, tenant, .. } = self.prompt;
        prompt_of(app, record, salt, tenant)
    }

    /// Returns the retained positions: those just reported, or else those on record.
    fn retained(&self, app: &App, report: &Report) -> Option<Retained> {
        let before = || app.registry.get(&self.key).as_deref().and_then(PromptRecord::retained);
        report.retained.as_deref().cloned().or_else(before)
    }

    fn shown(&self, app: &App, report: &Report, usage: Option<Usage>) -> PromptKept {
        let retention = self.prompt.retention;
        PromptKept {
            object: PromptWord,
            name: self.key.name.clone(),
            tokens: self.prompt.tokens.len(),
            sha256: self.sha256.clone(),
            public: self.public,
            built: report.computed_tokens > 0,
            computed_tokens: report.computed_tokens,
            cached_tokens: report.cached_tokens,
            usage,
            retain: retention.map(|retention| retain_of(app, retention, self.retained(app, report))),
        }
    }
}

/// Reads the retention of a prompt; none keeps all positions.
fn retention(app: &App, field: &RetainField) -> Result<Option<Retention>> {
    let chosen = app.serving.retaining.choose_for(Reach::Prefix, field.choice(RETAIN)?);
    chosen.map_err(|refusal| refused(RETAIN, &refusal))
}

/// Refuses retention for prompts that do not support it: public ones, and those shorter than a block.
fn check_part(app: &App, prompt: &PinnedPrompt, public: bool) -> Result<()> {
    if prompt.retention.is_none() {
        return Ok(());
    }
    if public {
        let message =
            "`public` beside `retain`: other tenants share exact prompts only; keep one under each name";
        return Err(ApiError::field("public", message));
    }
    if prompt.tokens.len() < BLOCK_POSITIONS {
        let tokens = prompt.tokens.len();
        let message = format!(
            "`retain`: a part is kept of {BLOCK_POSITIONS} tokens or more, and the prompt has {tokens}"
        );
        return Err(ApiError::field(RETAIN, message));
    }
    match engine(app)?.check(&prompt.request()) {
        Err(RequestError::Retention(error)) => Err(fault(RETAIN, &error)),
        checked => Ok(checked?),
    }
}

/// Formats the object `retain` of a prompt, as in answers that read the prompt.
fn retain_of(app: &App, retention: Retention, retained: Option<Retained>) -> RetainReport {
    retain::report(&retention, Reach::Prefix, retained.as_ref(), &app.serving.retaining)
}

/// Refuses changes of public prompts by callers other than the administrator: all tenants read them, so a
/// tenant's key may neither publish a prompt nor change a public one.
fn may_publish(app: &App, caller: &Caller, key: &PromptKey, public: bool) -> Result<()> {
    let is_public = app.registry.get(key).is_some_and(|record| record.public);
    if caller.admin || !(public || is_public) {
        return Ok(());
    }
    let message = "a public prompt is read by other tenants: to publish, change or delete one takes the admin's key (kvik serve --admin-key)";
    Err(ApiError::admins_only().because(message).at("public"))
}

/// Releases a prompt, unless another name refers to the same blocks.
fn release(app: &App, key: &PromptKey, prompt: &PinnedPrompt) -> Result<()> {
    if !is_held(app, key, prompt) {
        engine(app)?.invalidate(prompt)?;
    }
    Ok(())
}

/// Whether another name refers to the same blocks as the prompt under this one.
fn is_held(app: &App, key: &PromptKey, prompt: &PinnedPrompt) -> bool {
    let keys = app.keys();
    app.registry.any(|other, record| {
        let same = || is_same(&prompt_of(app, record, prompt.salt, prompt.tenant), prompt);
        other != key && same() && keys.tenants().have_salt(&other.tenant, prompt.salt)
    })
}

/// Sets the engine's public prompts: those that the administrator has published.
fn publish(app: &App) -> Result<()> {
    let keys = app.keys();
    let admins = |tenant: &str| tenant == DEFAULT_NAME || !keys.tenants().are_named();
    let public = app.registry.all().into_iter().filter(|(key, record)| record.public && admins(&key.tenant));
    let kept = public
        .filter_map(|(key, record)| Some(of_record(app, &record, &*keys.tenants().named(&key.tenant)?)));
    Ok(engine(app)?.set_public_prompts(kept.collect())?)
}

/// Describes the prompt pinned under a name of a tenant, and how much of it is cached.
fn state(app: &App, name: &str, record: &PromptRecord, tenant: &Tenant) -> Result<PromptState> {
    let cached: Cached = engine(app)?.is_cached(&of_record(app, record, tenant))?;
    let retention = record.retention();
    Ok(PromptState {
        object: PromptWord,
        name: name.to_owned(),
        tokens: record.tokens.len(),
        sha256: record.sha256.clone(),
        public: record.public,
        builds: record.builds,
        cached: cached.ram + cached.disk >= lasting(&record.tokens),
        pinned: cached.pinned,
        ram: cached.ram,
        disk: cached.disk,
        retain: retention.map(|retention| retain_of(app, retention, record.retained())),
        changed: None,
    })
}

/// Returns the number of tokens of a prompt that stay cached: its whole blocks, which the pin covers, or all where it has
/// none. The rest may be evicted, and is computed again with the request that needs it.
fn lasting(tokens: &[Token]) -> usize {
    match whole_blocks(tokens).len() {
        0 => tokens.len(),
        whole => whole,
    }
}

/// Returns the prompt of a tenant's record, with the adapters that it was computed with: the default adapters
/// may have changed since.
fn of_record(app: &App, record: &PromptRecord, tenant: &Tenant) -> PinnedPrompt {
    prompt_of(app, record, tenant.salt(), tenant.id)
}

fn prompt_of(app: &App, record: &PromptRecord, salt: [u8; 16], tenant: TenantId) -> PinnedPrompt {
    let adapters = app.serving.lora.read(&record.lora);
    PinnedPrompt { tokens: record.tokens.clone(), adapters, salt, tenant, retention: record.retention() }
}

/// True if releasing one prompt also releases the other. Exact prompts are released regardless of their
/// adapters.
fn is_same(one: &PinnedPrompt, other: &PinnedPrompt) -> bool {
    let digest = |prompt: &PinnedPrompt| prompt.adapters.as_ref().map(AdapterMix::digest);
    // Prompts of less than a block have no pin that one could share with the other.
    let same_blocks = match whole_blocks(&one.tokens) {
        [] => one.tokens == other.tokens,
        whole => whole == whole_blocks(&other.tokens),
    };
    same_blocks
        && one.retention == other.retention
        && (one.retention.is_none() || digest(one) == digest(other))
}

/// Returns a prompt of a tenant, with the adapters of requests that name none.
pub(crate) fn kept(app: &App, tokens: Vec<u32>, tenant: &Tenant) -> PinnedPrompt {
    let adapters = app.serving.lora.usual();
    PinnedPrompt { tokens, adapters, salt: tenant.salt(), tenant: tenant.id, retention: None }
}

fn key(tenant: &Tenant, name: &str) -> PromptKey {
    PromptKey { tenant: tenant.name.clone(), name: name.to_owned() }
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(ApiError::field(
            "name",
            format!("a name has 1 to {NAME_MAX} bytes and no control characters"),
        ));
    }
    Ok(())
}

fn unknown(name: &str) -> ApiError {
    let message = format!("no prompt is kept under the name `{name}`; PUT /v1/prompts/{{name}} keeps one");
    ApiError::new(axum::http::StatusCode::NOT_FOUND, Some("prompt_not_found"), message)
}

/// Returns the engine with its cache; the scripted engines of route tests have none.
pub(crate) fn engine(app: &App) -> Result<&Engine> {
    app.serving.cache.as_ref().ok_or_else(|| ApiError::internal("this server has no cache"))
}

/// Limits the threads that wait for the engine; further waiters wait without a thread. The remaining threads
/// serve requests.
static WAITERS: Semaphore = Semaphore::const_new(64);

/// Runs blocking work for the engine on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let waiter = WAITERS.acquire().await.map_err(|_| ApiError::stopping())?;
    let work = move || {
        // Released when the work has ended, not when the client disconnects.
        let _waiter = waiter;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(panic) => Err(ApiError::panicked("the request", &panic)),
    }
}
