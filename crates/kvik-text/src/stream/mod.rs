//! Converts tokens to text: whole characters, stop strings, and the tokens of each text.
//!
//! The text of an answer is the joined bytes of its tokens; invalid UTF-8 becomes U+FFFD as
//! in [`String::from_utf8_lossy`]. It ends before the stop string that is complete first;
//! of several complete at the same character, the longest. The division of the text into tokens
//! never changes the result.

mod indent;
mod stop;
mod vocabulary;

use std::collections::VecDeque;

use stop::StopMatcher;

pub use indent::IndentLimit;
pub use stop::StopStrings;
pub use vocabulary::{TokenKind, Vocabulary};

/// Converts the tokens of one choice to text that may be sent. `T` describes a token.
#[derive(Debug)]
pub struct TextStream<T> {
    stops: StopMatcher,
    /// Bytes of a character that is not complete yet.
    partial: Vec<u8>,
    /// Decoded text that is not sent yet: the possible beginning of a stop string.
    held: String,
    /// Bytes of text sent.
    shown_bytes: usize,
    /// Bytes of tokens received, and bytes decoded into `held` and the text before it.
    raw_bytes: usize,
    decoded_bytes: usize,
    tokens: VecDeque<Pending<T>>,
}

/// A token that is not reported yet.
#[derive(Debug)]
struct Pending<T> {
    token: T,
    raw_end: usize,
    /// Start of its text, and end of its text once its last character is complete.
    text_start: usize,
    text_end: Option<usize>,
}

/// Text and tokens that may be sent after a token.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown<T> {
    /// New text, whole characters only.
    pub text: String,
    /// Tokens whose text is now completely sent, in order.
    pub tokens: Vec<T>,
    /// The stop string that ended the text, by its index.
    pub stopped: Option<usize>,
}

impl<T> TextStream<T> {
    /// A stream that ends at any of `stops`.
    pub fn new(stops: &StopStrings) -> TextStream<T> {
        TextStream {
            stops: StopMatcher::new(stops),
            partial: Vec::new(),
            held: String::new(),
            shown_bytes: 0,
            raw_bytes: 0,
            decoded_bytes: 0,
            tokens: VecDeque::new(),
        }
    }

    /// Adds a token with its bytes. After a stop string nothing may be added.
    pub fn push(&mut self, token: T, bytes: &[u8]) -> Shown<T> {
        self.raw_bytes += bytes.len();
        let text_start = self.shown_bytes + self.held.len();
        self.tokens.push_back(Pending { token, raw_end: self.raw_bytes, text_start, text_end: None });
        self.partial.extend_from_slice(bytes);
        let stopped = self.decode(false);
        self.show(stopped)
    }

    /// Ends the stream and returns the text that was held back.
    pub fn finish(&mut self) -> Shown<T> {
        let stopped = self.decode(true);
        if stopped.is_none() {
            self.stops.reset();
        }
        self.show(stopped)
    }

    /// Moves whole characters from `partial` to `held`, up to the end of a stop string.
    fn decode(&mut self, last: bool) -> Option<usize> {
        let bytes = std::mem::take(&mut self.partial);
        let mut rest = bytes.as_slice();
        let mut stopped = None;
        while let Some((character, length)) = next_character(rest, last) {
            rest = &rest[length..];
            stopped = self.take(character, length);
            if stopped.is_some() {
                break;
            }
        }
        self.partial = rest.to_vec();
        self.settle_tokens();
        stopped
    }

    /// Takes one character made of `length` raw bytes. At the end of a stop string, drops the
    /// string and returns its index.
    fn take(&mut self, character: char, length: usize) -> Option<usize> {
        self.held.push(character);
        self.decoded_bytes += length;
        self.settle_tokens();
        let mut utf8 = [0; 4];
        let complete = self.stops.advance(character.encode_utf8(&mut utf8).as_bytes())?;
        self.held.truncate(self.held.len() - complete.length);
        Some(complete.index)
    }

    /// Records the end of the text of each token whose bytes are all decoded.
    fn settle_tokens(&mut self) {
        let text_end = self.shown_bytes + self.held.len();
        let open = self.tokens.iter_mut().rev().take_while(|token| token.text_end.is_none());
        for token in open.filter(|token| token.raw_end <= self.decoded_bytes) {
            token.text_end = Some(text_end);
        }
    }

    fn show(&mut self, stopped: Option<usize>) -> Shown<T> {
        let hold_bytes = if stopped.is_some() { 0 } else { self.stops.longest_partial() };
        let text: String = self.held.drain(..self.held.len() - hold_bytes).collect();
        self.shown_bytes += text.len();
        let shown = self.shown_bytes;
        // A token that a stop string cuts is reported if part of its text is sent.
        let out = |token: &Pending<T>| match stopped {
            Some(_) => token.text_start < shown || token.text_end.is_some_and(|end| end <= shown),
            None => token.text_end.is_some_and(|end| end <= shown),
        };
        let count = self.tokens.iter().take_while(|token| out(token)).count();
        let tokens = self.tokens.drain(..count).map(|pending| pending.token).collect();
        Shown { text, tokens, stopped }
    }
}

/// The first character of `bytes` and its length in bytes; U+FFFD for invalid UTF-8.
/// `None` at the end, or if more bytes could complete the character and `last` is not set.
fn next_character(bytes: &[u8], last: bool) -> Option<(char, usize)> {
    // Four bytes hold any character, so a chunk of them decides the case.
    let head = &bytes[..bytes.len().min(4)];
    let chunk = head.utf8_chunks().next()?;
    if let Some(character) = chunk.valid().chars().next() {
        return Some((character, character.len_utf8()));
    }
    let incomplete = std::str::from_utf8(head).is_err_and(|error| error.error_len().is_none());
    if incomplete && !last {
        return None;
    }
    Some((char::REPLACEMENT_CHARACTER, chunk.invalid().len()))
}

#[cfg(test)]
mod tests;
