//! The order in which positions are retained: an integer for each, so that it is total and allows quick selection.

/// Maps scores to integers in the same order: NaN is the lowest, and -0 equals 0.
pub(super) fn order(score: f32) -> u32 {
    if score.is_nan() {
        return 0;
    }
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// Number of bits of a rank below the score's.
const POSITION_BITS: u32 = 29;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
/// Number of bits below the class.
const CLASS_SHIFT: u32 = POSITION_BITS + 32;

/// The rank of a position that the cut removed: it is retained only if its head has nothing else.
pub(super) fn cut_off(score: f32, position: u32) -> u64 {
    rank(0, order(score), u64::from(position))
}

/// The rank of a position by its score; of equal scores the later position is preferred.
pub(super) fn scored(score: f32, position: u32) -> u64 {
    rank(1, order(score), u64::from(position))
}

/// The rank of one of the latest positions: above all scored ones, the latest highest.
pub(super) fn latest(position: u32) -> u64 {
    rank(2, 0, u64::from(position))
}

/// The rank of one of the first positions: above the latest, the first highest.
pub(super) fn first(position: u32) -> u64 {
    rank(3, u32::MAX, !u64::from(position) & POSITION_MASK)
}

/// Raises a rank above all others: its head retains it in any case.
pub(super) fn assured(rank: u64) -> u64 {
    rank | 4 << CLASS_SHIFT
}

/// Returns whether the cut removed the position.
pub(super) fn is_cut_off(rank: u64) -> bool {
    rank >> CLASS_SHIFT == 0
}

/// The position of a scored rank.
pub(super) fn position(rank: u64) -> usize {
    (rank & POSITION_MASK) as usize
}

fn rank(class: u64, score: u32, position: u64) -> u64 {
    debug_assert!(position <= POSITION_MASK, "a sequence has fewer than 2^29 positions");
    class << CLASS_SHIFT | u64::from(score) << POSITION_BITS | position
}

/// The lowest of the `count` highest ranks. Reorders `ranks`.
pub(super) fn threshold(ranks: &mut [u64], count: usize) -> u64 {
    debug_assert!((1..=ranks.len()).contains(&count), "there are so many ranks");
    let lower = ranks.len() - count;
    *ranks.select_nth_unstable(lower).1
}
