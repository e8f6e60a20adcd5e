//! `POST /api/chat`

use std::sync::Arc;

use axum::{
    Json as Answered,
    extract::State,
    response::{IntoResponse, Response},
};
use kvik_memory::random::random;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    answer::{Form, Line, OllamaAnswer},
    fields::{HeadFields, StayFields},
    messages,
};
use crate::{
    api::{
        chat::{ChatTurn, Compacted},
        request::{
            cache::CacheFields,
            conversation::told,
            defaults::RequestDefaults,
            parts::{FromBody, Part},
        },
    },
    app::{body::JsonBody, keys::Caller, requests::Prepared, state::App},
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Body, Json},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// All fields of a body.
pub(super) type Fields = (HeadFields, StayFields, CacheFields, ChatFields);

/// Those of this endpoint alone.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ChatFields {
    /// `{"role", "content", "thinking", "tool_calls", "tool_name"}` each; with none the model is loaded, or
    /// unloaded with a `keep_alive` of 0.
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    messages: Option<Json>,
    /// `{"type": "function", "function": {"name", "description", "parameters"}}` each.
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    tools: Option<Json>,
}

impl Part for ChatFields {}

/// Answers a conversation.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    if let Some(loaded) = loads(&app, &body)? {
        return Ok(Answered(loaded).into_response());
    }
    app.complete(body, read).await
}

/// Returns the answer to a conversation without messages, which loads the model only, or unloads it; none for other
/// conversations.
fn loads(app: &App, body: &JsonBody) -> Result<Option<Line>> {
    // A large body has messages.
    if body.is_large() {
        return Ok(None);
    }
    let (head, stay, fields) = <(HeadFields, StayFields, ChatFields)>::from_body(&body.parse()?)?;
    let nothing = fields.messages.is_none_or(|Json(messages)| messages.as_array().is_some_and(Vec::is_empty));
    if !nothing {
        return Ok(None);
    }
    app.accept_model(&head.model)?;
    Ok(Some(Form::Chat.of_nothing(&app.serving.model.name, stay.done_reason())))
}

fn read(app: &App, caller: &Caller, body: &Body) -> Result<Prepared<OllamaAnswer>> {
    let (head, _, cache, chat) = Fields::from_body(body)?;
    app.accept_model(&head.model)?;
    let Json(messages) = chat.messages.unwrap_or(Json(Value::Array(Vec::new())));
    let tools = messages::tools(chat.tools.as_ref().map(|Json(tools)| tools))?;
    let mut notes = Vec::new();
    let messages = messages::told(&messages, &mut notes)?;
    notes.into_iter().for_each(|note| body.note(note));
    let chat = told(messages, tools, head.thinking()?, Map::new());
    let defaults = RequestDefaults::of_chat(app, &chat);
    let turn = ChatTurn {
        chat: chat.continuing(),
        options: head.options(app, &defaults, cache)?,
        logprobs: head.logprobs()?,
        compacted: Compacted::default(),
        id: format!("ollama-{:016x}", random()),
        compared_with: None,
        stream: head.stream,
    };
    let model = app.serving.model.name.clone();
    turn.prepare(app, caller, body, |worded| OllamaAnswer::new(Form::Chat, model, worded))
}
