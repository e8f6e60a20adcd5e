//! How messages become tokens, as the request's template and settings have it.

use std::sync::Arc;

use kvik_cache::Token;
use serde_json::Value;

/// What messages are rendered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To be answered.
    Answer,
    /// To be computed ahead: nobody is asked anything.
    Ahead,
    /// To be summarised where it stands: as it is answered, without thoughts.
    InPlace,
    /// To be summarised as a text: without the tools and the settings of the conversation.
    Summary,
}

/// Makes tokens of messages.
pub type Render<E> = Arc<dyn Fn(&[Value], Purpose) -> Result<Vec<Token>, E> + Send + Sync>;
