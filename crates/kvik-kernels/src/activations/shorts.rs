//! Quantisation of floats to 14 bits with a scale per 32 columns, in pairs of columns.
//!
//! As in `quantise`, plain loops with a single rounding per step, so all variants agree.

use super::pairs::{PIECE_PAIRS, place};
use super::quantise::{code_of, scale_of};
use crate::lines::Lines;
use crate::matrix::CHUNK;
use crate::quant::{SHORT_MAX, largest};
use crate::vectorised::vectorised;

const MAX: f32 = SHORT_MAX as f32;

/// Rows quantised to 14 bits, in panels.
#[derive(Debug, Default)]
pub(crate) struct Shorts {
    /// The even column in the lower half.
    pub(crate) pairs: Lines<u32>,
    /// The factor of the weights' scale: both scales are relative to `SHORT_MAX`.
    pub(crate) scales: Lines<f32>,
}

/// Quantises one panel with room for `width` rows to its pairs and scales: `x` is `[rows][cols]`; other rows of
/// the panel stay as they are.
pub(super) fn quantise(x: &[f32], cols: usize, width: usize, (pairs, scales): (&mut [u32], &mut [f32])) {
    vectorised(
        #[inline(always)]
        || {
            for (r, row) in x.chunks_exact(cols).enumerate() {
                for (chunk, x) in row.as_chunks::<CHUNK>().0.iter().enumerate() {
                    let (scale, inverse) = scale_of(largest(x), MAX);
                    scales[chunk * width + r] = scale / MAX;
                    place(codes(x, inverse), width, r, chunk, pairs);
                }
            }
        },
    );
}

#[inline(always)]
fn codes(x: &[f32; CHUNK], inverse: f32) -> [u32; PIECE_PAIRS] {
    let mut codes = [0i16; CHUNK];
    for i in 0..CHUNK {
        codes[i] = code_of(x[i] * inverse, MAX);
    }
    let mut pairs = [0; PIECE_PAIRS];
    for i in 0..PIECE_PAIRS {
        pairs[i] = u32::from(codes[2 * i] as u16) | u32::from(codes[2 * i + 1] as u16) << 16;
    }
    pairs
}
