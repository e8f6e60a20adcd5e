//! How the hidden states of a prompt become one vector.

use std::fmt;
use std::str::FromStr;

/// The hidden states of a prompt from which its embedding is computed. A hidden state is the input of the output
/// matrix: after the output norm, `[d_model]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The state of the last token. The cached prefix of the prompt is reused.
    Last,
    /// The mean of all states. The cache has no hidden states, so the whole prompt is computed.
    Mean,
    /// The state of the first token, as BERT's `[CLS]`. The whole prompt is computed, as for the mean.
    Cls,
}

impl Pooling {
    /// All variants.
    pub const ALL: [Pooling; 3] = [Pooling::Last, Pooling::Mean, Pooling::Cls];

    /// Its name on the command line and in answers.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Last => "last",
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
        }
    }

    /// Whether only the last position is needed: then the cached prefix before it need not be computed.
    pub fn needs_only_the_last(self) -> bool {
        self == Pooling::Last
    }

    /// Whether the hidden state at `position` of a prompt of `tokens` tokens is needed.
    pub fn needs(self, position: usize, tokens: usize) -> bool {
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

/// The error for an unknown pooling name.
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
