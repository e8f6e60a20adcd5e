//! Options of a model and of an answer.

use std::fs::File;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use kvik_cache::Token;
use kvik_cache::retain::Retention;
use kvik_engine::api::{Constraint, Sampling};
use kvik_kernels::{KvFormat, KvFormats};
use kvik_memory::memory::MemoryConfig;
use kvik_memory::random::random;
use kvik_model::load::{LoadedModel, SamplingDefaults, SamplingOptions, SamplingSource};
use kvik_session::AheadMode;
use kvik_text::files::bytes::{FileBytes, FilePart};
use kvik_text::tools::{OfferedTool, ToolChoice, Tools};

use crate::error::Error;
use crate::prompt::Asked;

/// Default number of sequences computed concurrently.
const PARALLEL: usize = 4;
/// Default bytes of disk.
const DISK_BYTES: u64 = 2 << 30;
/// Repetition penalties that faces in other languages accept: logits are divided by them.
pub const REPETITION_PENALTIES: RangeInclusive<f32> = 0.01..=100.0;
/// Biases of a token's logit that faces in other languages accept; negative infinity forbids the token.
pub const LOGIT_BIASES: RangeInclusive<f32> = f32::NEG_INFINITY..=1e9;

/// Source of a model.
#[derive(Debug)]
#[non_exhaustive]
pub enum Source {
    /// A GGUF file, or a directory in Hugging Face's layout. The weights are read once; the file is not kept open.
    Path(PathBuf),
    /// A GGUF file in memory.
    Bytes(Vec<u8>),
    /// A GGUF file that is embedded in the program.
    Static(&'static [u8]),
    /// A GGUF file inside an open file, which is mapped: the form in which a phone's asset manager provides it.
    Descriptor {
        /// The enclosing file.
        file: File,
        /// Offset of the GGUF file in bytes.
        offset: u64,
        /// Length in bytes; `None` for up to the end of the enclosing file.
        bytes: Option<u64>,
    },
}

/// Options of a model.
#[derive(Debug)]
pub struct Options {
    /// Source of the model.
    pub source: Source,
    /// Bytes of RAM for keys and values, at most those that this process can have; by default half of the free memory, at
    /// most 8 GiB. Memory is allocated as it is used.
    pub kv_bytes: Option<u64>,
    /// Formats in which keys and values are stored.
    pub kv_formats: KvFormats,
    /// Maximum tokens of a prompt and its answer together; by default the model's own, or what fits `kv_bytes`.
    pub context_tokens: Option<usize>,
    /// Compute threads; by default the number of fast cores.
    pub threads: Option<usize>,
    /// Fraction of time in which to compute, above 0 and at most 1, for a device that must stay cool: pauses between
    /// steps enforce it in every second, and answers do not change.
    pub time_share: f32,
    /// Maximum number of answers computed concurrently, up to 1024; others wait.
    pub parallel: usize,
    /// Which next turns of chats are computed behind their answers; by default none, since the work may be for nothing and
    /// a phone has a battery.
    pub ahead: AheadMode,
    /// Where computed blocks are stored beyond the process.
    pub disk: Option<DiskOptions>,
    /// Whether answers that come back within later prompts have the tokens that were generated, where the tokenizer would
    /// choose others; so what was computed for them is reused. On disk too, where there is one.
    pub retokenise: bool,
    /// Directory where conversations are stored. They cannot be recomputed, so it must not be a cache directory. Models of
    /// one process may share it; of several processes the first stores its conversations there.
    /// Without it, they last as long as the model is open.
    pub conversations: Option<PathBuf>,
    /// Configuration of conversations that exceed the context.
    pub memory: MemoryConfig,
}

/// Options of the cache on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// A directory for this purpose only, in an application's cache directory.
    pub dir: PathBuf,
    /// Maximum size in bytes; a tenth of the free space is never exceeded.
    pub bytes_max: u64,
}

/// Options of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerOptions {
    /// Maximum tokens of the answer; by default the rest of the context.
    pub max_tokens: Option<usize>,
    /// Minimum tokens of the answer: before them the model cannot end it.
    pub min_tokens: usize,
    /// Stop texts: the answer ends before the first of these.
    pub stop: Vec<String>,
    /// Ends an answer that only repeats itself, as small models do; off by default.
    pub stop_loops: bool,
    /// Settings of the sampler; one that is not set is the model's ([`Model::sampling`](crate::Model::sampling)).
    pub sampling: SamplingOptions,
    /// Added to the logits of single tokens; negative infinity forbids one.
    pub logit_bias: Vec<(Token, f32)>,
    /// Seed of the sampler; the same seed gives the same text. Random by default.
    pub seed: Option<u64>,
    /// Switches reasoning before the answer to a chat on or off, for models that have it.
    pub reasoning: Option<bool>,
    /// Tools that the answer to a chat may call.
    pub tools: Vec<OfferedTool>,
    /// Which of the tools the answer must, may or must not call.
    pub tool_choice: ToolChoice,
    /// True if it may call several; by default, a forced call is the only one.
    pub parallel_tool_calls: Option<bool>,
    /// Constraint on the form of the answer.
    pub constraint: Option<Constraint>,
    /// Which tokens of a long prompt stay in the attention of the answer; by default all.
    pub retention: Option<Retention>,
}

impl Options {
    /// Default options, without a disk.
    pub fn new(source: impl Into<Source>) -> Options {
        Options {
            source: source.into(),
            kv_bytes: None,
            kv_formats: KvFormat::F16.into(),
            context_tokens: None,
            threads: None,
            time_share: 1.0,
            parallel: PARALLEL,
            ahead: AheadMode::Off,
            disk: None,
            retokenise: true,
            conversations: None,
            memory: MemoryConfig::default(),
        }
    }

    /// Stores conversations in `dir`.
    #[must_use]
    pub fn with_conversations(self, dir: impl Into<PathBuf>) -> Options {
        Options { conversations: Some(dir.into()), ..self }
    }

    /// Adds a cache on disk of the default size.
    #[must_use]
    pub fn with_disk(self, dir: impl Into<PathBuf>) -> Options {
        Options { disk: Some(DiskOptions { dir: dir.into(), bytes_max: DISK_BYTES }), ..self }
    }
}

impl AnswerOptions {
    /// The most probable token at each position, up to the end of the context.
    pub const GREEDY: AnswerOptions = AnswerOptions::sampled_by(SamplingOptions::GREEDY);

    /// Sampling as the model's makers recommend it, in its files or for its family, else by kvik's defaults (temperature
    /// 0.8, top-k 40, top-p 0.95, min-p 0.05), up to the end of the context. `kvik serve` and `kvik run` sample so by
    /// default.
    pub const RECOMMENDED: AnswerOptions = AnswerOptions::sampled_by(SamplingOptions::NONE);

    const fn sampled_by(sampling: SamplingOptions) -> AnswerOptions {
        AnswerOptions {
            max_tokens: None,
            min_tokens: 0,
            stop: Vec::new(),
            stop_loops: false,
            sampling,
            logit_bias: Vec::new(),
            seed: None,
            reasoning: None,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: None,
            constraint: None,
            retention: None,
        }
    }

    /// The engine's sampling: these settings over those of a model, for an answer that reasons first or does not.
    pub(crate) fn sampling_over(&self, model: SamplingDefaults, reasons: Option<bool>) -> Sampling {
        let in_force = model.for_thinking(reasons).under(&self.sampling, SamplingSource::Request);
        Sampling {
            seed: self.seed.unwrap_or_else(random),
            min_tokens: self.min_tokens,
            logit_bias: self.logit_bias.clone(),
            ..in_force.sampling()
        }
    }

    /// The options that determine the prompt and the form of the answer.
    pub(crate) fn asked(&self) -> Result<Asked, Error> {
        let AnswerOptions { tools, tool_choice, parallel_tool_calls, constraint, reasoning, .. } =
            self.clone();
        let tools = Tools::offered(tools, tool_choice, parallel_tool_calls)?;
        if tools.forced && constraint.is_some() {
            return Err(Error::TwoForms);
        }
        Ok(Asked { tools, reasoning, constraint })
    }

    /// Limits the answer to `max_tokens` tokens.
    #[must_use]
    pub fn at_most(self, max_tokens: usize) -> AnswerOptions {
        AnswerOptions { max_tokens: Some(max_tokens), ..self }
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Source {
        Source::Path(path)
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Source {
        Source::Path(path.to_owned())
    }
}

impl From<&str> for Source {
    fn from(path: &str) -> Source {
        Source::Path(path.into())
    }
}

impl Source {
    /// Reads headers, vocabulary and settings.
    pub(crate) fn load(self) -> Result<LoadedModel, Error> {
        let bytes = match self {
            Source::Path(path) => return Ok(LoadedModel::open(&path)?),
            Source::Bytes(bytes) => FileBytes::Owned(bytes),
            Source::Static(bytes) => FileBytes::Static(bytes),
            Source::Descriptor { file, offset, bytes } => {
                FileBytes::map_part(&file, FilePart { offset, bytes }).map_err(Error::Source)?
            }
        };
        Ok(LoadedModel::from_bytes(bytes)?)
    }
}
