//! The bytes and kinds of all tokens, in contiguous memory.

use kvik_cache::Token;

use crate::tokenizer::Tokenizer;

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Text.
    Text,
    /// A control token such as `<|im_start|>`: no text unless requested.
    Control,
    /// Ends the answer.
    EndOfGeneration,
}

/// Bytes and kind of every token.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// End offset of each token's bytes, `[vocab]`.
    ends: Vec<usize>,
    kinds: Vec<TokenKind>,
    /// The tokens that end an answer.
    end_tokens: Vec<Token>,
}

impl Vocabulary {
    /// A vocabulary from the tokens in order of their ids.
    pub fn new<B: AsRef<[u8]>>(tokens: impl IntoIterator<Item = (B, TokenKind)>) -> Vocabulary {
        let mut vocabulary =
            Vocabulary { bytes: Vec::new(), ends: Vec::new(), kinds: Vec::new(), end_tokens: Vec::new() };
        for (bytes, kind) in tokens {
            if kind == TokenKind::EndOfGeneration {
                vocabulary.end_tokens.push(vocabulary.kinds.len() as Token);
            }
            vocabulary.bytes.extend_from_slice(bytes.as_ref());
            vocabulary.ends.push(vocabulary.bytes.len());
            vocabulary.kinds.push(kind);
        }
        vocabulary
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Raw bytes of a token, for a control token its name; empty outside the vocabulary.
    pub fn bytes(&self, token: Token) -> &[u8] {
        let index = token as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }

    /// The kind of a token. Ids that only pad the model's output count as control tokens.
    pub fn kind(&self, token: Token) -> TokenKind {
        self.kinds.get(token as usize).copied().unwrap_or(TokenKind::Control)
    }

    /// The tokens that end an answer.
    pub fn end_tokens(&self) -> &[Token] {
        &self.end_tokens
    }

    /// The first token in both vocabularies that differs.
    pub fn first_difference(&self, other: &Vocabulary) -> Option<Token> {
        let both = 0..self.len().min(other.len()) as Token;
        let same = |&id: &Token| self.kind(id) == other.kind(id) && self.bytes(id) == other.bytes(id);
        both.into_iter().find(|id| !same(id))
    }

    /// Bytes that the token adds to an answer.
    pub fn answer_bytes(&self, token: Token, show_special: bool) -> &[u8] {
        if show_special || self.kind(token) == TokenKind::Text { self.bytes(token) } else { &[] }
    }
}

impl From<&Tokenizer> for Vocabulary {
    fn from(tokenizer: &Tokenizer) -> Vocabulary {
        Vocabulary::new((0..tokenizer.vocab_len() as Token).map(|token| {
            let kind = match token {
                token if tokenizer.is_eog(token) => TokenKind::EndOfGeneration,
                token if tokenizer.is_control(token) => TokenKind::Control,
                _ => TokenKind::Text,
            };
            (tokenizer.token_bytes(token), kind)
        }))
    }
}
