//! Endpoints that routers query on a node, under vLLM's names: the tokens of a prompt, which routers look up
//! in their index of KV events.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use kvik_cache::Token;
use serde::Serialize;

use super::kvik::explain::{self, Fields};
use super::route::{Dialect, Errors, at, gives};
use crate::{
    app::{body::JsonBody, kept_answer::KeptAnswer, state::App},
    described::JsonSchema,
    http::{
        answer::written,
        error::{ApiError, ErrorBody},
    },
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

async fn render_chat(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    let write = |mut rendered: Vec<Rendered>| -> Result<Vec<u8>> {
        let rendered = rendered.pop().ok_or_else(|| ApiError::field("messages", "messages is missing"))?;
        Ok(written(&rendered))
    };
    render(app, body, write).await
}

async fn render_texts(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    render(app, body, |rendered| Ok(written(&rendered))).await
}

/// Answers with the tokens of the prompts, which hold their share of the memory until the client has read them.
async fn render(
    app: Arc<App>,
    body: JsonBody,
    write: impl FnOnce(Vec<Rendered>) -> Result<Vec<u8>> + Send + 'static,
) -> Result<Response> {
    let tenant = body.caller.tenant.clone();
    app.read(body, move |app, body| {
        let (requests, _) = explain::computed(app, &tenant, body)?;
        let rendered = requests.into_iter().map(|request| Rendered { token_ids: request.prompt }).collect();
        app.server.answer_with(tenant.id, KeptAnswer::Written(write(rendered)?))
    })
    .await
}
