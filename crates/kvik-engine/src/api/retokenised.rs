//! The tokens of a prompt that are those of answers in it, as plain data.

use std::sync::Arc;

use kvik_cache::Token;

/// Whom answers belong to, derived from the salt of a tenant.
pub type AnswerOwner = [u8; 16];

/// The bytes that an answer follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnswerKey {
    /// Their number.
    pub bytes: u32,
    /// Their hash, by a key of the owner.
    pub hash: [u8; 16],
}

/// What is known of a prompt once answers in it have the tokens that were generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retokenised {
    /// Tokens that a tokenizer would have chosen otherwise.
    pub tokens: usize,
    /// Whom its answer belongs to.
    pub owner: AnswerOwner,
    /// Where the record of its answer begins.
    pub place: AnswerKey,
    /// The last tokens of the prompt, which are part of that record: so many.
    pub lead: usize,
    /// Earlier answers in the prompt: they are in use while it is computed.
    pub used: Vec<UsedAnswer>,
}

/// An earlier answer, of which a prompt has the tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedAnswer {
    /// Where it begins.
    pub place: AnswerKey,
    /// Its tokens, which tell it from others that begin there.
    pub tokens: Arc<[Token]>,
}
