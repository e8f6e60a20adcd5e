//! The specification of the orders, one number at a time.

use half::bf16;

use super::super::SPLIT;
use super::super::kernel::{ScoreCall, ValueCall};
use super::PIECE;
use crate::kv::BLOCK_POSITIONS;
use crate::narrow::flush;

/// Scores of all query rows.
///
/// # Safety
/// As [`scores`](super::scores).
pub(in crate::attention) unsafe fn scores<O: Order>(call: &ScoreCall<'_>) {
    for (query_row, (&q, seen)) in call.q.iter().zip(call.seen).enumerate() {
        let blocks = seen.blocks();
        for position in blocks.start * BLOCK_POSITIONS..blocks.end * BLOCK_POSITIONS {
            let tile = call.tiles[position / BLOCK_POSITIONS];
            // SAFETY: a query has a number for each dimension, a tile a row of 16, and the scores a row of SPLIT.
            unsafe {
                let score =
                    sum::<O>(call.head_dim, |d| [round(*q.add(d)), stored(tile, d * 16 + position % 16)]);
                *call.scores.add(query_row * SPLIT + position) = score;
            }
        }
    }
}

/// Weighted values stored separately from keys.
///
/// # Safety
/// As [`values`](super::values()).
pub(in crate::attention) unsafe fn values<O: Order>(call: &ValueCall<'_>) {
    // SAFETY: as the caller promises: a tile has `dims` numbers for each position.
    unsafe { weigh::<O>(call, |tile, position, d| stored(tile, position * call.dims + d)) }
}

/// Weighted values that are a prefix of keys.
///
/// # Safety
/// As [`latents`](super::latents).
pub(in crate::attention) unsafe fn latents<O: Order>(call: &ValueCall<'_>) {
    // SAFETY: as the caller promises: a tile has 16 positions for each of its dimensions.
    let value = |tile, position, d| unsafe { stored(tile, d * BLOCK_POSITIONS + position) };
    // SAFETY: as above.
    unsafe {
        weigh::<O>(call, |tile, position, d| if d < call.key_dim { value(tile, position, d) } else { 0.0 })
    }
}

/// Weights the values that `value` returns for a tile, a position and a dimension.
unsafe fn weigh<O: Order>(call: &ValueCall<'_>, value: impl Fn(*const u8, usize, usize) -> f32) {
    let first = call.skipped * BLOCK_POSITIONS;
    for (query_row, seen) in call.seen.iter().enumerate() {
        for d in 0..call.dims {
            let sum = sum::<O>(SPLIT, |position| match position.checked_sub(first) {
                Some(position) if seen.positions().contains(&position) => {
                    let tile = call.tiles[position / BLOCK_POSITIONS];
                    // SAFETY: the caller's promise: a row of SPLIT probabilities.
                    let p = unsafe { *call.p.add(query_row * SPLIT + position) };
                    [round(p), value(tile, position % BLOCK_POSITIONS, d)]
                }
                _ => [0.0; 2],
            });
            // SAFETY: the caller's promise: the results have `dims` numbers for each query row.
            unsafe { *call.out.add(query_row * call.dims + d) = sum + 0.0 };
        }
    }
}

/// An order in which products are summed.
pub(in crate::attention) trait Order {
    /// Adds the products of a piece to `sum`.
    fn add(sum: f32, piece: &[[f32; 2]; PIECE]) -> f32;
}

/// The order of the matrix units.
pub(in crate::attention) struct OfUnits;
/// The order of vectors.
pub(in crate::attention) struct OfVectors;

impl Order for OfUnits {
    fn add(sum: f32, piece: &[[f32; 2]; PIECE]) -> f32 {
        let mut sums = [0.0f32; 2];
        for (i, [a, b]) in piece.iter().enumerate() {
            sums[i % 2] = flush(a.mul_add(*b, sums[i % 2]));
        }
        flush(sum + flush(sums[0] + sums[1]))
    }
}

impl Order for OfVectors {
    fn add(sum: f32, piece: &[[f32; 2]; PIECE]) -> f32 {
        piece.as_chunks::<2>().0.iter().fold(sum, |sum, [even, odd]| {
            let sum = flush(odd[0].mul_add(odd[1], sum));
            flush(even[0].mul_add(even[1], sum))
        })
    }
}

/// The sum of `len` products.
fn sum<O: Order>(len: usize, factors: impl Fn(usize) -> [f32; 2]) -> f32 {
    (0..len).step_by(PIECE).fold(0.0, |sum, first| {
        let factors = |i| if first + i < len { factors(first + i) } else { [0.0; 2] };
        O::add(sum, &std::array::from_fn(factors))
    })
}

/// A bfloat of a tile.
unsafe fn stored(tile: *const u8, index: usize) -> f32 {
    // SAFETY: the caller's promise.
    flush(bf16::from_bits(unsafe { tile.cast::<u16>().add(index).read_unaligned() }).to_f32())
}

/// The bfloat nearest to `x`, half to even.
fn round(x: f32) -> f32 {
    flush(bf16::from_f32(flush(x)).to_f32())
}
