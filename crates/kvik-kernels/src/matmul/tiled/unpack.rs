//! Weights unpacked for matrix units: signed bytes, `[groups of four columns][16 rows][4]`.

use super::super::formats::Coded;
use super::super::kernel::{group_codes, load_scale, prefetch_chunk};
use crate::lanes::Lanes;
use crate::matrix::{CHUNK, TILE_ROWS, TileLayout, VECTOR};
use crate::quant::Scales;

/// Writes the levels of a tile's chunk to `to` and prefetches the same chunk of the tile at `next`.
///
/// # Safety
/// The tile is one of weights of type `F` with that layout and the chunk; `to` has room for a byte per value.
#[inline(always)]
pub(super) unsafe fn chunk<L: Lanes, F: Coded>(
    lanes: L,
    tile: *const u8,
    layout: &TileLayout,
    chunk: usize,
    next: *const u8,
    to: *mut u8,
) {
    prefetch_chunk::<L, F, 1>(lanes, [next], chunk);
    macro_rules! groups {
        ($($group:literal)*) => {$(
            // SAFETY: as the caller promises; a group of the chunk is one vector.
            unsafe {
                let codes = group_codes::<L, F, $group>(lanes, tile, layout, chunk);
                let levels = lanes.as_float(levels::<L, F>(lanes, codes));
                lanes.store(levels, to.add($group * VECTOR).cast());
            }
        )*};
    }
    groups!(0 1 2 3 4 5 6 7);
}

/// Quantised values, or the levels that they index, minus their offset: signed bytes.
#[inline(always)]
fn levels<L: Lanes, F: Coded>(lanes: L, codes: L::Int) -> L::Int {
    const { assert!(!F::WIDE || F::CODES.offset == 128) };
    match (F::WIDE, F::CODES.offset) {
        (true, _) if L::UNSIGNED => lanes.xor(codes, bytes(lanes, 0x80)),
        // These kernels' values are already reduced by 128; the other types have no offset.
        (true, _) | (false, 0) => codes,
        (false, offset) => less(lanes, codes, offset),
    }
}

/// `byte` in every byte.
#[inline(always)]
fn bytes<L: Lanes>(lanes: L, byte: u8) -> L::Int {
    lanes.splat(i32::from_ne_bytes([byte; 4]))
}

/// Subtracts `by`, which is below 128, from bytes below 128: signed bytes.
#[inline(always)]
fn less<L: Lanes>(lanes: L, codes: L::Int, by: i32) -> L::Int {
    let by = lanes.splat(by * -0x0101_0101);
    // With the highest bit set, no byte borrows from the next.
    lanes.xor(lanes.add(lanes.or(codes, bytes(lanes, 0x80)), by), bytes(lanes, 0x80))
}

/// Added to a level times its scale, so that its bytes are split without a sign: 64 times 256 for the upper byte,
/// and half of 256 so that the lower byte is the distance to the nearest multiple of 256.
const ABOVE: i32 = 64 << 8 | 128;

/// Writes the levels of a chunk times their integer scales as `256 * upper + lower`, signed bytes: the upper
/// bytes to the first of `to`, the lower ones to the second.
///
/// # Safety
/// As [`chunk`], for each of `to`.
#[inline(always)]
pub(super) unsafe fn scaled_chunk<L: Lanes, F: Coded>(
    lanes: L,
    tile: *const u8,
    layout: &TileLayout,
    chunk: usize,
    next: *const u8,
    to: [*mut u8; 2],
) {
    const { assert!(matches!(F::CODES.scales, Scales::None) || (F::CODE_MAX as i32) * 128 < 64 << 8) };
    prefetch_chunk::<L, F, 1>(lanes, [next], chunk);
    macro_rules! groups {
        ($($group:literal)*) => {$(
            // SAFETY: as the caller promises; a group of the chunk is one vector, in one sub-block.
            unsafe {
                let sub = (chunk * CHUNK + $group * 4) / F::CODES.sub_len;
                let scale = load_scale::<L, F>(lanes, tile.add(layout.scales + sub * TILE_ROWS));
                let codes = group_codes::<L, F, $group>(lanes, tile, layout, chunk);
                let planes = scaled::<L, F>(lanes, codes, scale);
                for (plane, to) in planes.into_iter().zip(to) {
                    lanes.store(lanes.as_float(plane), to.add($group * VECTOR).cast());
                }
            }
        )*};
    }
    groups!(0 1 2 3 4 5 6 7);
}

/// Quantised values of a group, four in a lane, minus their offset and times the scale of the lane: upper and
/// lower bytes.
///
/// The halves of a lane compute two products at a time: the added constant makes each positive, so that neither
/// borrows from the other, and 32-bit sums are exact modulo 2^32.
#[inline(always)]
fn scaled<L: Lanes, F: Coded>(lanes: L, codes: L::Int, scale: L::Int) -> [L::Int; 2] {
    let (even, odd) = (lanes.splat(0x00ff_00ff), lanes.splat(0xff00_ff00u32 as i32));
    let offset = lanes.splat(F::CODES.offset * -0x0001_0001);
    let above = lanes.mul_add(lanes.splat(ABOVE * 0x0001_0001), offset, scale);
    let first = lanes.mul_add(above, lanes.and(codes, even), scale);
    let second = lanes.mul_add(above, lanes.and(lanes.shift_right(codes, 8), even), scale);
    let upper = lanes.or(lanes.and(lanes.shift_right(first, 8), even), lanes.and(second, odd));
    let lower = lanes.or(lanes.and(first, even), lanes.and(lanes.shift_left(second, 8), odd));
    [less(lanes, upper, 64), lanes.xor(lower, bytes(lanes, 0x80))]
}
