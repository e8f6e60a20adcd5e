//! Cost of keys and values that do not stay on the device: the bytes that a repetition copies, by a formula.

use kvik_cache::BLOCK_POSITIONS;

use super::{BATCH_ROWS, Test};

/// Bytes copied in a repetition of a test, for blocks of `block_bytes` bytes.
///
/// A step copies in every block that holds a position before its rows, once however many sequences read it, and copies
/// out every block that it writes. At position `p` of one sequence that is `ceil(p / 16) + 1` blocks, so `n` tokens copy
/// in the order of `n^2` bytes.
pub(super) fn bytes(test: &Test, block_bytes: usize) -> u64 {
    let end = test.depth + test.prompt;
    let chunks = (test.depth..end).step_by(BATCH_ROWS).map(|start| {
        let last = end.min(start + BATCH_ROWS).div_ceil(BLOCK_POSITIONS);
        start.div_ceil(BLOCK_POSITIONS) + last - start / BLOCK_POSITIONS
    });
    let shared = if test.own_prompts { 0 } else { test.depth / BLOCK_POSITIONS };
    let steps = (test.depth..test.depth + test.generate).map(|position| {
        let own = position.div_ceil(BLOCK_POSITIONS) - shared;
        shared + test.sequences * (own + 1)
    });
    chunks.chain(steps).sum::<usize>() as u64 * block_bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Test = Test { prompt: 0, generate: 0, depth: 0, sequences: 1, own_prompts: false };

    #[test]
    fn copies_grow_with_the_square_of_the_length() {
        let blocks = |test| bytes(&test, 1);
        assert_eq!(blocks(NOTHING), 0);
        // Nothing is read at position 0; the block of each position is written.
        assert_eq!(blocks(Test { generate: 1, ..NOTHING }), 1);
        assert_eq!(blocks(Test { generate: 3, depth: 31, ..NOTHING }), (2 + 1) + (2 + 1) + (3 + 1));
        assert_eq!(blocks(Test { prompt: 32, ..NOTHING }), 2);
        assert_eq!(blocks(Test { prompt: 513, ..NOTHING }), 32 + (32 + 1));
        assert_eq!(blocks(Test { prompt: 20, depth: 40, ..NOTHING }), 3 + (4 - 2));
        // Two blocks of the depth are shared, the third is each sequence's own.
        assert_eq!(blocks(Test { generate: 1, depth: 40, sequences: 3, ..NOTHING }), 2 + 3 * (1 + 1));
        let own = Test { generate: 1, depth: 40, sequences: 3, own_prompts: true, ..NOTHING };
        assert_eq!(blocks(own), 3 * (3 + 1));
        for tables in [250, 1_000] {
            let generate = tables * BLOCK_POSITIONS;
            let read = BLOCK_POSITIONS * tables * (tables + 1) / 2 - tables;
            assert_eq!(blocks(Test { generate, ..NOTHING }), (read + generate) as u64);
        }
    }
}
