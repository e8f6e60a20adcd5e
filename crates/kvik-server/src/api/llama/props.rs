//! `GET /props`: the model and the defaults.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Query, State},
};
use kvik_cache::Token;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{completion::LlamaServer, settings::Settings};
use crate::{
    api::{
        request::{defaults::RequestDefaults, generation::GenerationFields, parts::FromBody},
        sampling::SamplingInForce,
    },
    app::{keys::Caller, state::App},
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// The model and the defaults.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Props {
    default_generation_settings: DefaultSettings,
    /// kvik's own: the sampling of requests that set none, and where each value comes from.
    sampling_defaults: SamplingInForce,
    total_slots: usize,
    model_path: String,
    model_alias: String,
    modalities: Modalities,
    chat_template: Option<String>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    build_info: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct DefaultSettings {
    n_ctx: usize,
    params: Settings,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Modalities {
    vision: bool,
    audio: bool,
}

/// The query of `GET /props`.
#[derive(Debug, Deserialize)]
pub(super) struct PropsQuery {
    #[serde(default)]
    model: String,
}

/// `GET /props`: the data that llama-server's clients request when they start.
pub(super) async fn route(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<PropsQuery>,
) -> Result<Json<Props>> {
    let model = &app.serving.model;
    let tokenizer = &app.serving.texts.tokenizer;
    let text = |token: Option<Token>| {
        token.map(|token| String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned())
    };
    let nothing_said = GenerationFields::<LlamaServer>::from_body(&Body::of(&json!({}))?)?;
    let defaults = RequestDefaults::of(&app);
    let options = nothing_said.options(&defaults, &|_| Vec::new(), &app.serving.retaining)?;
    let max_tokens = options.max_tokens(model.context, model.context);
    Ok(Json(Props {
        default_generation_settings: DefaultSettings {
            n_ctx: app.token_scale_under(&asked.model).told(model.context),
            params: Settings::of(&options, max_tokens, 0, false),
        },
        sampling_defaults: SamplingInForce::of(&app.sampling()),
        total_slots: model.parallel,
        model_path: model.source.for_caller(caller.admin, &model.name).to_owned(),
        model_alias: model.name.clone(),
        modalities: Modalities { vision: false, audio: false },
        chat_template: app.serving.texts.template.as_ref().map(|template| template.source().to_owned()),
        bos_token: text(tokenizer.bos()),
        eos_token: text(tokenizer.eos()),
        build_info: concat!("kvik ", env!("CARGO_PKG_VERSION")),
    }))
}

/// `POST /props`: refused, as by a llama-server without `--props`.
pub(super) async fn change() -> ApiError {
    ApiError::not_supported(
        "properties are set by the flags of `kvik serve`; requests set their own sampling",
    )
}
