//! `/lora-adapters`: the loaded adapters, and which apply to requests that name none.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use serde::{Deserialize, Serialize};

use crate::{
    api::request::parts::FromBody,
    app::{
        body::JsonBody,
        keys::Caller,
        lora::{LoraUse, scales},
        state::App,
    },
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};
use kvik_serving::lora::LoraCard;

type Result<T> = std::result::Result<T, ApiError>;

/// An adapter that is loaded.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Adapter {
    id: usize,
    name: String,
    path: String,
    scale: f64,
    task_name: String,
    prompt_prefix: String,
}

/// What was asked for was done.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Success {
    success: bool,
}

/// `GET /lora-adapters`
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<Adapter>> {
    let adapters = &app.serving.lora;
    // Clients of llama-server read a path; tenants do not see the server's paths.
    let path = |card: &LoraCard| card.path.for_caller(caller.admin, &card.name).to_owned();
    let cards = adapters.cards().iter().zip(adapters.usual_scales()).enumerate();
    let listed = cards
        .map(|(id, (card, scale))| Adapter {
            id,
            name: card.name.clone(),
            path: path(card),
            scale: f64::from(scale),
            task_name: card.task_name.clone(),
            prompt_prefix: card.prompt_prefix.clone(),
        })
        .collect();
    Json(listed)
}

/// The body of `POST /lora-adapters`: a list.
#[derive(Debug, Deserialize)]
pub(super) struct UsualList {
    body: Vec<LoraUse>,
}

impl FromBody for UsualList {
    fn from_body(body: &Body) -> Result<UsualList> {
        body.read()
    }

    #[cfg(test)]
    fn describe(
        generator: &mut schemars::SchemaGenerator,
        schema: &mut serde_json::Map<String, serde_json::Value>,
    ) {
        schema.insert("type".into(), serde_json::json!("array"));
        schema.insert("items".into(), LoraUse::json_schema(generator).to_value());
    }
}

/// `POST /lora-adapters`: sets the adapters, each with its scale, for requests that name none. Adapters that
/// are not listed do not apply.
pub(super) async fn set(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Success>> {
    body.caller.as_admin()?;
    let uses = UsualList::from_body(&body.parse_as("body")?)?.body;
    let adapters = &app.serving.lora;
    adapters.set_usual(scales("body", &uses, adapters)?);
    Ok(Json(Success { success: true }))
}
