//! Values that are a prefix of the keys (latent attention).
//!
//! In a K tile the lanes are positions, but values are summed by dimensions: tiles are transposed once for all
//! query rows of a call, [`TILES`] at a time, and then weighted like stored values: floats as f32 in
//! [`floats`](super::floats), quantised values as integers in [`quantised`], in the word format of [`Q8`] for all
//! formats and with the scales of their keys. So values have the same bits as if they were stored separately in
//! that format; for quantised values this holds only if they are whole keys, which are rotated as a whole.
//!
//! Quantised keys are rotated, each part of a vector separately ([`rotated_together`]): values are summed as they
//! are stored, up to whole parts, and the result is rotated back once, at the end.

use std::ops::Range;

use super::kernel::{TILES, ValueCall, divide};
use super::{SPLIT_BLOCKS, quantised};
use crate::f32x16::{F32x16, LANES};
use crate::i32x16::I32x16;
use crate::kv::quantised::{Q8, Quantised, scales_at};
use crate::kv::read::float_keys;
use crate::kv::rotate::{rotate, rotated_together};
use crate::kv::tile::{F32, FloatTile, Tile};
use crate::kv::tiles::is_rotated;
use crate::kv::{BLOCK_POSITIONS, KvLayer, KvValues};

/// Bytes of a call's buffer for transposed tiles.
pub(super) fn turned_bytes(layer: &KvLayer) -> usize {
    let dims = layer.value_lanes();
    match layer.values {
        KvValues::Stored => 0,
        KvValues::OfKeys if is_rotated(layer.k) => TILES * quantised_bytes(dims),
        KvValues::OfKeys => TILES * F32::value_bytes(dims),
    }
}

/// Bytes of a transposed tile of quantised values: a V tile without scales.
fn quantised_bytes(dims: usize) -> usize {
    scales_at::<Q8>(std::ptr::null(), BLOCK_POSITIONS, dims).addr()
}

/// Weighted values of keys that are stored as floats; `add` adds the values of some positions of transposed
/// tiles, see [`add_values`](super::floats::add_values).
///
/// # Safety
/// See [`AttentionKernels`](super::kernel::AttentionKernels); inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn float_values<L: F32x16, T: FloatTile>(
    call: &ValueCall<'_>,
    add: unsafe fn(&ValueCall<'_>, Range<usize>),
) {
    let (count, tile_len) = (call.dims.min(call.key_dim), BLOCK_POSITIONS * call.dims);
    // SAFETY: keys have `count` dimensions; a transposed tile and the results have `dims` numbers in a row.
    unsafe {
        std::slice::from_raw_parts_mut(call.out, call.seen.len() * call.dims).fill(0.0);
        each_turned(
            call,
            F32::value_bytes(call.dims),
            #[inline(always)]
            |tile, to| {
                let to = std::slice::from_raw_parts_mut(to.cast(), tile_len);
                float_keys::<L, T>(tile, tile, count, to);
            },
            #[inline(always)]
            |turned, tiles| {
                let positions = tiles.start * BLOCK_POSITIONS..tiles.end * BLOCK_POSITIONS;
                add(turned, positions);
            },
        );
    }
}

/// Weighted values of quantised keys, still rotated.
///
/// # Safety
/// As [`float_values`], with the features of `I`.
#[inline(always)]
pub(crate) unsafe fn quantised_values<I: I32x16, C: Quantised>(call: &ValueCall<'_>) {
    // SAFETY: the tiles are those of keys of `key_dim`, transposed ones hold as many words as `dims` take.
    unsafe {
        quantised::begin_values::<I, C>(call, [call.key_dim, BLOCK_POSITIONS]);
        each_turned(
            call,
            quantised_bytes(call.dims),
            #[inline(always)]
            |tile, to| turn::<I, C>(tile, call.key_dim, call.dims, to),
            #[inline(always)]
            |turned, tiles| quantised::add_values::<I, Q8, C>(turned, 0, tiles),
        );
        quantised::finish_values::<I, C>(call);
    }
}

/// Transposes the tiles of a call, [`TILES`] at a time: `turn` receives a tile and its destination, and `add` a
/// call with the transposed tiles and their index range.
#[inline(always)]
fn each_turned(
    call: &ValueCall<'_>,
    tile_bytes: usize,
    turn: impl Fn(*const u8, *mut u8),
    add: impl Fn(&ValueCall<'_>, Range<usize>),
) {
    let place = |tile: usize| call.turned.wrapping_add(tile % TILES * tile_bytes);
    let turned: [*const u8; SPLIT_BLOCKS] = std::array::from_fn(|tile| place(tile).cast_const());
    let turned = ValueCall { tiles: &turned[..call.tiles.len()], ..*call };
    for start in (0..call.tiles.len()).step_by(TILES) {
        let tiles = start..call.tiles.len().min(start + TILES);
        for tile in tiles.clone() {
            turn(call.tiles[tile], place(tile));
        }
        add(&turned, tiles);
    }
}

/// Transposes the first `dims` dimensions of a K tile to a V tile in words of [`Q8`]; lanes past the end of
/// keys are 0.
///
/// # Safety
/// `tile` is a K tile of `key_dim` dimensions, `to` has room for `dims`, which are whole lanes and at most as
/// many as hold a key; inlined into a function with the features of `I`.
#[inline(always)]
unsafe fn turn<I: I32x16, C: Quantised>(tile: *const u8, key_dim: usize, dims: usize, to: *mut u8) {
    let lanes_bytes = LANES / C::ROWS * BLOCK_POSITIONS * C::WORD;
    let stride = Q8::WORD * dims;
    for (i, start) in (0..dims).step_by(LANES).enumerate() {
        let from = tile.wrapping_add(i * lanes_bytes);
        let to = to.wrapping_add(Q8::WORD * start);
        let stored = scales_at::<C>(tile, key_dim, BLOCK_POSITIONS).addr() - from.addr();
        // SAFETY: as the caller promises; `stored` bytes of words follow `from`.
        unsafe {
            if stored < lanes_bytes {
                let mut words = [0; LANES * BLOCK_POSITIONS];
                std::ptr::copy_nonoverlapping(from, words.as_mut_ptr(), stored);
                C::turn::<I>(words.as_ptr(), to, stride);
            } else {
                C::turn::<I>(from, to, stride);
            }
        }
    }
}

/// Divides `[dims]` by the sum, and rotates it back if it is a prefix of rotated keys of `key_dim`.
///
/// # Safety
/// As [`kernel::finish`](super::kernel::finish).
#[inline(always)]
pub(crate) unsafe fn finish<L: F32x16, const ROTATED: bool>(out: &mut [f32], l: f32, key_dim: usize) {
    // SAFETY: the caller's promise.
    unsafe { divide::<L>(out, l) };
    if ROTATED {
        // A loop, not a closure: only inlined code is compiled for the machine's registers.
        for together in out.chunks_exact_mut(rotated_together(key_dim)) {
            rotate(together);
        }
    }
}
