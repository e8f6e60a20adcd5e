//! `/v1/prompts`: prompts that are computed ahead and kept.
//!
//! What is kept of a conversation is what every request that begins with it has in common: its template
//! is rendered with two different questions at the end, and the tokens before they part are the prompt.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
};
use kvik_engine::{
    engine::Engine,
    prompts::{Cached, KeptPrompt},
};
use serde_json::{Value, json};

use super::{
    app::App, body::JsonBody, chat::Conversation, error::ApiError, fields::Fields, keys::Caller,
    prompt::Prompt,
};
use crate::{
    prompts::{Change, PROMPTS_MAX, PromptKey, PromptRecord, common, sha256},
    tenants::Tenant,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Bytes of a name at most.
const NAME_MAX: usize = 128;
/// Questions that begin with different tokens, whatever comes before them.
const QUESTIONS: [&str; 2] = ["a", "0"];

/// Fields of a body that are written down, to compute the prompt anew after a change of the model.
const WRITTEN: [&str; 10] = [
    "messages",
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "add_generation_prompt",
    "enable_thinking",
    "reasoning_effort",
    "continue_final_message",
    "prompt",
    "public",
];

/// `PUT /v1/prompts/{name}`: computes a prompt and keeps it; nothing happens when it is kept already.
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>> {
    let asked = asked(&app, name, body).await?;
    blocking(move || asked.keep(&app)).await
}

/// `POST /v1/prompts/{name}/check`: whether this is what is kept under the name.
pub(crate) async fn check(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>> {
    let asked = asked(&app, name, body).await?;
    blocking(move || {
        let record = app.registry.get(&asked.key).ok_or_else(|| unknown(&asked.key.name))?;
        let mut state = state(&app, &asked.key.name, &record, asked.prompt.salt)?;
        state["changed"] = json!(record.sha256 != asked.sha256);
        Ok(Json(state))
    })
    .await
}

/// Reads what a caller asks to be kept under a name.
async fn asked(app: &Arc<App>, name: String, body: JsonBody) -> Result<Asked> {
    let caller = body.caller.clone();
    app.read(body, move |app, fields| Asked::read(app, &caller.tenant, name, fields)).await
}

/// `GET /v1/prompts`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>> {
    blocking(move || {
        let kept = app.registry.of(&caller.tenant.name);
        let states = kept.iter().map(|(name, record)| state(&app, name, record, caller.tenant.salt()));
        Ok(Json(json!({"object": "list", "data": states.collect::<Result<Vec<Value>>>()?})))
    })
    .await
}

/// `GET /v1/prompts/{name}`
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    blocking(move || {
        let record = app.registry.get(&key(&caller.tenant, &name)).ok_or_else(|| unknown(&name))?;
        state(&app, &name, &record, caller.tenant.salt()).map(Json)
    })
    .await
}

/// `DELETE /v1/prompts/{name}`: lets go of a prompt, in RAM and on disk.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    blocking(move || {
        let key = key(&caller.tenant, &name);
        let record = app.registry.remove(&key).map_err(|error| ApiError::internal(error.to_string()))?;
        let record = record.ok_or_else(|| unknown(&name))?;
        publish(&app)?;
        engine(&app)?.invalidate(&kept(record.tokens, &caller.tenant))?;
        Ok(Json(json!({"object": "prompt.deleted", "name": name, "deleted": true})))
    })
    .await
}

/// Computes what is kept, as far as the disk does not have it: at the start. A prompt whose tokens have
/// changed with the model is computed anew.
pub(crate) fn restore(app: &App) {
    for (key, record) in app.registry.all() {
        let Some(tenant) = app.keys().tenants().named(&key.tenant) else {
            tracing::warn!("the kept prompt `{}` belongs to the unknown tenant `{}`", key.name, key.tenant);
            continue;
        };
        let fields = Fields::of_body(record.body.clone());
        let asked = fields.and_then(|fields| Asked::read(app, &tenant, key.name.clone(), fields));
        if let Err(error) = asked.and_then(|asked| asked.keep(app)) {
            tracing::warn!("the prompt `{}` cannot be kept any more: {}", key.name, error);
        }
    }
}

/// A prompt to be kept, or compared with one that is.
struct Asked {
    key: PromptKey,
    body: Value,
    public: bool,
    prompt: KeptPrompt,
    sha256: String,
}

impl Asked {
    fn read(app: &App, tenant: &Tenant, name: String, mut fields: Fields) -> Result<Asked> {
        check_name(&name)?;
        let body = fields.copy(&WRITTEN)?;
        let public = fields.bool("public")?.unwrap_or(false);
        let prompt = kept(tokens(app, &mut fields)?, tenant);
        let sha256 = sha256(&app.serving.model.digest, &prompt);
        Ok(Asked { key: key(tenant, &name), body, public, prompt, sha256 })
    }

    /// Computes it if need be, and writes it down.
    fn keep(self, app: &App) -> Result<Json<Value>> {
        let engine = engine(app)?;
        let change = app.registry.change(&self.key, &self.sha256);
        if change == Change::None && engine.is_cached(&self.prompt)?.ram >= self.prompt.tokens.len() {
            return Ok(Json(self.json(false, 0, self.prompt.tokens.len())));
        }
        let builds = match change {
            Change::New => self.make_room(app).map(|()| 0)?,
            Change::None => app.registry.get(&self.key).map_or(0, |record| record.builds),
            Change::Replaces(old) => {
                engine.invalidate(&KeptPrompt { tokens: old.tokens, ..self.prompt.clone() })?;
                old.builds
            }
        };
        let report = engine.cache_system_prompt(&self.prompt)?;
        let built = report.computed_tokens > 0;
        let (computed, cached) = (report.computed_tokens, report.cached_tokens);
        let answer = self.json(built, computed, cached);
        let Asked { key, body, public, prompt, sha256 } = self;
        let builds = builds + u64::from(built);
        let record = PromptRecord { body, public, sha256, tokens: prompt.tokens, builds };
        app.registry.keep(&key, record).map_err(|error| ApiError::internal(error.to_string()))?;
        publish(app)?;
        Ok(Json(answer))
    }

    fn make_room(&self, app: &App) -> Result<()> {
        if app.registry.of(&self.key.tenant).len() < PROMPTS_MAX {
            return Ok(());
        }
        Err(ApiError::bad_request(format!(
            "{PROMPTS_MAX} prompts are kept, which is the limit; delete one first"
        )))
    }

    fn json(&self, built: bool, computed: usize, cached: usize) -> Value {
        json!({
            "object": "prompt",
            "name": self.key.name,
            "tokens": self.prompt.tokens.len(),
            "sha256": self.sha256,
            "public": self.public,
            "built": built,
            "computed_tokens": computed,
            "cached_tokens": cached,
        })
    }
}

/// Tells the engine which prompts are public.
fn publish(app: &App) -> Result<()> {
    let keys = app.keys();
    let public = app.registry.all().into_iter().filter(|(_, record)| record.public);
    let kept =
        public.filter_map(|(key, record)| Some(kept(record.tokens, &*keys.tenants().named(&key.tenant)?)));
    Ok(engine(app)?.set_public_prompts(kept.collect())?)
}

/// What all requests that begin so have in common.
pub(crate) fn tokens(app: &App, fields: &mut Fields) -> Result<Vec<u32>> {
    if !fields.has("messages") {
        let prompts = Prompt::read(fields)?;
        let [prompt] = prompts.as_slice() else {
            return Err(ApiError::field(
                "prompt",
                "`prompt` must be one prompt; keep others under other names",
            ));
        };
        return prompt.encode(app);
    }
    let conversation = Conversation::read(fields)?;
    let [one, other] = QUESTIONS.map(|question| conversation.and_asked(question));
    let one = app.serving.encode_rendered(&one.render(app)?);
    let other = app.serving.encode_rendered(&other.render(app)?);
    let shared = common(&one, &other);
    if shared == 0 {
        return Err(ApiError::field("messages", "requests with these messages have no token in common"));
    }
    Ok(one[..shared].to_vec())
}

/// What is kept under a name, and how much of it is there.
fn state(app: &App, name: &str, record: &PromptRecord, salt: [u8; 16]) -> Result<Value> {
    let prompt = KeptPrompt { tokens: record.tokens.clone(), salt, tenant: Default::default() };
    let cached: Cached = engine(app)?.is_cached(&prompt)?;
    Ok(json!({
        "object": "prompt",
        "name": name,
        "tokens": cached.tokens,
        "sha256": record.sha256,
        "public": record.public,
        "builds": record.builds,
        "cached": cached.is_whole(),
        "ram": cached.ram,
        "disk": cached.disk,
    }))
}

pub(crate) fn kept(tokens: Vec<u32>, tenant: &Tenant) -> KeptPrompt {
    KeptPrompt { tokens, salt: tenant.salt(), tenant: tenant.id }
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

/// The engine with its cache; the scripts that tests of routes use have none.
pub(crate) fn engine(app: &App) -> Result<&Engine> {
    app.serving.cache.as_ref().ok_or_else(|| ApiError::internal("this server has no cache"))
}

/// Runs what waits for the engine on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(panic) => Err(ApiError::internal(format!("the request failed: {panic}"))),
    }
}
