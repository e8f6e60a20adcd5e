//! Options of a model and of an answer.

use kvik_library::{
    DiskOptions, KvFormats, LOGIT_BIASES, MemoryConfig, Options, REPETITION_PENALTIES, Retention,
    SamplingOptions, Source, Token, ToolChoice, tool_choice_from_name, tools_from_json,
};

use crate::error::{KvikError, count};

/// Options of a model. An option that is missing has its default.
#[derive(Debug, Clone, PartialEq, Default, uniffi::Record)]
pub struct ModelOptions {
    /// Bytes of RAM for keys and values; by default half of the free memory, at most 8 GiB. Memory is allocated as it is
    /// used.
    #[uniffi(default = None)]
    pub kv_bytes: Option<i64>,
    /// Format of keys and values; `f16` by default. Smaller ones are `q8`, `q4`, or `q8/q4` for keys and values.
    #[uniffi(default = None)]
    pub kv_format: Option<String>,
    /// Maximum tokens of a prompt and its answer together; by default the model's own, or what fits the memory.
    #[uniffi(default = None)]
    pub context_tokens: Option<i64>,
    /// Compute threads; by default the number of fast cores.
    #[uniffi(default = None)]
    pub threads: Option<i64>,
    /// Fraction of time in which to compute, above 0 and at most 1, for a device that must stay cool; 1 by default. Answers
    /// do not change.
    #[uniffi(default = None)]
    pub time_share: Option<f64>,
    /// Maximum number of answers computed at the same time; 4 by default. Others wait.
    #[uniffi(default = None)]
    pub parallel: Option<i64>,
    /// Directory in which computed blocks outlive the process; none by default.
    #[uniffi(default = None)]
    pub disk_dir: Option<String>,
    /// Maximum bytes in that directory, never more than a tenth of the free space; 2 GiB by default.
    #[uniffi(default = None)]
    pub disk_bytes_max: Option<i64>,
    /// Directory where conversations are stored. They cannot be recomputed, so it must not be a cache directory. Without
    /// it, they last as long as the model is open.
    #[uniffi(default = None)]
    pub conversations_dir: Option<String>,
    /// Options of conversations that exceed the context; by default scaled to it.
    #[uniffi(default = None)]
    pub memory: Option<MemoryOptions>,
}

/// Options of conversations that exceed the context. A bound that is missing is scaled to the context.
#[derive(Debug, Clone, PartialEq, Eq, Default, uniffi::Record)]
pub struct MemoryOptions {
    /// Maximum tokens of the recent messages that a summary leaves out.
    #[uniffi(default = None)]
    pub recent_tokens_max: Option<i64>,
    /// Maximum tokens of a summary.
    #[uniffi(default = None)]
    pub summary_tokens_max: Option<i64>,
    /// Tokens beyond the recent messages that trigger a new summary.
    #[uniffi(default = None)]
    pub trigger_tokens: Option<i64>,
    /// Maximum tokens of older messages that are quoted where they match the question.
    #[uniffi(default = None)]
    pub quotes_tokens_max: Option<i64>,
    /// True if the first exchange always stays verbatim.
    #[uniffi(default = false)]
    pub protect_first: bool,
}

/// Constraint on the form of an answer.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Enum)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that satisfies a schema.
    JsonSchema {
        /// The schema, as JSON.
        schema: String,
    },
    /// Text that matches a regular expression.
    Regex {
        /// The expression.
        regex: String,
    },
    /// Text that a Lark grammar accepts.
    Lark {
        /// The grammar.
        grammar: String,
    },
}

/// A change of the logit of a token.
#[derive(Debug, Clone, Copy, PartialEq, uniffi::Record)]
pub struct LogitBias {
    /// The token, as `tokens` returns it.
    pub token: i32,
    /// Number that is added to its logit, at most 1e9; negative infinity forbids the token.
    pub bias: f64,
}

/// Options of an answer. A setting of the sampler that is missing is the model's: what its makers recommend, else kvik's
/// default.
#[derive(Debug, Clone, PartialEq, Default, uniffi::Record)]
pub struct AnswerOptions {
    /// Maximum tokens of the answer; by default the rest of the context.
    #[uniffi(default = None)]
    pub max_tokens: Option<i64>,
    /// Minimum tokens of the answer: before them the model cannot end it.
    #[uniffi(default = 0)]
    pub min_tokens: i64,
    /// Stop texts: the answer ends before the first of these.
    #[uniffi(default = [])]
    pub stop: Vec<String>,
    /// Ends an answer that only repeats itself, as small models do.
    #[uniffi(default = false)]
    pub stop_loops: bool,
    /// Sampling temperature; 0 takes the likeliest token at each position.
    #[uniffi(default = None)]
    pub temperature: Option<f64>,
    /// Keeps the smallest set of tokens whose probability reaches this; 1 keeps all.
    #[uniffi(default = None)]
    pub top_p: Option<f64>,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    #[uniffi(default = None)]
    pub top_k: Option<i64>,
    /// Drops tokens below this share of the likeliest one's probability; 0 keeps all.
    #[uniffi(default = None)]
    pub min_p: Option<f64>,
    /// Divides the logits of tokens that occurred; 1 is off.
    #[uniffi(default = None)]
    pub repetition_penalty: Option<f64>,
    /// Subtracted once from the logits of generated tokens; 0 is off.
    #[uniffi(default = None)]
    pub presence_penalty: Option<f64>,
    /// Subtracted per occurrence from the logits of generated tokens; 0 is off.
    #[uniffi(default = None)]
    pub frequency_penalty: Option<f64>,
    /// Changes of the logits of tokens.
    #[uniffi(default = [])]
    pub logit_bias: Vec<LogitBias>,
    /// Seed of the sampler: the same seed gives the same text. Random by default.
    #[uniffi(default = None)]
    pub seed: Option<i64>,
    /// Switches reasoning before the answer to a chat on or off, for models that have it.
    #[uniffi(default = None)]
    pub reasoning: Option<bool>,
    /// Tools that the answer to a chat may call, in OpenAI's format: a JSON array.
    #[uniffi(default = None)]
    pub tools: Option<String>,
    /// Which of them it calls: `none`, `auto`, `required`, or the name of one.
    #[uniffi(default = None)]
    pub tool_choice: Option<String>,
    /// True if it may call several; by default, a forced call is the only one.
    #[uniffi(default = None)]
    pub parallel_tool_calls: Option<bool>,
    /// Constraint on the form of the answer.
    #[uniffi(default = None)]
    pub constraint: Option<Constraint>,
    /// Retention policy of a long prompt, as `keydiff:0.5` (docs/retention.md): the answer reads only the part of it that
    /// the policy keeps. By default it reads the whole prompt.
    #[uniffi(default = None)]
    pub retention: Option<String>,
}

impl ModelOptions {
    pub(crate) fn read(self, source: Source) -> Result<Options, KvikError> {
        let usual = Options::new(source);
        let counted = |name, number: Option<i64>| number.map(|number| count(name, number)).transpose();
        let format = |name: String| {
            name.parse::<KvFormats>().map_err(|error| KvikError::argument("kv_format", &error.to_string()))
        };
        Ok(Options {
            kv_bytes: counted("kv_bytes", self.kv_bytes)?.map(|bytes| bytes as u64),
            kv_formats: self.kv_format.map_or(Ok(usual.kv_formats), format)?,
            context_tokens: counted("context_tokens", self.context_tokens)?,
            threads: counted("threads", self.threads)?,
            time_share: self.time_share.map_or(Ok(usual.time_share), time_share)?,
            parallel: counted("parallel", self.parallel)?.unwrap_or(usual.parallel),
            conversations: self.conversations_dir.map(Into::into),
            memory: self.memory.map_or(Ok(usual.memory), MemoryOptions::read)?,
            ..usual
        })
        .and_then(|options| with_disk(options, self.disk_dir, self.disk_bytes_max))
    }
}

fn with_disk(options: Options, dir: Option<String>, bytes_max: Option<i64>) -> Result<Options, KvikError> {
    let bytes_max = bytes_max.map(|bytes| count("disk_bytes_max", bytes)).transpose()?;
    let Some(dir) = dir else { return Ok(options) };
    let options = options.with_disk(dir);
    let sized = |disk: DiskOptions| match bytes_max {
        None => disk,
        Some(bytes) => DiskOptions { bytes_max: bytes as u64, ..disk },
    };
    Ok(Options { disk: options.disk.map(sized), ..options })
}

impl MemoryOptions {
    fn read(self) -> Result<MemoryConfig, KvikError> {
        let counted = |name, number: Option<i64>| number.map(|number| count(name, number)).transpose();
        Ok(MemoryConfig {
            recent_max: counted("recent_tokens_max", self.recent_tokens_max)?,
            summary_max: counted("summary_tokens_max", self.summary_tokens_max)?,
            trigger_discard: counted("trigger_tokens", self.trigger_tokens)?,
            quotes_max: counted("quotes_tokens_max", self.quotes_tokens_max)?,
            protect_first: self.protect_first,
            ..MemoryConfig::default()
        })
    }
}

impl Constraint {
    fn read(self) -> Result<kvik_library::Constraint, KvikError> {
        Ok(match self {
            Constraint::JsonObject => kvik_library::Constraint::JsonObject,
            Constraint::JsonSchema { schema } => {
                let schema = serde_json::from_str(&schema);
                let wrong = |error| KvikError::argument("schema", &format!("is no JSON: {error}"));
                kvik_library::Constraint::JsonSchema(schema.map_err(wrong)?)
            }
            Constraint::Regex { regex } => kvik_library::Constraint::Regex(regex),
            Constraint::Lark { grammar } => kvik_library::Constraint::Lark(grammar),
        })
    }
}

impl LogitBias {
    fn read(self) -> Result<(Token, f32), KvikError> {
        let bias = self.bias as f32;
        match Token::try_from(self.token) {
            Ok(token) if LOGIT_BIASES.contains(&bias) => Ok((token, bias)),
            _ => Err(KvikError::argument("logit_bias", "has tokens from 0, and numbers of at most 1e9")),
        }
    }
}

impl AnswerOptions {
    pub(crate) fn read(self) -> Result<kvik_library::AnswerOptions, KvikError> {
        let positive = |name, number: Option<f64>| number.map(|number| share(name, number)).transpose();
        let penalty = |name, number: Option<f64>| number.map(|number| finite(name, number)).transpose();
        let counted = |name, number: Option<i64>| number.map(|number| count(name, number)).transpose();
        let sampling = SamplingOptions {
            temperature: positive("temperature", self.temperature)?,
            top_p: positive("top_p", self.top_p)?,
            top_k: counted("top_k", self.top_k)?,
            min_p: positive("min_p", self.min_p)?,
            repetition_penalty: self.repetition_penalty.map(repetition_penalty).transpose()?,
            presence_penalty: penalty("presence_penalty", self.presence_penalty)?,
            frequency_penalty: penalty("frequency_penalty", self.frequency_penalty)?,
            penalty_last_n: None,
        };
        Ok(kvik_library::AnswerOptions {
            max_tokens: counted("max_tokens", self.max_tokens)?,
            min_tokens: count("min_tokens", self.min_tokens)?,
            stop: self.stop,
            stop_loops: self.stop_loops,
            sampling,
            logit_bias: self.logit_bias.into_iter().map(LogitBias::read).collect::<Result<_, _>>()?,
            seed: self.seed.map(|seed| seed as u64),
            reasoning: self.reasoning,
            tools: self.tools.map_or(Ok(Vec::new()), |tools| tools_from_json(&tools))?,
            tool_choice: self.tool_choice.map_or(ToolChoice::Auto, |choice| tool_choice_from_name(&choice)),
            parallel_tool_calls: self.parallel_tool_calls,
            constraint: self.constraint.map(Constraint::read).transpose()?,
            retention: self.retention.map(|text| retention(&text)).transpose()?,
        })
    }
}

fn time_share(share: f64) -> Result<f32, KvikError> {
    match share > 0.0 && share <= 1.0 {
        true => Ok(share as f32),
        false => Err(KvikError::argument("time_share", "must be above 0 and at most 1")),
    }
}

fn repetition_penalty(penalty: f64) -> Result<f32, KvikError> {
    let penalty = penalty as f32;
    match REPETITION_PENALTIES.contains(&penalty) {
        true => Ok(penalty),
        false => Err(KvikError::argument("repetition_penalty", "must be 0.01 to 100; 1 is off")),
    }
}

fn retention(text: &str) -> Result<Retention, KvikError> {
    let wrong = |error| KvikError::argument("retention", &format!("is wrong: {error}"));
    text.parse::<Retention>().map_err(wrong)
}

fn finite(name: &str, number: f64) -> Result<f32, KvikError> {
    // The sampler computes with single floats: what is no number there is none.
    let number = number as f32;
    match number.is_finite() {
        true => Ok(number),
        false => Err(KvikError::argument(name, "is no number, or a larger one than 3.4e38")),
    }
}

/// A number that is neither negative nor NaN.
fn share(name: &str, number: f64) -> Result<f32, KvikError> {
    match number >= 0.0 {
        true => finite(name, number),
        false => Err(KvikError::argument(name, "is negative or no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_options_have_their_defaults() {
        let usual = Options::new("a.gguf");
        let options = ModelOptions::default().read("a.gguf".into()).unwrap();
        assert_eq!(format!("{options:?}"), format!("{usual:?}"));
        assert_eq!(AnswerOptions::default().read(), Ok(kvik_library::AnswerOptions::RECOMMENDED));
    }

    #[test]
    fn options_that_are_set_arrive() {
        let options = ModelOptions {
            kv_bytes: Some(7),
            kv_format: Some("q8/q4".into()),
            time_share: Some(0.5),
            parallel: Some(2),
            disk_dir: Some("dir".into()),
            disk_bytes_max: Some(9),
            ..ModelOptions::default()
        };
        let read = options.read("a.gguf".into()).unwrap();
        assert_eq!((read.kv_bytes, read.kv_formats.to_string(), read.parallel), (Some(7), "q8/q4".into(), 2));
        assert_eq!(read.time_share, 0.5);
        assert_eq!(read.disk, Some(DiskOptions { dir: "dir".into(), bytes_max: 9 }));
        let options = AnswerOptions {
            min_tokens: 2,
            temperature: Some(0.0),
            top_k: Some(0),
            repetition_penalty: Some(0.01),
            presence_penalty: Some(-0.5),
            logit_bias: vec![LogitBias { token: 7, bias: f64::NEG_INFINITY }],
            seed: Some(-1),
            retention: Some("keydiff:0.5".into()),
            ..AnswerOptions::default()
        };
        let read = options.read().unwrap();
        assert_eq!((read.min_tokens, read.seed), (2, Some(u64::MAX)));
        assert_eq!(read.logit_bias, [(7, f32::NEG_INFINITY)]);
        assert_eq!(read.retention, Some("keydiff:0.5".parse::<Retention>().unwrap()));
        let expect = SamplingOptions {
            temperature: Some(0.0),
            top_k: Some(0),
            repetition_penalty: Some(0.01),
            presence_penalty: Some(-0.5),
            ..SamplingOptions::NONE
        };
        assert_eq!(read.sampling, expect);
    }

    #[test]
    fn numbers_and_names_that_are_none_are_errors_that_name_the_argument() {
        let check = |options: ModelOptions, expect: &str| {
            let error = options.read("a.gguf".into()).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        let usual = ModelOptions::default;
        check(ModelOptions { kv_bytes: Some(-1), ..usual() }, "`kv_bytes`");
        check(ModelOptions { threads: Some(i64::MIN), ..usual() }, "`threads`");
        check(ModelOptions { disk_bytes_max: Some(-1), ..usual() }, "`disk_bytes_max`");
        for share in [0.0, -0.1, 1.1, f64::NAN] {
            check(ModelOptions { time_share: Some(share), ..usual() }, "`time_share`");
        }
        check(ModelOptions { kv_format: Some("q9".into()), ..usual() }, "q9");
        let check = |options: AnswerOptions, expect: &str| {
            let error = options.read().unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        let usual = AnswerOptions::default;
        for number in [-0.1, f64::NAN, f64::INFINITY, 1e300] {
            check(AnswerOptions { temperature: Some(number), ..usual() }, "`temperature`");
            check(AnswerOptions { min_p: Some(number), ..usual() }, "`min_p`");
        }
        for penalty in [0.0, -1.0, 0.009, 101.0, f64::NAN, f64::INFINITY] {
            check(AnswerOptions { repetition_penalty: Some(penalty), ..usual() }, "`repetition_penalty`");
        }
        check(AnswerOptions { top_k: Some(-1), ..usual() }, "`top_k`");
        for number in [f64::NAN, f64::INFINITY, 1e300, -1e300] {
            check(AnswerOptions { presence_penalty: Some(number), ..usual() }, "`presence_penalty`");
            check(AnswerOptions { frequency_penalty: Some(number), ..usual() }, "`frequency_penalty`");
        }
        for (token, bias) in [(-1, 0.0), (7, f64::NAN), (7, f64::INFINITY), (7, 1e300)] {
            check(AnswerOptions { logit_bias: vec![LogitBias { token, bias }], ..usual() }, "`logit_bias`");
        }
        for retention in ["", "not-a-policy", "keydiff:2.0", "keydiff:0.5,window=8"] {
            check(AnswerOptions { retention: Some(retention.into()), ..usual() }, "`retention`");
        }
    }
}
