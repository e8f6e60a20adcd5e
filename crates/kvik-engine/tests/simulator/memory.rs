//! The naive twin of the cache: a list of token sequences, and a scan for every question.
//!
//! It has no tree, no blocks in RAM and no slots. For every computed sequence it stores how many leading
//! tokens *must* be known and how many *may* be, in RAM and on disk, and until when. If everything fits,
//! both are the same number and the engine's `cached_tokens` must equal it; otherwise the engine must stay
//! between them.

use std::ops::Range;
use std::time::Duration;

use kvik_cache::{BLOCK_POSITIONS, StopReason, Token};

use crate::disk::common;

/// The view in which a sequence is visible: a tenant's own prompts, or its continuations of a public prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) salt: u8,
    /// The salt of the public prompt's owner, and the whole blocks of that prompt.
    pub(crate) base: Option<(u8, Vec<Token>)>,
}

/// A sequence that was computed, or is being computed.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) view: View,
    pub(crate) tokens: Vec<Token>,
    /// Leading tokens that must be in RAM, and on disk.
    pub(crate) ram: usize,
    pub(crate) disk: usize,
    /// The step since which `ram` and `disk` hold.
    pub(crate) since: u64,
    /// Leading tokens that may be anywhere.
    pub(crate) maybe: usize,
    /// Some of it was dropped explicitly while it was in use.
    pub(crate) is_torn: bool,
    /// A request is using it.
    pub(crate) in_use: bool,
    /// When its first user arrived, and when the last one ended.
    pub(crate) began: Duration,
    pub(crate) used: Duration,
    pub(crate) ttl: Option<Duration>,
    /// Whole blocks of it are pinned.
    pub(crate) pinned: bool,
    /// It is a public prompt, as others see it.
    pub(crate) is_base: bool,
}

/// Tokens of a prompt that must, and that may, be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Tokens certainly in RAM.
    pub(crate) ram: usize,
    /// Tokens certainly in RAM or on disk.
    pub(crate) min: usize,
    pub(crate) max: usize,
}

/// Whether the request may have waited for the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    May,
    Cannot,
}

#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) known: Vec<Known>,
}

/// Tolerance around the end of a time to live in RAM.
const DOUBT_RAM: Duration = Duration::from_millis(200);
/// Tolerance on disk, which counts in seconds.
const DOUBT_DISK: Duration = Duration::from_secs(3);

impl Memory {
    /// Tokens of `prompt` that a request finds at `now` if it arrived at step `came`: those known then, and maybe
    /// those that became known since, except its own sequences, numbers `own`.
    pub(crate) fn expected(
        &self,
        view: &View,
        prompt: &[Token],
        came: u64,
        own: &Range<usize>,
        now: Duration,
        reading: Reading,
    ) -> Expected {
        // Blocks that the request waits for do not expire while they are loaded.
        let alone = if reading == Reading::May { 0..0 } else { own.clone() };
        let mut expected = Expected { ram: 0, min: 0, max: 0 };
        let others = self.known.iter().enumerate().filter(|(number, _)| !own.contains(number));
        for known in others.map(|(_, known)| known).filter(|known| known.may_be_seen_in(view)) {
            let shared = common(&known.tokens, prompt);
            if shared == 0 {
                continue;
            }
            if known.since <= came && known.view == *view {
                let ram = if known.lives(now + DOUBT_RAM) { known.ram.min(shared) } else { 0 };
                let disk = if known.lives(now + DOUBT_DISK) { known.disk.min(shared) } else { 0 };
                expected.ram = expected.ram.max(ram);
                expected.min = expected.min.max(ram).max(disk);
            }
            let maybe = known.maybe.min(shared);
            if maybe > expected.max {
                expected.max = expected.max.max(self.may_live(known, maybe, &alone, now));
            }
        }
        expected
    }

    /// Of the first `tokens` of a sequence, those that may not have expired: every sequence that shares a block
    /// prolongs its life.
    fn may_live(&self, known: &Known, mut tokens: usize, own: &Range<usize>, now: Duration) -> usize {
        while tokens > 0 {
            let block = (tokens - 1) / BLOCK_POSITIONS * BLOCK_POSITIONS;
            let others = self.known.iter().enumerate().filter(|(number, _)| !own.contains(number));
            let sharers = others.map(|(_, other)| other).filter(|other| {
                other.may_be_seen_in(&known.view) && common(&other.tokens, &known.tokens) > block
            });
            let (mut used, mut ttl, mut in_use) = (Duration::ZERO, Some(Duration::ZERO), false);
            for sharer in sharers {
                used = used.max(sharer.used);
                ttl = ttl.zip(sharer.ttl).map(|(ttl, other)| ttl.max(other));
                in_use |= sharer.in_use || sharer.pinned;
            }
            if in_use || ttl.is_none_or(|ttl| now < used + ttl + DOUBT_DISK) {
                return tokens;
            }
            tokens = block;
        }
        0
    }

    /// Why reuse ends after `cached` tokens of `prompt`, if all known blocks are in RAM, none was ever evicted,
    /// and all dropped ones have expired. `None` if that depends on which of two sequences that end in one
    /// block came first.
    pub(crate) fn reason(
        &self,
        view: &View,
        prompt: &[Token],
        cached: usize,
        came: u64,
        now: Duration,
    ) -> Option<StopReason> {
        let is_mine = |known: &&Known| known.view == *view && known.ram > 0 && known.since <= came;
        let mine = || self.known.iter().filter(is_mine);
        // A miss of a block requires that all its tokens are in the prompt.
        let block_end = cached - cached % BLOCK_POSITIONS + BLOCK_POSITIONS;
        let end = |known: &Known| known.ram.min(block_end);
        let lost = |known: &&Known| {
            let end = end(known);
            !known.lives(now) && end > cached && prompt.starts_with(&known.tokens[..end])
        };
        let replaced = |lost: &Known| {
            let longer = |other: &Known| common(&other.tokens, &lost.tokens[..end(lost)]) >= end(lost);
            end(lost) < block_end && self.known.iter().filter(|&known| longer(known)).count() > 1
        };
        let continues = |known: &Known| {
            known.lives(now) && known.ram > cached && known.tokens.starts_with(&prompt[..cached])
        };
        if cached == prompt.len() {
            Some(StopReason::Complete)
        } else if mine().any(|known| lost(&known)) {
            (!mine().filter(lost).all(replaced)).then_some(StopReason::Expired)
        } else if cached > 0 && mine().any(continues) {
            Some(StopReason::Diverged)
        } else {
            Some(StopReason::FirstSeen)
        }
    }

    /// Whether a sequence that shares a prefix with `prompt` expires about now, or may be known beyond that prefix
    /// but not certainly; except the request's own sequences, numbers `own`.
    pub(crate) fn is_doubtful(
        &self,
        view: &View,
        prompt: &[Token],
        cached: usize,
        own: &Range<usize>,
        now: Duration,
    ) -> bool {
        let is_longer = |known: &Known| known.maybe > cached && common(&known.tokens, prompt) >= cached;
        // Other sequences that share its blocks may have prolonged its life.
        let is_prolonged =
            |known: &Known| !known.lives(now) && self.may_live(known, known.maybe, own, now) > cached;
        let is_vague = |known: &Known| is_longer(known) && (known.ram < known.maybe || is_prolonged(known));
        let ends = |known: &Known| {
            known.ttl.is_some_and(|ttl| !known.in_use && (known.used + ttl).abs_diff(now) < DOUBT_DISK)
        };
        let others = self.known.iter().enumerate().filter(|(number, _)| !own.contains(number));
        let shares = |known: &&Known| known.may_be_seen_in(view) && common(&known.tokens, prompt) > 0;
        others.map(|(_, known)| known).filter(shares).any(|known| ends(known) || is_vague(known))
    }
}

impl Known {
    /// Drops its blocks that are not in use, as an explicit eviction does.
    pub(crate) fn drop_explicitly(&mut self) {
        (self.ram, self.disk) = (0, 0);
        self.is_torn |= self.in_use;
    }

    /// Whether it may have expired on disk while it was computed: steps may take longer than its time to live.
    pub(crate) fn took_long(&self) -> bool {
        self.ttl.is_some_and(|ttl| self.used - self.began >= ttl / 2)
    }

    /// A public prompt of `from` in the view of tenant `salt`.
    pub(crate) fn base(salt: u8, from: u8, whole: &[Token], now: Duration, since: u64) -> Known {
        Known {
            view: View { salt, base: Some((from, whole.to_vec())) },
            tokens: whole.to_vec(),
            ram: whole.len(),
            disk: 0,
            since,
            maybe: whole.len(),
            is_torn: false,
            in_use: false,
            began: now,
            used: now,
            ttl: None,
            pinned: true,
            is_base: true,
        }
    }

    /// Whether a lookup in `view` may find it: in RAM it is in its own view, on disk all prompts of a tenant are
    /// in one namespace.
    fn may_be_seen_in(&self, view: &View) -> bool {
        if self.is_base { self.view == *view } else { self.view.salt == view.salt }
    }

    /// Whether it has not expired by its own time to live.
    pub(crate) fn lives(&self, now: Duration) -> bool {
        self.in_use || self.pinned || self.ttl.is_none_or(|ttl| now < self.used + ttl)
    }
}
