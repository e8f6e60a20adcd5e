//! `POST /v1/chat/completions`

use std::{sync::Arc, time::SystemTime};

use axum::{extract::State, response::Response};
use kvik_cache::Token;
use kvik_engine::api::{Constraint, Request};
use kvik_engine::text::template::{
    ChatTemplate, Prompt, RESERVED, RenderInput, TemplateError, ends_in_thinking,
};
use serde_json::{Map, Value, json};

use super::{
    chat_answer::{ChatAnswer, Head, Reading},
    continuation, messages,
    tools::Tools,
};
use crate::{
    api::request::{
        options::{LOGPROBS_MAX, OPENAI, Options, max_tokens},
        unsupported,
    },
    app::{
        body::JsonBody,
        report::{
            closing::Origin,
            comparison::{Answered, Comparable, Parts, compared_with},
        },
        state::{App, Prepared},
    },
    http::{
        error::ApiError,
        fields::{Fields, wrong},
    },
    random::random,
};

type Result<T> = std::result::Result<T, ApiError>;

/// What `reasoning_effort` may be.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Answers a conversation.
pub(crate) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.complete(body, read).await
}

/// Reads the body of a chat.
pub(crate) fn read(app: &App, mut fields: Fields) -> Result<Prepared<ChatAnswer>> {
    app.accept_model(&fields.string("model")?.unwrap_or_default())?;
    let mut conversation = Conversation::read(&mut fields)?;
    let tokenizer = &app.serving.tokenizer;
    let mut options = Options::read(&mut fields, OPENAI, &|text| tokenizer.encode(text, false, true))?;
    conversation.make_room_for_a_call(&options)?;
    let logprobs = logprobs(&mut fields)?;
    let max_tokens = max_tokens(&mut fields, app.serving.model.context)?;
    let (stream, include_usage) = stream(&mut fields)?;
    let with = compared_with(&mut fields)?;

    fields.still_wanted()?;
    let prompt = conversation.render(app)?;
    fields.still_wanted()?;
    let (reading, show) = conversation.reading(app, &prompt, &mut options);
    let head = head(app, "chatcmpl");
    let parts = conversation.parts(&app.answered, &head.model);
    let comparable = Comparable { id: head.id.clone(), parts, with };
    let answer = ChatAnswer::new(head, options.choices, reading, logprobs.is_some(), include_usage);
    let tokens = app.serving.encode_rendered(&prompt);
    let mut request = options.request(tokens, max_tokens.unwrap_or(app.serving.model.context), logprobs);
    request.show = show;
    let schema_notes = options.schema_notes;
    let origin = Origin { messages: Some(conversation.messages), comparable: Some(comparable), schema_notes };
    Ok(Prepared { requests: vec![request], origin, answer, stream })
}

/// What the chat template is given.
#[derive(Debug, Clone)]
pub(crate) struct Conversation {
    messages: Value,
    tools: Tools,
    add_generation_prompt: bool,
    /// The answer goes on from the last message.
    continues: bool,
    enable_thinking: Option<bool>,
    kwargs: Map<String, Value>,
}

impl Conversation {
    /// The same with a question of the user at the end.
    pub(crate) fn and_asked(&self, question: &str) -> Conversation {
        let mut asked = self.clone();
        if let Value::Array(messages) = &mut asked.messages {
            messages.push(json!({"role": "user", "content": question}));
        }
        asked.continues = false;
        asked
    }

    /// Reads the fields that decide the prompt.
    pub(crate) fn read(fields: &mut Fields) -> Result<Conversation> {
        unsupported::refuse_conversing(fields)?;
        let (mut kwargs, from_kwargs) = template_variables(fields)?;
        let from_effort = reasoning_effort(fields, &mut kwargs)?;
        let messages = messages::read(fields)?;
        let add_generation_prompt = fields.bool("add_generation_prompt")?;
        let continues = continuation::is_wanted(fields, &messages, add_generation_prompt)?;
        Ok(Conversation {
            messages,
            tools: Tools::read(fields)?,
            add_generation_prompt: add_generation_prompt.unwrap_or(!continues),
            continues,
            enable_thinking: fields.bool("enable_thinking")?.or(from_kwargs).or(from_effort),
            kwargs,
        })
    }

    /// A call that has to be made leaves no room for another constraint, nor for thinking before it.
    fn make_room_for_a_call(&mut self, options: &Options) -> Result<()> {
        if !self.tools.forced {
            return Ok(());
        }
        if options.constraint.is_some() {
            let message =
                "`tool_choice` asks for a call, and another field constrains the answer; send one of them";
            return Err(ApiError::field("tool_choice", message));
        }
        self.enable_thinking = Some(false);
        Ok(())
    }

    /// How the answer is read, and the control tokens that calls are written with. Where tools are
    /// offered, the answer is constrained to their form.
    fn reading(&self, app: &App, prompt: &Prompt, options: &mut Options) -> (Reading, Vec<Token>) {
        if options.constraint.is_some() {
            return (Reading::Plain, Vec::new());
        }
        let starts_in_thinking = self.starts_in_thinking(&prompt.text);
        let template = app.serving.template.as_ref().filter(|_| self.tools.offered.is_some());
        let Some(form) = template.map(ChatTemplate::tool_form) else {
            return (Reading::Tagged { starts_in_thinking, offer: None }, Vec::new());
        };
        let after = starts_in_thinking.then_some("</think>");
        options.constraint = self.tools.constraint(&form, after);
        if self.tools.forced && options.constraint.is_none() {
            options.constraint = Some(Constraint::JsonSchema(self.tools.one_call()));
            return (Reading::ForcedCall, Vec::new());
        }
        let tokenizer = &app.serving.tokenizer;
        let tokens = form.texts().flat_map(|text| tokenizer.encode(text, false, true));
        let show = tokens.filter(|&token| tokenizer.is_control(token)).collect();
        (Reading::Tagged { starts_in_thinking, offer: Some(self.tools.offer(form)) }, show)
    }

    /// The prompt, and what of it the request wrote.
    pub(crate) fn render(&self, app: &App) -> Result<Prompt> {
        let Some(template) = &app.serving.template else {
            let message = "this model has no chat template; use /v1/completions, or start kvik with --chat-template FILE";
            return Err(ApiError::field("messages", message));
        };
        let prompt = self.text(template, SystemTime::now())?;
        app.check_length(&prompt.text)?;
        Ok(prompt)
    }

    /// Hashes of what decides the prompt, each part as it is written.
    fn parts(&self, answered: &Answered, model: &str) -> Parts {
        let messages = self.messages.as_array().map_or(&[][..], Vec::as_slice);
        let is_system = |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
        let (system, others) = messages.split_at(messages.iter().take_while(is_system).count());
        let prompt_end = (self.add_generation_prompt, self.continues);
        let settings = (prompt_end, self.enable_thinking, Value::from(self.kwargs.clone()).to_string());
        Parts {
            model: answered.hash(model),
            tools: answered.hash(self.tools.offered.as_ref().map(Value::to_string)),
            system: answered.hash(system.iter().map(Value::to_string).collect::<Vec<_>>()),
            settings: answered.hash(settings),
            messages: others.iter().map(|message| answered.hash(message.to_string())).collect(),
        }
    }

    /// The prompt as this template writes it at that time.
    fn text(&self, template: &ChatTemplate, now: SystemTime) -> Result<Prompt> {
        let mut messages = self.messages.clone();
        if self.continues {
            continuation::mark(&mut messages);
        }
        let input = RenderInput {
            messages,
            tools: self.tools.offered.clone(),
            add_generation_prompt: self.add_generation_prompt,
            enable_thinking: self.enable_thinking,
            kwargs: self.kwargs.clone(),
            now,
        };
        let prompt = template.render(&input).map_err(refused)?;
        if self.continues { continuation::cut(prompt) } else { Ok(prompt) }
    }

    /// Whether the answer begins inside a thought.
    fn starts_in_thinking(&self, prompt: &str) -> bool {
        if self.continues { continuation::ends_in_thought(&self.messages) } else { ends_in_thinking(prompt) }
    }
}

/// The prompt of the body of a chat, as this template writes it at that time; needs no server.
pub(crate) fn conversation_prompt(body: Value, template: &ChatTemplate, now: SystemTime) -> Result<Prompt> {
    Conversation::read(&mut Fields::of_body(body)?)?.text(template, now)
}

/// `chat_template_kwargs`; the switch for thinking in it is the one of the request.
fn template_variables(fields: &mut Fields) -> Result<(Map<String, Value>, Option<bool>)> {
    const FIELD: &str = "chat_template_kwargs";
    let mut kwargs = match fields.take(FIELD)? {
        None => return Ok((Map::new(), None)),
        Some(Value::Object(kwargs)) => kwargs,
        Some(other) => return Err(wrong(fields.path(FIELD), "an object", &other)),
    };
    let enable_thinking = match kwargs.remove("enable_thinking") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(on)) => Some(on),
        Some(other) => {
            return Err(wrong(format!("{FIELD}.enable_thinking"), "a boolean", &other));
        }
    };
    if let Some(name) = RESERVED.iter().find(|name| kwargs.contains_key(**name)) {
        return Err(refused(TemplateError::Reserved { name }));
    }
    Ok((kwargs, enable_thinking))
}

/// A template's refusal, at the field it names.
fn refused(error: TemplateError) -> ApiError {
    let message = error.to_string();
    match error {
        TemplateError::BadMessages { field, .. } => ApiError::field(field, message),
        TemplateError::Reserved { name } => ApiError::field(format!("chat_template_kwargs.{name}"), message),
        _ => ApiError::field("messages", message),
    }
}

/// What names an answer.
pub(crate) fn head(app: &App, kind: &str) -> Head {
    Head {
        id: format!("{kind}-{:016x}", random()),
        created: unix_seconds(),
        model: app.serving.model.name.clone(),
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// `logprobs` asks for them, `top_logprobs` says how many.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=LOGPROBS_MAX)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(fields.error("top_logprobs", "needs `logprobs` to be true"));
    }
    Ok(wanted.then(|| top.unwrap_or(0) as usize))
}

/// How much to think, in OpenAI's words: a variable for templates that know it (`gpt-oss`). For those
/// that can only be told whether to think, `none` and `minimal` mean not at all.
fn reasoning_effort(fields: &mut Fields, kwargs: &mut Map<String, Value>) -> Result<Option<bool>> {
    let Some(effort) = fields.string("reasoning_effort")? else { return Ok(None) };
    if !EFFORTS.contains(&effort.as_str()) {
        let message = format!("is {effort:?}; kvik knows {}", EFFORTS.join(", "));
        return Err(fields.error("reasoning_effort", message));
    }
    let thinks = if matches!(effort.as_str(), "none" | "minimal") { Some(false) } else { None };
    if effort != "none" {
        kwargs.entry("reasoning_effort").or_insert(Value::String(effort));
    }
    Ok(thinks)
}

/// Whether to stream, and whether the stream ends with a frame of usage.
pub(crate) fn stream(fields: &mut Fields) -> Result<(bool, bool)> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else { return Ok((stream, false)) };
    if !stream {
        return Err(fields.error("stream_options", "is only allowed when `stream` is true"));
    }
    Ok((stream, options.bool("include_usage")?.unwrap_or(false)))
}

impl Options {
    /// The engine's request for one prompt.
    pub(crate) fn request(&self, prompt: Vec<Token>, max_tokens: usize, logprobs: Option<usize>) -> Request {
        Request {
            prompt,
            choices: self.choices,
            max_tokens,
            ignore_eos: self.ignore_eos,
            stop: self.stop.clone(),
            sampling: self.sampling.clone(),
            logprobs,
            constraint: self.constraint.clone(),
            show_special: false,
            show: Vec::new(),
            reuse: self.reuse,
            salt: [0; 16],
            tenant: Default::default(),
            retain: self.retain,
        }
    }
}
