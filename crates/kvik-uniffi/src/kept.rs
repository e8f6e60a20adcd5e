//! Prompts under names, what a prompt would cost, and what a text means to the model.

use kvik_library::StopReason;

use crate::error::signed;

/// What is known of a kept prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
#[non_exhaustive]
pub enum KeptState {
    /// Nothing is kept under this name.
    Unknown,
    /// Something else is kept under this name.
    Changed,
    /// It is kept.
    Kept {
        /// Tokens of it.
        tokens: i64,
        /// Of these, tokens in RAM.
        ram_tokens: i64,
        /// Of these, tokens that would be read from disk.
        disk_tokens: i64,
        /// Whether no token of it would have to be computed, but for the last one: an answer begins with that.
        warm: bool,
    },
}

/// Why no more of a prompt comes from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
#[non_exhaustive]
pub enum Reason {
    /// The whole prompt was known.
    Complete,
    /// Nothing was ever seen from here on.
    FirstSeen,
    /// A known prompt continues differently from here.
    Diverged,
    /// What layers with a window need to go on is not there any more.
    WindowDropped,
    /// No state of the recurrent layers was kept here.
    NoStateKept,
    /// What comes next was known and has been evicted.
    Evicted,
    /// What comes next was known and has outlived its time to live.
    Expired,
    /// What comes next was computed with another model.
    OtherModel,
    /// What comes next was computed with keys and values in another format.
    OtherKvFormat,
    /// What comes next was kept from being shared.
    OtherTenantOrPrivate,
    /// Too little is known to be worth taking over.
    BelowMinimum,
    /// A running answer is computing what comes next.
    StillComputing,
    /// The request forgets tokens and computes for itself what comes next.
    Retained,
    /// The request pools the hidden states of all its tokens, which are not kept.
    Pooled,
    /// What comes next is on disk and could not be read.
    LoadFailed,
    /// What comes next is on disk, and computing it takes less time than reading it.
    RecomputeWasCheaper,
    /// A reason that this definition does not name yet.
    Other,
}

/// What a prompt would find in the cache now.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Explanation {
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Of these, tokens that would not be computed.
    pub known_tokens: i64,
    /// Of these, tokens that would be read from disk.
    pub disk_tokens: i64,
    /// Why no more are known.
    pub reason: Reason,
    /// The text of the first token that is not known; none where all are.
    pub stopped_at: Option<String>,
}

/// What a text means to the model.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Embedding {
    /// `[d_model]`, of length 1: each number an `f32` of four bytes, the lowest first. Bytes cross at once; a list of
    /// numbers would be read one by one.
    pub vector: Vec<u8>,
    /// Tokens of the text.
    pub prompt_tokens: i64,
    /// Of these, tokens that came from the cache.
    pub cached_tokens: i64,
}

/// How likely tokens are to come next.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Logits {
    /// In the order in which they were asked for, as the numbers of an embedding's vector.
    pub values: Vec<u8>,
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Of these, tokens that came from the cache.
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
