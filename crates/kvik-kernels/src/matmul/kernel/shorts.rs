//! Products of tiles of 14-bit values with a panel of 14-bit values.

#![allow(clippy::needless_range_loop, reason = "indices name the tile and the row of a register block")]

use super::{TILES, Target, accumulate, load_halves, load_vectors, store};
use crate::lanes::Lanes;
use crate::matmul::formats::Format;
use crate::matrix::{CHUNK, Matrix, SPARE, STORED, TILE_ROWS, TOGETHER, TileLayout, VECTOR};

/// Pairs of columns that share a scale.
const PAIRS: usize = CHUNK / 2;

/// Computes `R` rows of a target of 14-bit weights.
///
/// # Safety
/// As [`float_rows`](super::float_rows), but `x` holds the panel as 14-bit values.
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
        by_tiles!(2, sums::<L, F, R>(lanes, target, x));
    }
}

/// Some rows of a panel, see `activations`.
#[derive(Clone, Copy)]
struct Inputs {
    /// Rows that the panel has room for; they are interleaved.
    panel: usize,
    pairs: *const u32,
    scales: *const f32,
}

/// # Safety
/// As [`short_rows`]; `x` points to the target's first row in the panel.
#[inline(always)]
unsafe fn sums<L: Lanes, F: Format, const R: usize, const T: usize>(
    lanes: L,
    target: &Target,
    tiles: [*const u8; T],
    next: Option<[*const u8; T]>,
    x: Inputs,
) -> [[L::Float; R]; T] {
    let layout = target.weights.layout();
    // Hidden from the compiler, which would otherwise unroll the loop over these vectors and replace each dot
    // product by a product and a sum, because several of them depend on each other.
    let stored = std::hint::black_box(STORED);
    let mut acc = [[lanes.splat_f32(0.0); R]; T];
    for block in 0..target.weights.cols() / CHUNK {
        // SAFETY: `block` is one of the row's, so every offset lies inside its plane.
        unsafe {
            let dots = dots::<L, F, R, T>(lanes, layout, tiles, next, x, (block, stored));
            let d = load_halves(lanes, tiles, layout.d + block * TILE_ROWS * 2);
            accumulate(lanes, &mut acc, d, dots, x.scales.add(block * x.panel));
        }
    }
    acc
}

/// The exact dot products of one block: the sum of 32 products of 26 bits fits in 31 bits.
///
/// # Safety
/// As [`sums`], and the block is one of the row's.
#[inline(always)]
unsafe fn dots<L: Lanes, F: Format, const R: usize, const T: usize>(
    lanes: L,
    layout: &TileLayout,
    tiles: [*const u8; T],
    next: Option<[*const u8; T]>,
    x: Inputs,
    (block, stored): (usize, usize),
) -> [[L::Int; R]; T] {
    let mut dots = [[lanes.splat(0); R]; T];
    if const { F::UNPACK_ROWS.is_none() } {
        for pair in block * PAIRS..(block + 1) * PAIRS {
            // SAFETY: the pair is one of the row's and of the panel's.
            unsafe {
                let w = load_vectors(lanes, tiles, next, layout.low + pair * VECTOR);
                add_products(lanes, &mut dots, w, x, pair);
            }
        }
        return dots;
    }
    for eight in block * PAIRS / TOGETHER..(block + 1) * PAIRS / TOGETHER {
        let mut eighth = [lanes.splat(0); T];
        for at in 0..stored {
            // SAFETY: as above.
            unsafe {
                let mut w = load_vectors(lanes, tiles, next, layout.low + (eight * STORED + at) * VECTOR);
                for t in 0..T {
                    w[t] = own(lanes, w[t], &mut eighth[t]);
                }
                add_products(lanes, &mut dots, w, x, eight * TOGETHER + at);
            }
        }
        for t in 0..T {
            eighth[t] = lanes.shift_right_shorts(eighth[t], SPARE as i32);
        }
        // SAFETY: as above.
        unsafe { add_products(lanes, &mut dots, eighth, x, eight * TOGETHER + STORED) };
    }
    dots
}

/// # Safety
/// `pair` is one of the panel's.
#[inline(always)]
unsafe fn add_products<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    dots: &mut [[L::Int; R]; T],
    w: [L::Int; T],
    x: Inputs,
    pair: usize,
) {
    for r in 0..R {
        // SAFETY: as the caller promises, and the panel has the target's rows.
        let x = lanes.splat(unsafe { *x.pairs.add(pair * x.panel + r) } as i32);
        for t in 0..T {
            dots[t][r] = lanes.dot_shorts(dots[t][r], w[t], x);
        }
    }
}

/// Extracts the values of a stored vector, see `matrix::shorts`. Its bits of the eighth vector are shifted into
/// `eighth`, which is a stored vector itself once all seven have been extracted.
#[inline(always)]
fn own<L: Lanes>(lanes: L, stored: L::Int, eighth: &mut L::Int) -> L::Int {
    let spares = lanes.splat(0xc000_c000u32 as i32);
    let bits = lanes.shift_left(stored, 16 - SPARE as i32);
    *eighth = lanes.blend(spares, bits, lanes.shift_right(*eighth, SPARE as i32));
    lanes.shift_right_shorts(stored, SPARE as i32)
}

/// Unpacks a tile to 16 bits per value.
///
/// # Safety
/// The tile is one of the weights, of 14-bit values, and `to` has room for [the unpacked
/// bytes](super::unpacked_bytes).
#[inline(always)]
pub(super) unsafe fn unpack<L: Lanes>(lanes: L, weights: &Matrix, tile: *const u8, to: *mut f32) {
    let low = weights.layout().low;
    // SAFETY: the values of both begin at `low`, after the half floats.
    let (from, to) = unsafe {
        tile.copy_to_nonoverlapping(to.cast(), low);
        (tile.add(low), to.byte_add(low))
    };
    for eight in 0..weights.cols() / (2 * TOGETHER) {
        let mut eighth = lanes.splat(0);
        // SAFETY: the vectors are the row's.
        unsafe {
            for at in 0..STORED {
                let vector = (eight * STORED + at) * VECTOR;
                let codes = own(lanes, lanes.load(from.add(vector)), &mut eighth);
                lanes.store(lanes.as_float(codes), to.byte_add((eight * TOGETHER + at) * VECTOR));
            }
            let codes = lanes.shift_right_shorts(eighth, SPARE as i32);
            lanes.store(lanes.as_float(codes), to.byte_add((eight * TOGETHER + STORED) * VECTOR));
        }
    }
}
