//! Rendering of messages to tokens, by the template and settings of the request, and how these are computed.

use std::sync::Arc;

use kvik_cache::{Lifetime, Token};
use kvik_engine::api::AdapterMix;
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

/// How prompts of a conversation are computed by work after an answer: so that its turns find them, and no longer than
/// what they leave themselves.
#[derive(Debug, Clone, Default)]
pub struct ComputeTerms {
    /// How long the cache keeps the prompts of its turns; a pin is that of one prompt, and is not asked for others.
    pub lifetime: Lifetime,
    /// The adapters that its turns are computed with.
    pub adapters: Option<AdapterMix>,
}
