//! Endpoints that routers query on a node, under vLLM's names: the tokens of a prompt, which routers look up
//! in their index of KV events.

use std::sync::Arc;

use axum::{Json, extract::State};
use kvik_cache::Token;
use serde::Serialize;

use super::kvik::explain::{self, Fields};
use super::route::{Dialect, Errors, at, gives};
use crate::{
    app::{body::JsonBody, state::App},
    described::JsonSchema,
    http::error::{ApiError, ErrorBody},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Returns the routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let chat = gives::<Rendered>("Says which tokens a conversation is, for routers").takes::<Fields>();
    let text = gives::<Vec<Rendered>>("Says which tokens texts are, for routers").takes::<Fields>();
    let routes = vec![
        at(&["/v1/chat/completions/render"]).post(render_chat, chat),
        at(&["/v1/completions/render"]).post(render_texts, text),
    ];
    Dialect { name: "vllm", errors: Errors::of::<ErrorBody>(), routes, of_server: Vec::new() }
}

/// A prompt as the model reads it.
#[derive(Debug, Serialize, JsonSchema)]
struct Rendered {
    token_ids: Vec<Token>,
}

async fn render_chat(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Rendered>> {
    let rendered = render(app, body).await?.pop();
    rendered.map(Json).ok_or_else(|| ApiError::field("messages", "messages is missing"))
}

async fn render_texts(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Vec<Rendered>>> {
    render(app, body).await.map(Json)
}

async fn render(app: Arc<App>, body: JsonBody) -> Result<Vec<Rendered>> {
    let tenant = body.caller.tenant.clone();
    app.read(body, move |app, body| {
        let (requests, _) = explain::requests(app, &tenant.name, body)?;
        Ok(requests.into_iter().map(|request| Rendered { token_ids: request.prompt }).collect())
    })
    .await
}
