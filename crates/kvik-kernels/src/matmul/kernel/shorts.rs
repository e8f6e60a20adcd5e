//! Tiles of 14-bit codes against a panel of such codes.

#![allow(clippy::needless_range_loop, reason = "indices name the tile and the row of a register block")]

use super::{TILES, Target, accumulate, load_halves, store};
use crate::lanes::Lanes;
use crate::matmul::formats::Format;
use crate::matrix::{CHUNK, TILE_ROWS, TileLayout, VECTOR};

/// Pairs of columns that share a scale.
const PAIRS: usize = CHUNK / 2;

/// Computes `R` rows of a target of 14-bit codes.
///
/// # Safety
/// As [`float_rows`](super::float_rows), but `x` holds the panel as such codes.
#[inline(always)]
pub(in crate::matmul) unsafe fn short_rows<L: Lanes, F: Format, const R: usize>(lanes: L, target: &Target) {
    let (cols, first) = (target.weights.cols(), target.first);
    let (shorts, start) = (target.x.shorts(), target.panel.start * cols);
    // SAFETY: `Activations::set` filled every row of the panel; the rest is the caller's promise.
    unsafe {
        let x = Inputs {
            panel: target.panel.width,
            pairs: shorts.pairs.as_ptr().add(start / 2 + first),
            scales: shorts.scales.as_ptr().add(start / CHUNK + first),
        };
        by_tiles!(2, sums::<L, R>(lanes, target, x));
    }
}

/// Some rows of a panel, see `activations`.
#[derive(Clone, Copy)]
struct Inputs {
    /// Rows that the panel has room for, which are interleaved.
    panel: usize,
    pairs: *const u32,
    scales: *const f32,
}

/// # Safety
/// As [`short_rows`]; `x` points to our first row in the panel.
#[inline(always)]
unsafe fn sums<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    target: &Target,
    tiles: [*const u8; T],
    next: Option<[*const u8; T]>,
    x: Inputs,
) -> [[L::Float; R]; T] {
    let layout = target.weights.layout();
    let mut acc = [[lanes.splat_f32(0.0); R]; T];
    for block in 0..target.weights.cols() / CHUNK {
        // SAFETY: `block` is one of the row's, so every offset lies inside its plane.
        unsafe {
            let dots = dots::<L, R, T>(lanes, layout, tiles, next, x, block);
            let d = load_halves(lanes, tiles, layout.d + block * TILE_ROWS * 2);
            accumulate(lanes, &mut acc, d, dots, x.scales.add(block * x.panel));
        }
    }
    acc
}

/// The exact dot products of one block: 32 products of 26 bits are less than 31 bits.
///
/// # Safety
/// As [`sums`], and the block is one of the row's.
#[inline(always)]
unsafe fn dots<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    layout: &TileLayout,
    tiles: [*const u8; T],
    next: Option<[*const u8; T]>,
    x: Inputs,
    block: usize,
) -> [[L::Int; R]; T] {
    let mut dots = [[lanes.splat(0); R]; T];
    for pair in block * PAIRS..(block + 1) * PAIRS {
        // SAFETY: `pair` is one of the row's and of the panel's.
        unsafe {
            let mut w = [lanes.splat(0); T];
            for t in 0..T {
                if let Some(next) = next {
                    lanes.prefetch(next[t].wrapping_add(layout.low + pair * VECTOR));
                }
                w[t] = lanes.load(tiles[t].add(layout.low + pair * VECTOR));
            }
            for r in 0..R {
                let x = lanes.splat(*x.pairs.add(pair * x.panel + r) as i32);
                for t in 0..T {
                    dots[t][r] = lanes.dot_shorts(dots[t][r], w[t], x);
                }
            }
        }
    }
    dots
}
