//! The data that the tier below RAM stores for a block: its slot, its record, what its uses are worth by now, and
//! the faults that lose it.
//!
//! The residency state machine and the store that carries out its commands share these types.

use super::clock::was_ahead;
use crate::hash::Identity;
use crate::ids::{BLOCK_POSITIONS, Token};

/// Half-life of the heat of a use, in seconds.
const HALF_LIFE_S: f64 = 24.0 * 3600.0;

/// A slot for one block in the tier below RAM; its index in arrays with one entry per slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

impl SlotId {
    /// The slot's index in arrays with one entry per slot.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The tokens of one block: from 1 to [`BLOCK_POSITIONS`]. Ordered as slices are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockTokens {
    /// Zero after the last one, so that equal tokens are equal values.
    ids: [Token; BLOCK_POSITIONS],
    count: u8,
}

impl BlockTokens {
    /// Smaller than all others.
    pub(crate) const MIN: BlockTokens = BlockTokens { ids: [0; BLOCK_POSITIONS], count: 0 };

    /// Copies `tokens`; `None` when there are none or more than a block holds.
    pub fn new(tokens: &[Token]) -> Option<BlockTokens> {
        let mut ids = [0; BLOCK_POSITIONS];
        ids.get_mut(..tokens.len())?.copy_from_slice(tokens);
        (!tokens.is_empty()).then_some(BlockTokens { ids, count: tokens.len() as u8 })
    }

    /// The tokens, from first to last.
    pub fn as_slice(&self) -> &[Token] {
        &self.ids[..self.count as usize]
    }
}

/// The metadata stored with the bytes of a block on disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record {
    /// Identifies the block's content for ever.
    pub identity: Identity,
    /// The identity of the block before it; the namespace's root for the first one.
    pub parent: Identity,
    /// The tenant, as a hash of its name; 0 for none.
    pub owner: u64,
    /// Hash of the salt and all tokens from the first on, without model and KV format, so that the same prompt is
    /// recognised under another model.
    pub content_key: u64,
    /// The tokens of the block.
    pub tokens: BlockTokens,
    /// True if it must not be evicted.
    pub pinned: bool,
    /// True if it was written without the windowed part.
    pub lacks_part: bool,
    /// The part that changes while the bytes remain.
    pub use_: Use,
}

impl Record {
    /// Whether both are of the same block at the same place in the tree.
    pub(super) fn is_same_block(&self, other: &Record) -> bool {
        let of = |record: &Record| (record.identity, record.parent, record.tokens);
        of(self) == of(other)
    }
}

/// The use of a block: stored with its bytes, rewritten in place, and only a hint.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Use {
    /// Rank of its last use among all blocks: the larger, the later.
    pub stamp: u64,
    /// Exponentially smoothed count of uses, as of `at_s`.
    pub heat: f32,
    /// When `heat` was last updated and the time to live restarted, in seconds since 1970.
    pub at_s: u64,
    /// When it expires, unless it is used before, in seconds since 1970; 0 for never.
    pub expires_s: u64,
}

impl Use {
    /// What of it can be right at this time: what a clock far ahead has written was used now at the latest, and would
    /// otherwise neither expire nor cool down until the time that the clock showed.
    #[must_use]
    pub fn at(self, now_s: u64) -> Use {
        if !was_ahead(self.at_s, now_s) {
            return self;
        }
        let expires_s = self.ttl_s().map_or(0, |ttl_s| now_s.saturating_add(ttl_s));
        Use { at_s: now_s, expires_s, ..self }
    }

    /// Its time to live after the last use, in seconds; unlimited when `None`.
    pub(super) fn ttl_s(&self) -> Option<u64> {
        (self.expires_s != 0).then(|| self.expires_s.saturating_sub(self.at_s))
    }
}

/// How a block stored under another fingerprint is related to this one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relation {
    /// Same model, other KV format.
    OtherKvFormat,
    /// Another model.
    OtherModel,
}

/// Why bytes were not written or not read. No fault is an error to the user: a block is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoFault {
    /// The disk is full.
    Full,
    /// The disk failed or the file is gone.
    Failed,
    /// The bytes that were read do not belong to the block.
    Corrupt,
    /// Writing is suspended after a fault; nothing was tried.
    Resting,
}

/// The later of two ends of a time to live; 0 means never.
pub(super) fn later(a_s: u64, b_s: u64) -> u64 {
    if a_s == 0 || b_s == 0 { 0 } else { a_s.max(b_s) }
}

/// When a block expires that replaces one with this use at `now_s`; 0 for never.
pub(super) fn end_restarted(replaced: &Use, now_s: u64) -> u64 {
    replaced.ttl_s().map_or(0, |ttl_s| later(now_s.saturating_add(ttl_s), replaced.expires_s))
}

/// Returns whether a block has expired; pinned ones never do.
pub(super) fn is_expired(record: &Record, now_s: u64) -> bool {
    !record.pinned && record.use_.expires_s != 0 && record.use_.expires_s <= now_s
}

/// Smoothed uses, as of now.
pub(super) fn heat(use_: &Use, now_s: u64) -> f32 {
    let age_s = now_s.saturating_sub(use_.at_s) as f64;
    let heat = f64::from(use_.heat) * (-age_s / HALF_LIFE_S).exp2();
    if heat.is_finite() { heat.max(0.0) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::clock::{CLOCKS_FROM, DAY_S};

    #[test]
    fn what_a_clock_far_ahead_has_written_is_used_now() {
        let now_s = 20_000 * DAY_S;
        let of = |at_s, expires_s| Use { stamp: 7, heat: 2.0, at_s, expires_s };
        let (hours, year) = (now_s + 9 * 3600, now_s + 365 * DAY_S);
        for (written, expected) in [
            (of(year, year + 60), of(now_s, now_s + 60)),
            (of(year, 0), of(now_s, 0)),
            (of(year, 1), of(now_s, now_s)),
            (of(u64::MAX - 1, u64::MAX), of(now_s, now_s + 1)),
            (of(hours, hours + 60), of(hours, hours + 60)),
            (of(now_s - 9, year), of(now_s - 9, year)),
        ] {
            assert_eq!(written.at(now_s), expected);
            assert_eq!(written.at(CLOCKS_FROM * DAY_S - 1), written, "by a clock that is not set");
        }
        let cooled = heat(&of(year, 0).at(now_s), now_s + DAY_S);
        assert!((cooled - 1.0).abs() < 1e-6, "{cooled}");
    }

    #[test]
    fn a_block_has_from_one_to_sixteen_tokens() {
        let tokens: Vec<Token> = (1..=17).collect();
        assert_eq!(BlockTokens::new(&[]), None);
        assert_eq!(BlockTokens::new(&tokens), None);
        for count in 1..=BLOCK_POSITIONS {
            assert_eq!(BlockTokens::new(&tokens[..count]).unwrap().as_slice(), &tokens[..count]);
        }
    }
}
