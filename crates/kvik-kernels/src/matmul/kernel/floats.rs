//! Products of tiles of floats and of pairs of bfloats with a panel.

#![allow(clippy::needless_range_loop, reason = "indices name the tile and the row of a register block")]

use super::{TILES, Target, load_vectors, store};
use crate::lanes::Lanes;
use crate::matmul::formats::Format;
use crate::matrix::{TILE_ROWS, VECTOR};
use crate::quant::WeightType;

/// Computes `R` rows of a target of float weights.
///
/// # Safety
/// The tiles and rows of `target` exist and no other thread uses their outputs, the weights are of type `F`, and
/// `x` holds as many columns as floats.
#[inline(always)]
pub(crate) unsafe fn float_rows<L: Lanes, F: Format, const R: usize>(lanes: L, target: &Target) {
    let cols = target.weights.cols();
    // SAFETY: `Activations::set` filled every row of the panel; the rest is the caller's promise.
    unsafe {
        let x = target.x.floats().as_ptr().add(target.panel.start * cols + target.first);
        by_tiles!(1, floats::<L, F, R>(lanes, target, x));
    }
}

/// Computes `R` rows of a target of bfloats.
///
/// # Safety
/// As [`float_rows`], but `x` holds the panel in pairs.
#[inline(always)]
pub(crate) unsafe fn pair_rows<L: Lanes, F: Format, const R: usize>(lanes: L, target: &Target) {
    let pairs = target.weights.cols().div_ceil(2);
    // SAFETY: `Activations::set` filled every row of the panel; the rest is the caller's promise.
    unsafe {
        let x = target.x.pairs().as_ptr().add(target.panel.start * pairs + target.first);
        by_tiles!(1, pair_sums::<L, R>(lanes, target, x, pairs));
    }
}

/// # Safety
/// As [`float_rows`]; `x` is the target's first value in the panel.
#[inline(always)]
unsafe fn floats<L: Lanes, F: Format, const R: usize, const T: usize>(
    lanes: L,
    target: &Target,
    tiles: [*const u8; T],
    next: Option<[*const u8; T]>,
    x: *const f32,
) -> [[L::Float; R]; T] {
    let (panel, bytes) = (target.panel.width, F::TYPE.block_bytes() * TILE_ROWS);
    let mut acc = [[lanes.splat_f32(0.0); R]; T];
    for k in 0..target.weights.cols() {
        // SAFETY: `k` is below the columns of the tiles and of the panel.
        unsafe {
            let mut w = [lanes.splat_f32(0.0); T];
            for t in 0..T {
                let from = tiles[t].add(k * bytes);
                if let Some(next) = next {
                    lanes.prefetch(next[t].wrapping_add(k * bytes));
                }
                w[t] = match F::TYPE {
                    WeightType::F32 => lanes.load_f32(from),
                    _ => lanes.load_f16(from),
                };
            }
            for r in 0..R {
                let x = lanes.splat_f32(*x.add(k * panel + r));
                for t in 0..T {
                    acc[t][r] = lanes.fma(w[t], x, acc[t][r]);
                }
            }
        }
    }
    acc
}

/// Converts a tile of half floats to floats.
///
/// # Safety
/// The tile has `cols` columns, and `to` has room for as many floats.
#[inline(always)]
pub(super) unsafe fn widen<L: Lanes>(lanes: L, tile: *const u8, cols: usize, to: *mut f32) {
    for k in 0..cols {
        // SAFETY: `k` is a column of the tile.
        unsafe { lanes.store(lanes.load_f16(tile.add(k * VECTOR / 2)), to.add(k * TILE_ROWS)) };
    }
}

/// # Safety
/// As [`pair_rows`]; `x` is the target's first pair in the panel.
#[inline(always)]
unsafe fn pair_sums<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    target: &Target,
    tiles: [*const u8; T],
    next: Option<[*const u8; T]>,
    x: *const u32,
    pairs: usize,
) -> [[L::Float; R]; T] {
    let panel = target.panel.width;
    let mut acc = [[lanes.splat_f32(0.0); R]; T];
    for pair in 0..pairs {
        // SAFETY: `pair` is below the pairs of the tiles and of the panel.
        unsafe {
            let w = load_vectors(lanes, tiles, next, pair * VECTOR);
            for r in 0..R {
                let x = lanes.splat(*x.add(pair * panel + r) as i32);
                for t in 0..T {
                    acc[t][r] = lanes.dot_bf16(acc[t][r], w[t], x);
                }
            }
        }
    }
    acc
}
