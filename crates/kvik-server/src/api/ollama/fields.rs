//! The fields that Ollama's endpoints share.

use kvik_engine::api::Constraint;
use kvik_text::constraint::schema::Strictness;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::answer::DoneReason;
use crate::{
    api::{
        logprobs::likeliest,
        request::{
            bounds::Bounds,
            cache::CacheFields,
            constraint::read_schema,
            conversation::{Effort, Thinking},
            defaults::RequestDefaults,
            generation::{LOGPROBS_MAX, Manner, Options, stop_strings},
            number::{AnyTemperature, Fraction, Whole},
            parts::Part,
            place::Place,
            sampling::SamplingFields,
        },
    },
    app::state::App,
    described::JsonSchema,
    http::{error::ApiError, json::Json},
};
use kvik_serving::settings::keep_alive::KeepAlive;

type Result<T> = std::result::Result<T, ApiError>;

/// Ollama's bounds.
#[derive(Debug)]
pub(super) struct Ollama;

impl Bounds for Ollama {
    type Temperature = AnyTemperature;

    const PENALTY_LAST_N: i64 = 64;
    const STOP_STRINGS_MAX: usize = 256;
}

/// Maximum number of stop strings of one request.
const STOP_STRINGS_MAX: usize = Ollama::STOP_STRINGS_MAX;

/// Which model is to answer, and how.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct HeadFields {
    /// The one model that runs here answers for any name, unless the server is strict.
    #[serde(default)]
    pub(super) model: String,
    /// Send the answer as it is generated.
    #[serde(default = "yes")]
    pub(super) stream: bool,
    /// How to continue the prompt, by llama.cpp's names.
    #[schemars(with = "Option<Map<String, Value>>")]
    options: Option<Json>,
    /// `"json"`, or a JSON schema.
    #[schemars(with = "Option<Value>")]
    format: Option<Json>,
    /// Whether to think, or how much.
    #[schemars(with = "Option<Value>")]
    think: Option<Json>,
    /// Give the log-probability of each generated token.
    #[serde(default)]
    logprobs: bool,
    /// With `logprobs`, also those of as many of the likeliest tokens.
    top_logprobs: Option<Whole<0, LOGPROBS_MAX>>,
}

impl Part for HeadFields {}

/// How long the model stays; the shelf has read it before.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct StayFields {
    /// How long the model stays in memory after this use, where the server has several: seconds, or a text as `"5m"` or
    /// `"1h30m"`. 0 unloads it, and a negative one keeps it for ever.
    #[schemars(with = "Option<Value>")]
    keep_alive: Option<KeepAlive>,
}

impl Part for StayFields {}

impl StayFields {
    /// What a request that asks for nothing does with the model.
    pub(super) fn done_reason(&self) -> DoneReason {
        if self.keep_alive.is_some_and(KeepAlive::unloads) { DoneReason::Unload } else { DoneReason::Load }
    }
}

fn yes() -> bool {
    true
}

/// Fields of `options` that do not concern sampling. Load options are ignored: the model is loaded already.
#[derive(Debug, Default, Deserialize)]
struct OwnOptions {
    /// Maximum tokens of the answer; a negative number means the context size, and 0 is as absent.
    num_predict: Option<Whole<-2, { i64::MAX }>>,
    stop: Option<Vec<String>>,
    typical_p: Option<Fraction>,
    mirostat: Option<Whole<0, 2>>,
}

impl HeadFields {
    /// Returns how to continue the prompt, with `defaults` of what is missing.
    pub(super) fn options(
        &self,
        app: &App,
        defaults: &RequestDefaults,
        cache: CacheFields,
    ) -> Result<Options> {
        let nothing = Json(Value::Object(Map::new()));
        let given = self.options.as_ref().unwrap_or(&nothing);
        if !given.0.is_object() {
            return Err(Place::new("options", &given.0).wrong("an object"));
        }
        let own: OwnOptions = given.read("options")?;
        own.refuse()?;
        let sampling: SamplingFields<AnyTemperature> = given.read("options")?;
        let encode = |text: &str| app.serving.texts.tokenizer.encode(text, false, true);
        let mut schema_notes = Vec::new();
        let manner = Manner {
            sampling: sampling.sampling::<Ollama>(defaults, &encode)?,
            stop: stop_strings("options.stop", own.stop.unwrap_or_default(), STOP_STRINGS_MAX)?,
            // For Ollama 0 is no limit.
            length: defaults.length(own.num_predict.map(Whole::get).filter(|&tokens| tokens != 0)),
            keep: cache.keep()?,
            constraint: self.constraint(&mut schema_notes)?,
            schema_notes,
        };
        Options::of(manner, &app.serving.retaining)
    }

    /// Returns the number of likeliest tokens to report log-probabilities of.
    pub(super) fn logprobs(&self) -> Result<Option<usize>> {
        likeliest(self.logprobs, self.top_logprobs)
    }

    fn constraint(&self, notes: &mut Vec<String>) -> Result<Option<Constraint>> {
        match self.format.as_ref().map(|Json(format)| format) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) if text == "json" => Ok(Some(Constraint::JsonObject)),
            Some(schema @ Value::Object(_)) => {
                read_schema("format", schema, Strictness::Lenient, notes).map(Some)
            }
            Some(other) => Err(Place::new("format", other).wrong("\"json\" or a JSON schema")),
        }
    }

    /// Reads the field `think`.
    pub(super) fn thinking(&self) -> Result<Thinking> {
        let Some(Json(think)) = &self.think else { return Ok(Thinking::default()) };
        let effort = match think {
            Value::Bool(on) => return Ok(Thinking { enabled: Some(*on), effort: None }),
            Value::String(_) => serde_json::from_value::<Effort>(think.clone()).ok(),
            _ => None,
        };
        // Other efforts are OpenAI's words: `none` there switches thinking off.
        let is_known =
            |effort: &Effort| matches!(effort, Effort::Low | Effort::Medium | Effort::High | Effort::Max);
        let effort = effort.filter(is_known);
        let wrong = || Place::new("think", think).wrong("a boolean, \"low\", \"medium\" or \"high\"");
        Ok(Thinking { enabled: Some(true), effort: Some(effort.ok_or_else(wrong)?) })
    }
}

impl OwnOptions {
    /// Refuses options that would change the answer and are not supported, instead of ignoring them.
    fn refuse(&self) -> Result<()> {
        let refused = |name: &str, instead: &str| {
            let path = format!("options.{name}");
            Err(ApiError::field(&path, format!("`{path}` is not supported; {instead}")))
        };
        if self.typical_p.is_some_and(|p| f64::from(p) < 1.0) {
            return refused("typical_p", "use `top_p` or `min_p`");
        }
        if self.mirostat.is_some_and(|mode| mode.get() > 0) {
            return refused("mirostat", "use `temperature` and `top_p`");
        }
        Ok(())
    }
}
