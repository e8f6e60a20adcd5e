//! Summaries: whether a text of the model can stand for messages, and which of their sentences stand for them if it
//! cannot.
//!
//! ```text
//! text of the model --judge--> used, or a flaw: asked again         messages --extract--> sentences of theirs
//!                         '--complete--> with what it lacks of what the user told
//! ```
//!
//! All compare by facts, which need no model: names, numbers, quoted words.

mod complete;
mod extract;
mod facts;
mod judge;
mod language;
mod sentences;

use serde_json::Value;

pub use complete::complete;
pub use extract::{Extraction, extract};
pub use judge::{Flaw, SummaryDraft, judge};

/// Messages, and the summary before them, that a new summary replaces.
#[derive(Debug, Clone, Copy)]
pub struct Replaced<'a> {
    /// The earlier summary; empty if there is none.
    pub summary: &'a str,
    /// The messages after it.
    pub messages: &'a [Value],
}

/// True for messages of a user or of the model: tools write in languages of their own.
pub(crate) fn is_spoken(message: &Value) -> bool {
    message["role"] == "user" || message["role"] == "assistant"
}
