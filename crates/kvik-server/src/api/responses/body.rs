//! The fields of a body of `/v1/responses`, and their interpretation.

use kvik_engine::api::Constraint;
use kvik_memory::{conversations::MESSAGES_MAX, random::random};
use kvik_model::load::SamplingDefaults;
use kvik_session::Chat;
use kvik_text::constraint::schema::Strictness;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    input,
    references::referred,
    tools::{self, CalledNames},
};
use crate::{
    api::{
        chat::{ChatTurn, Compacted},
        request::{
            cache::{CacheFields, Keep},
            compaction::{self, ContextFields},
            constraint::read_schema,
            conversation::{Effort, Thinking, told},
            defaults::RequestDefaults,
            generation::{LOGPROBS_MAX, Manner, Options},
            hints::Hints,
            metadata::metadata,
            number::{Fraction, Temperature, Whole},
            parts::Part,
        },
    },
    app::{
        keys::Caller,
        responses::{ReferredItems, ResponseTurn},
        state::App,
    },
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Body, Json, VALUES_BYTES_MAX, fit_in_a_body},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// Supported values of `include`.
const INCLUDES: [&str; 2] = [LOGPROBS, SEALED_THOUGHTS];
/// Maximum characters of a client's names for its users and its cache.
const NAME_CHARS_MAX: usize = 512;
/// Maximum characters of an unknown name in `include` that a note repeats.
const INCLUDE_CHARS: usize = 80;
const LOGPROBS: &str = "message.output_text.logprobs";
const SEALED_THOUGHTS: &str = "reasoning.encrypted_content";

/// All fields of a body.
pub(super) type Fields = (TellFields, AnswerFields, Hints, KeepFields, ContextFields, CacheFields);

/// What decides the prompt.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in crate::api) struct TellFields {
    /// The one model that runs here answers for any name, unless the server is strict.
    #[serde(default)]
    pub(super) model: String,
    /// A text, or items: messages, calls, their outputs, reasoning, a compaction item, and references to items of stored
    /// answers (`{"type": "item_reference", "id"}`).
    #[schemars(with = "Option<Value>")]
    pub(super) input: Option<Json>,
    /// The system prompt; not carried over by `previous_response_id`.
    instructions: Option<String>,
    /// `{"type": "function", "name", "description", "parameters", "strict"}`, `{"type": "custom", "name", "format"}`, or
    /// `{"type": "namespace", "name", "tools"}` of those; others are not offered.
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    tools: Option<Json>,
    /// `none`, `auto`, `required`, a function, or allowed tools.
    #[schemars(with = "Option<Value>")]
    tool_choice: Option<Json>,
    /// Whether an answer may have several calls.
    parallel_tool_calls: Option<bool>,
    reasoning: Option<ReasoningField>,
    /// The answer that this one goes on from.
    pub(super) previous_response_id: Option<String>,
}

impl Part for TellFields {}

/// How the answer is made.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct AnswerFields {
    /// Tokens of the answer at most, thoughts included.
    max_output_tokens: Option<Whole<1, { i64::MAX }>>,
    /// Send the answer as it is generated.
    #[serde(default)]
    pub(super) stream: bool,
    temperature: Option<Temperature>,
    top_p: Option<Fraction>,
    /// Log-probabilities of as many of the likeliest tokens.
    top_logprobs: Option<Whole<0, LOGPROBS_MAX>>,
    /// `message.output_text.logprobs`, `reasoning.encrypted_content`; others are ignored.
    include: Option<Vec<String>>,
    text: Option<TextField>,
    /// Refused: an answer is given to whoever waits for it.
    #[serde(default)]
    background: bool,
    /// Refused: prompts are kept by `/v1/prompts`.
    #[schemars(with = "Option<Value>")]
    prompt: Option<Json>,
    /// Not read: streams are not padded.
    #[serde(rename = "stream_options")]
    #[schemars(with = "Option<Map<String, Value>>")]
    _stream_options: Option<Json>,
    /// Not read: no tool runs here.
    #[serde(rename = "max_tool_calls")]
    _max_tool_calls: Option<Whole<1, { i64::MAX }>>,
}

impl Part for AnswerFields {}

/// What is kept of it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in crate::api) struct KeepFields {
    /// Keep the answer, to be read again and gone on from; true where nothing is said.
    store: Option<bool>,
    /// The conversation of the server that it continues, by id or name.
    #[schemars(with = "Option<Value>")]
    conversation: Option<Json>,
    /// `auto` answers what is longer than the context from a summary and recent messages.
    truncation: Option<Truncation>,
    /// `24h` keeps the prompt before others for a day after its last use; one of the hints.
    #[serde(rename = "prompt_cache_retention")]
    _prompt_cache_retention: Option<PromptRetention>,
    prompt_cache_options: Option<PromptCacheOptions>,
    /// Not read: every prefix is found without one.
    prompt_cache_key: Option<String>,
    /// Given back.
    #[schemars(with = "Option<Map<String, Value>>")]
    metadata: Option<Json>,
    /// Not read: whose a request is comes from its key.
    user: Option<String>,
    /// Not read, likewise.
    safety_identifier: Option<String>,
    /// `flex` has the prompt evicted before others; one of the hints.
    #[serde(rename = "service_tier")]
    _service_tier: Option<String>,
}

impl Part for KeepFields {}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Truncation {
    Auto,
    Disabled,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
enum PromptRetention {
    #[serde(rename = "in-memory", alias = "in_memory")]
    InMemory,
    #[serde(rename = "24h")]
    Day,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct PromptCacheOptions {
    /// Id of an earlier answer that this one is to be compared with.
    comparison_response_id: Option<String>,
}

/// How much to think.
#[derive(Debug, Deserialize, JsonSchema)]
struct ReasoningField {
    effort: Option<Effort>,
}

/// What the answer's text must look like.
#[derive(Debug, Deserialize, JsonSchema)]
struct TextField {
    format: Option<TextFormat>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct TextFormat {
    #[serde(default)]
    r#type: TextKind,
    /// Not read: it is for people.
    #[serde(rename = "name")]
    _name: Option<String>,
    /// Not read, likewise.
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Of `json_schema`.
    #[schemars(with = "Option<Map<String, Value>>")]
    schema: Option<Json>,
    #[serde(default)]
    strict: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TextKind {
    #[default]
    Text,
    JsonObject,
    JsonSchema,
}

/// A conversation read from a body.
pub(in crate::api) struct Said {
    pub(in crate::api) chat: Chat,
    pub(super) before: Option<compaction::Opened>,
    /// Messages of this request, without its instructions.
    pub(super) new: Vec<Value>,
    pub(super) called: CalledNames,
}

impl TellFields {
    /// Reads the conversation, after the messages of the previous responses.
    pub(in crate::api) fn said(&self, app: &App, tenant: &str, body: &Body) -> Result<Said> {
        let responses = &app.server.responses;
        let earlier = match &self.previous_response_id {
            Some(id) => {
                let said = responses.said_up_to(tenant, id);
                said.map_err(|error| ApiError::from(error).at("previous_response_id"))?
            }
            None => Vec::new(),
        };
        let referred = match &self.input {
            Some(Json(input)) => referred("input", input, responses, tenant)?,
            None => ReferredItems::default(),
        };
        self.said_with(earlier, &referred, &|item| app.seal.open(tenant, item), body)
    }

    /// Reads the conversation, after the given messages. References to items of stored responses are refused.
    pub(in crate::api) fn said_after(
        &self,
        messages: Vec<Value>,
        open: compaction::Open<'_>,
        body: &Body,
    ) -> Result<Said> {
        self.said_with(messages, &ReferredItems::default(), open, body)
    }

    fn said_with(
        &self,
        mut messages: Vec<Value>,
        referred: &ReferredItems,
        open: compaction::Open<'_>,
        body: &Body,
    ) -> Result<Said> {
        let mut notes = Vec::new();
        let new = self
            .input
            .as_ref()
            .map_or(Ok(Vec::new()), |Json(input)| input::told("input", input, referred, &mut notes))?;
        if let Some(text) = &self.instructions {
            messages.insert(0, json!({"role": "system", "content": text}));
        }
        messages.extend(new.iter().cloned());
        if messages.iter().all(|message| message["role"] == "system") {
            return Err(ApiError::field(
                "input",
                "`input` is missing, or says nothing; send a text or items",
            ));
        }
        let before = compaction::expand(&mut messages, open)?;
        check_length(&messages)?;
        let json = |field: &Option<Json>| field.as_ref().map(|Json(value)| value.clone());
        let (offered, choice) = (json(&self.tools), json(&self.tool_choice));
        let offered = tools::tools(offered.as_ref(), choice.as_ref(), self.parallel_tool_calls)?;
        notes.into_iter().chain(offered.notes).for_each(|note| body.note(note));
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort);
        let thinking = Thinking { enabled: None, effort };
        let chat = told(Value::Array(messages), offered.tools, thinking, Map::new());
        Ok(Said { chat, before, new, called: offered.called })
    }
}

/// Refuses a conversation whose earlier and new messages together exceed the limits of one body.
fn check_length(messages: &[Value]) -> Result<()> {
    if messages.len() <= MESSAGES_MAX && fit_in_a_body(messages) {
        return Ok(());
    }
    let message = format!(
        "`input`: with what was said before the conversation has more than {MESSAGES_MAX} messages, or values than fit in {} MiB; begin another one",
        VALUES_BYTES_MAX >> 20
    );
    Err(ApiError::field("input", message))
}

/// Settings for the format of the answer.
pub(super) struct Wanted {
    /// Fields that are returned as they came.
    pub(super) echo: Value,
    /// The sampling in force where the request sets none.
    pub(super) sampling: SamplingDefaults,
    /// True if thoughts are also returned in a form that clients can send back.
    pub(super) sealed_thoughts: bool,
    /// Client names of the tools.
    pub(super) called: CalledNames,
    /// The record of the turn, if the answer is to be stored.
    pub(super) keeps: Option<ResponseTurn>,
}

/// Fields that an answer returns.
const ECHOED: [&str; 19] = [
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

/// Reads a body into a turn and the settings of its answer.
pub(super) fn turn(app: &App, caller: &Caller, fields: Fields, body: &Body) -> Result<(ChatTurn, Wanted)> {
    let (tell, answer, hints, keep, context, cache) = fields;
    app.accept_model(&tell.model)?;
    answer.refuse()?;
    let mut keeping = cache.keep()?;
    keep.check_one_past(&tell, &keeping)?;
    keep.check_names()?;
    answer.note_includes(body);
    let Said { chat, before, new, called } = tell.said(app, &caller.tenant.name, body)?;
    let id = format!("resp_{:016x}{:016x}", random(), random());
    let own_conversation = keep.conversation()?;
    if !keeping.reuse {
        keep.refuse_kept(own_conversation.is_some())?;
    }
    if keep.truncation == Some(Truncation::Auto) {
        keeping.memory = keeping.memory.or(Some(true));
    }
    keeping.lifetime = hints.lifetime(&keeping);
    keeping.conversation = own_conversation.or(keeping.conversation);
    // A conversation that the server stores is not stored twice, and a private request is not stored at all.
    let stores = keep.store.unwrap_or(true) && keeping.reuse && keeping.conversation.is_none();
    let mut schema_notes = Vec::new();
    let defaults = RequestDefaults::of_chat(app, &chat);
    let mut sampling = defaults.sampling();
    sampling.temperature = answer.temperature.map_or(sampling.temperature, |t| f64::from(t) as f32);
    sampling.top_p = answer.top_p.map_or(sampling.top_p, |p| f64::from(p) as f32);
    let manner = Manner {
        sampling,
        stop: Vec::new(),
        length: defaults.length(answer.max_output_tokens.map(Whole::get)),
        keep: keeping,
        constraint: answer.constraint(&mut schema_notes)?,
        schema_notes,
    };
    let keeps = stores.then(|| ResponseTurn {
        store: app.server.responses.clone(),
        tenant: caller.tenant.name.clone(),
        id: id.clone(),
        previous: tell.previous_response_id.clone(),
        input: tell.input.as_ref().map_or_else(Vec::new, |Json(input)| input::items(input)),
        new,
    });
    let echo = body.copy(&ECHOED)?;
    if let Some(keeps) = &keeps {
        keeps.check_room(&echo).map_err(|error| ApiError::from(error).at("previous_response_id"))?;
    }
    let sealed_thoughts = answer.includes(SEALED_THOUGHTS);
    let wanted = Wanted { echo, sampling: defaults.sampling, sealed_thoughts, called, keeps };
    let mut options = Options::of(manner, &app.serving.retaining)?;
    options.next_turn = hints.next_turn;
    let turn = ChatTurn {
        chat,
        options,
        logprobs: answer.logprobs(),
        compacted: Compacted { before, compacting: context.compacting()? },
        id,
        compared_with: keep.prompt_cache_options.and_then(|options| options.comparison_response_id),
        stream: answer.stream,
    };
    Ok((turn, wanted))
}

impl AnswerFields {
    /// Refuses fields that would change the answer and are not supported, instead of ignoring them.
    fn refuse(&self) -> Result<()> {
        let refused = |field: &str, text: &str| Err(ApiError::field(field, format!("`{field}` {text}")));
        if self.background {
            return refused("background", "is not supported: wait for the answer, or read its stream");
        }
        if self.prompt.is_some() {
            return refused("prompt", "is not supported: send `instructions` and `input`");
        }
        Ok(())
    }

    /// Adds a note for each unsupported value of `include`.
    fn note_includes(&self, body: &Body) {
        let unknown = self.include.iter().flatten().filter(|name| !INCLUDES.contains(&name.as_str()));
        for name in unknown {
            let name: String = name.chars().take(INCLUDE_CHARS).collect();
            body.note(format!("`include` asks for {name:?}; kvik has {}", INCLUDES.join(", ")));
        }
    }

    fn includes(&self, name: &str) -> bool {
        self.include.iter().flatten().any(|asked| asked == name)
    }

    /// Returns the number of likeliest tokens to report log-probabilities of.
    fn logprobs(&self) -> Option<usize> {
        let top = self.top_logprobs.and_then(Whole::count).unwrap_or(0);
        (top > 0 || self.includes(LOGPROBS)).then_some(top)
    }

    fn constraint(&self, notes: &mut Vec<String>) -> Result<Option<Constraint>> {
        const SCHEMA: &str = "text.format.schema";
        let Some(format) = self.text.as_ref().and_then(|text| text.format.as_ref()) else { return Ok(None) };
        match format.r#type {
            TextKind::Text => Ok(None),
            TextKind::JsonObject => Ok(Some(Constraint::JsonObject)),
            TextKind::JsonSchema => {
                let missing = || ApiError::field(SCHEMA, format!("`{SCHEMA}` is missing"));
                let Json(schema) = format.schema.as_ref().ok_or_else(missing)?;
                let strict = format.strict.unwrap_or(false);
                let strictness = if strict { Strictness::Strict } else { Strictness::Lenient };
                read_schema(SCHEMA, schema, strictness, notes).map(Some)
            }
        }
    }
}

/// The refusal of a stored conversation, which `field` names, on a route that reads none.
pub(super) fn unkept(field: &str) -> ApiError {
    let message = format!("`{field}` is not read here; send the messages of the conversation as `input`");
    ApiError::field(field, message)
}

impl KeepFields {
    /// Refuses a private request with settings that store something.
    fn refuse_kept(&self, in_conversation: bool) -> Result<()> {
        let refused = |field: &str, does: &str| {
            let message = format!(
                "`{field}` {does}, and this request is to leave nothing behind; leave one of them out"
            );
            Err(ApiError::field(field, message))
        };
        match self.truncation {
            _ if in_conversation => refused("conversation", "is written down"),
            Some(Truncation::Auto) => refused("truncation", "keeps a summary of the conversation"),
            _ => Ok(()),
        }
    }

    /// Refuses longer data of the client, and names, than an answer gives back.
    fn check_names(&self) -> Result<()> {
        self.metadata.as_ref().map(metadata).transpose()?;
        let names = [
            ("prompt_cache_key", &self.prompt_cache_key),
            ("safety_identifier", &self.safety_identifier),
            ("user", &self.user),
        ];
        let is_long = |name: &String| name.chars().count() > NAME_CHARS_MAX;
        match names.into_iter().find(|(_, name)| name.as_ref().is_some_and(is_long)) {
            None => Ok(()),
            Some((field, _)) => {
                let message = format!("`{field}` has more than {NAME_CHARS_MAX} characters");
                Err(ApiError::field(field, message))
            }
        }
    }

    /// Refuses both of what an answer may go on from; kvik's own field names a conversation too.
    pub(super) fn check_one_past(&self, tell: &TellFields, keeping: &Keep) -> Result<()> {
        let conversation = match (&self.conversation, &keeping.conversation) {
            (Some(_), _) => "conversation",
            (None, Some(_)) => "kvik.conversation",
            (None, None) => return Ok(()),
        };
        if tell.previous_response_id.is_none() {
            return Ok(());
        }
        let message =
            format!("`previous_response_id` beside `{conversation}`: an answer goes on from either of them");
        Err(ApiError::field("previous_response_id", message))
    }

    /// Refuses a stored conversation on a route that reads none.
    pub(in crate::api) fn check_unkept(&self) -> Result<()> {
        if self.conversation.is_some() { Err(unkept("conversation")) } else { Ok(()) }
    }

    /// Reads an id or a name, or an object with it.
    pub(super) fn conversation(&self) -> Result<Option<String>> {
        let Some(Json(value)) = &self.conversation else { return Ok(None) };
        let name = value.as_str().or_else(|| value.get("id")?.as_str());
        let wrong = || crate::http::json::wrong("conversation", "an id, or an object with `id`", value);
        name.map(|name| Some(name.to_owned())).ok_or_else(wrong)
    }
}
