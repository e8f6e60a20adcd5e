//! Tokens as bytes that can be compared: text is itself, and a control token is equal to itself only.

use kvik_cache::Token;
use kvik_text::stream::{TokenKind, Vocabulary};

/// Begins a token that is not text. No text contains this byte.
const NO_TEXT: u8 = 0xff;

/// The bytes of tokens, and where each of them ends.
#[derive(Debug, Default)]
pub(super) struct TokenBytes {
    pub(super) bytes: Vec<u8>,
    /// Ascending, one for each token.
    pub(super) ends: Vec<usize>,
}

impl TokenBytes {
    pub(super) fn of(tokens: &[Token], vocabulary: &Vocabulary) -> TokenBytes {
        let mut all = TokenBytes::default();
        for &token in tokens {
            push(token, vocabulary, &mut all.bytes);
            all.ends.push(all.bytes.len());
        }
        all
    }

    /// The token that ends at this byte.
    pub(super) fn ending_at(&self, byte: usize) -> Option<usize> {
        self.ends.binary_search(&byte).ok()
    }

    /// Whether a token begins at this byte.
    pub(super) fn begins_at(&self, byte: usize) -> bool {
        byte == 0 || self.ending_at(byte).is_some()
    }
}

/// Appends the bytes of a token. A token that is not text, or that no text contains, is written as its id, so that nothing
/// else is equal to it.
pub(super) fn push(token: Token, vocabulary: &Vocabulary, out: &mut Vec<u8>) {
    let bytes = vocabulary.bytes(token);
    let is_text = vocabulary.kind(token) == TokenKind::Text;
    if is_text && !bytes.is_empty() && !bytes.contains(&NO_TEXT) {
        out.extend_from_slice(bytes);
    } else {
        out.push(NO_TEXT);
        out.extend_from_slice(&token.to_le_bytes());
    }
}
