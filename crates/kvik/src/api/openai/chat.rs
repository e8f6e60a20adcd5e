//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::{extract::State, response::Response};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    chat_answer::{self, ChatAnswer},
    head::{Head, HeadFields},
    history::{Compacted, continued, remembered},
};
use crate::{
    api::request::{
        compaction::ContextFields,
        conversation::ConversationFields,
        defaults::Usual,
        generation::{GenerationFields, LOGPROBS_MAX},
        number::Whole,
        parts::{FromBody, Part},
    },
    app::{
        body::JsonBody,
        keys::Caller,
        memory::turn::{Purpose, RememberedTurn},
        report::{comparison::Comparable, trailer::Origin},
        requests::Prepared,
        state::App,
    },
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
        before: conversation.expand(|content| app.memory.open(&caller.tenant.name, content))?,
        compacting: context.compacting()?,
    };
    let conversation = conversation.conversation()?;
    let encode = |text: &str| app.serving.tokenizer.encode(text, false, true);
    let options = generation.options(&encode, &app.serving.retaining)?;
    let logprobs = fields.logprobs()?;
    let (stream, include_usage) = (head.stream, head.include_usage()?);

    let (choices, kept_prefix) = (options.choices, options.kept_prefix.clone());
    let (conversation, kept) = continued(app, caller, conversation, &options)?;
    let mut memory = remembered(app, caller, &conversation, &options, &compacted)?;
    let conversation = match &memory {
        Some(turn) => conversation.with_messages(&turn.messages, Purpose::Answer),
        None => conversation,
    };
    let chat = conversation.request(app, options, logprobs, body)?;
    if let Some(turn) = memory.as_mut().filter(|_| choices == 1) {
        let reading = chat.reading.clone();
        turn.reads_answer(Box::new(move |text| chat_answer::message(&reading, text)));
    }
    let name = Head::new(app, "chatcmpl");
    let comparable = Comparable { id: name.id.clone(), parts: chat.parts, with: head.compared_with() };
    let item = memory.as_mut().and_then(RememberedTurn::take_compaction);
    let answer =
        ChatAnswer::new(name, choices, chat.reading, logprobs.is_some(), include_usage).with_item(item);
    let origin = Origin {
        messages: Some(chat.messages),
        comparable: Some(comparable),
        schema_notes: chat.schema_notes,
        kept_prefix,
        memory,
        conversation: kept,
    };
    Ok(Prepared { requests: vec![chat.request], origin, answer, stream })
}

impl ChatFields {
    /// `logprobs` asks for them, `top_logprobs` says how many.
    fn logprobs(&self) -> Result<Option<usize>> {
        let top = self.top_logprobs.and_then(Whole::count).unwrap_or(0);
        if top > 0 && !self.logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
        Ok(self.logprobs.then_some(top))
    }
}
