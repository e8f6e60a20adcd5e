//! `POST /v1/chat/completions`

use std::{sync::Arc, time::Instant};

use axum::{extract::State, response::Response};
use serde::Deserialize;

use super::{
    chat_answer::{ChatAnswer, Shows},
    head::{Head, HeadFields},
};
use crate::{
    api::{
        chat::{ChatTurn, Compacted},
        logprobs::likeliest,
        request::{
            bounds::Usual,
            compaction::ContextFields,
            conversation::ConversationFields,
            defaults::RequestDefaults,
            generation::{GenerationFields, LOGPROBS_MAX},
            hints::Hints,
            number::Whole,
            parts::{FromBody, Part},
        },
    },
    app::{body::JsonBody, keys::Caller, requests::Prepared, state::App},
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// All fields of a body.
pub(super) type Fields = (HeadFields, ConversationFields, GenerationFields<Usual>, ContextFields, ChatFields);

/// Those of this endpoint alone.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ChatFields {
    /// Give the log-probability of each generated token.
    #[serde(default)]
    logprobs: bool,
    /// With `logprobs`, also those of as many of the likeliest tokens.
    top_logprobs: Option<Whole<0, LOGPROBS_MAX>>,
    /// llama-server's: stream how far the prompt is computed.
    #[serde(default)]
    return_progress: bool,
}

impl Part for ChatFields {}

/// Answers a conversation.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.complete(body, read).await
}

/// Reads the body of a chat.
fn read(app: &App, caller: &Caller, body: &Body) -> Result<Prepared<ChatAnswer>> {
    let (head, mut conversation, generation, context, fields) = Fields::from_body(body)?;
    app.accept_model(&head.model)?;
    let compacted = Compacted {
        before: conversation.expand(|content| app.seal.open(&caller.tenant.name, content))?,
        compacting: context.compacting()?,
    };
    let encode = |text: &str| app.serving.texts.tokenizer.encode(text, false, true);
    let name = Head::new(app, "chatcmpl");
    let shows = Shows {
        usage: head.include_usage(),
        progress: (head.stream && fields.return_progress).then(Instant::now),
    };
    let chat = conversation.chat()?;
    let hints = Hints::in_messages(chat.messages(), &mut |note| body.note(note));
    let generation = generation.hinted(hints);
    let defaults = RequestDefaults::of_chat(app, &chat);
    let turn = ChatTurn {
        chat,
        options: generation.options(&defaults, &encode, &app.serving.retaining)?,
        logprobs: likeliest(fields.logprobs, fields.top_logprobs)?,
        compacted,
        id: name.id.clone(),
        stream: head.stream,
        compared_with: head.compared_with(),
    };
    turn.prepare(app, caller, body, |worded| ChatAnswer::new(name, worded, shows))
}
