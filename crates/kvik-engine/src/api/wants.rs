//! What a request wants to know of its prompt, as data.

use std::fmt;
use std::str::FromStr;

use kvik_cache::Token;

/// What a request wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Wants {
    /// Text that continues the prompt.
    #[default]
    Text,
    /// One vector for the prompt, and no text.
    Embedding(Pooling),
    /// The logits of these tokens after the prompt, in this order, and no text.
    Logits(Vec<Token>),
}

/// Which hidden states of a prompt its embedding is made of. A hidden state is what the output matrix would
/// multiply: after the output norm, `[d_model]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token. Whatever the cache has of the prompt is reused.
    Last,
    /// The mean of all. The cache has no hidden states, so all of the prompt is computed.
    Mean,
    /// That of the first token, as BERT's `[CLS]`. It is computed together with the prompt, as for the mean.
    Cls,
}

impl Wants {
    /// How the hidden states of the prompt become one vector, if they are wanted.
    pub fn pooling(&self) -> Option<Pooling> {
        match self {
            Wants::Embedding(pooling) => Some(*pooling),
            Wants::Text | Wants::Logits(_) => None,
        }
    }
}

impl Pooling {
    /// All of them.
    pub const ALL: [Pooling; 3] = [Pooling::Last, Pooling::Mean, Pooling::Cls];

    /// Its name on the command line and in answers.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Last => "last",
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
        }
    }

    /// Whether a prompt's last position tells enough: then what is cached before it need not be computed.
    pub fn needs_only_the_last(self) -> bool {
        self == Pooling::Last
    }

    /// Whether the hidden state at `position` of a prompt of `tokens` tokens is wanted.
    pub(crate) fn needs(self, position: usize, tokens: usize) -> bool {
        match self {
            Pooling::Last => position + 1 == tokens,
            Pooling::Mean => true,
            Pooling::Cls => position == 0,
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no pooling has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no pooling; choose last, mean or cls")]
pub struct UnknownPooling(pub String);

impl FromStr for Pooling {
    type Err = UnknownPooling;

    fn from_str(name: &str) -> Result<Pooling, UnknownPooling> {
        let found = Pooling::ALL.into_iter().find(|pooling| pooling.name() == name);
        found.ok_or_else(|| UnknownPooling(name.to_owned()))
    }
}
