//! What a model is opened with, and what an answer is asked for with.

use kvik_library::{
    DiskOptions, KvFormats, MemoryConfig, Options, Sampling, Source, ToolChoice, tool_choice_from_name,
    tools_from_json,
};

use crate::error::{KvikError, count};

/// What a model is opened with. Where nothing is said, the usual is taken.
#[derive(Debug, Clone, PartialEq, Default, uniffi::Record)]
pub struct ModelOptions {
    /// Bytes of RAM for keys and values: half of the free memory, at most 8 GiB. Memory is taken as it is used.
    #[uniffi(default = None)]
    pub kv_bytes: Option<i64>,
    /// Format of keys and values: `f16`. Smaller ones are `q8`, `q4`, or `q8/q4` for keys and values.
    #[uniffi(default = None)]
    pub kv_format: Option<String>,
    /// Tokens of a prompt and its answer together: the model's own, or what fits.
    #[uniffi(default = None)]
    pub context_tokens: Option<i64>,
    /// Threads that compute: the number of fast cores.
    #[uniffi(default = None)]
    pub threads: Option<i64>,
    /// The share of time in which to compute, above 0 and at most 1, for a device that is to stay cool: 1. Answers are the
    /// same.
    #[uniffi(default = None)]
    pub time_share: Option<f64>,
    /// Answers computed at the same time: 4.
    #[uniffi(default = None)]
    pub parallel: Option<i64>,
    /// Directory in which computed blocks outlive the process: none.
    #[uniffi(default = None)]
    pub disk_dir: Option<String>,
    /// Its size in bytes at most, and never more than a tenth of the free space: 2 GiB.
    #[uniffi(default = None)]
    pub disk_bytes_max: Option<i64>,
    /// Directory where conversations are kept, which is not a cache: nobody makes them again. Without it they last as long
    /// as the model is open.
    #[uniffi(default = None)]
    pub conversations_dir: Option<String>,
    /// How conversations go on beyond the context: as its size suggests.
    #[uniffi(default = None)]
    pub memory: Option<MemoryOptions>,
}

/// How conversations go on beyond the context. Where nothing is said, bounds are scaled to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, uniffi::Record)]
pub struct MemoryOptions {
    /// Tokens of recent messages that a summary leaves.
    #[uniffi(default = None)]
    pub recent_tokens_max: Option<i64>,
    /// Tokens of a summary at most.
    #[uniffi(default = None)]
    pub summary_tokens_max: Option<i64>,
    /// Tokens beyond the recent ones of which a new summary is made.
    #[uniffi(default = None)]
    pub trigger_tokens: Option<i64>,
    /// Tokens of older messages that are quoted at a question which they fit.
    #[uniffi(default = None)]
    pub quotes_tokens_max: Option<i64>,
    /// Whether the opening exchange always stays as it was said.
    #[uniffi(default = false)]
    pub protect_first: bool,
}

/// What holds an answer to a form.
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

/// What an answer is asked for with: the likeliest tokens up to the end of the context, where nothing else is said.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct AnswerOptions {
    /// Tokens of the answer at most; the rest of the context where that is not said.
    #[uniffi(default = None)]
    pub max_tokens: Option<i64>,
    /// Tokens that it has before the model may end it.
    #[uniffi(default = 0)]
    pub min_tokens: i64,
    /// The answer ends before the first of these.
    #[uniffi(default = [])]
    pub stop: Vec<String>,
    /// How far from the likeliest tokens it may go; 0 takes these.
    #[uniffi(default = 0.0)]
    pub temperature: f64,
    /// Keeps the smallest set of tokens whose probability reaches this; 1 keeps all.
    #[uniffi(default = 1.0)]
    pub top_p: f64,
    /// Keeps so many of the likeliest tokens; 0 keeps all.
    #[uniffi(default = 0)]
    pub top_k: i64,
    /// Drops tokens below this share of the likeliest; 0 keeps all.
    #[uniffi(default = 0.0)]
    pub min_p: f64,
    /// Divides the logits of tokens that were seen; 1 is off.
    #[uniffi(default = 1.0)]
    pub repetition_penalty: f64,
    /// The same seed gives the same text.
    #[uniffi(default = 0)]
    pub seed: i64,
    /// Switches reasoning before the answer to a chat on or off, for models that have it.
    #[uniffi(default = None)]
    pub reasoning: Option<bool>,
    /// Tools that the answer to a chat may call, as OpenAI writes them: a list in JSON.
    #[uniffi(default = None)]
    pub tools: Option<String>,
    /// Which of them it calls: `none`, `auto`, `required`, or the name of one.
    #[uniffi(default = None)]
    pub tool_choice: Option<String>,
    /// Whether it may call several; one, where one has to be called, if that is not said.
    #[uniffi(default = None)]
    pub parallel_tool_calls: Option<bool>,
    /// Holds the answer to a form.
    #[uniffi(default = None)]
    pub constraint: Option<Constraint>,
}

impl Default for AnswerOptions {
    fn default() -> AnswerOptions {
        AnswerOptions {
            max_tokens: None,
            min_tokens: 0,
            stop: Vec::new(),
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            reasoning: None,
            tools: None,
            tool_choice: None,
            parallel_tool_calls: None,
            constraint: None,
        }
    }
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

impl AnswerOptions {
    pub(crate) fn read(self) -> Result<kvik_library::AnswerOptions, KvikError> {
        let sampling = Sampling {
            temperature: share("temperature", self.temperature)?,
            top_p: share("top_p", self.top_p)?,
            top_k: count("top_k", self.top_k)?,
            min_p: share("min_p", self.min_p)?,
            repetition_penalty: share("repetition_penalty", self.repetition_penalty)?,
            min_tokens: count("min_tokens", self.min_tokens)?,
            seed: self.seed as u64,
            ..Sampling::GREEDY
        };
        Ok(kvik_library::AnswerOptions {
            max_tokens: self.max_tokens.map(|tokens| count("max_tokens", tokens)).transpose()?,
            stop: self.stop,
            sampling,
            reasoning: self.reasoning,
            tools: self.tools.map_or(Ok(Vec::new()), |tools| tools_from_json(&tools))?,
            tool_choice: self.tool_choice.map_or(ToolChoice::Auto, |choice| tool_choice_from_name(&choice)),
            parallel_tool_calls: self.parallel_tool_calls,
            constraint: self.constraint.map(Constraint::read).transpose()?,
            retention: None,
        })
    }
}

fn time_share(share: f64) -> Result<f32, KvikError> {
    match share > 0.0 && share <= 1.0 {
        true => Ok(share as f32),
        false => Err(KvikError::argument("time_share", "must be above 0 and at most 1")),
    }
}

/// A number that is neither negative nor none.
fn share(name: &str, number: f64) -> Result<f32, KvikError> {
    match number >= 0.0 {
        true => Ok(number as f32),
        false => Err(KvikError::argument(name, "is negative or no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_the_usual() {
        let usual = Options::new("a.gguf");
        let options = ModelOptions::default().read("a.gguf".into()).unwrap();
        assert_eq!(format!("{options:?}"), format!("{usual:?}"));
        assert_eq!(AnswerOptions::default().read(), Ok(kvik_library::AnswerOptions::GREEDY));
    }

    #[test]
    fn what_is_said_arrives() {
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
        for temperature in [-0.1, f64::NAN] {
            let error = AnswerOptions { temperature, ..AnswerOptions::default() }.read().unwrap_err();
            assert!(error.to_string().contains("`temperature`"), "{error}");
        }
    }
}
