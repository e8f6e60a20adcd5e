//! The one model that runs here, in Ollama's lists.

use std::sync::Arc;

use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    api::request::parts::Part,
    app::{body::JsonBody, state::App},
    clock::rfc3339,
    http::error::ApiError,
    serving::ModelCard,
};

/// The version of Ollama's API that is spoken; clients ask for a least one.
const SPOKEN: &str = "0.13.0";

/// `GET /api/version`
pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": SPOKEN, "kvik": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/tags`
pub(super) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"models": [listed(&app.serving.model)]}))
}

/// `GET /api/ps`
pub(super) async fn running(State(app): State<Arc<App>>) -> Json<Value> {
    let mut model = listed(&app.serving.model);
    // It stays for as long as the server does.
    model["expires_at"] = json!("9999-12-31T23:59:59Z");
    model["size_vram"] = json!(0);
    model["context_length"] = json!(app.serving.model.context);
    Json(json!({"models": [model]}))
}

/// The body of `/api/show`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ShowFields {
    /// The one model that runs here answers for any name, unless the server is strict.
    #[serde(default)]
    model: String,
    /// The same, as older clients write it.
    #[serde(default)]
    name: String,
}

impl Part for ShowFields {}

/// `POST /api/show`
pub(super) async fn show(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let fields: ShowFields = app.read(body, |_, body| body.read()).await?;
    app.accept_model(if fields.model.is_empty() { &fields.name } else { &fields.model })?;
    let model = &app.serving.model;
    let template = app.serving.template.as_ref();
    let source = template.map(|template| template.source()).unwrap_or_default();
    let mut capabilities = vec!["completion"];
    // Templates that know tools and thoughts name them.
    capabilities.extend(source.contains("tools").then_some("tools"));
    capabilities.extend(source.contains("enable_thinking").then_some("thinking"));
    let family = &model.family;
    Ok(Json(json!({
        "modelfile": format!("FROM {}\n", model.source),
        "parameters": "",
        "template": source,
        "details": details(model),
        "model_info": {
            "general.architecture": family,
            "general.basename": model.own_name,
            (format!("{family}.context_length")): model.context,
            "tokenizer.ggml.vocab_size": app.serving.tokenizer.vocab_len(),
        },
        "capabilities": capabilities,
        "modified_at": rfc3339(model.loaded, 0),
    })))
}

fn listed(model: &ModelCard) -> Value {
    json!({
        "name": model.name,
        "model": model.name,
        "modified_at": rfc3339(model.loaded, 0),
        "size": model.bytes,
        "digest": blake3::Hash::from_bytes(model.digest).to_hex().as_str(),
        "details": details(model),
    })
}

fn details(model: &ModelCard) -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": model.family,
        "families": [model.family],
        "parameter_size": "",
        "quantization_level": "",
    })
}
