//! The ends of conversations in RAM, which wait to be written until they leave it.
//!
//! ```text
//!   oldest                                               newest
//!   [ left ][ left ][ waits ][ waits ][ waits ][ waits ]
//!                    └── blocks_waiting, at most what the caller says is safe in RAM
//! ```
//!
//! An end that has left RAM is remembered, so that its return is seen. The order is that of the ends' last use, which
//! is that of eviction by `lru`; other policies differ from it, and then an end may be gone before it is written.

use std::collections::VecDeque;
use std::time::Duration;

use super::returns::{Assumption, Returns};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, Token};

/// Ends remembered, and tokens of all of them: 16 MiB.
const ENDS_MAX: usize = 4096;
const TOKENS_MAX: usize = 1 << 22;
/// Ends that leave RAM and go on less often than this are not written: chosen by replay
/// (docs/decisions/2026-11-29-disk-writes.md).
const LEAVING_CHANCE_MIN: f64 = 0.6;
/// The same of those that wait when the process ends.
const LAST_CHANCE_MIN: f64 = 0.3;
/// The part of RAM that ends may wait in. The rest is for running sequences, for what only the tree still has, and for
/// the time that writing takes.
const SAFE_SHARE: (usize, usize) = (3, 4);

/// The end of a conversation, or of what else was computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End<T> {
    /// The namespace of its blocks.
    pub namespace: NamespaceId,
    /// Its tokens, in whole blocks.
    pub tokens: Vec<Token>,
    /// Number of tokens of its prompt, which may be more or less than `tokens`.
    pub prompt_len: usize,
    /// Data that the caller needs to write it.
    pub more: T,
}

/// The ends that wait, and those that are remembered.
#[derive(Debug)]
pub struct Ends<T> {
    /// By last use, the oldest first.
    entries: VecDeque<Entry<T>>,
    /// Leading entries that have left RAM.
    left: usize,
    /// Blocks of the others that no other conversation had when they were added.
    blocks_waiting: usize,
    /// Tokens of all entries.
    tokens: usize,
    returns: Returns,
}

#[derive(Debug)]
struct Entry<T> {
    end: End<T>,
    at: Duration,
    /// The turn of its conversation, counted from 1.
    turn: u32,
    /// Blocks that count as its own.
    blocks: usize,
    /// Classes of pauses that were counted as reached.
    reached: usize,
    /// Another turn followed its prompt, with another answer: its template drops thoughts, or it was answered again.
    is_passed: bool,
}

impl<T> Default for Ends<T> {
    fn default() -> Ends<T> {
        Ends { entries: VecDeque::new(), left: 0, blocks_waiting: 0, tokens: 0, returns: Returns::default() }
    }
}

impl<T> Ends<T> {
    /// Blocks that may wait in a RAM of `blocks`.
    pub fn safe_blocks(blocks: usize) -> usize {
        blocks / SAFE_SHARE.1 * SAFE_SHARE.0
    }
}

impl<T: Clone> Ends<T> {
    /// Adds an end. It replaces those that it continues. Returns the leading tokens, in whole blocks, that another
    /// conversation begins with, or that are its prompt and were asked before.
    pub fn add(&mut self, end: End<T>, now: Duration) -> usize {
        let (mut shared, mut turn) = (0, 1);
        for index in (0..self.entries.len()).rev() {
            let Entry { end: other, turn: before, .. } = &self.entries[index];
            let next_turn = before.saturating_add(1);
            if other.namespace != end.namespace {
                continue;
            }
            let common = common_blocks(&other.tokens, &end.tokens);
            if common + BLOCK_POSITIONS > end.prompt_len {
                // The same prompt again.
                shared = shared.max(common);
            }
            // Where a turn ends, the next one may begin with other tokens for the same text.
            if common > 0 && common + BLOCK_POSITIONS >= other.tokens.len() {
                turn = turn.max(next_turn);
                self.note_return(index, now);
                self.remove(index);
            } else if common > 0 && is_next_turn(other, &end, common) {
                turn = turn.max(next_turn);
                self.note_return(index, now);
                self.entries[index].is_passed = true;
            } else {
                shared = shared.max(common);
            }
        }
        if !end.tokens.is_empty() {
            self.push(end, turn, shared, now);
        }
        shared
    }

    /// The oldest ends that wait, until at most `blocks` blocks do; those of them that are likely to go on are to be
    /// written. The others are only remembered.
    pub fn leave(&mut self, blocks: usize, now: Duration) -> Vec<End<T>> {
        if self.blocks_waiting <= blocks {
            return Vec::new();
        }
        self.count_reached(now);
        let first = self.left;
        while self.blocks_waiting > blocks {
            self.blocks_waiting -= self.entries[self.left].blocks;
            self.left += 1;
        }
        let leaving = self.entries.range(first..self.left);
        let chance = |entry: &&Entry<T>| entry.chance(&self.returns, now, Assumption::Stay);
        leaving.filter(|entry| chance(entry) >= LEAVING_CHANCE_MIN).map(|entry| entry.end.clone()).collect()
    }

    /// Removes all ends, and returns those that wait and are likely to go on, the latest first.
    pub fn take_likely(&mut self, now: Duration) -> Vec<End<T>> {
        self.count_reached(now);
        let returns = self.returns;
        let is_likely = |entry: &Entry<T>| entry.chance(&returns, now, Assumption::GoOn) >= LAST_CHANCE_MIN;
        self.take_waiting().into_iter().filter(is_likely).map(|entry| entry.end).collect()
    }

    /// Removes all ends, and returns those that wait, the latest first.
    pub fn take_all(&mut self) -> Vec<End<T>> {
        self.take_waiting().into_iter().map(|entry| entry.end).collect()
    }

    /// Removes the ends for which `is_kept` is false.
    pub fn retain(&mut self, is_kept: impl Fn(&End<T>) -> bool) {
        for index in (0..self.entries.len()).rev() {
            if !is_kept(&self.entries[index].end) {
                self.remove(index);
            }
        }
    }

    /// The namespaces of the ends that wait.
    pub fn namespaces(&self) -> impl Iterator<Item = NamespaceId> {
        self.entries.range(self.left..).map(|entry| entry.end.namespace)
    }

    /// Blocks of the ends that wait, some of which may be on disk.
    pub fn blocks_waiting(&self) -> usize {
        self.blocks_waiting
    }

    fn push(&mut self, end: End<T>, turn: u32, shared: usize, now: Duration) {
        while self.entries.len() >= ENDS_MAX || self.tokens + end.tokens.len() > TOKENS_MAX {
            if self.entries.is_empty() {
                return;
            }
            self.remove(0);
        }
        let blocks = (end.tokens.len() - shared) / BLOCK_POSITIONS;
        self.tokens += end.tokens.len();
        self.blocks_waiting += blocks;
        self.entries.push_back(Entry { end, at: now, turn, blocks, reached: 0, is_passed: false });
    }

    fn remove(&mut self, index: usize) {
        let Some(entry) = self.entries.remove(index) else { return };
        self.tokens -= entry.end.tokens.len();
        match index < self.left {
            true => self.left -= 1,
            false => self.blocks_waiting -= entry.blocks,
        }
    }

    fn take_waiting(&mut self) -> Vec<Entry<T>> {
        let mut entries = std::mem::take(&mut self.entries);
        entries.drain(..self.left);
        (self.left, self.blocks_waiting, self.tokens) = (0, 0, 0);
        entries.into_iter().rev().collect()
    }

    /// Counts the first return of an end.
    fn note_return(&mut self, index: usize, now: Duration) {
        let entry = &mut self.entries[index];
        if entry.is_passed {
            return;
        }
        let class = Returns::class(now.saturating_sub(entry.at));
        let before = entry.reached;
        entry.reached = class.max(before);
        self.returns.passed(entry.turn, before..class.max(before));
        self.returns.went_on(entry.turn, class);
    }

    /// Counts the classes of pauses that ends have passed through by now.
    fn count_reached(&mut self, now: Duration) {
        for entry in self.entries.iter_mut().filter(|entry| !entry.is_passed) {
            let class = Returns::class(now.saturating_sub(entry.at)).max(entry.reached);
            self.returns.passed(entry.turn, std::mem::replace(&mut entry.reached, class)..class);
        }
    }

    /// Checks the sums; the message states the wrong one.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        let blocks: usize = self.entries.range(self.left..).map(|entry| entry.blocks).sum();
        let tokens: usize = self.entries.iter().map(|entry| entry.end.tokens.len()).sum();
        let counted = (self.blocks_waiting, self.tokens);
        if (blocks, tokens) != counted {
            return Err(format!("{blocks} blocks and {tokens} tokens are there, {counted:?} are counted"));
        }
        let ages = self.entries.iter().map(|entry| entry.at);
        if !ages.is_sorted() || self.entries.len() > ENDS_MAX || self.tokens > TOKENS_MAX {
            return Err("the order or a limit is violated".to_owned());
        }
        Ok(())
    }
}

impl<T> Entry<T> {
    /// The chance that it goes on; none of one whose prompt went on without its answer.
    fn chance(&self, returns: &Returns, now: Duration, assumed: Assumption) -> f64 {
        match self.is_passed {
            true => 0.0,
            false => returns.chance(self.turn, now.saturating_sub(self.at), assumed),
        }
    }
}

/// Whether `end` begins with the prompt of `other` and asks more, but not with its answer.
fn is_next_turn<T>(other: &End<T>, end: &End<T>, common: usize) -> bool {
    common + BLOCK_POSITIONS >= other.prompt_len && end.prompt_len > other.prompt_len + BLOCK_POSITIONS
}

/// Leading tokens that both have, in whole blocks.
fn common_blocks(a: &[Token], b: &[Token]) -> usize {
    let blocks = a.chunks_exact(BLOCK_POSITIONS).zip(b.chunks_exact(BLOCK_POSITIONS));
    blocks.take_while(|(a, b)| a == b).count() * BLOCK_POSITIONS
}
