//! kvik in C: `include/kvik.h`, and its implementation.
//!
//! Every function may be called from any thread. It returns a [`KvikStatus`], and [`kvik_last_error`] has the reason of a
//! failure; a panic is a failure. Pointers from C are checked for null, and texts for UTF-8; that they point to valid
//! values is the caller's promise, and the only one that this crate relies on.
//!
//! ```text
//! status         statuses of calls, and errors
//! text           texts and lists of the caller
//! model          opening and closing
//! answer         texts, chats, their pieces and reports
//! sampling       settings of the sampler, and their sources
//! conversation   stored conversations and their summaries
//! kept           pinned prompts, the tokens and the cost of a text, embeddings
//! system         memory, background, statistics
//! ```

mod answer;
mod conversation;
mod kept;
mod model;
mod sampling;
mod status;
mod system;
mod text;

pub use answer::*;
pub use conversation::*;
pub use kept::*;
pub use model::*;
pub use sampling::*;
pub use status::*;
pub use system::*;
