//! An open model: files to a running engine, chats to its requests, once for every program around it.
//!
//! The server, the command line and the library open a model and encode its prompts here, and word the rest: flags,
//! routes, fields, functions.
//!
//! ```text
//! LoadedModel ──▶ OpenedModel ──▶ KvBudget ──▶ Start ──▶ Session { engine, texts, embedder, sampling }
//!    files          weights        memory      tiers
//!
//! Chat ──▶ Texts::render ──▶ Texts::encode ──▶ EncodedChat { tokens, reading, constraint, show } ──▶ Engine::submit
//!  messages    template         tokenizer
//! ```
//!
//! | module | subject |
//! | --- | --- |
//! | `opened` | weights in place, with tokenizer, template and pooling |
//! | `placed` | a model on the processor or on a GPU |
//! | `budget` | blocks of keys and values in so many bytes, and the context that fits them |
//! | `disk` | the disk tier of a model's blocks |
//! | `start` | the engine over these parts |
//! | `texts` | tokens of texts and chats |
//! | `marks` | how many tokens two prompts share, without their tokens |
//! | `chat` | the messages of a chat, and what else decides its prompt |
//! | `ahead` | the next turn of a chat, computed while its client reads the answer |
//! | `continuation` | a last message of the assistant that the answer goes on from |

#![forbid(unsafe_code)]

mod ahead;
mod budget;
mod chat;
mod continuation;
mod disk;
mod marks;
mod opened;
mod placed;
mod start;
mod texts;

pub use ahead::{AheadCounts, AheadMode, NextTurns, Turn, Upcoming};
pub use budget::{BudgetError, KvBudget};
pub use chat::{Chat, ChatError, TemplateVariables};
pub use continuation::{NotContinued, continuable_text};
pub use disk::{DiskTier, open_disk};
pub use marks::PromptMarks;
pub use opened::{Embedder, OpenError, OpenedModel};
pub use placed::{Placed, RunnerError, RunnerRoom};
pub use start::{Session, SessionError, Start};
pub use texts::{EncodedChat, Texts};
