//! The fields of a body of `/v1/messages`, and their interpretation.

use kvik_memory::{conversations::MESSAGES_MAX, random::random};
use kvik_session::Chat;
use kvik_text::constraint::schema::Strictness;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    messages::{self, Times},
    thread::{Thread, ThreadField, not_continued},
    tools,
};
use crate::{
    api::{
        chat::{ChatTurn, Compacted},
        request::{
            cache::{CacheFields, Keep},
            compaction::{self, Compacting, Open},
            constraint::read_schema,
            conversation::{Effort, Thinking, told},
            defaults::RequestDefaults,
            generation::{Manner, Options, stop_strings},
            hints::Hints,
            number::{Fraction, Whole},
            parts::Part,
            place::Place,
        },
    },
    app::{conversations::check_values, keys::Caller, responses::ResponseTurn, state::App},
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Body, Json},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum number of stop sequences of one request.
const STOP_SEQUENCES_MAX: usize = 256;

/// All fields of a body.
pub(super) type Fields = (TellFields, AnswerFields, ManageFields, CacheFields);

/// What decides the prompt.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in crate::api) struct TellFields {
    /// The one model that runs here answers for any name, unless the server is strict.
    #[serde(default)]
    pub(super) model: String,
    /// `{"role": "user" | "assistant", "content": text or blocks}` each.
    #[schemars(with = "Vec<Map<String, Value>>")]
    messages: Json,
    /// The system prompt: a text or blocks of text.
    #[schemars(with = "Option<Value>")]
    system: Option<Json>,
    /// `{"name", "description", "input_schema", "strict"}` each, or one that Anthropic names and a client runs, as
    /// `{"type": "bash_20250124", "name": "bash"}`; others are not offered.
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    tools: Option<Json>,
    /// `{"type": "auto" | "any" | "tool" | "none"}`, with `disable_parallel_tool_use` for one call at most.
    #[schemars(with = "Option<Map<String, Value>>")]
    tool_choice: Option<Json>,
    /// `{"type": "enabled" | "adaptive" | "disabled"}`; absent is disabled.
    thinking: Option<ThinkingField>,
    output_config: Option<OutputConfig>,
    /// The older name of `output_config.format`.
    output_format: Option<Format>,
    /// Keep the whole prompt before others, for five minutes after its last use or for an hour.
    #[schemars(with = "Option<Map<String, Value>>")]
    cache_control: Option<Json>,
}

impl Part for TellFields {}

/// How the answer is made.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct AnswerFields {
    /// Tokens of the answer at most; with 0 the prompt is computed for the cache, and the answer has no content.
    max_tokens: Whole<0, { i64::MAX }>,
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
pub(in crate::api) struct ManageFields {
    #[schemars(with = "Option<Map<String, Value>>")]
    context_management: Option<Json>,
    /// Say what has changed since the answer `previous_message_id`.
    diagnostics: Option<Diagnostics>,
    /// Keep what is said for the next request, or go on from an answer that was kept.
    thread: Option<ThreadField>,
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
struct Diagnostics {
    previous_message_id: Option<String>,
}

/// Whether to think.
#[derive(Debug, Deserialize, JsonSchema)]
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
struct OutputConfig {
    effort: Option<Effort>,
    format: Option<Format>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Format {
    #[serde(rename = "type")]
    _kind: FormatKind,
    #[schemars(with = "Map<String, Value>")]
    schema: Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    JsonSchema,
}

/// Optional sections of the answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted {
    /// Report what has changed since an earlier answer.
    pub(super) diagnostics: bool,
    /// Report the edits of the context.
    pub(super) context_management: bool,
}

/// A conversation read from a body.
pub(in crate::api) struct Told {
    pub(in crate::api) chat: Chat,
    before: Option<compaction::Opened>,
    /// Times to live that its blocks ask for.
    times: Times,
    /// Messages of this request, without its system prompt.
    new: Vec<Value>,
}

impl ManageFields {
    /// The thread that the request begins or goes on from, if any.
    fn thread(&self, app: &App, tenant: &str) -> Result<Option<Thread>> {
        self.thread.as_ref().map(|thread| thread.thread(app, tenant)).transpose()
    }

    /// Refuses a thread beside a stored conversation: an answer goes on from one of them, and is kept in one.
    pub(super) fn check_one_past(&self, keep: &Keep) -> Result<()> {
        if self.thread.is_none() || keep.conversation.is_none() {
            return Ok(());
        }
        let message = "`thread` beside `kvik.conversation`: an answer belongs to either of them";
        Err(ApiError::field("thread", message))
    }

    /// The conversation of a request that is not answered, behind the thread that it would go on from.
    pub(in crate::api) fn told(
        &self,
        tell: TellFields,
        (app, tenant): (&App, &str),
        body: &Body,
    ) -> Result<Chat> {
        let thread = self.thread(app, tenant)?.unwrap_or_default();
        let open = |item: &str| app.seal.open(tenant, item);
        Ok(tell.within(&thread).told(&thread.said, &open, body)?.chat)
    }
}

impl TellFields {
    /// The fields, with the system prompt and the tools of the thread where they have none.
    fn within(self, thread: &Thread) -> TellFields {
        let (system, tools) = (thread.field("system", self.system), thread.field("tools", self.tools));
        TellFields { system, tools, ..self }
    }

    /// Reads the conversation, with the `earlier` messages first.
    pub(in crate::api) fn told(&self, earlier: &[Value], open: Open<'_>, body: &Body) -> Result<Told> {
        let (mut times, mut notes) = (Times::new(), Vec::new());
        let value = |field: &'_ Option<Json>| field.as_ref().map(|Json(value)| value.clone());
        let system = value(&self.system);
        let mut messages = messages::told(system.as_ref(), &self.messages.0, &mut times, &mut notes)?;
        let has_system = system.is_some() && messages.first().is_some_and(|first| first["role"] == "system");
        let new = messages[usize::from(has_system)..].to_vec();
        messages.splice(usize::from(has_system)..usize::from(has_system), earlier.iter().cloned());
        let before = compaction::expand(&mut messages, open)?;
        check_thread(earlier, &messages)?;
        let (offered, choice) = (value(&self.tools), value(&self.tool_choice));
        let tools = tools::tools(offered.as_ref(), choice.as_ref(), &mut times, &mut notes)?;
        notes.into_iter().for_each(|note| body.note(note));
        if let Some(Json(control)) = &self.cache_control {
            times.push(messages::ttl(&Place::new("cache_control", control))?);
        }
        let thinking = Thinking {
            enabled: Some(
                self.thinking.as_ref().is_some_and(|thinking| thinking.r#type != ThinkingKind::Disabled),
            ),
            effort: self.output_config.as_ref().and_then(|config| config.effort),
        };
        let chat = told(Value::Array(messages), tools, thinking, Map::new());
        Ok(Told { chat: chat.continuing(), before, times, new })
    }

    /// Takes the schema of the answer, and the path of its field.
    fn schema(&mut self) -> Result<Option<(&'static str, Value)>> {
        let format = self.output_config.as_mut().and_then(|config| config.format.take());
        match (format, self.output_format.take()) {
            (Some(format), Some(older)) if format != older => {
                let message = "`output_format` is the older name of `output_config.format`, and the two differ; send one of them";
                Err(ApiError::field("output_format", message))
            }
            (Some(Format { schema: Json(schema), .. }), _) => {
                Ok(Some(("output_config.format.schema", schema)))
            }
            (None, Some(Format { schema: Json(schema), .. })) => Ok(Some(("output_format.schema", schema))),
            (None, None) => Ok(None),
        }
    }
}

/// Reads a body into the turn, the optional sections of its answer, and the record of the turn if it belongs
/// to a thread.
pub(super) fn turn(
    app: &App,
    caller: &Caller,
    fields: Fields,
    body: &Body,
) -> Result<(ChatTurn, Wanted, Option<ResponseTurn>)> {
    let (mut tell, answer, manage, cache) = fields;
    app.accept_model(&tell.model)?;
    let mut keep = cache.keep()?;
    manage.check_one_past(&keep)?;
    let id = format!("msg_{:016x}", random());
    let thread = manage.thread(app, &caller.tenant.name)?;
    if let Some(thread) = &thread {
        tell = tell.within(thread);
    }
    let mut schema_notes = Vec::new();
    let read =
        |(path, schema): (&str, Value)| read_schema(path, &schema, Strictness::Lenient, &mut schema_notes);
    let constraint = tell.schema()?.map(read).transpose()?;
    let earlier = thread.as_ref().map_or(&[][..], |thread| &thread.said);
    let open = |item: &str| app.seal.open(&caller.tenant.name, item);
    let Told { chat, before, times, new } = tell.told(earlier, &open, body)?;
    keep.lifetime = hints(&times).lifetime(&keep);
    let keeps = kept(thread, keep.reuse, body)
        .map(|thread| thread.turn((app, caller, &id), new, (tell.system.as_ref(), tell.tools.as_ref())));
    if let Some(keeps) = &keeps {
        keeps.check_room(&Value::Null).map_err(not_continued)?;
    }
    let mut sampling = RequestDefaults::of_chat(app, &chat).sampling();
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
        chat,
        options: Options::of(manner, &app.serving.retaining)?,
        logprobs: None,
        compacted: Compacted { before, compacting: compacting(manage.context_management.as_ref(), body)? },
        id,
        compared_with: manage.diagnostics.and_then(|diagnostics| diagnostics.previous_message_id),
        stream: answer.stream,
    };
    Ok((turn, wanted, keeps))
}

/// Refuses a thread whose stored and new messages together exceed the limits of one body.
fn check_thread(earlier: &[Value], messages: &[Value]) -> Result<()> {
    if earlier.is_empty() {
        return Ok(());
    }
    let at = |error: ApiError| error.at("thread");
    if messages.len() > MESSAGES_MAX {
        let message = format!("`thread` has more than {MESSAGES_MAX} messages with these; begin another one");
        return Err(ApiError::field("thread", message));
    }
    check_values(messages).map_err(at)
}

/// Returns the thread if this turn is to be recorded in it: a request that leaves nothing in the cache is not
/// recorded.
fn kept(thread: Option<Thread>, reuse: bool, body: &Body) -> Option<Thread> {
    if thread.is_some() && !reuse {
        body.note("`thread` is not kept: the request is to leave nothing behind".to_owned());
    }
    thread.filter(|_| reuse)
}

/// Returns how long the prompt is kept. In this API, a time to live promises that the prefix stays that long,
/// so dropping it when the time ends would be worse than ignoring the field. Instead, the prefix has a higher
/// priority for that time: it is evicted after those without `cache_control`, and stays afterwards until others
/// need the space. `kvik.ttl_s`, `kvik.priority` and `kvik.pin` give exact control.
fn hints(times: &Times) -> Hints {
    times.iter().map(|ttl| Hints::of_ttl(*ttl)).fold(Hints::default(), Hints::and)
}

/// Reads `{"edits": [...]}`: compaction, and the removal of old thoughts, which the template decides. Other
/// edits are ignored with a note: the prompt is then merely longer.
fn compacting(field: Option<&Json>, body: &Body) -> Result<Option<Compacting>> {
    let Some(Json(value)) = field else { return Ok(None) };
    let field = Place::new("context_management", value);
    field.auxiliary(&["edits"])?.for_each(|note| body.note(note));
    let Some(edits) = field.get("edits") else { return Ok(None) };
    let mut compacting = None;
    for edit in edits.items()? {
        let kind = edit.need("type")?;
        match kind.text()? {
            "compact_20260112" => compacting = Some(Compacting { threshold: threshold(&edit)? }),
            "clear_thinking_20251015" => {}
            other => body.note(format!(
                "`{}` is {other:?}, which is not done here; `compact_20260112` compacts a conversation, and thins old results of tools",
                edit.path
            )),
        }
    }
    Ok(compacting)
}

/// Reads `{"trigger": {"type": "input_tokens", "value"}}`.
fn threshold(edit: &Place<'_>) -> Result<Option<usize>> {
    let Some(trigger) = edit.get("trigger") else { return Ok(None) };
    let kind = trigger.need("type")?;
    if kind.text()? != "input_tokens" {
        return Err(kind.error("must be `input_tokens`"));
    }
    let value = trigger.need("value")?;
    let tokens = value.whole().ok().filter(|tokens| (1..=1 << 30).contains(tokens));
    tokens.map(|tokens| Some(tokens as usize)).ok_or_else(|| value.wrong("a number of tokens"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conversation_is_compacted_at_a_whole_number_of_tokens() {
        let read = |tokens: Value| {
            let edit = json!({"trigger": {"type": "input_tokens", "value": tokens}});
            threshold(&Place::new("edits[0]", &edit)).ok().flatten()
        };
        assert_eq!((read(json!(150_000)), read(json!(150_000.0))), (Some(150_000), Some(150_000)));
        for wrong in [json!(0), json!(-1.0), json!(0.5), json!(1e10), json!("many")] {
            assert_eq!(read(wrong.clone()), None, "{wrong}");
        }
    }
}
