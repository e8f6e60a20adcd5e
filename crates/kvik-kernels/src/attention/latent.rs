//! Values that are the first numbers of the keys (latent attention).
//!
//! In a K tile positions are the lanes, values are gathered by dimensions: tiles are turned once for all query rows of
//! a call, [`TILES`] at a time, as f32, and then weighed like stored values in [`floats`](super::floats). So values
//! in a format of floats have the same bits as if they were stored beside the keys in that format.
//!
//! Quantised keys are rotated, and a part of a vector is rotated apart from others
//! ([`rotated_together`]): values are gathered as they are stored, up to whole
//! parts, and what was gathered is rotated back once, at the end.

use super::SPLIT_BLOCKS;
use super::floats::add_values;
use super::kernel::{TILES, ValueCall, divide};
use crate::f32x16::F32x16;
use crate::i32x16::I32x16;
use crate::kv::quantised::Quantised;
use crate::kv::read::{float_keys, rotated_keys};
use crate::kv::rotate::{rotate, rotated_together};
use crate::kv::tile::{F32, FloatTile, Tile};
use crate::kv::{BLOCK_POSITIONS, KvLayer};

/// Bytes of the room that a call needs for turned tiles.
pub(super) fn room_bytes(layer: &KvLayer) -> usize {
    TILES * BLOCK_POSITIONS * layer.value_lanes() * size_of::<f32>()
}

/// Weighted values of keys that are stored as floats.
///
/// # Safety
/// See [`AttentionKernels`](super::kernel::AttentionKernels); inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn float_values<L: F32x16, T: FloatTile>(call: &ValueCall<'_>) {
    let count = call.dims.min(call.key_dim);
    // SAFETY: keys have `count` dimensions.
    unsafe { values::<L>(call, |tile, to| float_keys::<L, T>(tile, tile, count, to)) };
}

/// Weighted values of quantised keys, still rotated.
///
/// # Safety
/// As [`float_values`], with the features of `I`.
#[inline(always)]
pub(crate) unsafe fn quantised_values<I: I32x16, C: Quantised>(call: &ValueCall<'_>) {
    // SAFETY: the tiles are those of keys of `key_dim`.
    unsafe { values::<I::Floats>(call, |tile, to| rotated_keys::<I, C>(tile, call.key_dim, call.dims, to)) };
}

/// Weighted values of the tiles that `turn` turns to `[16 positions][dims]`.
///
/// # Safety
/// As [`float_values`]; the room of the call is that of [`room_bytes`].
#[inline(always)]
unsafe fn values<L: F32x16>(call: &ValueCall<'_>, turn: impl Fn(*const u8, &mut [f32])) {
    let tile_len = BLOCK_POSITIONS * call.dims;
    let room = |tile: usize| call.room.cast::<f32>().wrapping_add(tile % TILES * tile_len);
    let turned: [*const u8; SPLIT_BLOCKS] = std::array::from_fn(|tile| room(tile).cast_const().cast());
    let ValueCall { p, seen, dims, key_dim, room: own, out, .. } = *call;
    let weighed = ValueCall { p, seen, tiles: &turned[..call.tiles.len()], dims, key_dim, room: own, out };
    // SAFETY: the room has place for so many tiles, the results for `dims` numbers of each query row, and a tile is
    // turned before it is weighed.
    unsafe {
        std::slice::from_raw_parts_mut(out, seen.len() * dims).fill(0.0);
        for start in (0..call.tiles.len()).step_by(TILES) {
            for tile in start..call.tiles.len().min(start + TILES) {
                turn(call.tiles[tile], std::slice::from_raw_parts_mut(room(tile), tile_len));
            }
            add_values::<L, F32>(&weighed, start * BLOCK_POSITIONS..(start + TILES) * BLOCK_POSITIONS);
        }
    }
}

/// Divides `[dims]` by the sum, and rotates it back if it is the beginning of rotated keys of `key_dim`.
///
/// # Safety
/// As [`kernel::finish`](super::kernel::finish).
#[inline(always)]
pub(crate) unsafe fn finish<L: F32x16, T: Tile>(out: &mut [f32], l: f32, key_dim: usize) {
    // SAFETY: the caller's promise.
    unsafe { divide::<L>(out, l) };
    if T::QUANTISED {
        // A loop, not a closure: only what is inlined is compiled for the machine's registers.
        for together in out.chunks_exact_mut(rotated_together(key_dim)) {
            rotate(together);
        }
    }
}
