//! kvik in C: `include/kvik.h`, and what stands behind it.
//!
//! Every function may be called from any thread, says in its [`KvikStatus`] whether it did what it was asked, and leaves
//! the reason for [`kvik_last_error`]. A panic is such a reason. Pointers that C gives are checked for null and texts for
//! UTF-8; that they point to what they say is C's promise, and the only one that this crate relies on.
//!
//! ```text
//! status         what a call says, and how a failure becomes it
//! text           what C wrote: texts and lists
//! model          opening and closing
//! answer         texts, chats, their pieces and reports
//! conversation   what is kept under a name and goes on without end
//! kept           prompts under names; what a prompt costs
//! system         memory, background, numbers
//! ```

mod answer;
mod conversation;
mod kept;
mod model;
mod status;
mod system;
mod text;

pub use answer::{
    KvikAnswerOptions, KvikFinish, KvikMessage, KvikPieceCallback, KvikPieceKind, KvikReport, KvikRole,
    kvik_chat, kvik_generate,
};
pub use conversation::{
    kvik_conversation_correct, kvik_conversation_delete, kvik_conversation_messages,
    kvik_conversation_rename, kvik_conversation_summary, kvik_conversation_take_back, kvik_conversations,
    kvik_say,
};
pub use kept::{
    KvikExplanation, KvikKept, kvik_count_tokens, kvik_embed, kvik_explain, kvik_forget_prompt, kvik_is_kept,
    kvik_keep_prompt,
};
pub use model::{KvikModel, KvikOptions, kvik_close, kvik_open_bytes, kvik_open_file, kvik_open_part};
pub use status::{KvikStatus, kvik_last_error};
pub use system::{KvikMemoryPressure, KvikStats, kvik_on_background, kvik_on_memory_pressure, kvik_stats};
