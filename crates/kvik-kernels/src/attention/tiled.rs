//! Attention over q8 on matrix units, for sixteen query rows at a time; `bfloats` uses the units for bfloats.
//!
//! The units compute exact integers: [`scores`](mod@scores) and weighted [`values`](mod@values) equal those of
//! `quantised` to the bit, which also computes calls of few rows and the rows left over.
//!
//! A 16-bit operand is 256 times a signed byte plus an unsigned byte, each of which is multiplied separately.
//! Stored bytes are in pairs of rows and the units read them in fours: a call rearranges them once for all its
//! query rows, of which a prompt has 96.

mod scores;
#[cfg(test)]
pub(in crate::attention) mod tests;
mod values;

pub(crate) use scores::scores;
pub(crate) use values::values;

use crate::lines::Line;

/// Declares `kernels(layer)`: those of `$others`, except for those that the matrix units `$units` provide.
macro_rules! tiled_kernels {
    ($units:ty, $sums:ty, $others:path $(, $features:literal)?) => {
        /// The kernels for the layer's formats.
        pub(in crate::attention) fn kernels(layer: &$crate::kv::KvLayer) -> $crate::attention::kernel::AttentionKernels {
            use $crate::attention::kernel::{AttentionKernels, ScoreCall, ValueCall};
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
            let others = $others(layer);
            let stored_beside_keys = layer.values == KvValues::Stored;
            AttentionKernels {
                scores: if layer.k == KvFormat::Q8 { scores } else { others.scores },
                values: if stored_beside_keys && layer.v == KvFormat::Q8 { values } else { others.values },
                ..others
            }
        }
    };
}
pub(crate) use tiled_kernels;

/// Query rows per product: the rows of a register.
const QUERY_ROWS: usize = 16;
/// Minimum query rows of a call over q8 for which the units are used. With 96, as prompts have, they make
/// attention 8% faster on a Xeon 6 in scores; 32 rows, of sequences that share a prompt, took a third longer than
/// without them. For values this is not measured; the rearrangement per query row is the same.
const ROWS_FROM: usize = 64;
/// Quantised values that a product sums: the bytes of a row of a register.
const STEP: usize = 64;
/// Rows of a register of keys or values: four summed values each, for 16 columns.
const FOURS: usize = STEP / 4;

/// Query rows, of `query_rows` in a call, that the units compute: whole groups, or none.
fn whole_groups(query_rows: usize) -> usize {
    if query_rows < ROWS_FROM { 0 } else { query_rows / QUERY_ROWS * QUERY_ROWS }
}

/// Writes the upper bytes of `numbers` to the first line and the lower bytes to the second, padded with zeros.
#[inline(always)]
fn split_bytes(numbers: &[i16], [upper, lower]: [&mut Line; 2]) {
    let mut padded = [0; STEP];
    let numbers = match numbers.first_chunk::<STEP>() {
        Some(numbers) => numbers,
        // A copy of variable length is a call, which takes longer than all the rest.
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
