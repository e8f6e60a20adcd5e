//! Text to tokens and back.
//!
//! The vocabulary and rules come from a model's file. Encoding cannot fail and takes near-linear time
//! on any text; decoding works on bytes, because a token may be part of a character.

mod byte_level;
mod gguf;
mod json;
mod memory;
mod merge;
mod sentence_piece;
mod special;
mod split;
mod vocab;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use kvik_cache::Token;
use rustc_hash::FxHashMap;
use unicode_normalization_alignments::UnicodeNormalization;

use crate::files::gguf::GgufError;
use byte_level::ByteLevel;
use memory::Memory;
use sentence_piece::SentencePiece;
use special::{Controls, Part, Specials, Strip};
use vocab::{END_OF_GENERATION, Kind, Vocab};

pub use crate::files::hf::TokenizerHints;

/// A model's tokenizer, shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    pieces: Pieces,
    specials: Specials,
    ends: Ends,
    /// Tokens that end an answer, ascending.
    eog: Vec<Token>,
    /// Whether text is composed (Unicode NFC) first.
    nfc: bool,
    memory: Mutex<Memory>,
}

/// Bytes of text and tokens that are remembered.
const MEMORY_BYTES: usize = 16 << 20;

/// Shorter stretches of text are quicker to encode than to look up.
const REMEMBERED_MIN: usize = 256;

/// How plain text becomes tokens.
#[derive(Debug)]
enum Pieces {
    ByteLevel(Box<ByteLevel>),
    SentencePiece(Box<SentencePiece>),
}

/// Tokens around a text.
#[derive(Debug, Default)]
struct Ends {
    bos: Option<Token>,
    eos: Option<Token>,
    /// Further tokens that end an answer.
    more_eog: Vec<Token>,
    /// Put before a text on request.
    prefix: Vec<Token>,
    /// Put after a text on request.
    suffix: Vec<Token>,
}

impl Tokenizer {
    fn assemble(
        vocab: Vocab,
        pieces: Pieces,
        ends: Ends,
        strips: &FxHashMap<Token, Strip>,
        nfc: bool,
    ) -> Result<Tokenizer, TokenizerError> {
        let specials = Specials::new(&vocab, strips)?;
        let named = END_OF_GENERATION.iter().filter_map(|text| vocab.id(text));
        let mut eog: Vec<Token> = named.chain(ends.eos).chain(ends.more_eog.iter().copied()).collect();
        eog.sort_unstable();
        eog.dedup();
        let memory = Mutex::new(Memory::new(MEMORY_BYTES));
        Ok(Tokenizer { vocab, pieces, specials, ends, eog, nfc, memory })
    }

    /// The tokens of `text`.
    ///
    /// `add_special` puts the model's begin-of-text token before it where the model wants one.
    /// `parse_special` reads `<|im_end|>` and the like as tokens; without it they are plain text,
    /// which is right for text that a user wrote.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        let mut tokens = Vec::new();
        if add_special {
            tokens.extend(&self.ends.prefix);
        }
        match parse_special {
            true => self.encode_remembering(text, &mut tokens),
            false => self.encode_stretch(text, true, Controls::Text, &mut tokens),
        }
        if add_special {
            tokens.extend(&self.ends.suffix);
        }
        tokens
    }

    /// The tokens of a prompt of which the given ranges, ascending, were written by somebody else.
    ///
    /// Control tokens are read as `encode` does with `parse_special`, but not where their names reach into
    /// one of the ranges: there they are plain text. Other texts give the very tokens of `encode`.
    pub fn encode_prompt(&self, text: &str, inputs: &[Range<usize>]) -> Vec<Token> {
        let mut tokens = Vec::new();
        match self.specials.controls_in(text, inputs) {
            // Rare, so it does without the memory, which knows texts and not who wrote them.
            true => self.encode_stretch(text, true, Controls::ParsedOutside(inputs), &mut tokens),
            false => self.encode_remembering(text, &mut tokens),
        }
        tokens
    }

    /// Encodes stretch by stretch, from memory where a stretch was seen before.
    fn encode_remembering(&self, text: &str, out: &mut Vec<Token>) {
        let mut start = 0;
        for end in self.specials.cuts(text) {
            if end - start >= REMEMBERED_MIN {
                self.encode_remembered(&text[start..end], start == 0, out);
                start = end;
            }
        }
        self.encode_stretch(&text[start..], start == 0, Controls::Parsed, out);
    }

    fn encode_remembered(&self, text: &str, first: bool, out: &mut Vec<Token>) {
        let memory = || self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let known = memory().get(text, first);
        if let Some(tokens) = known {
            out.extend(&*tokens);
            return;
        }
        let start = out.len();
        self.encode_stretch(text, first, Controls::Parsed, out);
        memory().put(text, &out[start..], first);
    }

    fn encode_stretch(&self, text: &str, mut first: bool, controls: Controls<'_>, out: &mut Vec<Token>) {
        self.specials.split(text, controls, &mut |part| {
            match part {
                Part::Special(token) => out.push(token),
                Part::Plain(text) => self.encode_plain(text, first, out),
            }
            first = false;
        });
    }

    fn encode_plain(&self, text: &str, first: bool, out: &mut Vec<Token>) {
        let text = if self.nfc { composed(text) } else { text.into() };
        match &self.pieces {
            Pieces::ByteLevel(pieces) => pieces.encode(&text, out),
            Pieces::SentencePiece(pieces) => pieces.encode(&text, first, out),
        }
    }

    /// The raw bytes of a token, possibly part of a character; empty outside the vocabulary.
    pub fn token_bytes(&self, token: Token) -> &[u8] {
        self.vocab.bytes(token)
    }

    /// The token as the vocabulary spells it, such as `Ġthe`; for people.
    pub fn token_text(&self, token: Token) -> Option<&str> {
        self.vocab.text(token)
    }

    /// The token that the vocabulary spells so, such as `<|im_end|>`.
    pub fn token_of(&self, text: &str) -> Option<Token> {
        self.vocab.id(text)
    }

    /// The text of tokens; bytes that are no character become U+FFFD.
    pub fn decode(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| self.token_bytes(token)).copied().collect();
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// Number of tokens. A model's embedding may have more rows than that, never fewer.
    pub fn vocab_len(&self) -> usize {
        self.vocab.len()
    }

    /// The begin-of-text token.
    pub fn bos(&self) -> Option<Token> {
        self.ends.bos
    }

    /// The end-of-text token.
    pub fn eos(&self) -> Option<Token> {
        self.ends.eos
    }

    /// Whether the token ends an answer.
    pub fn is_eog(&self, token: Token) -> bool {
        self.eog.binary_search(&token).is_ok()
    }

    /// The tokens that end an answer, ascending.
    pub fn eog(&self) -> &[Token] {
        &self.eog
    }

    /// Whether the token is structure, not text.
    pub fn is_control(&self, token: Token) -> bool {
        self.vocab.kind(token) == Some(Kind::Control)
    }

    /// Whether [`encode`](Tokenizer::encode) with `add_special` begins with the begin-of-text token.
    pub fn add_bos(&self) -> bool {
        self.ends.bos.is_some() && self.ends.prefix.first() == self.ends.bos.as_ref()
    }

    /// A lower bound on the tokens of a text of this many bytes, to refuse what cannot fit
    /// before any work is spent on it.
    pub fn tokens_at_least(&self, text_bytes: usize) -> usize {
        text_bytes / self.vocab.longest_bytes()
    }
}

/// The text in Unicode's composed form. ASCII is composed already.
///
/// The normaliser of the `tokenizers` crate does the same with the same tables, and keeps 32 bytes beside
/// every byte of the text to tell where it came from.
fn composed(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return text.into();
    }
    text.nfc().map(|(composed, _)| composed).collect::<String>().into()
}

/// Why a vocabulary was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A kind of vocabulary that kvik does not know.
    #[error("tokenizer model {found:?} is not supported; kvik knows {known}")]
    UnknownModel {
        /// The name in the file.
        found: String,
        /// The supported ones.
        known: &'static str,
    },
    /// A pre-tokenizer that kvik does not know. Guessing would give wrong tokens.
    #[error("pre-tokenizer {found:?} is not supported; kvik knows {known}")]
    UnknownPreTokenizer {
        /// The name in the file.
        found: String,
        /// The supported ones.
        known: String,
    },
    /// A pre-tokenizer's pattern cannot be used.
    #[error("the pre-tokenizer's pattern {pattern:?} cannot be used: {reason}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A step of a tokenizer.json that kvik does not know. Leaving it out would give wrong tokens.
    #[error("tokenizer.json uses {step}, which kvik does not support; use a GGUF file of this model")]
    UnknownStep {
        /// The step.
        step: String,
    },
    /// The tokenizer.json cannot be read.
    #[error("tokenizer.json cannot be read: {reason}")]
    BadJson {
        /// What is wrong, and where.
        reason: String,
    },
    /// A token's id is too large.
    #[error("token id {id} is above the limit of {limit}; the file is corrupt")]
    IdTooLarge {
        /// The id.
        id: Token,
        /// The first that is refused.
        limit: Token,
    },
    /// There are no tokens.
    #[error("the vocabulary is empty; convert the model again, with its tokenizer")]
    Empty,
    /// The vocabulary's text is too large.
    #[error("the vocabulary has {bytes} bytes of text, above the limit of {limit}")]
    TooLarge {
        /// Bytes of text.
        bytes: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// More merges than can be numbered.
    #[error("the vocabulary has more than 4294967295 merges; the file is corrupt")]
    TooManyMerges,
    /// The special tokens cannot be searched for.
    #[error("the special tokens cannot be used: {reason}")]
    TooManySpecials {
        /// What the search says.
        reason: String,
    },
    /// The metadata cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

#[cfg(test)]
mod tests;
