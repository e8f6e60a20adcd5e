//! Detects a loop: an answer whose tail only repeats itself.
//!
//! Small models fall into loops. But lists, tables and code repeat themselves too,
//! so how long a repetition may be depends on its unit, the shortest part that is repeated: the more different words it
//! has, the sooner it is a loop, and four times as late where less than half of its tokens are words. A sentence is one
//! after a dozen copies; rows of a matrix of zeros, dashes, or zeros in base64 are none before 2,048 tokens. A counter
//! makes all units different: a list that counts is never a loop here, as nothing tells it from a table.

use std::collections::HashSet;

use kvik_cache::Token;

/// Tokens of the longest unit.
const PERIOD_MAX: usize = 512;
/// Copies of a unit that are no loop, whatever its length.
const COPIES: usize = 3;
/// Tokens that may be repeated besides: of units with one word or none, divided by the number of different words of
/// others, but never less than the minimum.
const REPEATED_MAX: usize = 2048;
const REPEATED_MIN: usize = 192;
/// Factor, up to the same maximum, where less than half of a unit are words.
const NO_PROSE: usize = 4;
/// Tokens from one search to the next: a search takes some thousand comparisons at most.
const SEARCH_EVERY: usize = 32;
/// Tokens that a search reads: it finds every loop before these are full.
const TAIL: usize = REPEATED_MAX + (COPIES + 1) * PERIOD_MAX + SEARCH_EVERY;

/// The repetition of which a loop consists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repetition {
    /// Tokens of its unit.
    pub period: usize,
    /// Tokens of the answer before its first copy.
    pub start: usize,
    /// Bytes of the answer's text behind its second copy.
    pub surplus_bytes: usize,
}

/// Watches the tokens of one answer.
#[derive(Debug, Default)]
pub struct LoopDetector {
    /// The last tokens, at least `TAIL` of them if there were so many.
    tail: Vec<Piece>,
    /// Tokens of the answer so far.
    count: usize,
}

/// A token, the length of its text, and whether that has letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    token: Token,
    is_word: bool,
    bytes: u32,
}

impl LoopDetector {
    /// Takes the next token of the answer with its bytes; returns the loop that the answer has fallen into.
    pub fn push(&mut self, token: Token, bytes: &[u8]) -> Option<Repetition> {
        if self.tail.len() == 2 * TAIL {
            self.tail.drain(..TAIL);
        }
        // Most bytes beyond ASCII are of letters.
        let is_word = bytes.iter().any(|byte| byte.is_ascii_alphabetic() || !byte.is_ascii());
        self.tail.push(Piece { token, is_word, bytes: bytes.len() as u32 });
        self.count += 1;
        if self.count < REPEATED_MIN || !self.count.is_multiple_of(SEARCH_EVERY) {
            return None;
        }
        let tail = &self.tail[self.tail.len().saturating_sub(TAIL)..];
        let (period, repeated) = find(tail)?;
        let surplus = &tail[tail.len() + period - repeated..];
        let surplus_bytes = surplus.iter().map(|piece| piece.bytes as usize).sum();
        Some(Repetition { period, start: self.count - period - repeated, surplus_bytes })
    }
}

/// The smallest period of which `tail` is a loop, and the number of tokens at its end that repeat those a period before.
fn find(tail: &[Piece]) -> Option<(usize, usize)> {
    let repeated = repeated(tail);
    if repeated.iter().all(|&tokens| tokens < REPEATED_MIN) {
        return None;
    }
    let mut words = Words::default();
    for (period, &tokens) in (1..).zip(&repeated) {
        words.add(tail[tail.len() - period]);
        if tokens >= repeated_max(period, &words) {
            return Some((period, tokens));
        }
    }
    None
}

/// The words of a unit.
#[derive(Debug, Default)]
struct Words {
    different: HashSet<Token>,
    count: usize,
}

impl Words {
    fn add(&mut self, piece: Piece) {
        if piece.is_word {
            self.different.insert(piece.token);
            self.count += 1;
        }
    }
}

/// Repeated tokens from which a unit of this length with these words is a loop.
fn repeated_max(period: usize, words: &Words) -> usize {
    let by_words = (REPEATED_MAX / words.different.len().max(1)).max(REPEATED_MIN);
    let factor = if words.count * 2 < period { NO_PROSE } else { 1 };
    (by_words * factor).min(REPEATED_MAX) + COPIES * period
}

/// For each period from 1, the number of tokens at the end of `tail` that repeat those a period before: the Z function
/// of the reversed tail, which takes at most two comparisons for each of its tokens.
fn repeated(tail: &[Piece]) -> Vec<usize> {
    let periods = PERIOD_MAX.min(tail.len().saturating_sub(1));
    let from_end = |index: usize| tail[tail.len() - 1 - index].token;
    let mut repeated: Vec<usize> = Vec::with_capacity(periods);
    // The repetition that reaches furthest back: its period, and where it ends.
    let (mut widest, mut end) = (0, 0);
    for period in 1..=periods {
        let mut tokens = if period < end { repeated[period - widest - 1].min(end - period) } else { 0 };
        while period + tokens < tail.len() && from_end(tokens) == from_end(period + tokens) {
            tokens += 1;
        }
        if period + tokens > end {
            (widest, end) = (period, period + tokens);
        }
        repeated.push(tokens);
    }
    repeated
}

#[cfg(test)]
mod tests;
