//! Runs: which blocks are stored together in one value of a remote store.
//!
//! A run ends with a block and has as many blocks as the largest power of two that divides the number of its last
//! block, counted from 1, up to a limit. So every beginning of a prompt consists of a few runs, and two prompts
//! have the same runs up to where they diverge:
//!
//! ```text
//!   blocks   1   2   3   4   5   6   7   8   9  10  11  12  13          limit 8
//!   runs    [············ 8 ············][····· 4 ·····][ 1 ]           of a beginning of 13 blocks
//! ```
//!
//! The run ends are those of a Fenwick tree (P. Fenwick, 1994).

use std::ops::Range;

/// The run that ends with the `end`th block, as a range of block indices from 0. `longest` is a power of two; `end`
/// is not 0.
pub fn run_ending_at(end: usize, longest: usize) -> Range<usize> {
    debug_assert!(end > 0 && longest.is_power_of_two());
    let aligned = 1 << end.trailing_zeros();
    end - longest.min(aligned)..end
}

/// The runs that form the first `blocks` blocks, in order.
pub fn runs(blocks: usize, longest: usize) -> impl Iterator<Item = Range<usize>> {
    std::iter::successors(run_after(0, blocks, longest), move |run| run_after(run.end, blocks, longest))
}

/// The run after `start` blocks; `None` after the last.
pub fn run_after(start: usize, blocks: usize, longest: usize) -> Option<Range<usize>> {
    let left = blocks.checked_sub(start).filter(|&left| left > 0)?;
    // The number of remaining blocks bounds it, since the run before it would have been longer otherwise.
    Some(start..start + longest.max(1).min(1 << left.ilog2()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_runs_side_by_side_and_each_is_the_one_of_its_end() {
        for longest in [1, 2, 8, 64] {
            for blocks in 0..300 {
                let mut end = 0;
                for run in runs(blocks, longest) {
                    assert_eq!(run.start, end);
                    assert_eq!(run, run_ending_at(run.end, longest), "of {blocks}, at most {longest}");
                    end = run.end;
                }
                assert_eq!(end, blocks);
                let most = blocks / longest + longest.ilog2() as usize;
                assert!(runs(blocks, longest).count() <= most, "{blocks} blocks are few values");
            }
        }
    }
}
