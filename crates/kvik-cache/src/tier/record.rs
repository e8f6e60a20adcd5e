//! What the tier below RAM keeps of a block, as data: where it lies, what it is, why it was lost.
//!
//! The residency state machine and the store that carries out its commands meet at these types.

use crate::hash::Identity;
use crate::ids::{BLOCK_POSITIONS, Token};

/// A place for one block in the tier below RAM; its index in arrays with one entry per slot.
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
    /// Zero behind the last one, so that equal tokens are equal values.
    ids: [Token; BLOCK_POSITIONS],
    count: u8,
}

impl BlockTokens {
    /// Before all others.
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

/// What stands beside the bytes of a block on disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record {
    /// Names the block's content for ever.
    pub identity: Identity,
    /// Of the block before it; the namespace's root for the first one.
    pub parent: Identity,
    /// The tenant, as a hash of its name; 0 for none.
    pub owner: u64,
    /// Hash of the salt and all tokens from the first on, without model and KV format, so that the
    /// same prompt is recognised under another model.
    pub content_key: u64,
    /// What the block holds.
    pub tokens: BlockTokens,
    /// Whether it must not be evicted.
    pub pinned: bool,
    /// Whether it was written without the part that layers with windows see.
    pub lacks_part: bool,
    /// What changes while the bytes stay.
    pub use_: Use,
}

/// How a block is used: kept beside its bytes, rewritten in place, and worth no more than a hint.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Use {
    /// Order of its last use among all blocks: the larger, the later.
    pub stamp: u64,
    /// Exponentially smoothed count of uses, as of `at_s`.
    pub heat: f32,
    /// When `heat` was brought up to date and the time to live began anew, in seconds since 1970.
    pub at_s: u64,
    /// When it is as if it had never been, unless it is used before, in seconds since 1970; 0 for never.
    pub expires_s: u64,
}

/// How a block kept under another fingerprint is related to this one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relation {
    /// The same model, keys and values in another format.
    OtherKvFormat,
    /// Another model.
    OtherModel,
}

/// Why bytes were not written or not read. None of them is an error to the user: a block is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoFault {
    /// The disk is full.
    Full,
    /// The disk failed or the file is gone.
    Failed,
    /// The bytes were read and are not the block's.
    Corrupt,
    /// Writing rests after a fault; nothing was tried.
    Resting,
}

#[cfg(test)]
mod tests {
    use super::*;

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
