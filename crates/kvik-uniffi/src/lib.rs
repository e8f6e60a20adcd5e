//! kvik in Kotlin, Swift and Python: one definition, from which uniffi generates their sources.
//!
//! It adds nothing to `kvik-library` but what crossing a language takes: signed numbers, records, handles that may be
//! closed while other threads use them, and answers that are read in batches. Each language has a small face of its own
//! over the generated sources, in `bindings/`; names that end in `Handle` are for these faces.
//!
//! ```text
//! error         what a call fails with
//! options       what a model is opened with and an answer is asked for with
//! prompt        messages and texts
//! model         opening, asking, closing
//! answer        pieces and the report
//! conversation  what is kept of a chat, and remembered
//! kept          prompts under names; what a prompt costs
//! system        memory, background, numbers
//! ```

#![deny(unsafe_code)]

mod answer;
mod conversation;
mod error;
mod kept;
mod model;
mod options;
mod prompt;
mod system;

pub use answer::{AnswerHandle, Finish, MemoryRead, Piece, Report};
pub use conversation::{ConversationHandle, ConversationInfo, Remembered};
pub use error::KvikError;
pub use kept::{Embedding, Explanation, KeptState, Logits, Reason};
pub use model::ModelHandle;
pub use options::{AnswerOptions, Constraint, MemoryOptions, ModelOptions};
pub use prompt::{Message, Prompt, Role, ToolCall};
pub use system::{DiskStats, Flushed, MemoryPressure, Released, Stats};

uniffi::setup_scaffolding!("kvik");
