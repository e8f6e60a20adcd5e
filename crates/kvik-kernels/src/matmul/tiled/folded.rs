//! Types with blocks of 256 columns and integer scales: the scales are multiplied into the quantised values, in
//! two planes of bytes, so that the units sum a whole block and vectors process it once.
//!
//! Blocks are the outer loop and panels the inner one: a block's weights, 16 KiB for two tiles, stay in the
//! first-level cache, and the outputs of all panels in the second.

#![allow(clippy::needless_range_loop, reason = "indices name the tile and the row of a register block")]

use super::super::formats::Coded;
use super::super::kernel::{Inputs, TILES, Target, accumulate, inputs, load_halves, load_min, store};
use super::{Room, SUMS, W, X, unpack};
use crate::activations::{HALF, TALL};
use crate::lanes::Lanes;
use crate::lines::Line;
use crate::matrix::{CHUNK, TILE_ROWS, VECTOR};
use crate::x86::amx::Tiles;

/// Columns per product.
const PIECE: usize = VECTOR;
/// Products per block and plane of a tile.
const PRODUCTS: usize = 256 / PIECE;
/// Bytes of a plane of a block of one tile.
const PLANE: usize = 256 * TILE_ROWS;
/// Planes of both tiles: the upper and the lower bytes of the first tile, then those of the second.
const PLANES: usize = 2 * TILES;
/// Bytes of the outputs of a panel, for one tile.
const OUTPUTS: usize = TALL * TILE_ROWS * size_of::<f32>();

/// Input sums that are multiplied by minima, for each row, two sub-blocks in a number.
type MinPairs = [[i32; TALL]; 8];

/// Computes and stores two tiles for all panels of `targets`.
///
/// # Safety
/// As [`code_rows`](crate::matmul::kernel::code_rows) for each target, which differ in their panels only; these
/// are tall. `units` has the configuration of `F`.
#[inline(always)]
pub(super) unsafe fn compute<'a, L: Lanes, T: Tiles, F: Coded>(
    lanes: L,
    units: &mut T,
    targets: impl Iterator<Item = Target<'a>> + Clone,
    work: &mut Vec<Line>,
) {
    let Some(first) = targets.clone().next() else { return };
    let panels = targets.clone().count();
    work.resize((PLANES * PLANE + panels * TILES * OUTPUTS) / VECTOR, Line::ZERO);
    let codes = work.as_mut_ptr().cast::<u8>();
    let outputs = codes.wrapping_add(PLANES * PLANE);
    let blocks = first.weights.cols() / F::BLOCK;
    for block in 0..blocks {
        // SAFETY: the room is that of all planes and outputs; the rest is the caller's promise.
        unsafe {
            unpack_block::<L, F>(lanes, &first, block, codes);
            for (number, target) in targets.clone().enumerate() {
                let outputs = outputs.add(number * TILES * OUTPUTS);
                add_block::<L, T, F>(lanes, units, &target, block, codes, outputs.cast());
            }
        }
    }
}

/// # Safety
/// As [`compute`]; `to` has room for all planes of a block, which is one of the row's.
#[inline(always)]
unsafe fn unpack_block<L: Lanes, F: Coded>(lanes: L, target: &Target, block: usize, to: *mut u8) {
    let (layout, next) = (target.weights.layout(), target.next.unwrap_or(target.starts));
    for t in 0..TILES {
        for part in 0..F::CHUNKS {
            // SAFETY: as the caller promises.
            unsafe {
                let upper = to.add(2 * t * PLANE + part * CHUNK * TILE_ROWS);
                let to = [upper, upper.add(PLANE)];
                let chunk = block * F::CHUNKS + part;
                unpack::scaled_chunk::<L, F>(lanes, target.starts[t], layout, chunk, next[t], to);
            }
        }
    }
}

/// Adds the contribution of a block to the outputs of a panel, `[TILES][TALL][16]`; the last block stores them.
///
/// # Safety
/// As [`compute`]; `codes` are the planes of the block.
#[inline(always)]
unsafe fn add_block<L: Lanes, T: Tiles, F: Coded>(
    lanes: L,
    units: &mut T,
    target: &Target,
    block: usize,
    codes: *const u8,
    outputs: *mut f32,
) {
    let mut room = Room::new();
    let dots = room.start();
    // SAFETY: as the caller promises.
    unsafe {
        let x = inputs::<F>(target);
        multiply(units, x.codes.cast::<u8>().add(block * F::BLOCK * TALL), codes, dots.cast());
        let pairs = if F::CODES.has_min { Some(min_pairs::<L, F>(lanes, x, block)) } else { None };
        let last = block + 1 == target.weights.cols() / F::BLOCK;
        for t in 0..TILES {
            let to = outputs.add(t * TALL * TILE_ROWS);
            let mut acc = [[lanes.splat_f32(0.0); TALL]];
            if block > 0 {
                load_outputs(lanes, &mut acc[0], to);
            }
            scale::<L, F>(lanes, &mut acc, target, t, x, block, dots.add(2 * t).cast());
            if let Some(pairs) = &pairs {
                add_mins::<L, F>(lanes, &mut acc, target, t, x, block, pairs);
            }
            match last {
                true => store(lanes, target, t, acc),
                false => store_outputs(lanes, &acc[0], to),
            }
        }
    }
}

/// Multiplies a block of a panel with both planes of both tiles.
///
/// # Safety
/// As [`compute`]; `x` is the block of the panel, `dots` has room for the sums of all planes.
#[inline(always)]
unsafe fn multiply<T: Tiles>(units: &mut T, x: *const u8, codes: *const u8, dots: *mut u8) {
    macro_rules! planes {
        ($($plane:literal $pair:literal),*) => {
            // SAFETY: the panel has `TALL` rows of each piece, a plane four bytes of 16 rows for each four columns.
            unsafe {
                $(units.zero::<{ SUMS[$plane] }>();)*
                for piece in 0..PRODUCTS {
                    units.load::<{ X[0] }>(x.add(piece * PIECE * TALL), PIECE);
                    $(
                        units.load::<{ W[$pair] }>(codes.add($plane * PLANE + piece * PIECE * TILE_ROWS), VECTOR);
                        units.dot::<{ SUMS[$plane] }, { X[0] }, { W[$pair] }>();
                    )*
                }
                $(units.store::<{ SUMS[$plane] }>(dots.add($plane * TALL * VECTOR), VECTOR);)*
            }
        };
    }
    planes!(0 0, 1 1, 2 0, 3 1);
}

/// # Safety
/// `from` holds the outputs of a panel for one tile.
#[inline(always)]
unsafe fn load_outputs<L: Lanes>(lanes: L, acc: &mut [L::Float; TALL], from: *const f32) {
    for r in 0..TALL {
        // SAFETY: as the caller promises.
        acc[r] = unsafe { lanes.load_f32(from.add(r * TILE_ROWS).cast()) };
    }
}

/// # Safety
/// `to` has room for the outputs of a panel for one tile.
#[inline(always)]
unsafe fn store_outputs<L: Lanes>(lanes: L, acc: &[L::Float; TALL], to: *mut f32) {
    for r in 0..TALL {
        // SAFETY: as the caller promises.
        unsafe { lanes.store(acc[r], to.add(r * TILE_ROWS)) };
    }
}

/// Combines the planes of a block and adds them, scaled, to the outputs of tile `t`.
///
/// # Safety
/// As [`compute`]; `dots` are the sums of the upper bytes, then those of the lower ones.
#[inline(always)]
unsafe fn scale<L: Lanes, F: Coded>(
    lanes: L,
    acc: &mut [[L::Float; TALL]; 1],
    target: &Target,
    t: usize,
    x: Inputs,
    block: usize,
    dots: *const u8,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let [d] = load_halves(lanes, [target.starts[t]], target.weights.layout().d + block * TILE_ROWS * 2);
        for r in 0..TALL {
            let upper = lanes.load(dots.add(r * VECTOR));
            let lower = lanes.load(dots.add((TALL + r) * VECTOR));
            let exact = lanes.to_float(lanes.add(lanes.shift_left(upper, 8), lower));
            let scale = lanes.mul_f32(d, lanes.splat_f32(*x.scales.add(block * TALL + r)));
            acc[0][r] = lanes.fma(scale, exact, acc[0][r]);
        }
    }
}

/// The sums of a block's inputs, two sub-blocks in a number: each fits in 16 bits.
///
/// # Safety
/// As [`compute`].
#[inline(always)]
unsafe fn min_pairs<L: Lanes, F: Coded>(lanes: L, x: Inputs, block: usize) -> MinPairs {
    let subs = F::BLOCK / F::CODES.sub_len;
    let sums = if F::CODES.sub_len == HALF { x.half_sums } else { x.sums };
    let mut pairs = [[0; TALL]; 8];
    for pair in 0..subs / 2 {
        // SAFETY: as the caller promises: each sub-block has a sum for each row.
        unsafe {
            let from = sums.add((block * subs + 2 * pair) * TALL).cast::<u8>();
            let (even, odd) = (lanes.load(from), lanes.load(from.add(VECTOR)));
            let both = lanes.or(lanes.and(even, lanes.splat(0xffff)), lanes.shift_left(odd, 16));
            lanes.store(lanes.as_float(both), pairs[pair].as_mut_ptr().cast());
        }
    }
    pairs
}

/// Adds the minima of a block, scaled, to the outputs of tile `t`.
///
/// # Safety
/// As [`compute`]; `pairs` are those of the block.
#[inline(always)]
unsafe fn add_mins<L: Lanes, F: Coded>(
    lanes: L,
    acc: &mut [[L::Float; TALL]; 1],
    target: &Target,
    t: usize,
    x: Inputs,
    block: usize,
    pairs: &MinPairs,
) {
    let (layout, tile) = (target.weights.layout(), target.starts[t]);
    let subs = F::BLOCK / F::CODES.sub_len;
    let mut total = [[lanes.splat(0); TALL]];
    // SAFETY: as the caller promises.
    unsafe {
        for pair in 0..subs / 2 {
            let sub = block * subs + 2 * pair;
            let even = load_min::<L, F>(lanes, tile, layout, sub);
            let odd = load_min::<L, F>(lanes, tile, layout, sub + 1);
            let mins = lanes.or(even, lanes.shift_left(odd, 16));
            for r in 0..TALL {
                total[0][r] = lanes.dot_shorts(total[0][r], mins, lanes.splat(pairs[pair][r]));
            }
        }
        let m = load_halves(lanes, [tile], layout.m + block * TILE_ROWS * 2);
        accumulate(lanes, acc, m, total, x.scales.add(block * TALL));
    }
}
