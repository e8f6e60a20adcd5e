//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::{extract::State, response::Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    chat_answer::{self, ChatAnswer},
    head::{Head, HeadFields},
};
use crate::{
    api::request::{
        conversation::{Conversation, ConversationFields},
        defaults::Usual,
        generation::{GenerationFields, LOGPROBS_MAX, Options},
        number::Whole,
        parts::{FromBody, Part},
    },
    app::{
        body::JsonBody,
        conversations::ConversationTurn,
        keys::Caller,
        memory::turn::{History, Purpose, RememberedTurn},
        report::{comparison::Comparable, trailer::Origin},
        requests::Prepared,
        state::App,
    },
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// All fields of a body.
pub(super) type Fields = (HeadFields, ConversationFields, GenerationFields<Usual>, ChatFields);

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
    let (head, conversation, generation, fields) = Fields::from_body(body)?;
    app.accept_model(&head.model)?;
    let conversation = conversation.conversation()?;
    let encode = |text: &str| app.serving.tokenizer.encode(text, false, true);
    let options = generation.options(&encode, &app.serving.retaining)?;
    let logprobs = fields.logprobs()?;
    let (stream, include_usage) = (head.stream, head.include_usage()?);

    let (choices, kept_prefix) = (options.choices, options.kept_prefix.clone());
    let (conversation, kept) = continued(app, caller, conversation, &options)?;
    let mut memory = remembered(app, caller, &conversation, &options)?;
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
    let answer = ChatAnswer::new(name, choices, chat.reading, logprobs.is_some(), include_usage);
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

/// A conversation as a whole where the server keeps what was said before, and its turn.
fn continued(
    app: &App,
    caller: &Caller,
    new: Conversation,
    options: &Options,
) -> Result<(Conversation, Option<ConversationTurn>)> {
    let Some(reference) = &options.conversation else { return Ok((new, None)) };
    if options.choices > 1 {
        let message =
            "`n` answers cannot all be the next message of `kvik.conversation`; leave one of them out";
        return Err(ApiError::field("n", message));
    }
    if new.continues() {
        let message = "`continue_final_message`: what is said in `kvik.conversation` is not said anew; end with a message of the user or of a tool, or set it to false";
        return Err(ApiError::field("continue_final_message", message));
    }
    let begun = ConversationTurn::begin(&app.conversations, &caller.tenant.name, reference, new.messages());
    let (turn, messages) = begun.map_err(|error| ApiError::from(error).at("kvik.conversation"))?;
    Ok((new.with_messages(&messages, Purpose::Answer), Some(turn)))
}

/// What is read of a conversation that is remembered beyond the context.
fn remembered(
    app: &App,
    caller: &Caller,
    conversation: &Conversation,
    options: &Options,
) -> Result<Option<RememberedTurn>> {
    let kept = options.conversation.is_some() && app.memory.is_possible();
    let on = options.memory.unwrap_or((app.memory.on || kept) && options.reuse);
    if !on || conversation.continues() {
        return Ok(None);
    }
    let context = app.serving.model.context;
    let room = options.max_tokens(context / 8, context).min(context / 4);
    let template = conversation.clone();
    let render = Arc::new(move |app: &App, messages: &[Value], purpose| {
        let prompt = template.with_messages(messages, purpose).render(app)?;
        Ok(app.serving.encode_rendered(&prompt))
    });
    let history = History { caller, messages: conversation.messages(), room, render };
    app.memory.turn(app, &history).map(Some)
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
