//! The inner loops of a product on matrix units: two tiles of weights, or one, against a panel of eight rows.
//!
//! The units sum the products of one sub-block, 32 or 16 columns, exactly. Vectors scale those sums and add them
//! in the order of `scalar::matmul`, as `matmul::kernel` does with sums of its own.
//!
//! A few sub-blocks are multiplied before the first is scaled, so that the sums, which go through memory, have
//! arrived by then.

#![allow(clippy::needless_range_loop, reason = "indices name the tile and the row of a register block")]

use std::mem::MaybeUninit;

use crate::activations::WIDE;
use crate::lanes::Lanes;
use crate::matmul::formats::Coded;
use crate::matmul::kernel::{
    Inputs, TILES, Target, accumulate, add_scaled, group_codes, inputs, load_halves, min_sums,
    prefetch_chunk, store,
};
use crate::matrix::{CHUNK, Matrix, TILE_ROWS, TileLayout, VECTOR};
use crate::quant::Scales;
use crate::x86::amx::{Config, Tiles};

/// The registers: inputs, two tiles of weights, the sums of both.
const X: usize = 0;
const W: [usize; TILES] = [1, 2];
const SUMS: [usize; TILES] = [3, 4];

/// Dot products of a sub-block of one tile with a panel.
type Dots = [[i32; TILE_ROWS]; WIDE];

/// Dot products that are computed before they are scaled: those of a block of 16 sub-blocks.
const DOTS: usize = 16;

/// Room for them, in whole lines of cache.
#[repr(align(64))]
struct Room([MaybeUninit<Dots>; DOTS]);

/// The shapes of the registers for sub-blocks of `cols` columns.
pub(super) const fn config(cols: usize) -> Config {
    let (x, w, sums) = ([WIDE, cols], [cols / 4, VECTOR], [WIDE, VECTOR]);
    Config::new(&[x, w, w, sums, sums])
}

/// Writes the codes of `tiles`, less their offset, to `to` as signed bytes: `[groups of four columns][16 rows][4]`
/// for each tile. Asks for `next` meanwhile.
///
/// # Safety
/// The tiles are those of `weights`, which are of type `F`, and `to` has room for a byte for each code.
#[inline(always)]
pub(super) unsafe fn unpack<L: Lanes, F: Coded>(
    lanes: L,
    weights: &Matrix,
    tiles: [*const u8; TILES],
    next: [*const u8; TILES],
    to: *mut u8,
) -> [*const u8; TILES] {
    let mut starts = tiles;
    for t in 0..TILES {
        let to = to.wrapping_add(t * weights.cols() * TILE_ROWS);
        starts[t] = to;
        for chunk in 0..weights.cols() / CHUNK {
            prefetch_chunk::<L, F, 1>(lanes, [next[t]], chunk);
            // SAFETY: the tile has the chunk, and so does the room.
            unsafe { unpack_chunk::<L, F>(lanes, tiles[t], weights.layout(), chunk, to) };
        }
    }
    starts
}

/// # Safety
/// As [`unpack`]; the chunk is one of the tile's.
#[inline(always)]
unsafe fn unpack_chunk<L: Lanes, F: Coded>(
    lanes: L,
    tile: *const u8,
    layout: &TileLayout,
    chunk: usize,
    to: *mut u8,
) {
    let to = to.wrapping_add(chunk * CHUNK * TILE_ROWS).cast::<f32>();
    macro_rules! groups {
        ($($group:literal)*) => {$(
            // SAFETY: as the caller promises; a group of the chunk is one vector.
            unsafe {
                let codes = group_codes::<L, F, $group>(lanes, tile, layout, chunk);
                let levels = lanes.as_float(levels::<L, F>(lanes, codes));
                lanes.store(levels, to.add($group * VECTOR / 4));
            }
        )*};
    }
    groups!(0 1 2 3 4 5 6 7);
}

/// Codes, or the levels they stand for, less their offset: signed bytes.
#[inline(always)]
fn levels<L: Lanes, F: Coded>(lanes: L, codes: L::Int) -> L::Int {
    const { assert!(!F::WIDE || F::CODES.offset == 128) };
    let bytes = |byte: u8| lanes.splat(i32::from_ne_bytes([byte; 4]));
    match (F::WIDE, F::CODES.offset) {
        (true, _) if L::UNSIGNED => lanes.xor(codes, bytes(0x80)),
        // These kernels take their codes less 128 already. And some types have no offset.
        (true, _) | (false, 0) => codes,
        // With the highest bit set, no byte borrows from the next.
        (false, offset) => {
            let offset = lanes.splat(offset * -0x0101_0101);
            lanes.xor(lanes.add(lanes.or(codes, bytes(0x80)), offset), bytes(0x80))
        }
    }
}

/// Computes and stores the outputs of a target, whose panel is full; `codes` are its tiles unpacked.
///
/// # Safety
/// As [`code_rows`](crate::matmul::kernel::code_rows), and `units` has the configuration of `F`.
#[inline(always)]
pub(super) unsafe fn panel<L: Lanes, T: Tiles, F: Coded>(
    lanes: L,
    units: &mut T,
    target: &Target,
    codes: [*const u8; TILES],
) {
    debug_assert_eq!((target.panel.rows, target.first), (WIDE, 0));
    // SAFETY: as the caller promises.
    unsafe {
        let x = inputs::<F>(target);
        if F::CODES.scales == Scales::None {
            let acc = sums::<L, T, F, TILES>(lanes, units, target, target.starts, codes, x);
            return store(lanes, target, 0, acc);
        }
        // Integers that are still to be scaled take the registers that a second tile would need.
        for t in 0..TILES {
            let acc = sums::<L, T, F, 1>(lanes, units, target, [target.starts[t]], [codes[t]], x);
            store(lanes, target, t, acc);
        }
    }
}

/// # Safety
/// As [`panel`]; `x` points to the panel.
#[inline(always)]
unsafe fn sums<L: Lanes, T: Tiles, F: Coded, const N: usize>(
    lanes: L,
    units: &mut T,
    target: &Target,
    tiles: [*const u8; N],
    codes: [*const u8; N],
    x: Inputs,
) -> [[L::Float; WIDE]; N] {
    let (layout, blocks) = (target.weights.layout(), target.weights.cols() / F::BLOCK);
    let subs = F::BLOCK / F::CODES.sub_len;
    let ahead = if subs == 1 { 4 } else { 1 };
    assert!(ahead * subs * N <= DOTS, "constants, of which nothing is left in the code");
    let mut room = Room([MaybeUninit::uninit(); DOTS]);
    let dots = room.0.as_mut_ptr().cast::<Dots>();
    let mut acc = [[lanes.splat_f32(0.0); WIDE]; N];
    for first in (0..blocks).step_by(ahead) {
        let last = blocks.min(first + ahead);
        // SAFETY: these blocks are the row's, so every offset lies inside its plane; `DOTS` is enough for them.
        unsafe {
            for sub in first * subs..last * subs {
                multiply::<T, F, N>(units, x.codes, codes, sub, dots.add((sub - first * subs) * N));
            }
            for block in first..last {
                let exact = dots.add((block - first) * subs * N);
                let dots = block_dots::<L, F, N>(lanes, layout, tiles, exact, block);
                let d = load_halves(lanes, tiles, layout.d + block * TILE_ROWS * 2);
                accumulate(lanes, &mut acc, d, dots, x.scales.add(block * WIDE));
                if F::CODES.has_min {
                    let sums = min_sums::<L, F, WIDE, N>(lanes, tiles, layout, x, block);
                    let m = load_halves(lanes, tiles, layout.m + block * TILE_ROWS * 2);
                    accumulate(lanes, &mut acc, m, sums, x.scales.add(block * WIDE));
                }
            }
        }
    }
    acc
}

/// Writes the dot products of sub-block `sub` to `to`, for each tile.
///
/// # Safety
/// As [`sums`]; the sub-block is one of the row's.
#[inline(always)]
unsafe fn multiply<T: Tiles, F: Coded, const N: usize>(
    units: &mut T,
    x: *const i8,
    codes: [*const u8; N],
    sub: usize,
    to: *mut Dots,
) {
    const { assert!(N == 1 || N == TILES) };
    let col = sub * F::CODES.sub_len;
    // SAFETY: the panel holds `WIDE` rows of each chunk, and the tiles four bytes of 16 rows for each four columns.
    unsafe {
        units.load::<{ X }>(x.add(col / CHUNK * CHUNK * WIDE + col % CHUNK).cast(), CHUNK);
        units.load::<{ W[0] }>(codes[0].add(col * TILE_ROWS), VECTOR);
        units.zero::<{ SUMS[0] }>();
        units.dot::<{ SUMS[0] }, { X }, { W[0] }>();
        if N == TILES {
            units.load::<{ W[1] }>(codes[1 % N].add(col * TILE_ROWS), VECTOR);
            units.zero::<{ SUMS[1] }>();
            units.dot::<{ SUMS[1] }, { X }, { W[1] }>();
            units.store::<{ SUMS[1] }>(to.add(1).cast(), VECTOR);
        }
        units.store::<{ SUMS[0] }>(to.cast(), VECTOR);
    }
}

/// The dot products of a block: those of its sub-blocks, at `dots`, scaled.
///
/// # Safety
/// As [`sums`]; the dot products of the block's sub-blocks were written, for each tile.
#[inline(always)]
unsafe fn block_dots<L: Lanes, F: Coded, const N: usize>(
    lanes: L,
    layout: &TileLayout,
    tiles: [*const u8; N],
    dots: *const Dots,
    block: usize,
) -> [[L::Int; WIDE]; N] {
    // SAFETY: as the caller promises.
    unsafe {
        if F::CODES.scales == Scales::None {
            return load_dots(lanes, dots);
        }
        let subs = F::BLOCK / F::CODES.sub_len;
        let mut total = [[lanes.splat(0); WIDE]; N];
        for sub in 0..subs {
            let dots = load_dots(lanes, dots.add(sub * N));
            add_scaled::<L, F, WIDE, N>(lanes, &mut total, dots, tiles, layout, block * subs + sub);
        }
        total
    }
}

/// # Safety
/// `dots` holds the dot products of `N` tiles.
#[inline(always)]
unsafe fn load_dots<L: Lanes, const N: usize>(lanes: L, dots: *const Dots) -> [[L::Int; WIDE]; N] {
    let mut loaded = [[lanes.splat(0); WIDE]; N];
    for t in 0..N {
        for r in 0..WIDE {
            // SAFETY: as the caller promises.
            loaded[t][r] = unsafe { lanes.load(dots.add(t).cast::<u8>().add(r * VECTOR)) };
        }
    }
    loaded
}
