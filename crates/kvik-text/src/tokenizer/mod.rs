//! Converts text to tokens and back.
//!
//! The vocabulary and rules come from a model's file. Encoding cannot fail and takes near-linear time
//! on any text; decoding works on bytes, because a token may be part of a character.

mod byte_level;
mod fill;
mod gguf;
mod json;
mod merge;
mod oniguruma;
mod pre_tokenizer;
mod sentence_piece;
mod special;
mod split;
mod token_cache;
mod vocab;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use kvik_cache::Token;
use rustc_hash::FxHashMap;
use unicode_normalization_alignments::UnicodeNormalization;

use crate::files::gguf::GgufError;
use byte_level::ByteLevel;
use sentence_piece::SentencePiece;
use special::{Controls, Part, Specials, Strip};
use token_cache::TokenCache;
use vocab::{Kind, Vocab};

pub use crate::files::hf::TokenizerHints;
pub use fill::FillTokens;
pub use token_cache::encoding_for;

/// A model's tokenizer, shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    pieces: Pieces,
    specials: Specials,
    ends: BoundaryTokens,
    /// Tokens that end an answer, ascending.
    eog: Vec<Token>,
    fill: FillTokens,
    /// Whether text is composed (Unicode NFC) first.
    nfc: bool,
    cache: Mutex<TokenCache>,
}

/// Bytes of cached text and tokens.
const CACHE_BYTES: usize = 16 << 20;

/// Stretches of text below this are faster to encode than to look up.
const CACHED_BYTES_MIN: usize = 256;

/// The algorithm that encodes plain text.
#[derive(Debug)]
enum Pieces {
    ByteLevel(Box<ByteLevel>),
    SentencePiece(Box<SentencePiece>),
}

/// Tokens at the beginning and end of a text.
#[derive(Debug, Default)]
struct BoundaryTokens {
    bos: Option<Token>,
    eos: Option<Token>,
    /// Further tokens that end an answer.
    more_eog: Vec<Token>,
    /// Tokens to add before a text, if requested.
    prefix: Vec<Token>,
    /// Tokens to add after a text, if requested.
    suffix: Vec<Token>,
    /// Tokens for filling in the middle, if the file names them.
    fill: FillTokens,
}

/// Bytes of text that are tokenized per token of the context. Texts have three to five bytes per token: a text
/// that is a few times too long is counted exactly, so that the error can state by how much to shorten it; a text
/// beyond this limit cannot fit and is not tokenized.
const TOKENIZED_BYTES_PER_TOKEN: usize = 32;

/// Maximum bytes of a text that is tokenized as part of a prompt, for a context of this many tokens.
pub fn text_bytes_max(context_tokens: usize) -> usize {
    TOKENIZED_BYTES_PER_TOKEN.saturating_mul(context_tokens)
}

impl Tokenizer {
    fn assemble(
        vocab: Vocab,
        pieces: Pieces,
        ends: BoundaryTokens,
        strips: &FxHashMap<Token, Strip>,
        nfc: bool,
    ) -> Result<Tokenizer, TokenizerError> {
        let specials = Specials::new(&vocab, strips)?;
        let mut eog: Vec<Token> = vocab.ends().chain(ends.eos).chain(ends.more_eog.iter().copied()).collect();
        let ends_part = part_end(&vocab);
        eog.retain(|&token| Some(token) != ends_part);
        eog.sort_unstable();
        eog.dedup();
        let cache = Mutex::new(TokenCache::new(CACHE_BYTES));
        let fill = ends.fill.or_named(|name| vocab.id(name));
        Ok(Tokenizer { vocab, pieces, specials, ends, eog, fill, nfc, cache })
    }

    /// The tokens of `text`.
    ///
    /// `add_special` adds the begin-of-text token if the model requires one. `parse_special` parses `<|im_end|>`
    /// and the like as tokens; without it they are plain text, which is right for text from a user.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        let mut tokens = Vec::new();
        if add_special {
            tokens.extend(&self.ends.prefix);
        }
        match parse_special {
            true => self.encode_with_cache(text, &mut tokens),
            false => self.encode_stretch(text, true, Controls::Text, &mut tokens),
        }
        if add_special {
            tokens.extend(&self.ends.suffix);
        }
        tokens
    }

    /// The tokens of a prompt whose ranges `inputs`, ascending, are untrusted.
    ///
    /// Control tokens are parsed as by `encode` with `parse_special`, unless their names overlap one of the
    /// ranges: then they are plain text. Texts without such overlaps give the same tokens as `encode`.
    pub fn encode_prompt(&self, text: &str, inputs: &[Range<usize>]) -> Vec<Token> {
        let mut tokens = Vec::new();
        match self.specials.controls_in(text, inputs) {
            // Rare, so it bypasses the cache, whose keys are texts without their ranges.
            true => self.encode_stretch(text, true, Controls::ParsedOutside(inputs), &mut tokens),
            false => self.encode_with_cache(text, &mut tokens),
        }
        tokens
    }

    /// The tokens of a rendered chat, as by [`encode_prompt`](Tokenizer::encode_prompt). Most templates write the
    /// BOS token themselves; if a template does not and the model requires it, this adds it.
    pub fn encode_chat(&self, text: &str, inputs: &[Range<usize>]) -> Vec<Token> {
        let mut tokens = self.encode_prompt(text, inputs);
        if let Some(bos) = self.required_bos()
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        tokens
    }

    /// The control tokens in the texts of a form, which must be visible in an answer. A part that the vocabulary cannot
    /// express has none.
    pub fn controls_in(&self, texts: Vec<&str>) -> Vec<Token> {
        let tokens = texts.into_iter().flat_map(|text| self.encode(text, false, true));
        tokens.filter(|&token| self.vocab.kind(token) == Some(Kind::Control)).collect()
    }

    /// Encodes stretch by stretch, with the cache.
    fn encode_with_cache(&self, text: &str, out: &mut Vec<Token>) {
        let mut start = 0;
        for end in self.specials.cuts(text) {
            if end - start >= CACHED_BYTES_MIN {
                self.encode_cached(&text[start..end], start == 0, out);
                start = end;
            }
        }
        self.encode_stretch(&text[start..], start == 0, Controls::Parsed, out);
    }

    fn encode_cached(&self, text: &str, first: bool, out: &mut Vec<Token>) {
        let cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cache().get(text, first);
        if let Some(tokens) = known {
            out.extend(&*tokens);
            return;
        }
        let start = out.len();
        self.encode_stretch(text, first, Controls::Parsed, out);
        cache().put(text, &out[start..], first);
    }

    fn encode_stretch(&self, text: &str, mut first: bool, controls: Controls<'_>, out: &mut Vec<Token>) {
        self.specials.split(text, controls, &mut |part| {
            match part {
                Part::Special(token) => out.push(token),
                Part::Plain(text) => self.encode_plain(text, first, out),
                Part::Rest(text) => self.encode_rest(text, out),
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

    /// Encodes plain text that follows a special token.
    fn encode_rest(&self, text: &str, out: &mut Vec<Token>) {
        match &self.pieces {
            Pieces::ByteLevel(_) => self.encode_plain(text, false, out),
            Pieces::SentencePiece(pieces) => pieces.encode_rest(text, out),
        }
    }

    /// The raw bytes of a token, possibly part of a character; empty outside the vocabulary.
    pub fn token_bytes(&self, token: Token) -> &[u8] {
        self.vocab.bytes(token)
    }

    /// The vocabulary's spelling of the token, such as `Ġthe`, for display.
    pub fn token_text(&self, token: Token) -> Option<&str> {
        self.vocab.text(token)
    }

    /// The token with this spelling in the vocabulary, such as `<|im_end|>`.
    pub fn token_of(&self, text: &str) -> Option<Token> {
        self.vocab.id(text)
    }

    /// The text of tokens; invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| self.token_bytes(token)).copied().collect();
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// Number of tokens. A model's embedding may have more rows, never fewer.
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

    /// Whether the token is a control token, or stands for text that the vocabulary cannot express: its name is not
    /// text.
    pub fn is_control(&self, token: Token) -> bool {
        matches!(self.vocab.kind(token), Some(Kind::Control | Kind::Unknown))
    }

    /// Whether [`encode`](Tokenizer::encode) with `add_special` begins with the begin-of-text token.
    pub fn add_bos(&self) -> bool {
        self.ends.bos.is_some() && self.ends.prefix.first() == self.ends.bos.as_ref()
    }

    /// The begin-of-text token, if the model requires it.
    pub fn required_bos(&self) -> Option<Token> {
        self.bos().filter(|_| self.add_bos())
    }

    /// A lower bound on the tokens of a text of this many bytes, to refuse texts that cannot fit before
    /// encoding them.
    pub fn tokens_at_least(&self, text_bytes: usize) -> usize {
        text_bytes / self.vocab.longest_bytes()
    }
}

/// The token that ends a part of an answer but not the answer: `<|end|>` in vocabularies with separate tokens for
/// the ends of answers and calls (gpt-oss, Solar Open).
fn part_end(vocab: &Vocab) -> Option<Token> {
    let has = |text| vocab.id(text).is_some();
    let call = has("<|call|>") || has("<|calls|>");
    vocab.id("<|end|>").filter(|_| call && (has("<|return|>") || has("<|flush|>")))
}

/// The text in Unicode's composed form. ASCII is composed already.
///
/// The normaliser of the `tokenizers` crate does the same with the same tables, but stores 32 bytes for
/// every byte of the text to track its origin.
fn composed(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return text.into();
    }
    text.nfc().map(|(composed, _)| composed).collect::<String>().into()
}

/// The reason why a vocabulary was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// An unsupported kind of vocabulary.
    #[error("tokenizer model {found:?} is not supported; kvik knows {known}")]
    UnknownModel {
        /// The name in the file.
        found: String,
        /// The supported ones.
        known: &'static str,
    },
    /// An unsupported pre-tokenizer. Guessing would give wrong tokens.
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
        /// The error.
        reason: String,
    },
    /// An unsupported step of a tokenizer.json. Skipping it would give wrong tokens.
    #[error("tokenizer.json uses {step}, which kvik does not support; use a GGUF file of this model")]
    UnknownStep {
        /// The step.
        step: String,
    },
    /// The tokenizer.json cannot be read.
    #[error("tokenizer.json cannot be read: {reason}")]
    BadJson {
        /// The error and its position.
        reason: String,
    },
    /// A token's id is too large.
    #[error("token id {id} is above the limit of {limit}; the file is corrupt")]
    IdTooLarge {
        /// The id.
        id: Token,
        /// The smallest refused id.
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
        /// The maximum.
        limit: usize,
    },
    /// More merges than can be numbered.
    #[error("the vocabulary has more than 4294967295 merges; the file is corrupt")]
    TooManyMerges,
    /// The special tokens cannot be searched for.
    #[error("the special tokens cannot be used: {reason}")]
    TooManySpecials {
        /// The reason.
        reason: String,
    },
    /// The metadata cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
