//! A conversation: the fields that decide its prompt, and its engine request.

use std::time::SystemTime;

use kvik_engine::api::{Constraint, Request};
use kvik_memory::context::leading_systems;
use kvik_memory::memory::Compaction;
use kvik_session::{Chat, EncodedChat, TemplateVariables};
use kvik_text::template::{ChatTemplate, Prompt, RESERVED, TemplateError, may_reason};
use kvik_text::tools::Tools;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    billing, compaction, continues,
    generation::Options,
    messages,
    parts::{FromBody, Part},
    tools::{ToolFields, unenforced},
    unsupported::UnsupportedConversing,
};
use crate::{
    api::reading::Reading,
    app::{
        chat_text,
        report::comparison::{Answered, Parts},
        seal::ForeignItem,
        state::App,
    },
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Body, Json, wrong},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// The fields that decide the prompt of a conversation.
#[derive(Debug)]
pub(crate) struct ConversationFields {
    prompt: PromptFields,
    tools: ToolFields,
}

impl FromBody for ConversationFields {
    fn from_body(body: &Body) -> Result<Self> {
        body.read::<UnsupportedConversing>()?;
        let (prompt, mut tools) = (body.read::<PromptFields>()?, body.read::<ToolFields>()?);
        messages::unseen_parts(&prompt.messages.0).for_each(|note| body.note(note));
        tools.leave_out_others(|note| body.note(note));
        Ok(ConversationFields { prompt, tools })
    }

    #[cfg(test)]
    fn describe(generator: &mut schemars::SchemaGenerator, schema: &mut Map<String, Value>) {
        PromptFields::describe(generator, schema);
        ToolFields::describe(generator, schema);
        UnsupportedConversing::describe(generator, schema);
    }
}

/// Those beside the tools.
#[derive(Debug, Deserialize, JsonSchema)]
struct PromptFields {
    /// Variables that the template is given.
    #[schemars(with = "Option<Map<String, Value>>")]
    chat_template_kwargs: Option<Json>,
    /// How much to think, for templates that know it; `none` and `minimal` also switch thinking off.
    reasoning_effort: Option<Effort>,
    #[schemars(schema_with = "messages::schema")]
    messages: Json,
    /// Let the assistant begin anew; true unless the last message is continued.
    add_generation_prompt: Option<bool>,
    /// Go on from the last message; true where it is the assistant's.
    continue_final_message: Option<bool>,
    /// Whether to think, for templates that can be told.
    enable_thinking: Option<bool>,
}

impl Part for PromptFields {}

/// What `reasoning_effort` may be.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// What a request says of thinking.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Thinking {
    /// Whether to think, if the request sets it directly.
    pub(crate) enabled: Option<bool>,
    /// The reasoning effort.
    pub(crate) effort: Option<Effort>,
}

/// The chat of these messages, an array; `kwargs` are variables of the template.
pub(crate) fn told(
    mut messages: Value,
    tools: Tools,
    thinking: Thinking,
    mut kwargs: Map<String, Value>,
) -> Chat {
    billing::remove(&mut messages);
    let from_effort = thinking.effort.and_then(|effort| effort.tell(&mut kwargs));
    Chat { kwargs, ..Chat::new(messages, tools, thinking.enabled.or(from_effort)) }
}

impl ConversationFields {
    /// Replaces a compaction item by the messages that it contains, and returns it.
    pub(crate) fn expand(
        &mut self,
        open: impl FnOnce(&str) -> std::result::Result<Compaction, ForeignItem>,
    ) -> Result<Option<Compaction>> {
        let Value::Array(messages) = &mut self.prompt.messages.0 else { return Ok(None) };
        compaction::expand(messages, open)
    }

    /// What they say together.
    pub(crate) fn chat(self) -> Result<Chat> {
        let ConversationFields { prompt, tools } = self;
        let (kwargs, from_kwargs) = template_variables(prompt.chat_template_kwargs)?;
        let thinking =
            Thinking { enabled: prompt.enable_thinking.or(from_kwargs), effort: prompt.reasoning_effort };
        let messages = messages::checked(prompt.messages.0)?;
        let begins_anew = prompt.add_generation_prompt;
        let continues = continues::is_wanted(prompt.continue_final_message, &messages, begins_anew)?;
        let add_generation_prompt = begins_anew.unwrap_or(!continues);
        let chat = told(messages, tools.tools()?, thinking, kwargs);
        Ok(Chat { continues, add_generation_prompt, ..chat })
    }
}

/// A conversation prepared for the engine.
pub(crate) struct ChatRequest {
    pub(crate) request: Request,
    /// How the text of the answer is parsed.
    pub(crate) reading: Reading,
    /// Hashes of the prompt's parts, to compare answers.
    pub(crate) parts: Parts,
    pub(crate) messages: Value,
    /// Schema features that are not enforced.
    pub(crate) schema_notes: Vec<String>,
}

impl ChatRequest {
    /// The engine's request for the answer to a chat, as long as its client waits.
    pub(crate) fn new(
        app: &App,
        chat: Chat,
        mut options: Options,
        logprobs: Option<usize>,
        body: &Body,
    ) -> Result<ChatRequest> {
        make_room_for_a_call(&chat, &mut options, body)?;
        body.still_wanted()?;
        let prompt = chat_text::render(&app.serving, &chat)?;
        body.still_wanted()?;
        let parts = parts(&chat, &app.answered, &app.serving.model.name);
        let encoded = app.serving.texts.encode(&chat, prompt, options.constraint.take());
        let EncodedChat { tokens, reading, constraint, show } = encoded;
        note_left_out(app, &chat, &reading, body);
        options.schema_notes.extend(unenforced(&chat.tools, &reading));
        options.constraint = constraint;
        let context = app.serving.model.context;
        let request = options.request(tokens, options.max_tokens(context, context), logprobs);
        Ok(ChatRequest {
            request: Request { show, prompt_is_text: true, ..request },
            reading,
            parts,
            messages: chat.messages,
            schema_notes: options.schema_notes,
        })
    }
}

/// A call that has to be made leaves no room for another constraint: JSON is the form of the text of an answer, and this
/// one has none; a grammar is the form of all that it says.
fn make_room_for_a_call(chat: &Chat, options: &mut Options, body: &Body) -> Result<()> {
    if !chat.tools.forced {
        return Ok(());
    }
    match &options.constraint {
        None => {}
        Some(Constraint::JsonObject | Constraint::JsonSchema(_)) => {
            options.constraint = None;
            body.note("`tool_choice` asks for a call, so that the form of the text is not needed".to_owned());
        }
        Some(_) => {
            let message =
                "`tool_choice` asks for a call, and a grammar constrains the answer; send one of them";
            return Err(ApiError::field("tool_choice", message));
        }
    }
    Ok(())
}

/// Notes that no tool is called, and that there is no reasoning, where a constraint is the form of the whole answer.
fn note_left_out(app: &App, chat: &Chat, reading: &Reading, body: &Body) {
    if !matches!(reading, Reading::Plain) {
        return;
    }
    if chat.tools.offered.is_some() {
        body.note("`tools` are not called: another field says the form of the whole answer".to_owned());
    }
    let template = app.serving.texts.template.as_ref();
    if chat.thinks() == Some(true) && template.is_some_and(|template| may_reason(template.source())) {
        body.note("there is no reasoning: another field says the form of the whole answer".to_owned());
    }
}

/// Hashes of the parts that decide the prompt, each as it is written.
fn parts(chat: &Chat, answered: &Answered, model: &str) -> Parts {
    let messages = chat.messages();
    let (system, others) = messages.split_at(leading_systems(messages));
    let prompt_end = (chat.add_generation_prompt, chat.continues);
    let settings = (prompt_end, chat.thinks(), Value::from(chat.kwargs.clone()).to_string());
    Parts {
        model: answered.hash(model),
        tools: answered.hash(chat.tools.offered.as_ref().map(Value::to_string)),
        system: answered.hash(system.iter().map(Value::to_string).collect::<Vec<_>>()),
        settings: answered.hash(settings),
        messages: others.iter().map(|message| answered.hash(message.to_string())).collect(),
    }
}

/// Renders the prompt of a chat body with this template at time `now`; needs no server.
pub fn conversation_prompt(body: Value, template: &ChatTemplate, now: SystemTime) -> Result<Prompt> {
    let chat = ConversationFields::from_body(&Body::of(&body)?)?.chat()?;
    chat.prompt(template, &TemplateVariables::default(), now).map_err(chat_text::refused)
}

/// Reads `chat_template_kwargs`; `enable_thinking` in it is returned separately.
fn template_variables(field: Option<Json>) -> Result<(Map<String, Value>, Option<bool>)> {
    const FIELD: &str = "chat_template_kwargs";
    let mut kwargs = match field {
        None => return Ok((Map::new(), None)),
        Some(Json(Value::Object(kwargs))) => kwargs,
        Some(Json(other)) => return Err(wrong(FIELD, "an object", &other)),
    };
    let enable_thinking = match kwargs.remove("enable_thinking") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(on)) => Some(on),
        Some(other) => return Err(wrong(format!("{FIELD}.enable_thinking"), "a boolean", &other)),
    };
    if let Some(name) = RESERVED.iter().find(|name| kwargs.contains_key(**name)) {
        return Err(chat_text::refused(TemplateError::Reserved { name }.into()));
    }
    Ok((kwargs, enable_thinking))
}

impl Effort {
    /// Sets the template variable for the effort, which some templates know (`gpt-oss`). For templates with
    /// only a thinking switch, `none` and `minimal` switch it off.
    fn tell(self, kwargs: &mut Map<String, Value>) -> Option<bool> {
        if self != Effort::None {
            kwargs.entry("reasoning_effort").or_insert(json!(self));
        }
        matches!(self, Effort::None | Effort::Minimal).then_some(false)
    }
}
