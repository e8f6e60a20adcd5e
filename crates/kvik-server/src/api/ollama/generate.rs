//! `POST /api/generate`

use std::sync::Arc;

use axum::{
    Json as Answered,
    extract::State,
    response::{IntoResponse, Response},
};
use kvik_cache::Token;
use kvik_engine::api::Request;
use kvik_session::Chat;
use kvik_text::tools::Tools;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    answer::{Form, Line, OllamaAnswer},
    fields::{HeadFields, StayFields},
    messages::refuse_images,
};
use crate::{
    api::{
        chat::Worded,
        reading::Reading,
        request::{
            cache::CacheFields,
            conversation::{ChatRequest, told},
            defaults::RequestDefaults,
            fill::{Fill, Marks},
            generation::Options,
            number::TokenId,
            parts::{FromBody, Part},
            place::Place,
        },
    },
    app::{body::JsonBody, keys::Caller, report::trailer::Origin, requests::Prepared, state::App},
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Body, Json},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// All fields of a body.
pub(super) type Fields = (HeadFields, StayFields, CacheFields, GenerateFields);

/// Those of this endpoint alone.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct GenerateFields {
    /// A question, which the model's template is put around; with none the model is loaded, or unloaded with a
    /// `keep_alive` of 0.
    #[serde(default)]
    prompt: String,
    /// The system prompt before it.
    #[serde(default)]
    system: String,
    /// Continue the prompt as it stands.
    #[serde(default)]
    raw: bool,
    /// The `context` of an earlier answer, which this one goes on from.
    context: Option<Vec<TokenId>>,
    /// What stands after the middle that is wanted, with the prompt before it; for models with tokens for it.
    suffix: Option<String>,
    /// Refused where it says something: the model's own is used.
    template: Option<String>,
    /// Refused: kvik reads text only.
    #[schemars(with = "Option<Vec<String>>")]
    images: Option<Json>,
}

impl Part for GenerateFields {}

/// Continues a prompt.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    if let Some(loaded) = loads(&app, &body)? {
        return Ok(Answered(loaded).into_response());
    }
    app.complete(body, read).await
}

/// Returns the answer to a request without a prompt, which loads the model only, or unloads it; none for other requests.
fn loads(app: &App, body: &JsonBody) -> Result<Option<Line>> {
    if body.is_large() {
        return Ok(None);
    }
    let (head, stay, fields) = <(HeadFields, StayFields, GenerateFields)>::from_body(&body.parse()?)?;
    if !fields.prompt.is_empty() || fields.suffix().is_some() {
        return Ok(None);
    }
    app.accept_model(&head.model)?;
    Ok(Some(Form::Generate.of_nothing(&app.serving.model.name, stay.done_reason())))
}

fn read(app: &App, _: &Caller, body: &Body) -> Result<Prepared<OllamaAnswer>> {
    let (head, _, cache, fields) = Fields::from_body(body)?;
    app.accept_model(&head.model)?;
    fields.refuse()?;
    let chat = if fields.continues() { None } else { Some(fields.chat(&head)?) };
    let of_chat = |chat| RequestDefaults::of_chat(app, chat);
    let defaults = chat.as_ref().map_or_else(|| RequestDefaults::of(app), of_chat);
    let options = head.options(app, &defaults, cache)?;
    options.check_memory()?;
    let (logprobs, choices) = (head.logprobs()?, options.choices);
    let (schema_notes, kept_prefix) = (options.schema_notes.clone(), options.kept_prefix.clone());
    let prompt = match chat {
        None => match fields.suffix() {
            Some(after) => fields.filling(after, app, &options, logprobs, body)?,
            None => fields.raw_prompt(app, &options, logprobs)?,
        },
        Some(chat) => {
            let tokenizer = &app.serving.texts.tokenizer;
            let begin = tokenizer.required_bos();
            fields.asked(ChatRequest::new(app, chat, options, logprobs, body)?, begin)
        }
    };
    app.check_tokens(&prompt.request.prompt)?;
    let (reading, logprobs) = (prompt.reading, logprobs.is_some());
    let worded = Worded { reading, item: None, conversation: None, logprobs, choices };
    let model = app.serving.model.name.clone();
    let answer = OllamaAnswer::new(Form::Generate, model, worded);
    let answer = if fields.continues() { answer } else { answer.with_context() };
    let origin = Origin { messages: prompt.messages, schema_notes, kept_prefix, ..Origin::default() };
    Ok(Prepared { requests: vec![prompt.request], origin, answer, stream: head.stream })
}

/// A prompt for the engine.
struct Asked {
    request: Request,
    reading: Reading,
    messages: Option<Value>,
}

impl Asked {
    /// A text without messages.
    fn plain(request: Request) -> Asked {
        Asked { request, reading: Reading::Plain, messages: None }
    }
}

impl GenerateFields {
    /// Refuses fields that would change the answer and are not supported, instead of ignoring them.
    fn refuse(&self) -> Result<()> {
        if self.template.as_ref().is_some_and(|template| !template.is_empty()) {
            let message = "`template` is not supported; start kvik with --chat-template FILE, or send `raw`";
            return Err(ApiError::field("template", message));
        }
        match &self.images {
            Some(Json(images)) => refuse_images(&Place::new("", &json!({"images": images}))),
            None => Ok(()),
        }
    }

    /// Whether the answer goes on with the prompt, or stands behind it in a text: no template is put around it.
    fn continues(&self) -> bool {
        self.raw || self.suffix().is_some()
    }

    fn suffix(&self) -> Option<&str> {
        self.suffix.as_deref().filter(|suffix| !suffix.is_empty())
    }

    /// Asks for the middle between the prompt and the suffix.
    fn filling(
        &self,
        after: &str,
        app: &App,
        options: &Options,
        logprobs: Option<usize>,
        body: &Body,
    ) -> Result<Asked> {
        let context = app.serving.model.context;
        let max_tokens = options.max_tokens(context, context);
        let fill = Fill { before: &self.prompt, begin: "", after, chunks: &[] };
        let prompt = Marks::of(app)?.prompt(app, &fill, max_tokens, body)?.encode(app)?;
        Ok(Asked::plain(options.request(prompt, max_tokens, logprobs)))
    }

    /// Uses the prompt as it is, without a template.
    fn raw_prompt(&self, app: &App, options: &Options, logprobs: Option<usize>) -> Result<Asked> {
        app.check_length(&self.prompt)?;
        let mut tokens = self.before();
        let begins = tokens.is_empty();
        tokens.extend(app.serving.texts.tokenizer.encode(&self.prompt, begins, true));
        let context = app.serving.model.context;
        let request = options.request(tokens, options.max_tokens(context, context), logprobs);
        Ok(Asked::plain(Request { prompt_is_text: begins, ..request }))
    }

    /// The prompt as a question, behind the system message.
    fn chat(&self, head: &HeadFields) -> Result<Chat> {
        let mut messages = Vec::new();
        if !self.system.is_empty() {
            messages.push(json!({"role": "system", "content": self.system}));
        }
        messages.push(json!({"role": "user", "content": self.prompt}));
        Ok(told(Value::Array(messages), Tools::none(), head.thinking()?, Map::new()))
    }

    /// The question after the tokens of the earlier conversation. Prompts begin with the token `begin`, if with one.
    fn asked(&self, chat: ChatRequest, begin: Option<Token>) -> Asked {
        let (mut request, before) = (chat.request, self.before());
        // The tokens of an earlier conversation are the client's choice.
        request.prompt_is_text = before.is_empty();
        let messages = before.is_empty().then_some(chat.messages);
        request.prompt = behind(before, &request.prompt, begin);
        Asked { request, reading: chat.reading, messages }
    }

    /// Returns the tokens of the earlier conversation.
    fn before(&self) -> Vec<Token> {
        self.context.iter().flatten().map(|TokenId(token)| *token).collect()
    }
}

/// The prompt after the tokens before it, which have begun the text already: it does not begin again.
fn behind(mut before: Vec<Token>, prompt: &[Token], begin: Option<Token>) -> Vec<Token> {
    let begins = begin.is_some() && prompt.first().copied() == begin;
    before.extend_from_slice(&prompt[usize::from(begins && !before.is_empty())..]);
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_begins_once_however_many_turns_it_has() {
        let turn = |before: &[Token], begin| behind(before.to_vec(), &[1, 7, 8], begin);
        assert_eq!(turn(&[], Some(1)), [1, 7, 8]);
        assert_eq!(turn(&[1, 7, 8, 9], Some(1)), [1, 7, 8, 9, 7, 8]);
        assert_eq!(turn(&[7], Some(2)), [7, 1, 7, 8], "it begins with another token");
        assert_eq!(turn(&[7], None), [7, 1, 7, 8], "a token that begins a message, and no text");
        assert_eq!(behind(vec![1], &[], Some(1)), [1]);
    }
}
