//! A conversation: the fields that decide its prompt, and its engine request.

use std::time::SystemTime;

use kvik_cache::Token;
use kvik_engine::api::{Constraint, Request};
use kvik_memory::context::leading_systems;
use kvik_memory::memory::{Compaction, Purpose};
use kvik_text::answer::{AnswerStart, ReasoningForm};
use kvik_text::template::{ChatTemplate, Prompt, RESERVED, RenderInput, TemplateError};
use kvik_text::tools::Tools;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    billing, compaction, continuation,
    generation::Options,
    messages,
    parts::{FromBody, Part},
    tools::ToolFields,
    unsupported::UnsupportedConversing,
};
use crate::{
    api::reading::Reading,
    app::{
        report::comparison::{Answered, Parts},
        seal::ForeignItem,
        state::App,
    },
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Body, Json, wrong},
    },
    serving::Serving,
    settings::template::TemplateVariables,
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
        let (prompt, mut tools) = (body.read()?, body.read::<ToolFields>()?);
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

/// The inputs of the chat template.
#[derive(Debug, Clone)]
pub(crate) struct Conversation {
    messages: Value,
    tools: Tools,
    add_generation_prompt: bool,
    /// The answer continues the last message.
    continues: bool,
    enable_thinking: Option<bool>,
    kwargs: Map<String, Value>,
}

/// The thinking settings of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Thinking {
    /// Whether to think, if the request sets it directly.
    pub(crate) enabled: Option<bool>,
    /// The reasoning effort.
    pub(crate) effort: Option<Effort>,
}

impl Conversation {
    /// Creates a conversation from an array of messages that ends with the question; `kwargs` are variables
    /// of the template.
    pub(crate) fn told(
        mut messages: Value,
        tools: Tools,
        thinking: Thinking,
        mut kwargs: Map<String, Value>,
    ) -> Conversation {
        billing::remove(&mut messages);
        let from_effort = thinking.effort.and_then(|effort| effort.tell(&mut kwargs));
        Conversation {
            messages,
            tools,
            add_generation_prompt: true,
            continues: false,
            enable_thinking: thinking.enabled.or(from_effort),
            kwargs,
        }
    }

    /// Makes the answer continue the last message, if that is the assistant's.
    pub(crate) fn continuing(mut self) -> Result<Conversation> {
        self.continues = continuation::is_wanted(None, &self.messages, None)?;
        self.add_generation_prompt = !self.continues;
        Ok(self)
    }

    /// Returns the messages.
    pub(crate) fn messages(&self) -> &[Value] {
        self.messages.as_array().map_or(&[], Vec::as_slice)
    }

    /// True if the answer continues the last message.
    pub(crate) fn continues(&self) -> bool {
        self.continues
    }

    /// Returns a Chat Completions body with this conversation.
    pub(crate) fn chat_body(self) -> Value {
        let mut body = json!({"messages": self.messages});
        let fields = [
            ("tools", self.tools.offered),
            ("enable_thinking", self.enable_thinking.map(Value::from)),
            ("chat_template_kwargs", (!self.kwargs.is_empty()).then_some(Value::Object(self.kwargs))),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        body
    }

    /// Splits the conversation into its settings and its messages.
    pub(crate) fn apart(self) -> (Conversation, Vec<Value>) {
        let messages = match self.messages {
            Value::Array(messages) => messages,
            _ => Vec::new(),
        };
        (Conversation { messages: Value::Null, ..self }, messages)
    }

    /// Returns a conversation of other messages with the same settings, adapted to the purpose: summaries
    /// have no tools.
    pub(crate) fn with_messages(&self, messages: &[Value], purpose: Purpose) -> Conversation {
        let mut other = Conversation {
            messages: Value::Array(messages.to_vec()),
            tools: self.tools.clone(),
            kwargs: self.kwargs.clone(),
            ..*self
        };
        other.add_generation_prompt = purpose != Purpose::Ahead && self.add_generation_prompt;
        if purpose == Purpose::Summary {
            other.tools = Tools::none();
            other.kwargs = Map::new();
        }
        if matches!(purpose, Purpose::InPlace | Purpose::Summary) {
            (other.enable_thinking, other.add_generation_prompt) = (Some(false), true);
        }
        other
    }

    /// Returns the conversation with a question of the user at the end.
    pub(crate) fn and_asked(&self, question: &str) -> Conversation {
        let mut asked = self.clone();
        if let Value::Array(messages) = &mut asked.messages {
            messages.push(json!({"role": "user", "content": question}));
        }
        asked.continues = false;
        asked
    }
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

    /// Combines the fields into a conversation.
    pub(crate) fn conversation(self) -> Result<Conversation> {
        let ConversationFields { prompt, tools } = self;
        let (kwargs, from_kwargs) = template_variables(prompt.chat_template_kwargs)?;
        let thinking =
            Thinking { enabled: prompt.enable_thinking.or(from_kwargs), effort: prompt.reasoning_effort };
        let messages = messages::checked(prompt.messages.0)?;
        let begins_anew = prompt.add_generation_prompt;
        let continues = continuation::is_wanted(prompt.continue_final_message, &messages, begins_anew)?;
        let mut conversation = Conversation::told(messages, tools.tools()?, thinking, kwargs);
        conversation.continues = continues;
        conversation.add_generation_prompt = begins_anew.unwrap_or(!continues);
        Ok(conversation)
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

impl Conversation {
    /// Returns the engine's request for the answer, unless the client has disconnected.
    pub(crate) fn request(
        mut self,
        app: &App,
        mut options: Options,
        logprobs: Option<usize>,
        body: &Body,
    ) -> Result<ChatRequest> {
        self.make_room_for_a_call(&mut options, body)?;
        self.note_calls_left_out(&options, body);
        body.still_wanted()?;
        let mut prompt = self.render(&app.serving)?;
        body.still_wanted()?;
        let form = app.serving.reasoning_form();
        if options.constraint.is_some() && form == ReasoningForm::Channels {
            // The constraint covers the whole output, so the header of the message is part of the prompt.
            form.close_in(&mut prompt.text);
        }
        let (reading, show) = self.reading(app, &prompt, &mut options);
        let parts = self.parts(&app.answered, &app.serving.model.name);
        let context = app.serving.model.context;
        let tokens = app.serving.encode_rendered(&prompt);
        let request = options.request(tokens, options.max_tokens(context, context), logprobs);
        Ok(ChatRequest {
            request: Request { show, ..request },
            reading,
            parts,
            messages: self.messages,
            schema_notes: options.schema_notes,
        })
    }

    /// Prepares for a required call: disables thinking before it, drops a JSON constraint, which applies to
    /// text that this answer lacks, and refuses a grammar, which applies to the whole output.
    fn make_room_for_a_call(&mut self, options: &mut Options, body: &Body) -> Result<()> {
        if !self.tools.forced {
            return Ok(());
        }
        match &options.constraint {
            None => {}
            Some(Constraint::JsonObject | Constraint::JsonSchema(_)) => {
                options.constraint = None;
                body.note(
                    "`tool_choice` asks for a call, so that the form of the text is not needed".to_owned(),
                );
            }
            Some(_) => {
                let message =
                    "`tool_choice` asks for a call, and a grammar constrains the answer; send one of them";
                return Err(ApiError::field("tool_choice", message));
            }
        }
        self.enable_thinking = Some(false);
        Ok(())
    }

    /// Adds a note that no tool is called if the answer is constrained.
    fn note_calls_left_out(&self, options: &Options, body: &Body) {
        if options.constraint.is_some() && self.tools.offered.is_some() {
            body.note("`tools` are not called: another field says the form of the whole answer".to_owned());
        }
    }

    /// Returns how the answer is parsed, and the control tokens of reasoning and calls. If tools are offered,
    /// constrains the answer to their format.
    fn reading(&self, app: &App, prompt: &Prompt, options: &mut Options) -> (Reading, Vec<Token>) {
        if options.constraint.is_some() {
            return (Reading::Plain, Vec::new());
        }
        let serving = &app.serving;
        let start = self.start(serving.reasoning_form(), &prompt.text);
        let template = serving.template.as_ref().filter(|_| self.tools.offered.is_some());
        let (reading, constraint) = self.tools.reading(start, template.map(ChatTemplate::tool_form));
        options.constraint = constraint;
        let show = serving.tokenizer.controls_in(reading.texts());
        (reading, show)
    }

    /// Renders the prompt, with the ranges that come from the request.
    pub(crate) fn render(&self, serving: &Serving) -> Result<Prompt> {
        let template =
            serving.chat_template().map_err(|error| ApiError::field("messages", error.to_string()))?;
        let prompt = self.text(template, &serving.variables, SystemTime::now())?;
        serving.check_length(&prompt.text)?;
        Ok(prompt)
    }

    /// Hashes the parts that decide the prompt.
    fn parts(&self, answered: &Answered, model: &str) -> Parts {
        let messages = self.messages.as_array().map_or(&[][..], Vec::as_slice);
        let (system, others) = messages.split_at(leading_systems(messages));
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

    /// Renders the template at time `now`; the variables in `usual` apply unless the request sets them.
    fn text(&self, template: &ChatTemplate, usual: &TemplateVariables, now: SystemTime) -> Result<Prompt> {
        let mut messages = self.messages.clone();
        if self.continues {
            continuation::mark(&mut messages);
        }
        let mut kwargs = usual.kwargs.clone();
        kwargs.extend(self.kwargs.clone());
        let input = RenderInput {
            messages,
            tools: self.tools.offered.clone(),
            add_generation_prompt: self.add_generation_prompt,
            enable_thinking: self.enable_thinking.or(usual.enable_thinking),
            kwargs,
            now,
        };
        let prompt = template.render(&input).map_err(refused)?;
        if self.continues { continuation::cut(prompt) } else { Ok(prompt) }
    }

    /// Returns the state in which the answer to this prompt begins.
    fn start(&self, form: ReasoningForm, prompt: &str) -> AnswerStart {
        match self.continues {
            true => continuation::start(form, &self.messages, prompt),
            false => AnswerStart::after(form, prompt),
        }
    }
}

/// Renders the prompt of a chat body with this template at time `now`; needs no server.
pub(crate) fn conversation_prompt(body: Value, template: &ChatTemplate, now: SystemTime) -> Result<Prompt> {
    ConversationFields::from_body(&Body::of(&body)?)?.conversation()?.text(
        template,
        &TemplateVariables::default(),
        now,
    )
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
        return Err(refused(TemplateError::Reserved { name }));
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

/// Converts a template's error to one at the field that it names.
fn refused(error: TemplateError) -> ApiError {
    let message = error.to_string();
    match error {
        TemplateError::BadMessages { field, .. } => ApiError::field(field, message),
        TemplateError::Reserved { name } => ApiError::field(format!("chat_template_kwargs.{name}"), message),
        _ => ApiError::field("messages", message),
    }
}
