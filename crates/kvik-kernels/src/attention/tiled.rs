//! Attention on matrix units, for sixteen query rows at a time.
//!
//! Over bfloats they compute all rows, in an order of their own: [`bfloats`].
//!
//! Over q8 the units compute exact integers: [`scores`](mod@scores) and weighted [`values`](mod@values) equal those of `quantised` to the bit,
//! which also computes calls of few rows and the rows that are left over.
//!
//! A number of 16 bits that meets quantised ones is 256 times a signed byte plus an unsigned one, each of which is
//! multiplied by itself. Stored bytes stand in pairs of rows and the units take them in fours: a call rearranges
//! them once for all its query rows, of which a prompt has 96.

pub(in crate::attention) mod bfloats;
mod scores;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use scores::scores;
pub(crate) use values::values;

use crate::kv::BLOCK_POSITIONS;
use crate::lines::Line;

/// Declares `kernels(layer)`: those of `$others`, except where there are some on the matrix units `$units`.
macro_rules! tiled_kernels {
    ($units:ty, $floats:ty, $sums:ty, $others:path $(, $features:literal)?) => {
        /// The kernels for what a layer stores.
        pub(in crate::attention) fn kernels(layer: &$crate::kv::KvLayer) -> $crate::attention::kernel::AttentionKernels {
            use $crate::attention::kernel::{ScoreCall, ValueCall};
            use $crate::attention::tiled;
            use $crate::kv::{KvFormat, KvValues};

            $(#[target_feature(enable = $features)])?
            unsafe fn scores(call: &ScoreCall<'_>) {
                // SAFETY: the contract of `AttentionKernels`.
                unsafe { tiled::scores::<$sums, $units>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn values(call: &ValueCall<'_>) {
                // SAFETY: as above.
                unsafe { tiled::values::<$sums, $units>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn bfloat_scores(call: &ScoreCall<'_>) {
                // SAFETY: as above.
                unsafe { tiled::bfloats::scores::<$floats, $units>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn bfloat_values(call: &ValueCall<'_>) {
                // SAFETY: as above.
                unsafe { tiled::bfloats::values::<$floats, $units>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn bfloat_latents(call: &ValueCall<'_>) {
                // SAFETY: as above.
                unsafe { tiled::bfloats::latents::<$floats, $units>(call) }
            }
            let others = $others(layer);
            $crate::attention::kernel::AttentionKernels {
                scores: match layer.k {
                    KvFormat::Q8 => scores,
                    KvFormat::Bf16 => bfloat_scores,
                    _ => others.scores,
                },
                values: match (layer.values, layer.k, layer.v) {
                    (KvValues::Stored, _, KvFormat::Q8) => values,
                    (KvValues::Stored, _, KvFormat::Bf16) => bfloat_values,
                    (KvValues::OfKeys, KvFormat::Bf16, _) => bfloat_latents,
                    _ => others.values,
                },
                ..others
            }
        }
    };
}
pub(crate) use tiled_kernels;

/// Query rows of a product: the rows of a register.
const QUERY_ROWS: usize = 16;
/// Query rows of a call over q8 from which the units are used. With 96, as prompts have, scores make attention 8% faster
/// on a Xeon 6; 32 rows, of sequences that share a prompt, took a third longer than without them. For values it is not
/// measured; they rearrange as much for each query row.
const ROWS_FROM: usize = 64;
/// Quantised values that a product sums: the bytes of a row of a register.
const STEP: usize = 64;
/// Rows of a register of keys or values: four of the numbers that are summed, for 16 columns each.
const FOURS: usize = STEP / 4;

/// Query rows of a call of `query_rows` that the units compute: whole groups, or none.
fn whole_groups(query_rows: usize) -> usize {
    if query_rows < ROWS_FROM { 0 } else { query_rows / QUERY_ROWS * QUERY_ROWS }
}

/// Puts the 16 bits of each column of `first` before those of `second`.
#[inline(always)]
fn pair_up(first: [u16; BLOCK_POSITIONS], second: [u16; BLOCK_POSITIONS], to: &mut Line) {
    for (i, to) in to.0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *to = (u32::from(first[i]) | u32::from(second[i]) << 16).to_le_bytes();
    }
}

/// Writes the upper bytes of `numbers` to the first line and the lower bytes to the second; zeros stand in for those
/// that are missing.
#[inline(always)]
fn split_bytes(numbers: &[i16], [upper, lower]: [&mut Line; 2]) {
    let mut padded = [0; STEP];
    let numbers = match numbers.first_chunk::<STEP>() {
        Some(numbers) => numbers,
        // To copy so many as are there is a call, which takes longer than all the rest.
        None => {
            padded[..numbers.len()].copy_from_slice(numbers);
            &padded
        }
    };
    for (i, number) in numbers.iter().enumerate() {
        upper.0[i] = (number >> 8) as u8;
        lower.0[i] = *number as u8;
    }
}
