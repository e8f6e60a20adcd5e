//! Attention over q8 on matrix units, for sixteen query rows at a time; over bfloats they are used by `bfloats`.
//!
//! The units compute exact integers: [`scores`](mod@scores) and weighted [`values`](mod@values) equal those of `quantised` to the bit,
//! which also computes calls of few rows and the rows that are left over.
//!
//! A number of 16 bits that meets quantised ones is 256 times a signed byte plus an unsigned one, each of which is
//! multiplied by itself. Stored bytes stand in pairs of rows and the units take them in fours: a call rearranges
//! them once for all its query rows, of which a prompt has 96.

mod scores;
#[cfg(test)]
pub(in crate::attention) mod tests;
mod values;

pub(crate) use scores::scores;
pub(crate) use values::values;

use crate::lines::Line;

/// Declares `kernels(layer)`: those of `$others`, except where there are some on the matrix units `$units`.
macro_rules! tiled_kernels {
    ($units:ty, $sums:ty, $others:path $(, $features:literal)?) => {
        /// The kernels for what a layer stores.
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
