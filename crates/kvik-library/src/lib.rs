//! kvik in other people's programs.
//!
#![doc = include_str!("../../../docs/library.md")]
#![forbid(unsafe_code)]

mod answer;
mod error;
mod kept;
mod model;
mod open;
mod options;
mod prompt;
mod stats;
mod system;

pub use answer::{Answer, Canceller, Finish, Piece, Report};
pub use error::Error;
pub use kept::KeptState;
pub use kvik_cache::StopReason;
pub use kvik_engine::api::{RequestError, Sampling};
pub use kvik_engine::engine::Flushed;
pub use kvik_kernels::{KvFormat, KvFormats};
pub use model::Model;
pub use options::{AnswerOptions, DiskOptions, Options, Source};
pub use prompt::{Message, Prompt, Role};
pub use stats::{DiskStats, Embedding, Explanation, Stats};
pub use system::{MemoryPressure, Released};
