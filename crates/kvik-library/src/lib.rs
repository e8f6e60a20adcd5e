//! kvik in other people's programs.
//!
#![doc = include_str!("../../../docs/library.md")]
#![forbid(unsafe_code)]

mod answer;
mod asked;
mod conversation;
mod conversation_file;
mod core;
mod error;
mod kept;
mod message;
mod model;
mod next_turn;
mod open;
mod options;
mod prompt;
mod stats;
mod system;
mod tools;

pub use answer::{Answer, Canceller, Finish, Piece, Report};
pub use asked::AskedPrompt;
pub use conversation::{Conversation, ConversationInfo, Remembered};
pub use error::Error;
pub use kept::KeptState;
pub use kvik_cache::retain::Retention;
pub use kvik_cache::{StopReason, Token};
pub use kvik_engine::api::{Constraint, ConstraintError, RequestError};
pub use kvik_engine::engine::{Flushed, StartError};
pub use kvik_kernels::{KvFormat, KvFormats, PoolError};
pub use kvik_memory::conversations::ConversationError;
pub use kvik_memory::memory::{CorrectionError, MemoryConfig, TurnReport};
pub use kvik_model::load::{SamplingDefaults, SamplingOptions, SamplingSource, Sourced};
pub use kvik_session::AheadMode;
pub use kvik_text::tools::{OfferedTool, ToolChoice};
pub use message::{Message, Role, ToolCall};
pub use model::Model;
pub use options::{AnswerOptions, DiskOptions, LOGIT_BIASES, Options, REPETITION_PENALTIES, Source};
pub use prompt::Prompt;
pub use stats::{DiskStats, Embedding, Explanation, Logits, Stats};
pub use system::{MemoryPressure, Released};
pub use tools::{tool_choice_from_name, tools_from_json};
