//! The fields of a body of `/v1/messages`, and what they mean together.

use kvik_cache::Lifetime;
use kvik_engine::text::constraint::schema::Strictness;
use kvik_memory::random::random;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    messages::{self, Times},
    tools,
};
use crate::{
    api::{
        chat::{ChatTurn, Compacted},
        request::{
            cache::CacheFields,
            compaction::{self, Compacting},
            constraint::read_schema,
            conversation::{Conversation, Effort, Thinking},
            defaults::Usual,
            generation::{Manner, Options, stop_strings},
            number::{Fraction, Whole},
            parts::Part,
            place::Place,
            sampling::unsaid,
        },
    },
    app::{keys::Caller, state::App},
    described::JsonSchema,
    http::{error::ApiError, json::Json},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Stop sequences of one request at most.
const STOP_SEQUENCES_MAX: usize = 256;
/// How much longer than others a prefix is kept whose client asks for it: those are evicted first that nobody did.
const PRIORITY: i8 = 25;
/// The same of one that is asked for for an hour.
const PRIORITY_HOUR: i8 = 50;

/// All fields of a body.
pub(super) type Fields = (TellFields, AnswerFields, ManageFields, CacheFields);

/// What decides the prompt.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TellFields {
    /// The one model that runs here answers for any name, unless the server is strict.
    #[serde(default)]
    pub(super) model: String,
    /// `{"role": "user" | "assistant", "content": text or blocks}` each.
    #[schemars(with = "Vec<Map<String, Value>>")]
    messages: Json,
    /// The system prompt: a text or blocks of text.
    #[schemars(with = "Option<Value>")]
    system: Option<Json>,
    /// `{"name", "description", "input_schema"}` each.
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    tools: Option<Json>,
    /// `{"type": "auto" | "any" | "tool" | "none"}`, with `disable_parallel_tool_use` for one call at most.
    #[schemars(with = "Option<Map<String, Value>>")]
    tool_choice: Option<Json>,
    /// `{"type": "enabled" | "adaptive" | "disabled"}`; absent is disabled.
    thinking: Option<ThinkingField>,
    output_config: Option<OutputConfig>,
    /// Keep the whole prompt longer than others.
    #[schemars(with = "Option<Map<String, Value>>")]
    cache_control: Option<Json>,
}

impl Part for TellFields {}

/// How the answer is made.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct AnswerFields {
    /// Tokens of the answer at most.
    max_tokens: Whole<1, { i64::MAX }>,
    /// Send the answer as it is generated.
    #[serde(default)]
    stream: bool,
    /// Texts that end the answer before them.
    stop_sequences: Option<Vec<String>>,
    /// 0 takes the likeliest token.
    temperature: Option<Fraction>,
    top_k: Option<Whole<0, { i64::MAX }>>,
    top_p: Option<Fraction>,
}

impl Part for AnswerFields {}

/// What is done with the conversation beside answering it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ManageFields {
    #[schemars(with = "Option<Map<String, Value>>")]
    context_management: Option<Json>,
    /// Say what has changed since the answer `previous_message_id`.
    diagnostics: Option<Diagnostics>,
    /// Not read: whose a request is comes from its key.
    #[serde(rename = "metadata")]
    #[schemars(with = "Option<Map<String, Value>>")]
    _metadata: Option<Json>,
    /// Not read: there is one.
    #[serde(rename = "service_tier")]
    _service_tier: Option<String>,
}

impl Part for ManageFields {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Diagnostics {
    previous_message_id: Option<String>,
}

/// Whether to think.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ThinkingField {
    r#type: ThinkingKind,
    /// Not counted: the answer's `max_tokens` bound thoughts as well.
    #[serde(rename = "budget_tokens")]
    _budget_tokens: Option<Whole<1, { i64::MAX }>>,
    /// Not read: thoughts are always said.
    #[serde(rename = "display")]
    _display: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ThinkingKind {
    Enabled,
    Adaptive,
    Disabled,
}

/// How much to think, and the form of the answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OutputConfig {
    effort: Option<Effort>,
    format: Option<Format>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Format {
    #[serde(rename = "type")]
    _kind: FormatKind,
    #[schemars(with = "Map<String, Value>")]
    schema: Json,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    JsonSchema,
}

/// What a client is told besides the answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted {
    /// What has changed since an earlier answer.
    pub(super) diagnostics: bool,
    /// What was done to the context.
    pub(super) context_management: bool,
}

impl TellFields {
    /// The conversation, and the times to live that its blocks ask for.
    pub(super) fn told(self, open: Open<'_>) -> Result<(Conversation, Option<compaction::Opened>, Times)> {
        let mut times = Times::new();
        let system = self.system.as_ref().map(|Json(system)| system);
        let mut messages = messages::told(system, &self.messages.0, &mut times)?;
        let opened = compaction::expand(&mut messages, open)?;
        let (offered, choice) =
            (self.tools.map(|Json(tools)| tools), self.tool_choice.map(|Json(choice)| choice));
        let tools = tools::tools(offered.as_ref(), choice.as_ref(), &mut times)?;
        if let Some(Json(control)) = &self.cache_control {
            times.push(messages::ttl(&Place::new("cache_control", control))?);
        }
        let thinking = Thinking {
            enabled: Some(self.thinking.is_some_and(|thinking| thinking.r#type != ThinkingKind::Disabled)),
            effort: self.output_config.as_ref().and_then(|config| config.effort),
        };
        let conversation = Conversation::told(Value::Array(messages), tools, thinking, Map::new());
        Ok((conversation.continuing()?, opened, times))
    }

    fn format(&mut self) -> Option<Format> {
        self.output_config.as_mut()?.format.take()
    }
}

/// Opens compaction items.
pub(super) type Open<'a> = &'a dyn Fn(&str) -> std::result::Result<compaction::Opened, compaction::Foreign>;

/// The turn that a body asks for.
pub(super) fn turn(app: &App, caller: &Caller, fields: Fields) -> Result<(ChatTurn, Wanted)> {
    let (mut tell, answer, manage, cache) = fields;
    app.accept_model(&tell.model)?;
    let mut schema_notes = Vec::new();
    let schema = |Format { schema: Json(schema), .. }| {
        read_schema("output_config.format.schema", &schema, Strictness::Lenient, &mut schema_notes)
    };
    let constraint = tell.format().map(schema).transpose()?;
    let (conversation, before, times) = tell.told(&|item| app.seal.open(&caller.tenant.name, item))?;
    let mut keep = cache.keep()?;
    keep.lifetime = lifetime(keep.lifetime, &times);
    let mut sampling = unsaid::<Usual>();
    sampling.temperature = answer.temperature.map_or(sampling.temperature, |t| f64::from(t) as f32);
    sampling.top_p = answer.top_p.map_or(sampling.top_p, |p| f64::from(p) as f32);
    sampling.top_k = answer.top_k.and_then(Whole::count).unwrap_or(sampling.top_k);
    let stop = answer.stop_sequences.unwrap_or_default();
    let manner = Manner {
        sampling,
        stop: stop_strings("stop_sequences", stop, STOP_SEQUENCES_MAX)?,
        length: Some(answer.max_tokens.get()),
        keep,
        constraint,
        schema_notes,
    };
    let wanted = Wanted {
        diagnostics: manage.diagnostics.is_some(),
        context_management: manage.context_management.is_some(),
    };
    let turn = ChatTurn {
        conversation,
        options: Options::of(manner, &app.serving.retaining)?,
        logprobs: None,
        compacted: Compacted { before, compacting: compacting(manage.context_management.as_ref())? },
        id: format!("msg_{:016x}", random()),
        compared_with: manage.diagnostics.and_then(|diagnostics| diagnostics.previous_message_id),
        stream: answer.stream,
    };
    Ok((turn, wanted))
}

/// How long the prompt is kept. A time to live there is a promise to keep it so long; forgetting it then would be worse
/// than what happens without. So it is kept as long as others need no room, and evicted after those that nobody asked to
/// keep. `kvik.ttl_s`, `kvik.priority` and `kvik.pin` say it exactly.
fn lifetime(own: Lifetime, times: &Times) -> Lifetime {
    let asked = times.iter().map(|ttl| if *ttl == Some("1h") { PRIORITY_HOUR } else { PRIORITY }).max();
    match asked {
        Some(priority) if own == Lifetime::default() => Lifetime { priority, ..own },
        _ => own,
    }
}

/// `{"edits": [...]}`: a conversation that is to be compacted, and old thoughts, of which the template says what becomes.
fn compacting(field: Option<&Json>) -> Result<Option<Compacting>> {
    let Some(Json(value)) = field else { return Ok(None) };
    let field = Place::new("context_management", value);
    field.only(&["edits"])?;
    let Some(edits) = field.get("edits") else { return Ok(None) };
    let mut compacting = None;
    for edit in edits.items()? {
        let kind = edit.need("type")?;
        match kind.text()? {
            "compact_20260112" => compacting = Some(Compacting { threshold: threshold(&edit)? }),
            "clear_thinking_20251015" => {}
            _ => {
                return Err(kind.error(
                    "is not known here; kvik compacts conversations (`compact_20260112`), and thins old results of tools by itself where a summary is made",
                ));
            }
        }
    }
    Ok(compacting)
}

/// `{"trigger": {"type": "input_tokens", "value"}}`.
fn threshold(edit: &Place<'_>) -> Result<Option<usize>> {
    let Some(trigger) = edit.get("trigger") else { return Ok(None) };
    let kind = trigger.need("type")?;
    if kind.text()? != "input_tokens" {
        return Err(kind.error("must be `input_tokens`"));
    }
    let value = trigger.need("value")?;
    let tokens = value.value.as_u64().filter(|&tokens| (1..=1 << 30).contains(&tokens));
    tokens.map(|tokens| Some(tokens as usize)).ok_or_else(|| value.wrong("a number of tokens"))
}
