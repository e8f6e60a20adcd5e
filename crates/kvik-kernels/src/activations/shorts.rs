//! Floats into codes of 14 bits with a scale for 32 columns, in pairs of columns.
//!
//! As in `quantise`, plain loops of steps that round one way only, so all variants agree.

use super::pairs::{PIECE_PAIRS, place};
use super::quantise::{code_of, scale_of};
use super::{Spans, WIDE, panels};
use crate::Pool;
use crate::lines::Lines;
use crate::matrix::CHUNK;
use crate::quant::{SHORT_MAX, largest};
use crate::threads::Disjoint;
use crate::vectorised::vectorised;

const MAX: f32 = SHORT_MAX as f32;

/// Rows as codes of 14 bits, in panels.
#[derive(Debug, Default)]
pub(crate) struct Shorts {
    /// The even column in the lower half.
    pub(crate) pairs: Lines<u32>,
    /// What to multiply the weights' scale with: both count in parts of `SHORT_MAX`.
    pub(crate) scales: Lines<f32>,
}

impl Shorts {
    /// Makes room for so many values.
    pub(super) fn resize(&mut self, values: usize) {
        self.pairs.resize(values / 2);
        self.scales.resize(values / CHUNK);
    }

    /// Takes `x`, `[n, cols]`, of whole chunks.
    pub(super) fn set(&mut self, pool: &Pool, x: &[f32], cols: usize, spans: Spans<'_>) {
        self.resize(spans.room(WIDE) * cols);
        let (pairs, scales) = (Disjoint::new(&mut self.pairs), Disjoint::new(&mut self.scales));
        pool.run(spans.len(WIDE), &|span| {
            for panel in panels(spans.get(span, WIDE), WIDE) {
                let range = |per: usize| (panel.start * cols / per, panel.width * cols / per);
                let ((p, ps), (s, ss)) = (range(2), range(CHUNK));
                // SAFETY: every panel has its own ranges, and the pool hands each `span` out once.
                let (pairs, scales) = unsafe { (pairs.range(p, ps), scales.range(s, ss)) };
                let x = &x[panel.start * cols..][..panel.rows * cols];
                vectorised(
                    #[inline(always)]
                    || quantise(x, cols, panel.width, pairs, scales),
                );
            }
        });
    }
}

/// One panel with room for `width` rows: `x` is `[rows][cols]`; what is in other rows stays.
#[inline(always)]
fn quantise(x: &[f32], cols: usize, width: usize, pairs: &mut [u32], scales: &mut [f32]) {
    for (r, row) in x.chunks_exact(cols).enumerate() {
        for (chunk, x) in row.as_chunks::<CHUNK>().0.iter().enumerate() {
            let (scale, inverse) = scale_of(largest(x), MAX);
            scales[chunk * width + r] = scale / MAX;
            place(codes(x, inverse), width, r, chunk, pairs);
        }
    }
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
