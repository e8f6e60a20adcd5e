//! Rendering of messages to tokens, by the template and settings of the request.

use std::sync::Arc;

use kvik_cache::Token;
use serde_json::Value;

/// Purpose of a rendered prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The prompt is answered.
    Answer,
    /// The prompt is only prefilled.
    Ahead,
    /// The prompt ends with the request for a summary: rendered as for an answer, without thoughts.
    InPlace,
    /// The prompt asks for a summary of a text: without the tools and settings of the conversation.
    Summary,
}

/// Renders messages to tokens.
pub type Render<E> = Arc<dyn Fn(&[Value], Purpose) -> Result<Vec<Token>, E> + Send + Sync>;
