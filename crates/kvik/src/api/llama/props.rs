//! `GET /props`: the model and the defaults.

use std::sync::Arc;

use axum::{Json, extract::State};
use kvik_cache::Token;
use serde_json::{Value, json};

use super::completion::{LlamaServer, settings};
use crate::{
    api::request::{generation::GenerationFields, parts::FromBody},
    app::state::App,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// `GET /props`: what llama-server's clients ask at their start.
pub(super) async fn route(State(app): State<Arc<App>>) -> Result<Json<Value>> {
    let model = &app.serving.model;
    let tokenizer = &app.serving.tokenizer;
    let text = |token: Option<Token>| {
        token.map(|token| String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned())
    };
    let nothing_said = GenerationFields::<LlamaServer>::from_body(&Body::of(&json!({}))?)?;
    let options = nothing_said.or(&app.config.sampling).options(&|_| Vec::new(), &app.serving.retaining)?;
    Ok(Json(json!({
        "default_generation_settings": {
            "n_ctx": model.context,
            "params": settings(&options, options.max_tokens(model.context, model.context), 0, false, &app.serving.tokenizer),
        },
        "total_slots": model.parallel,
        "model_path": model.source,
        "model_alias": model.name,
        "modalities": {"vision": false, "audio": false},
        "chat_template": app.serving.template.as_ref().map(|template| template.source()),
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "build_info": concat!("kvik ", env!("CARGO_PKG_VERSION")),
    })))
}

/// `POST /props`: refused, as by a llama-server without `--props`.
pub(super) async fn change() -> ApiError {
    ApiError::not_supported(
        "properties are set by the flags of `kvik serve`; requests set their own sampling",
    )
}
