//! The output that a request wants, as data.

use kvik_cache::Token;
pub use kvik_model::load::{Pooling, UnknownPooling};

/// The output of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Wants {
    /// Text that continues the prompt.
    #[default]
    Text,
    /// A vector for the prompt, and no text.
    Embedding(Pooling),
    /// The logits of these tokens after the prompt, in this order, and no text.
    Logits(Vec<Token>),
}

impl Wants {
    /// The pooling, if an embedding is wanted.
    pub fn pooling(&self) -> Option<Pooling> {
        match self {
            Wants::Embedding(pooling) => Some(*pooling),
            Wants::Text | Wants::Logits(_) => None,
        }
    }

    /// Whether hidden states before the last token are wanted, which the cache does not hold.
    pub(crate) fn pools_all(&self) -> bool {
        self.pooling().is_some_and(|pooling| !pooling.needs_only_the_last())
    }
}
