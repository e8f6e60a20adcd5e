//! What a model is opened with, and what an answer is asked for with.

use std::fs::File;
use std::path::{Path, PathBuf};

use kvik_cache::retain::Retention;
use kvik_engine::api::{Constraint, Sampling};
use kvik_engine::load::LoadedModel;
use kvik_kernels::{KvFormat, KvFormats};
use kvik_memory::memory::MemoryConfig;
use kvik_text::files::bytes::{FileBytes, FilePart};
use kvik_text::tools::{OfferedTool, ToolChoice, Tools};

use crate::error::Error;
use crate::prompt::Asked;

/// Sequences computed at the same time, where nobody says how many.
const PARALLEL: usize = 4;
/// Bytes of disk, where nobody says how many.
const DISK_BYTES: u64 = 2 << 30;

/// Where a model comes from.
#[derive(Debug)]
#[non_exhaustive]
pub enum Source {
    /// A GGUF file, or a directory as Hugging Face lays it out. Its weights are read once; the file is not kept open.
    Path(PathBuf),
    /// A GGUF file in memory.
    Bytes(Vec<u8>),
    /// A GGUF file that is a part of the program.
    Static(&'static [u8]),
    /// A GGUF file inside an open file, which is mapped: what a phone's asset manager gives out.
    Descriptor {
        /// The file around it.
        file: File,
        /// Byte at which it begins.
        offset: u64,
        /// Its length in bytes; up to the end of the file around it where that is not said.
        bytes: Option<u64>,
    },
}

/// What a model is opened with.
#[derive(Debug)]
pub struct Options {
    /// Where the model comes from.
    pub source: Source,
    /// Bytes of RAM for keys and values; half of the free memory, at most 8 GiB, where that is not said. Memory is taken
    /// as it is used.
    pub kv_bytes: Option<u64>,
    /// Formats in which keys and values are stored.
    pub kv_formats: KvFormats,
    /// Tokens of a prompt and its answer together; the model's own, or what fits `kv_bytes`, where that is not said.
    pub context_tokens: Option<usize>,
    /// Threads that compute; the number of fast cores where that is not said.
    pub threads: Option<usize>,
    /// The share of time in which to compute, above 0 and at most 1, for a device that is to stay cool: rests between steps
    /// keep every second to it, and answers are the same.
    pub time_share: f32,
    /// Answers computed at the same time; others wait.
    pub parallel: usize,
    /// Where computed blocks outlive the process.
    pub disk: Option<DiskOptions>,
    /// A directory where conversations are kept, which is not a cache: nobody makes them again. Without it they last as
    /// long as the model is open.
    pub conversations: Option<PathBuf>,
    /// How conversations go on beyond the context.
    pub memory: MemoryConfig,
}

/// The cache on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// A directory of its own: an application's cache directory.
    pub dir: PathBuf,
    /// Its size in bytes at most; never more than a tenth of the free space.
    pub bytes_max: u64,
}

/// What an answer is asked for with.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerOptions {
    /// Tokens of the answer at most; the rest of the context where that is not said.
    pub max_tokens: Option<usize>,
    /// The answer ends before the first of these.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Switches reasoning before the answer to a chat on or off, for models that have it.
    pub reasoning: Option<bool>,
    /// Tools that the answer to a chat may call.
    pub tools: Vec<OfferedTool>,
    /// Which of them it calls.
    pub tool_choice: ToolChoice,
    /// Whether it may call several; one, where one has to be called, if that is not said.
    pub parallel_tool_calls: Option<bool>,
    /// Holds the answer to a form.
    pub constraint: Option<Constraint>,
    /// Which tokens of a long prompt the answer goes on reading; all where that is not said.
    pub retention: Option<Retention>,
}

impl Options {
    /// The usual ones, without a disk.
    pub fn new(source: impl Into<Source>) -> Options {
        Options {
            source: source.into(),
            kv_bytes: None,
            kv_formats: KvFormat::F16.into(),
            context_tokens: None,
            threads: None,
            time_share: 1.0,
            parallel: PARALLEL,
            disk: None,
            conversations: None,
            memory: MemoryConfig::default(),
        }
    }

    /// The same with conversations that are kept there.
    #[must_use]
    pub fn with_conversations(self, dir: impl Into<PathBuf>) -> Options {
        Options { conversations: Some(dir.into()), ..self }
    }

    /// The same with a cache on disk of the usual size.
    #[must_use]
    pub fn with_disk(self, dir: impl Into<PathBuf>) -> Options {
        Options { disk: Some(DiskOptions { dir: dir.into(), bytes_max: DISK_BYTES }), ..self }
    }
}

impl AnswerOptions {
    /// The likeliest token at each place, up to the end of the context.
    pub const GREEDY: AnswerOptions = AnswerOptions {
        max_tokens: None,
        stop: Vec::new(),
        sampling: Sampling::GREEDY,
        reasoning: None,
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: None,
        constraint: None,
        retention: None,
    };

    /// What of it decides the prompt and the form of the answer.
    pub(crate) fn asked(&self) -> Result<Asked, Error> {
        let AnswerOptions { tools, tool_choice, parallel_tool_calls, constraint, reasoning, .. } =
            self.clone();
        let tools = Tools::offered(tools, tool_choice, parallel_tool_calls)?;
        if tools.forced && constraint.is_some() {
            return Err(Error::TwoForms);
        }
        Ok(Asked { tools, reasoning, constraint })
    }

    /// The same with at most so many tokens.
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
