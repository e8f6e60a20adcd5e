//! Pinned prompts, the cost of a prompt, embeddings and logits.

use kvik_library::StopReason;

use crate::error::signed;

/// State of a pinned prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
#[non_exhaustive]
pub enum KeptState {
    /// The name has no prompt.
    Unknown,
    /// The name has another prompt.
    Changed,
    /// The prompt is pinned under the name.
    Kept {
        /// Tokens of the prompt.
        tokens: i64,
        /// Tokens of it in RAM.
        ram_tokens: i64,
        /// Tokens of it that would be read from disk.
        disk_tokens: i64,
        /// True if only its last token would be computed, with which an answer begins.
        warm: bool,
    },
}

/// Why no more of a prompt comes from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
#[non_exhaustive]
pub enum Reason {
    /// The whole prompt is cached.
    Complete,
    /// The next tokens were never computed.
    FirstSeen,
    /// A cached prompt continues differently from here.
    Diverged,
    /// The blocks that layers with a window need to continue are no longer cached.
    WindowDropped,
    /// No state of the recurrent layers was stored here.
    NoStateKept,
    /// The next block was evicted.
    Evicted,
    /// The lifetime of the next block has ended.
    Expired,
    /// The next block was computed with another model.
    OtherModel,
    /// The next block was computed with keys and values in another format.
    OtherKvFormat,
    /// The next block belongs to another tenant, or is private.
    OtherTenantOrPrivate,
    /// The cached prefix is too short to be used.
    BelowMinimum,
    /// A running answer is computing the next block.
    StillComputing,
    /// The request retains a part of its tokens, and computes the rest for itself.
    Retained,
    /// The request pools the hidden states of all its tokens, which are not cached.
    Pooled,
    /// The next block is on disk and could not be read.
    LoadFailed,
    /// The next block is on disk, and computing it takes less time than reading it.
    RecomputeWasCheaper,
    /// A reason that this version does not name.
    Other,
}

/// Cached part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Explanation {
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Prompt tokens that would not be computed.
    pub known_tokens: i64,
    /// Prompt tokens that would be read from disk.
    pub disk_tokens: i64,
    /// Why no more are cached.
    pub reason: Reason,
    /// Text of the first token that is not cached; missing if all are.
    pub stopped_at: Option<String>,
}

/// Embedding of a text.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Embedding {
    /// `[d_model]`, of length 1: each number is an `f32` of four bytes, the lowest byte first. Bytes cross the language
    /// boundary at once; a list of numbers would be read one by one.
    pub vector: Vec<u8>,
    /// Tokens of the text.
    pub prompt_tokens: i64,
    /// Tokens that came from the cache.
    pub cached_tokens: i64,
}

/// Logits of the next token.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Logits {
    /// In the order of the requested tokens, in the format of an embedding's vector.
    pub values: Vec<u8>,
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Tokens that came from the cache.
    pub cached_tokens: i64,
}

impl From<kvik_library::KeptState> for KeptState {
    fn from(state: kvik_library::KeptState) -> KeptState {
        match state {
            kvik_library::KeptState::Kept { tokens, ram_tokens, disk_tokens } => KeptState::Kept {
                tokens: signed(tokens),
                ram_tokens: signed(ram_tokens),
                disk_tokens: signed(disk_tokens),
                warm: state.is_warm(),
            },
            kvik_library::KeptState::Changed => KeptState::Changed,
            _ => KeptState::Unknown,
        }
    }
}

impl From<StopReason> for Reason {
    fn from(reason: StopReason) -> Reason {
        match reason {
            StopReason::Complete => Reason::Complete,
            StopReason::FirstSeen => Reason::FirstSeen,
            StopReason::Diverged => Reason::Diverged,
            StopReason::WindowDropped => Reason::WindowDropped,
            StopReason::NoStateKept => Reason::NoStateKept,
            StopReason::Evicted => Reason::Evicted,
            StopReason::Expired => Reason::Expired,
            StopReason::OtherModel => Reason::OtherModel,
            StopReason::OtherKvFormat => Reason::OtherKvFormat,
            StopReason::Private => Reason::OtherTenantOrPrivate,
            StopReason::BelowMinimum => Reason::BelowMinimum,
            StopReason::StillComputing => Reason::StillComputing,
            StopReason::Retained => Reason::Retained,
            StopReason::Pooled => Reason::Pooled,
            StopReason::LoadFailed => Reason::LoadFailed,
            StopReason::RecomputeWasCheaper => Reason::RecomputeWasCheaper,
            _ => Reason::Other,
        }
    }
}

impl From<kvik_library::Explanation> for Explanation {
    fn from(explanation: kvik_library::Explanation) -> Explanation {
        Explanation {
            prompt_tokens: signed(explanation.prompt_tokens),
            known_tokens: signed(explanation.known_tokens),
            disk_tokens: signed(explanation.disk_tokens),
            reason: explanation.reason.into(),
            stopped_at: explanation.stopped_at,
        }
    }
}

impl From<kvik_library::Embedding> for Embedding {
    fn from(embedding: kvik_library::Embedding) -> Embedding {
        Embedding {
            vector: bytes(&embedding.vector),
            prompt_tokens: signed(embedding.prompt_tokens),
            cached_tokens: signed(embedding.cached_tokens),
        }
    }
}

impl From<kvik_library::Logits> for Logits {
    fn from(logits: kvik_library::Logits) -> Logits {
        Logits {
            values: bytes(&logits.values),
            prompt_tokens: signed(logits.prompt_tokens),
            cached_tokens: signed(logits.cached_tokens),
        }
    }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
