//! Products of tiles of quantised values with a panel of bytes.

#![allow(clippy::needless_range_loop, reason = "indices name the tile and the row of a register block")]

use super::{TILES, Target, accumulate, load_halves, load_units, store};
use crate::activations::HALF;
use crate::lanes::Lanes;
use crate::matmul::formats::Coded;
use crate::matrix::{CHUNK, GROUPS, TILE_ROWS, TileLayout, VECTOR};
use crate::quant::Scales;

/// Computes `R` rows of a target of quantised weights.
///
/// # Safety
/// As [`float_rows`](super::float_rows), but `x` holds the panel with one scale per block of `F`.
#[inline(always)]
pub(crate) unsafe fn code_rows<L: Lanes, F: Coded, const R: usize>(lanes: L, target: &Target) {
    // SAFETY: as the caller promises.
    unsafe {
        let x = inputs::<F>(target);
        by_tiles!(2, codes::<L, F, R>(lanes, target, x));
    }
}

/// The rows of a target among the quantised inputs.
///
/// # Safety
/// As [`code_rows`].
#[inline(always)]
pub(in crate::matmul) unsafe fn inputs<F: Coded>(target: &Target) -> Inputs {
    let (cols, first) = (target.weights.cols(), target.first);
    let (form, start) = (target.x.quantised(F::BLOCK), target.panel.start * cols);
    // SAFETY: `Activations::set` filled every row of the panel; the rest is the caller's promise.
    unsafe {
        Inputs {
            panel: target.panel.width,
            codes: form.codes.as_ptr().add(start + first * CHUNK),
            scales: form.scales.as_ptr().add(start / F::BLOCK + first),
            sums: form.sums.as_ptr().add(start / CHUNK + first),
            half_sums: form.half_sums.as_ptr().wrapping_add(start / HALF + first),
        }
    }
}

/// Some rows of a panel of quantised inputs, see `activations`.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Inputs {
    /// Rows that the panel has room for; they are interleaved.
    panel: usize,
    pub(in crate::matmul) codes: *const i8,
    pub(in crate::matmul) scales: *const f32,
    pub(in crate::matmul) sums: *const i32,
    pub(in crate::matmul) half_sums: *const i32,
}

/// # Safety
/// As [`code_rows`]; `x` points to the target's first row in the panel.
#[inline(always)]
unsafe fn codes<L: Lanes, F: Coded, const R: usize, const T: usize>(
    lanes: L,
    target: &Target,
    tiles: [*const u8; T],
    next: Option<[*const u8; T]>,
    x: Inputs,
) -> [[L::Float; R]; T] {
    let layout = target.weights.layout();
    let mut acc = [[lanes.splat_f32(0.0); R]; T];
    for block in 0..target.weights.cols() / F::BLOCK {
        // SAFETY: `block` is one of the row's, so every offset lies inside its plane.
        unsafe {
            let dots = dots::<L, F, R, T>(lanes, layout, tiles, next, x, block);
            let d = load_units::<L, F, T>(lanes, tiles, layout.d, block);
            accumulate(lanes, &mut acc, d, dots, x.scales.add(block * x.panel));
            if const { F::CODES.has_min } {
                let sums = min_sums::<L, F, R, T>(lanes, tiles, layout, x, block);
                let m = load_halves(lanes, tiles, layout.m + block * TILE_ROWS * 2);
                accumulate(lanes, &mut acc, m, sums, x.scales.add(block * x.panel));
            }
        }
    }
    acc
}

/// The exact dot products of one block, `Σ scale · Σ level · code`.
///
/// # Safety
/// As [`codes`], and the block is one of the row's.
#[inline(always)]
unsafe fn dots<L: Lanes, F: Coded, const R: usize, const T: usize>(
    lanes: L,
    layout: &TileLayout,
    tiles: [*const u8; T],
    next: Option<[*const u8; T]>,
    x: Inputs,
    block: usize,
) -> [[L::Int; R]; T] {
    let mut total = [[lanes.splat(0); R]; T];
    for chunk in block * F::CHUNKS..(block + 1) * F::CHUNKS {
        if let Some(next) = next {
            prefetch_chunk::<L, F, T>(lanes, next, chunk);
        }
        // SAFETY: all offsets follow from the chunk's number and the layouts of tiles and panels.
        unsafe {
            if const { matches!(F::CODES.scales, Scales::None) } {
                total = offset_sums::<L, F, R, T>(lanes, x.sums.add(chunk * x.panel));
                dot_chunk::<L, F, R, T, 0, GROUPS>(lanes, &mut total, tiles, layout, x, chunk);
            } else if const { F::CODES.sub_len == CHUNK } {
                let mut dots = offset_sums::<L, F, R, T>(lanes, x.sums.add(chunk * x.panel));
                dot_chunk::<L, F, R, T, 0, GROUPS>(lanes, &mut dots, tiles, layout, x, chunk);
                add_scaled::<L, F, R, T>(lanes, &mut total, dots, tiles, layout, chunk);
            } else {
                let mut dots = offset_sums::<L, F, R, T>(lanes, x.half_sums.add(chunk * 2 * x.panel));
                dot_chunk::<L, F, R, T, 0, 4>(lanes, &mut dots, tiles, layout, x, chunk);
                add_scaled::<L, F, R, T>(lanes, &mut total, dots, tiles, layout, chunk * 2);
                let mut dots = offset_sums::<L, F, R, T>(lanes, x.half_sums.add((chunk * 2 + 1) * x.panel));
                dot_chunk::<L, F, R, T, 4, GROUPS>(lanes, &mut dots, tiles, layout, x, chunk);
                add_scaled::<L, F, R, T>(lanes, &mut total, dots, tiles, layout, chunk * 2 + 1);
            }
        }
    }
    total
}

/// Initial dot products of a sub-block: the negated contribution of the offset of the quantised values.
///
/// # Safety
/// `sums` holds `R` values.
#[inline(always)]
unsafe fn offset_sums<L: Lanes, F: Coded, const R: usize, const T: usize>(
    lanes: L,
    sums: *const i32,
) -> [[L::Int; R]; T] {
    let recentred = if F::WIDE && !L::UNSIGNED { 128 } else { 0 };
    let offset = F::CODES.offset - recentred;
    let mut start = [lanes.splat(0); R];
    if offset != 0 {
        for r in 0..R {
            // SAFETY: `r` is below `R`.
            start[r] = lanes.splat(unsafe { *sums.add(r) } * -offset);
        }
    }
    [start; T]
}

/// Adds the products of groups `FROM..TO` of a chunk.
///
/// # Safety
/// As [`codes`], and the chunk is one of the row's.
#[inline(always)]
unsafe fn dot_chunk<
    L: Lanes,
    F: Coded,
    const R: usize,
    const T: usize,
    const FROM: usize,
    const TO: usize,
>(
    lanes: L,
    dots: &mut [[L::Int; R]; T],
    tiles: [*const u8; T],
    layout: &TileLayout,
    x: Inputs,
    chunk: usize,
) {
    if const { L::TWO_INPUTS && R.is_multiple_of(2) } {
        // SAFETY: as the caller promises.
        return unsafe { dot_chunk_two::<L, F, R, T, FROM, TO>(lanes, dots, tiles, layout, x, chunk) };
    }
    let mut sums = begin(lanes, *dots);
    macro_rules! groups {
        ($($group:literal)*) => {$(
            if const { FROM <= $group && $group < TO } {
                // SAFETY: as the caller promises.
                unsafe {
                    let mut w = [lanes.splat(0); T];
                    for t in 0..T {
                        w[t] = group_codes::<L, F, $group>(lanes, tiles[t], layout, chunk);
                    }
                    for r in 0..R {
                        let at = x.codes.add((chunk * x.panel + r) * CHUNK + $group * 4);
                        let x = lanes.splat(at.cast::<i32>().read_unaligned());
                        for t in 0..T {
                            sums[t][r] = if const { F::WIDE } {
                                lanes.dot::<true>(sums[t][r], w[t], x)
                            } else {
                                lanes.dot::<false>(sums[t][r], w[t], x)
                            };
                        }
                    }
                }
                if const { ($group + 1) % F::RUN == 0 && $group + 1 < TO } {
                    *dots = end::<L, F, R, T>(lanes, *dots, sums);
                    sums = begin(lanes, *dots);
                }
            }
        )*};
    }
    groups!(0 1 2 3 4 5 6 7);
    *dots = end::<L, F, R, T>(lanes, *dots, sums);
}

/// As [`dot_chunk`], two groups and two rows at a time.
///
/// # Safety
/// As [`dot_chunk`].
#[inline(always)]
unsafe fn dot_chunk_two<
    L: Lanes,
    F: Coded,
    const R: usize,
    const T: usize,
    const FROM: usize,
    const TO: usize,
>(
    lanes: L,
    dots: &mut [[L::Int; R]; T],
    tiles: [*const u8; T],
    layout: &TileLayout,
    x: Inputs,
    chunk: usize,
) {
    for t in 0..T {
        for r in (0..R).step_by(2) {
            let mut runs = lanes.begin_two([dots[t][r], dots[t][r + 1]]);
            macro_rules! pairs {
                ($($first:literal $second:literal),*) => {$(
                    if const { FROM <= $first && $first < TO } {
                        // SAFETY: as the caller promises.
                        unsafe {
                            let w = [
                                group_codes::<L, F, $first>(lanes, tiles[t], layout, chunk),
                                group_codes::<L, F, $second>(lanes, tiles[t], layout, chunk),
                            ];
                            let at = x.codes.add((chunk * x.panel + r) * CHUNK + $first * 4);
                            let x = [at, at.add(CHUNK)];
                            runs = lanes.dot_two(runs, w, x);
                        }
                    }
                )*};
            }
            pairs!(0 1, 2 3, 4 5, 6 7);
            [dots[t][r], dots[t][r + 1]] = lanes.end_two(runs);
        }
    }
}

/// Starts runs from `dots`.
#[inline(always)]
fn begin<L: Lanes, const R: usize, const T: usize>(lanes: L, dots: [[L::Int; R]; T]) -> [[L::Run; R]; T] {
    let mut runs = [[lanes.begin(dots[0][0]); R]; T];
    for t in 0..T {
        for r in 0..R {
            runs[t][r] = lanes.begin(dots[t][r]);
        }
    }
    runs
}

/// `dots` plus the sums of their runs.
#[inline(always)]
fn end<L: Lanes, F: Coded, const R: usize, const T: usize>(
    lanes: L,
    mut dots: [[L::Int; R]; T],
    runs: [[L::Run; R]; T],
) -> [[L::Int; R]; T] {
    for t in 0..T {
        for r in 0..R {
            dots[t][r] = if const { F::WIDE } {
                lanes.end::<true>(dots[t][r], runs[t][r])
            } else {
                lanes.end::<false>(dots[t][r], runs[t][r])
            };
        }
    }
    dots
}

/// The quantised values of one group of four columns, a byte each, assembled from the planes.
///
/// # Safety
/// As [`dot_chunk`].
#[inline(always)]
pub(in crate::matmul) unsafe fn group_codes<L: Lanes, F: Coded, const GROUP: usize>(
    lanes: L,
    tile: *const u8,
    layout: &TileLayout,
    chunk: usize,
) -> L::Int {
    let (low_bits, high_bits) = (F::CODES.low_bits, F::CODES.high_bits);
    // SAFETY: as the caller promises.
    let mut codes = unsafe { plane::<L, GROUP>(lanes, tile.add(layout.low), chunk, low_bits) };
    if const { F::CODES.low_bits < 8 } {
        let shift = GROUP % (8 / low_bits) * low_bits;
        codes = lanes.and(move_bits(lanes, codes, shift, 0), byte_mask(lanes, low_bits, 0));
    }
    if let Some(per_vector) = 8usize.checked_div(high_bits) {
        let shift = GROUP % per_vector * high_bits;
        // SAFETY: as the caller promises.
        let high = unsafe { plane::<L, GROUP>(lanes, tile.add(layout.high), chunk, high_bits) };
        let high = move_bits(lanes, high, shift, low_bits);
        codes = lanes.or(codes, lanes.and(high, byte_mask(lanes, high_bits, low_bits)));
    }
    let recentre = if L::UNSIGNED { 0 } else { 0x80 };
    match F::CODES.levels {
        Some(levels) => lanes.lookup(&levels.map(|level| level ^ recentre), codes),
        None if F::WIDE && !L::UNSIGNED => lanes.xor(codes, lanes.splat(0x8080_8080u32 as i32)),
        None => codes,
    }
}

/// The vector of a `bits`-bit plane that holds a group of a chunk.
///
/// # Safety
/// The plane has the chunk.
#[inline(always)]
unsafe fn plane<L: Lanes, const GROUP: usize>(
    lanes: L,
    plane: *const u8,
    chunk: usize,
    bits: usize,
) -> L::Int {
    let vector = chunk * bits + GROUP / (8 / bits);
    // SAFETY: a chunk has `bits` vectors.
    unsafe { lanes.load(plane.add(vector * VECTOR)) }
}

/// Moves bit `from` of every byte to bit `to`; other bits are unspecified.
#[inline(always)]
fn move_bits<L: Lanes>(lanes: L, bytes: L::Int, from: usize, to: usize) -> L::Int {
    match from.cmp(&to) {
        std::cmp::Ordering::Greater => lanes.shift_right(bytes, (from - to) as i32),
        std::cmp::Ordering::Less => lanes.shift_left(bytes, (to - from) as i32),
        std::cmp::Ordering::Equal => bytes,
    }
}

/// `bits` ones from bit `at` of every byte.
#[inline(always)]
fn byte_mask<L: Lanes>(lanes: L, bits: usize, at: usize) -> L::Int {
    lanes.splat((((1 << bits) - 1) << at) * 0x0101_0101)
}

/// `total += scale of sub-block * dots`.
///
/// # Safety
/// As [`codes`], and `sub` is one of the row's sub-blocks.
#[inline(always)]
unsafe fn add_scaled<L: Lanes, F: Coded, const R: usize, const T: usize>(
    lanes: L,
    total: &mut [[L::Int; R]; T],
    dots: [[L::Int; R]; T],
    tiles: [*const u8; T],
    layout: &TileLayout,
    sub: usize,
) {
    for t in 0..T {
        // SAFETY: as the caller promises.
        let scale = unsafe { load_scale::<L, F>(lanes, tiles[t].add(layout.scales + sub * TILE_ROWS)) };
        for r in 0..R {
            total[t][r] = match const { F::SHORT } {
                true => lanes.mul_add_short(total[t][r], scale, dots[t][r]),
                false => lanes.mul_add(total[t][r], dots[t][r], scale),
            };
        }
    }
}

/// The integer scales of a sub-block.
///
/// # Safety
/// They are at `from`.
#[inline(always)]
pub(in crate::matmul) unsafe fn load_scale<L: Lanes, F: Coded>(lanes: L, from: *const u8) -> L::Int {
    // SAFETY: as the caller promises.
    unsafe {
        match F::CODES.scales {
            Scales::Signed => lanes.load_i8(from),
            Scales::Nibbles => lanes.and(lanes.load_u8(from), lanes.splat(15)),
            _ => lanes.load_u8(from),
        }
    }
}

/// The integer minima of a sub-block.
///
/// # Safety
/// As [`min_sums`].
#[inline(always)]
pub(in crate::matmul) unsafe fn load_min<L: Lanes, F: Coded>(
    lanes: L,
    tile: *const u8,
    layout: &TileLayout,
    sub: usize,
) -> L::Int {
    // SAFETY: as the caller promises.
    unsafe {
        match F::CODES.scales {
            Scales::Nibbles => lanes.shift_right(lanes.load_u8(tile.add(layout.scales + sub * TILE_ROWS)), 4),
            _ => lanes.load_u8(tile.add(layout.mins + sub * TILE_ROWS)),
        }
    }
}

/// The exact sums of one block, `Σ min · Σ code`.
///
/// # Safety
/// As [`dots`].
#[inline(always)]
pub(in crate::matmul) unsafe fn min_sums<L: Lanes, F: Coded, const R: usize, const T: usize>(
    lanes: L,
    tiles: [*const u8; T],
    layout: &TileLayout,
    x: Inputs,
    block: usize,
) -> [[L::Int; R]; T] {
    // SAFETY: all offsets follow from the block number and the layouts of tiles and panels.
    unsafe {
        if const { matches!(F::CODES.scales, Scales::None) } {
            let mut total = [lanes.splat(0); R];
            for r in 0..R {
                total[r] = lanes.splat(*x.sums.add(block * x.panel + r));
            }
            return [total; T];
        }
        let subs = F::BLOCK / F::CODES.sub_len;
        let sums = if const { F::CODES.sub_len == CHUNK } { x.sums } else { x.half_sums };
        let mut total = [[lanes.splat(0); R]; T];
        for sub in block * subs..(block + 1) * subs {
            let mut mins = [lanes.splat(0); T];
            for t in 0..T {
                mins[t] = load_min::<L, F>(lanes, tiles[t], layout, sub);
            }
            for r in 0..R {
                let sum = lanes.splat(*sums.add(sub * x.panel + r));
                for t in 0..T {
                    // A sum of 32 bytes with their signs has 13 bits.
                    total[t][r] = lanes.mul_add_short(total[t][r], mins[t], sum);
                }
            }
        }
        total
    }
}

/// Prefetches the part of the next tiles that corresponds to a chunk, a few lines at a time: while one group of
/// tiles is computed, all planes of the next one arrive.
#[inline(always)]
pub(in crate::matmul) fn prefetch_chunk<L: Lanes, F: Coded, const T: usize>(
    lanes: L,
    next: [*const u8; T],
    chunk: usize,
) {
    let bytes = F::CODES.tile_block_bytes() / F::CHUNKS;
    for tile in next {
        for line in 0..bytes.div_ceil(VECTOR) {
            lanes.prefetch(tile.wrapping_add(chunk * bytes + line * VECTOR));
        }
    }
}
