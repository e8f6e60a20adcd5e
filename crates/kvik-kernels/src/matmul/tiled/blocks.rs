//! Types with a scale per 32 columns: the matrix units sum a block; vectors scale the sums and accumulate them in
//! the order of `scalar::matmul`.
//!
//! The units and the vectors alternate in groups of blocks, each with the results of the other's previous group.
//! Even so they hardly overlap: on a Xeon with these units a product and its store take 30 cycles, during which
//! floats are multiplied once a cycle instead of twice.

#![allow(clippy::needless_range_loop, reason = "indices name the row of a register block")]

use std::ops::Range;

use super::super::formats::Coded;
use super::super::kernel::{
    Inputs, TILES, Target, accumulate, inputs, load_halves, load_units, min_sums, store,
};
use super::{Dots, Room, SUMS, W, X, unpack};
use crate::activations::TALL;
use crate::lanes::Lanes;
use crate::lines::Line;
use crate::matrix::{CHUNK, TILE_ROWS, VECTOR};
use crate::x86::amx::Tiles;

/// Blocks per group: one per register of sums.
const GROUP: usize = SUMS.len();

/// Computes and stores two tiles for all panels of `targets`.
///
/// # Safety
/// As [`code_rows`](crate::matmul::kernel::code_rows) for each target, which differ only in their panels; these
/// are tall. `units` has the configuration of `F`.
#[inline(always)]
pub(super) unsafe fn compute<'a, L: Lanes, T: Tiles, F: Coded>(
    lanes: L,
    units: &mut T,
    targets: impl Iterator<Item = Target<'a>> + Clone,
    work: &mut Vec<Line>,
) {
    let Some(first) = targets.clone().next() else { return };
    let bytes = first.weights.cols() * TILE_ROWS;
    work.resize(TILES * bytes / VECTOR, Line::ZERO);
    // SAFETY: the buffer has room for the tiles; the rest is the caller's promise.
    unsafe { unpack_tiles::<L, F>(lanes, &first, work.as_mut_ptr().cast()) };
    for target in targets {
        for t in 0..TILES {
            // SAFETY: as the caller promises; the tile is unpacked there.
            unsafe {
                let codes = work.as_ptr().cast::<u8>().add(t * bytes);
                let acc = sums::<L, T, F>(lanes, units, &target, target.starts[t], codes);
                store(lanes, &target, t, [acc]);
            }
        }
    }
}

/// # Safety
/// As [`compute`]; `to` has room for a byte per value of two tiles.
#[inline(always)]
unsafe fn unpack_tiles<L: Lanes, F: Coded>(lanes: L, target: &Target, to: *mut u8) {
    let (layout, cols) = (target.weights.layout(), target.weights.cols());
    let next = target.next.unwrap_or(target.starts);
    for t in 0..TILES {
        for chunk in 0..cols / CHUNK {
            // SAFETY: the tile has the chunk, and so does the room.
            unsafe {
                let to = to.add((t * cols + chunk * CHUNK) * TILE_ROWS);
                unpack::chunk::<L, F>(lanes, target.starts[t], layout, chunk, next[t], to);
            }
        }
    }
}

/// The outputs of one tile for a panel; `codes` is the unpacked tile.
///
/// # Safety
/// As [`compute`].
#[inline(always)]
unsafe fn sums<L: Lanes, T: Tiles, F: Coded>(
    lanes: L,
    units: &mut T,
    target: &Target,
    tile: *const u8,
    codes: *const u8,
) -> [L::Float; TALL] {
    let blocks = target.weights.cols() / F::BLOCK;
    let mut acc = [lanes.splat_f32(0.0); TALL];
    let mut room = Room::new();
    let dots = room.start();
    // SAFETY: as the caller promises; blocks are scaled after their sums were stored.
    unsafe {
        let x = inputs::<F>(target);
        for first in (0..blocks).step_by(GROUP) {
            multiply(units, x.codes.cast(), codes, first..blocks.min(first + GROUP));
            let before = first.saturating_sub(GROUP);
            let middle = before + (first - before) / 2;
            scale::<L, F>(lanes, &mut acc, target, tile, x, dots, before..middle);
            store_sums(units, dots, first..blocks.min(first + GROUP));
            scale::<L, F>(lanes, &mut acc, target, tile, x, dots, middle..first);
        }
        let last = (blocks - 1) / GROUP * GROUP;
        scale::<L, F>(lanes, &mut acc, target, tile, x, dots, last..blocks);
    }
    acc
}

/// Runs `$then` for each block of `$blocks`, at most one group, with its registers for inputs, weights and sums.
macro_rules! each_of_group {
    ($blocks:ident, |$block:ident, $x:ident, $w:ident, $sums:ident| $then:expr) => {
        each_of_group!(@each $blocks, $block, $x, $w, $sums, $then; 0 0, 1 1, 2 0, 3 1)
    };
    (@each $blocks:ident, $block:ident, $x:ident, $w:ident, $sums:ident, $then:expr; $($number:literal $pair:literal),*) => {$(
        let $block = $blocks.start + $number;
        if $block < $blocks.end {
            const $x: usize = X[$pair];
            const $w: usize = W[$pair];
            const $sums: usize = SUMS[$number];
            $then;
        }
    )*};
}

/// Multiplies a group of blocks.
///
/// # Safety
/// As [`compute`]; the blocks are the row's, at most one group.
#[inline(always)]
unsafe fn multiply<T: Tiles>(units: &mut T, x: *const u8, codes: *const u8, blocks: Range<usize>) {
    each_of_group!(blocks, |block, A, B, C| {
        // SAFETY: the panel holds `TALL` rows of each block, and the tile four bytes of 16 rows for each four columns.
        unsafe {
            units.zero::<C>();
            units.load::<A>(x.add(block * CHUNK * TALL), CHUNK);
            units.load::<B>(codes.add(block * CHUNK * TILE_ROWS), VECTOR);
            units.dot::<C, A, B>();
        }
    });
}

/// Stores the sums of a group of blocks in `dots`.
///
/// # Safety
/// As [`multiply`], which has computed them; `dots` is a [`Room`].
#[inline(always)]
unsafe fn store_sums<T: Tiles>(units: &mut T, dots: *mut Dots, blocks: Range<usize>) {
    each_of_group!(blocks, |block, _A, _B, C| {
        // SAFETY: as the caller promises.
        unsafe { units.store::<C>(dots.add(block % Room::LEN).cast(), VECTOR) };
    });
}

/// Adds the sums of `blocks`, scaled, to the outputs.
///
/// # Safety
/// As [`compute`]; the sums were stored, at most two groups ago.
#[inline(always)]
unsafe fn scale<L: Lanes, F: Coded>(
    lanes: L,
    acc: &mut [L::Float; TALL],
    target: &Target,
    tile: *const u8,
    x: Inputs,
    dots: *const Dots,
    blocks: Range<usize>,
) {
    let layout = target.weights.layout();
    for block in blocks {
        // SAFETY: as the caller promises; the block is one of the row's, so every offset lies inside its plane.
        unsafe {
            let dots = dots.add(block % Room::LEN).cast::<u8>();
            let [d] = load_units::<L, F, 1>(lanes, [tile], layout.d, block);
            let scales = x.scales.add(block * TALL);
            for r in 0..TALL {
                // Row by row, so that sums are memory operands.
                let scale = lanes.mul_f32(d, lanes.splat_f32(*scales.add(r)));
                acc[r] = lanes.fma(scale, lanes.to_float(lanes.load(dots.add(r * VECTOR))), acc[r]);
            }
            if const { F::CODES.has_min } {
                let sums = min_sums::<L, F, TALL, 1>(lanes, [tile], layout, x, block);
                let m = load_halves(lanes, [tile], layout.m + block * TILE_ROWS * 2);
                accumulate(lanes, std::array::from_mut(acc), m, sums, scales);
            }
        }
    }
}
