//! The content of every block of the tree.
//!
//! Flat arrays by block, allocated once. The blocks of a run were usually allocated one after the other, so a
//! lookup compares tokens in memory order, and cutting a node moves block ids only. Counts and fingerprints are
//! separate from the tokens: eviction reads nothing else of a block that has long left every CPU cache, so 9 bytes
//! instead of a cache line or two.

use crate::hash::Fingerprint;
use crate::ids::{BLOCK_POSITIONS, BlockId, Token};

/// Labels of all blocks; meaningful for those in the tree.
#[derive(Debug)]
pub(crate) struct Labels {
    /// Shape `[blocks][16]`.
    tokens: Vec<[Token; BLOCK_POSITIONS]>,
    /// Leading tokens that are valid, shape `[blocks]`; fewer than 16 only at the end of a leaf.
    counts: Vec<u8>,
    /// Shape `[blocks]`.
    fingerprints: Vec<Fingerprint>,
}

impl Labels {
    pub(crate) fn new(blocks: u32) -> Labels {
        let blocks = blocks as usize;
        Labels {
            tokens: vec![[0; BLOCK_POSITIONS]; blocks],
            counts: vec![0; blocks],
            fingerprints: vec![Fingerprint::UNUSED; blocks],
        }
    }

    /// Labels a block that holds `tokens` (1 to 16) after the block `before`, and returns its fingerprint.
    pub(crate) fn set(&mut self, block: BlockId, before: Fingerprint, tokens: &[Token]) -> Fingerprint {
        let fingerprint = before.child(tokens);
        self.tokens[block.index()][..tokens.len()].copy_from_slice(tokens);
        self.counts[block.index()] = tokens.len() as u8;
        self.fingerprints[block.index()] = fingerprint;
        fingerprint
    }

    /// Valid tokens of a block.
    #[inline]
    pub(crate) fn tokens(&self, block: BlockId) -> &[Token] {
        &self.tokens[block.index()][..self.count(block)]
    }

    /// Number of valid tokens of a block.
    #[inline]
    pub(crate) fn count(&self, block: BlockId) -> usize {
        self.counts[block.index()].into()
    }

    pub(crate) fn is_partial(&self, block: BlockId) -> bool {
        self.count(block) < BLOCK_POSITIONS
    }

    pub(crate) fn fingerprint(&self, block: BlockId) -> Fingerprint {
        self.fingerprints[block.index()]
    }
}

/// The valid tokens of one block as a key, ordered as slices are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockTokens {
    /// Zero, the smallest token, where not valid: so the derived order is that of the valid tokens, and a shorter
    /// block precedes those that extend it.
    tokens: [Token; BLOCK_POSITIONS],
    count: u32,
}

impl BlockTokens {
    /// The first tokens of `rest`, as many as a block holds.
    pub(crate) fn first_of(rest: &[Token]) -> BlockTokens {
        let valid = &rest[..rest.len().min(BLOCK_POSITIONS)];
        let mut tokens = [0; BLOCK_POSITIONS];
        tokens[..valid.len()].copy_from_slice(valid);
        BlockTokens { tokens, count: valid.len() as u32 }
    }

    /// The valid tokens.
    pub(crate) fn valid(&self) -> &[Token] {
        &self.tokens[..self.count as usize]
    }
}

/// Length of the longest common prefix of a block's valid tokens and `rest`, at most 16.
#[inline]
pub(crate) fn common_prefix(valid: &[Token], rest: &[Token]) -> usize {
    // Nearly always the whole block is equal, which takes one comparison.
    match (valid.first_chunk::<BLOCK_POSITIONS>(), rest.first_chunk::<BLOCK_POSITIONS>()) {
        (Some(a), Some(b)) if a == b => BLOCK_POSITIONS,
        _ => valid.iter().zip(rest).take_while(|(a, b)| a == b).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_ordered_as_slices_are() {
        let blocks: [&[Token]; 7] = [&[], &[0], &[0, 0], &[0, 0, 7], &[0, 1], &[1], &[1; 16]];
        for (left, right) in blocks.iter().flat_map(|left| blocks.iter().map(move |right| (left, right))) {
            let order = BlockTokens::first_of(left).cmp(&BlockTokens::first_of(right));
            assert_eq!(order, left.cmp(right), "{left:?} and {right:?}");
        }
    }

    #[test]
    fn a_common_prefix_ends_at_the_valid_tokens() {
        for (held, rest, common) in [
            (&[5, 6][..], &[5, 6, 7][..], 2),
            (&[5, 6, 0], &[5, 6], 2),
            (&[5], &[6], 0),
            (&[5; 16], &[5; 40], 16),
            (&[5; 15], &[5; 40], 15),
            (&[5], &[5, 0, 0], 1),
        ] {
            assert_eq!(common_prefix(held, rest), common, "{held:?} and {rest:?}");
        }
    }
}
