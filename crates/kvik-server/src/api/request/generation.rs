//! Generation settings: the fields that all completion endpoints share.
//!
//! Names are OpenAI's, or those of llama-server and vLLM where OpenAI has none.

use std::{fmt, time::Duration};

use kvik_cache::{Lifetime, Token, retain::Retention};
use kvik_engine::api::{Constraint, LineLimits, Request, Sampling, Wants};
use kvik_text::measure::json_bytes;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess},
};

use super::{
    bounds::Bounds,
    cache::{CacheFields, Keep, RETAIN},
    constraint::ConstraintFields,
    defaults::RequestDefaults,
    hints::Hints,
    number::Whole,
    parts::{FromBody, Part},
    retain::refused,
    samplers::SamplerFields,
    sampling::SamplingFields,
    unsupported::UnsupportedGenerating,
};
use crate::{
    app::{kept_prefix::KeptPrefix, lora::LoraFields},
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};
use kvik_serving::retaining::Retaining;

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum bytes of one stop string; the engine holds back up to that much text.
const STOP_BYTES_MAX: usize = 4096;
/// Maximum number of alternatives with log-probabilities per generated token, as in OpenAI's API.
pub(crate) const LOGPROBS_MAX: i64 = 20;
/// Number of alternatives per token that is allowed for answers of any length.
const LOGPROBS_FREE: usize = 256;
/// Maximum log-probabilities of one request with more alternatives: each takes some hundred bytes until the
/// answer is sent.
const LOGPROBS_OF_REQUEST_MAX: usize = 1 << 18;
/// Maximum bytes of a constraint, multiplied by the number of its prompts.
const COPIED_CONSTRAINT_BYTES_MAX: usize = 1 << 20;

/// The fields of a body with its generation settings.
#[derive(Debug)]
pub(crate) struct GenerationFields<B: Bounds> {
    sampling: SamplingFields<B::Temperature>,
    samplers: SamplerFields,
    end: EndFields,
    constraint: ConstraintFields,
    cache: CacheFields,
    hints: Hints,
}

impl<B: Bounds> FromBody for GenerationFields<B> {
    fn from_body(body: &Body) -> Result<Self> {
        body.read::<UnsupportedGenerating>()?;
        let samplers: SamplerFields = body.read()?;
        samplers.notes().into_iter().for_each(|note| body.note(note));
        Ok(GenerationFields {
            samplers,
            cache: body.read()?,
            hints: Hints::from_body(body)?,
            sampling: body.read()?,
            end: body.read()?,
            constraint: body.read()?,
        })
    }

    #[cfg(test)]
    fn describe(
        generator: &mut schemars::SchemaGenerator,
        schema: &mut serde_json::Map<String, serde_json::Value>,
    ) {
        SamplingFields::<B::Temperature>::describe(generator, schema);
        SamplerFields::describe(generator, schema);
        EndFields::describe(generator, schema);
        ConstraintFields::describe(generator, schema);
        CacheFields::describe(generator, schema);
        Hints::describe(generator, schema);
        UnsupportedGenerating::describe(generator, schema);
        LoraFields::describe(generator, schema);
        schema["properties"]["n"]["default"] = serde_json::json!(1);
    }
}

/// The fields that say where an answer ends, and how many there are.
#[derive(Debug, Deserialize, JsonSchema)]
struct EndFields {
    /// Tokens of an answer at most; -1 is as many as the context holds.
    max_completion_tokens: Option<Length>,
    /// The same, where `max_completion_tokens` is absent.
    max_tokens: Option<Length>,
    /// The same, where both others are absent.
    n_predict: Option<Length>,
    /// Texts that end the answer before them.
    stop: Option<Stop>,
    /// End the answer at a line that begins with fewer spaces and tabs than these; not at the first. llama-server's.
    n_indent: Option<Whole<0, { i64::MAX }>>,
    /// End the answer with a line break once as many milliseconds have passed since its first token; llama-server's.
    t_max_predict_ms: Option<Whole<-1, { i64::MAX }>>,
    /// Not read, as by llama-server: a prompt is computed to its end.
    #[serde(rename = "t_max_prompt_ms")]
    _t_max_prompt_ms: Option<Whole<-1, { i64::MAX }>>,
    /// Go on where the model would end.
    #[serde(default)]
    ignore_eos: bool,
    /// Answers for each prompt. They share the prompt's blocks, and each needs blocks of its own to go on.
    n: Option<Whole<1, 64>>,
}

impl Part for EndFields {}

impl EndFields {
    /// Maximum length of the answer, if the request sets it.
    fn length(&self) -> Option<i64> {
        self.max_completion_tokens.or(self.max_tokens).or(self.n_predict).map(Whole::get)
    }

    /// The limits that end the answer at a line.
    fn line_limits(&self) -> LineLimits {
        let time_max = self.t_max_predict_ms.map(Whole::get).filter(|&millis| millis > 0);
        LineLimits {
            indent_min: self.n_indent.and_then(Whole::count).unwrap_or(0),
            time_max: time_max.map(|millis| Duration::from_millis(millis.unsigned_abs())),
        }
    }
}

/// Read wherever requests of all dialects are read.
impl Part for LoraFields {}

/// Maximum length; includes -2, which older clients send for -1.
type Length = Whole<-2, { i64::MAX }>;

/// One text or several.
#[derive(Debug, Default, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Stop {
    #[default]
    None,
    One(String),
    Several(Vec<String>),
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Stop, D::Error> {
        deserializer.deserialize_any(StopVisitor)
    }
}

struct StopVisitor;

impl<'de> de::Visitor<'de> for StopVisitor {
    type Value = Stop;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an array of strings")
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Stop, E> {
        Ok(Stop::One(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Stop, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = seq.next_element()? {
            texts.push(text);
        }
        Ok(Stop::Several(texts))
    }
}

impl Stop {
    fn texts(self, strings_max: usize) -> Result<Vec<String>> {
        let texts = match self {
            Stop::None => Vec::new(),
            Stop::One(text) => vec![text],
            Stop::Several(texts) => texts,
        };
        stop_strings("stop", texts, strings_max)
    }
}

/// Checks the stop strings of the field `path` and converts them for the engine.
pub(crate) fn stop_strings(path: &str, texts: Vec<String>, strings_max: usize) -> Result<Vec<String>> {
    if texts.len() > strings_max {
        let message = format!("`{path}` has {} strings, the limit is {strings_max}", texts.len());
        return Err(ApiError::field(path, message));
    }
    if texts.iter().any(|text| text.len() > STOP_BYTES_MAX) {
        let message = format!("a string in `{path}` is longer than {STOP_BYTES_MAX} bytes");
        return Err(ApiError::field(path, message));
    }
    // An empty stop string would end every answer before its first character.
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
}

/// Checks the number of alternatives in `field` for answers of `tokens` tokens in total, and limits it to the
/// vocabulary.
pub(crate) fn logprobs(field: &str, asked: usize, vocabulary: usize, tokens: usize) -> Result<usize> {
    let count = asked.min(vocabulary);
    if count <= LOGPROBS_FREE || count.saturating_mul(tokens) <= LOGPROBS_OF_REQUEST_MAX {
        return Ok(count);
    }
    let most = LOGPROBS_OF_REQUEST_MAX / tokens.max(1);
    let most = most.max(LOGPROBS_FREE);
    Err(ApiError::field(
        field,
        format!(
            "`{field}` may be {most} for answers of {tokens} tokens, not {asked}; ask for shorter answers or fewer"
        ),
    ))
}

/// Generation settings of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    pub(crate) sampling: Sampling,
    /// Whether each of several prompts draws a seed of its own, because nobody has set one.
    pub(super) seed_per_prompt: bool,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_eos: bool,
    /// Where a line ends the answer.
    pub(crate) line_limits: LineLimits,
    pub(crate) choices: u32,
    /// Maximum tokens of an answer, if the request sets it; a negative number means the context size.
    length: Option<i64>,
    pub(crate) reuse: bool,
    pub(crate) lifetime: Lifetime,
    pub(crate) retention: Option<Retention>,
    /// The pinned prompt whose compressed prefix the request reads.
    pub(crate) kept_prefix: Option<KeptPrefix>,
    /// True if the answer lists the retained positions.
    show_kept: bool,
    /// Whether the conversation is remembered beyond the context, if the request sets it.
    pub(crate) memory: Option<bool>,
    /// The conversation that the messages continue, by name or id.
    pub(crate) conversation: Option<String>,
    /// Whether the answer goes on without its client.
    pub(crate) resume: bool,
    /// Whether an answer that repeats itself ends.
    stop_loops: bool,
    /// Whether the prompt is settled, if the request sets it.
    pub(crate) settle: Option<bool>,
    /// Whether the next turn is expected, if the client says so.
    pub(crate) next_turn: Option<bool>,
    pub(crate) constraint: Option<Constraint>,
    /// Schema features that are not enforced, with the reasons.
    pub(crate) schema_notes: Vec<String>,
}

impl<B: Bounds> GenerationFields<B> {
    /// Adds hints that the body has elsewhere.
    pub(crate) fn hinted(self, more: Hints) -> Self {
        GenerationFields { hints: self.hints.and(more), ..self }
    }

    /// Combines the fields, with the server's values of those that are missing and its retention settings; `encode`
    /// tokenizes a text, for biases that name one.
    pub(crate) fn options(
        self,
        defaults: &RequestDefaults,
        encode: &dyn Fn(&str) -> Vec<Token>,
        retaining: &Retaining,
    ) -> Result<Options> {
        let end = self.end;
        let line_limits = end.line_limits();
        let seed_per_prompt = self.sampling.draws_seed(defaults);
        let sampling = self.sampling.sampling::<B>(defaults, encode)?;
        let mut schema_notes = Vec::new();
        let mut keep = self.cache.keep()?;
        keep.lifetime = self.hints.lifetime(&keep);
        let manner = Manner {
            sampling: self.samplers.apply(sampling),
            length: defaults.length(end.length()),
            stop: end.stop.unwrap_or_default().texts(B::STOP_STRINGS_MAX)?,
            keep,
            constraint: self.constraint.constraint(&mut schema_notes)?,
            schema_notes,
        };
        Ok(Options {
            seed_per_prompt,
            next_turn: self.hints.next_turn,
            ignore_eos: end.ignore_eos,
            line_limits,
            choices: end.n.map_or(1, |n| n.get() as u32),
            ..Options::of(manner, retaining)?
        })
    }
}

/// The generation settings that every dialect has.
pub(crate) struct Manner {
    pub(crate) sampling: Sampling,
    pub(crate) stop: Vec<String>,
    /// Maximum tokens of an answer, if the request sets it; a negative number means the context size.
    pub(crate) length: Option<i64>,
    pub(crate) keep: Keep,
    pub(crate) constraint: Option<Constraint>,
    /// Schema features that are not enforced, with the reasons.
    pub(crate) schema_notes: Vec<String>,
}

impl Options {
    /// Returns the options for one answer, with the server's retention settings.
    pub(crate) fn of(manner: Manner, retaining: &Retaining) -> Result<Options> {
        let Manner { sampling, stop, length, keep, constraint, schema_notes } = manner;
        let Keep {
            reuse,
            lifetime,
            retain,
            show_kept,
            kept_prefix,
            memory,
            conversation,
            resume,
            stop_loops,
            settle,
            says_lifetime: _,
        } = keep;
        Ok(Options {
            sampling,
            seed_per_prompt: false,
            stop,
            ignore_eos: false,
            line_limits: LineLimits::default(),
            choices: 1,
            length,
            reuse,
            lifetime,
            retention: retaining.choose(retain).map_err(|refusal| refused(RETAIN, &refusal))?,
            show_kept,
            kept_prefix,
            memory,
            conversation,
            resume,
            stop_loops,
            settle,
            next_turn: None,
            constraint,
            schema_notes,
        })
    }

    /// Returns the maximum tokens of an answer; `default` if the request does not set it.
    pub(crate) fn max_tokens(&self, default: usize, context: usize) -> usize {
        self.length.map_or(default, |length| usize::try_from(length).unwrap_or(context))
    }

    /// True if the prompt is found by its own text again: it is pinned, or begins with a kept prompt.
    pub(crate) fn stays_as_sent(&self) -> bool {
        self.lifetime.pin || matches!(self.kept_prefix, Some(KeptPrefix::Named(_)))
    }

    /// Refuses memory settings on a route without conversations.
    pub(crate) fn check_memory(&self) -> Result<()> {
        match self.memory {
            Some(true) => Err(ApiError::field(
                "kvik.memory",
                "`kvik.memory` remembers conversations; send `messages` to /v1/chat/completions",
            )),
            _ => self.check_unkept(),
        }
    }

    /// Refuses a stored conversation on a route that reads none.
    pub(crate) fn check_unkept(&self) -> Result<()> {
        match self.conversation {
            Some(_) => Err(ApiError::field(
                "kvik.conversation",
                "`kvik.conversation` is continued by /v1/chat/completions alone; send `messages` there",
            )),
            None => Ok(()),
        }
    }

    /// Refuses a large constraint for many prompts, each of which takes a copy.
    pub(crate) fn check_copies(&self, prompts: usize) -> Result<()> {
        let bytes = match &self.constraint {
            _ if prompts == 1 => return Ok(()),
            Some(Constraint::JsonSchema(schema)) => json_bytes(schema),
            Some(Constraint::Regex(text) | Constraint::Lark(text)) => text.len(),
            _ => return Ok(()),
        };
        if bytes.saturating_mul(prompts) <= COPIED_CONSTRAINT_BYTES_MAX {
            return Ok(());
        }
        let message = format!(
            "`prompt` holds {prompts} prompts under a constraint of {bytes} bytes; together these may be {COPIED_CONSTRAINT_BYTES_MAX}: send fewer prompts at a time"
        );
        Err(ApiError::field("prompt", message))
    }

    /// Returns the engine's request for one prompt.
    pub(crate) fn request(&self, prompt: Vec<Token>, max_tokens: usize, logprobs: Option<usize>) -> Request {
        Request {
            prompt,
            prompt_is_text: false,
            retokenised: None,
            wants: Wants::Text,
            choices: self.choices,
            max_tokens,
            ignore_eos: self.ignore_eos,
            stop: self.stop.clone(),
            stop_loops: self.stop_loops,
            line_limits: self.line_limits,
            sampling: self.sampling.clone(),
            logprobs,
            constraint: self.constraint.clone(),
            show_special: false,
            show: Vec::new(),
            reuse: self.reuse,
            adapters: None,
            salt: [0; 16],
            tenant: Default::default(),
            lifetime: self.lifetime,
            retention: self.retention,
            kept_prefix: None,
            show_kept: self.show_kept,
            background: None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
