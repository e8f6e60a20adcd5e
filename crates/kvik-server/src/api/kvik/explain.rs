//! `POST /v1/cache/explain`: the cache report that a chat in any dialect, or a completion, would get, without
//! running it.

use std::sync::Arc;

use axum::{Json, extract::State};
use kvik_engine::api::Request;
use kvik_memory::settle::Learning;
use kvik_session::Chat;
use serde::{Deserialize, Serialize};

use super::{named::Named, prompts::blocking};
use crate::{
    accounts::tenants::Tenant,
    api::{
        chat::may_settle,
        request::{
            bounds::Usual,
            cache::CacheFields,
            conversation::ChatRequest,
            defaults::RequestDefaults,
            generation::{GenerationFields, Manner, Options},
            parts::{FromBody, Part},
            prompt::Prompt,
        },
        spoken,
    },
    app::{
        body::JsonBody,
        kept_prefix, lora,
        report::{
            cache::{Asked, CacheReport},
            trailer::Origin,
        },
        settled,
        state::App,
    },
    described::JsonSchema,
    http::{answer::OneOrAll, error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// All fields of a body: those of a chat or of a completion that decide what is computed. Fields for the
/// delivery of the answer are ignored. Bodies of `/v1/messages` and `/v1/responses` are read as on those
/// routes.
pub(in crate::api) type Fields = (ModelField, Named, GenerationFields<Usual>);

/// Which model is asked.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in crate::api) struct ModelField {
    #[serde(default)]
    model: String,
}

impl Part for ModelField {}

/// What would be found.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Explained {
    kvik: Would,
}

/// One object for a single prompt, an array for several.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Would {
    cache: OneOrAll<CacheReport>,
}

/// Answers with the object `kvik` that the same body would get from its own route now.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Explained>> {
    let tenant = body.caller.tenant.clone();
    let read = move |app: &App, body: &Body| {
        let (requests, origin) = computed(app, &tenant, body)?;
        Ok((origin.asked(app, &requests), requests, app.token_scale(body)))
    };
    let (asked, requests, scale) = app.read(body, read).await?;
    // Others are read meanwhile: the engine answers each question between two steps.
    blocking(move || explained(&app, &asked, requests).map_err(|error| scale.refusal(error))).await
}

/// Asks the engine what each request would find.
fn explained(app: &App, asked: &[Asked], requests: Vec<Request>) -> Result<Json<Explained>> {
    let cache = |(asked, request): (&Asked, Request)| {
        let probe = app.serving.engine.explain(request)?;
        Ok(asked.cache_report(probe.into()))
    };
    let caches: Vec<CacheReport> = asked.iter().zip(requests).map(cache).collect::<Result<_>>()?;
    Ok(Json(Explained { kvik: Would { cache: caches.into() } }))
}

/// Returns the engine's requests for a body of a tenant as they would be computed, answers as they were generated included.
pub(in crate::api) fn computed(app: &App, tenant: &Tenant, body: &Body) -> Result<(Vec<Request>, Origin)> {
    let (mut requests, origin) = requests(app, &tenant.name, body)?;
    if let Some(prefix) = &origin.kept_prefix {
        kept_prefix::read(app, tenant, prefix, &mut requests)?;
    }
    let adapters = lora::adapters(body, &app.serving.lora)?;
    requests.iter_mut().for_each(|request| request.adapters.clone_from(&adapters));
    requests.iter_mut().for_each(|request| tenant.sign(request));
    requests.iter_mut().for_each(|request| app.serving.engine.as_generated(request));
    Ok((requests, origin))
}

/// Returns the engine's requests for a body of a tenant, as its text is.
pub(in crate::api) fn requests(app: &App, tenant: &str, body: &Body) -> Result<(Vec<Request>, Origin)> {
    if let Some((chat, length)) = spoken::chat(app, tenant, body)? {
        let (ModelField { model }, cache) = <(ModelField, CacheFields)>::from_body(body)?;
        app.accept_model(&model)?;
        return of_conversation((app, tenant), chat, told_elsewhere(cache, length, app)?, body);
    }
    let (ModelField { model }, named, generation) = Fields::from_body(body)?;
    app.accept_model(&model)?;
    let encode = |text: &str| app.serving.texts.tokenizer.encode(text, false, true);
    let options = generation.options(&RequestDefaults::of(app), &encode, &app.serving.retaining)?;
    options.check_unkept()?;
    match named {
        Named::Conversation(chat) => of_conversation((app, tenant), chat.chat()?, options, body),
        Named::Prompt(prompts) => {
            let length = (options.max_tokens(MAX_TOKENS, app.serving.model.context), None);
            let requests = Prompt::requests(&prompts.prompts()?, app, &options, length, body)?;
            Ok((requests, Origin { kept_prefix: options.kept_prefix, ..Origin::default() }))
        }
    }
}

/// Returns the options of a conversation in another dialect, as far as they concern the cache: also the maximum length of
/// the answer, because without one the last token of the prompt need not be computed.
fn told_elsewhere(cache: CacheFields, length: Option<i64>, app: &App) -> Result<Options> {
    let manner = Manner {
        sampling: RequestDefaults::of(app).sampling(),
        stop: Vec::new(),
        length,
        keep: cache.keep()?,
        constraint: None,
        schema_notes: Vec::new(),
    };
    let options = Options::of(manner, &app.serving.retaining)?;
    options.check_unkept()?;
    Ok(options)
}

fn of_conversation(
    (app, tenant): (&App, &str),
    mut chat: Chat,
    options: Options,
    body: &Body,
) -> Result<(Vec<Request>, Origin)> {
    let kept_prefix = options.kept_prefix.clone();
    if may_settle(app, &chat, &options) {
        settled::settle((app, tenant), &mut chat, options.settle, Learning::Off);
    }
    let chat = ChatRequest::new(app, chat, options, None, body)?;
    let origin = Origin { messages: Some(chat.messages), kept_prefix, ..Origin::default() };
    Ok((vec![chat.request], origin))
}

/// Default maximum of tokens of a completion, as in `/v1/completions`.
const MAX_TOKENS: usize = 16;
