//! Evicts the leaf that is cheapest to compute again (GreedyDual-Size-Frequency, Cherkasova 1998).
//!
//! All blocks have the same size, so they differ in the time to recompute one. The weights take the same time for
//! every token, attention takes longer with more positions before it:
//!
//! ```text
//! time of a block at depth d  ~  1 + d / EVEN_DEPTH        d in blocks from the root
//! ```
//!
//! `EVEN_DEPTH` is the depth where both are equal: weights cost 2 x parameters operations a token, attention 4 x
//! layers x heads x head size x positions, which for models of 0.6 B to 8 B parameters meet between 4,000 and
//! 14,000 tokens; 4,096 is used. The weight of a leaf is that time, multiplied by its uses.

use crate::evict::ageing::Ageing;

/// Blocks before the block for which attention takes as long as the weights.
const EVEN_DEPTH: u64 = 256;

/// Leaves by the time to recompute their last block, times their uses.
pub(super) fn cost() -> Ageing {
    Ageing::by(|facts| (1 + u64::from(facts.reuses)) * (EVEN_DEPTH + u64::from(facts.depth)))
}
