//! The tiles of a format: the keys or the values of one block, layer and KV head.
//!
//! ```text
//! K tile  [head_dim][16 positions]     a row = one dimension: positions are the lanes
//! V tile  [16 positions][dims]         a row = one position: dimensions are the lanes
//! ```
//!
//! `dims` is the head dimension rounded up to whole lanes; padding does not influence any result.
//! Floats are stored as drawn; [`quantised`](super::quantised) packs several rows together.
//! The stored bytes of a position depend on that position alone.

use half::{bf16, f16};

use super::BLOCK_POSITIONS;
use crate::f32x16::F32x16;

/// The tiles of one format.
///
/// All pointers are to the start of a tile of this format, readable (writable) for its whole length;
/// `position < 16`, `d < head_dim` and `16 * vector < dims`. [`F32x16`] are those of the machine.
pub(crate) trait Tile {
    /// Whether numbers are stored as [`quantised`](super::quantised) rotated vectors: queries and results
    /// must be rotated too.
    const QUANTISED: bool;

    /// Bytes of a K tile.
    fn key_bytes(head_dim: usize) -> usize;
    /// Bytes of a V tile.
    fn value_bytes(dims: usize) -> usize;
    unsafe fn write_key(tile: *mut u8, position: usize, key: &[f32]);
    unsafe fn write_value(tile: *mut u8, dims: usize, position: usize, value: &[f32]);
    /// Copies one position to another tile; the target's other positions stay unchanged.
    unsafe fn copy_key(from: Place<*const u8>, to: Place<*mut u8>, head_dim: usize);
    unsafe fn copy_value(from: Place<*const u8>, to: Place<*mut u8>, dims: usize);
}

/// A position in a tile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<P> {
    pub tile: P,
    pub position: usize,
}

/// Reading of the tiles of a float format; pointers as in [`Tile`].
pub(crate) trait FloatTile: Tile {
    /// Dimension `d` of the keys at 16 positions.
    unsafe fn key<L: F32x16>(tile: *const u8, d: usize) -> L;
    /// 16 dimensions of the value at `position`.
    unsafe fn value<L: F32x16>(tile: *const u8, dims: usize, position: usize, vector: usize) -> L;
    /// The address that [`FloatTile::key`] and [`FloatTile::value`] read.
    fn key_at(tile: *const u8, d: usize) -> *const u8;
    fn value_at(tile: *const u8, dims: usize, position: usize, vector: usize) -> *const u8;
}

/// Implements a format of separate elements: `T` in memory, `$load` into lanes, `$convert` from f32.
macro_rules! float_tile {
    ($name:ident, $number:ty, $load:ident, $convert:expr) => {
        pub(crate) struct $name;

        impl Tile for $name {
            const QUANTISED: bool = false;

            fn key_bytes(head_dim: usize) -> usize {
                head_dim * BLOCK_POSITIONS * size_of::<$number>()
            }

            fn value_bytes(dims: usize) -> usize {
                dims * BLOCK_POSITIONS * size_of::<$number>()
            }

            #[inline(always)]
            unsafe fn write_key(tile: *mut u8, position: usize, key: &[f32]) {
                let column = tile.cast::<$number>().wrapping_add(position);
                for (d, &x) in key.iter().enumerate() {
                    // SAFETY: row `d`, lane `position` of the tile.
                    unsafe { column.add(d * BLOCK_POSITIONS).write($convert(x)) };
                }
            }

            #[inline(always)]
            unsafe fn write_value(tile: *mut u8, dims: usize, position: usize, value: &[f32]) {
                let row = tile.cast::<$number>().wrapping_add(position * dims);
                for d in 0..dims {
                    let x = value.get(d).copied().unwrap_or(0.0);
                    // SAFETY: row `position` of the tile has `dims` numbers.
                    unsafe { row.add(d).write($convert(x)) };
                }
            }

            #[inline(always)]
            unsafe fn copy_key(from: Place<*const u8>, to: Place<*mut u8>, head_dim: usize) {
                let source = from.tile.cast::<$number>().wrapping_add(from.position);
                let target = to.tile.cast::<$number>().wrapping_add(to.position);
                for d in 0..head_dim {
                    // SAFETY: row `d` of both tiles, lane `position`.
                    unsafe { target.add(d * BLOCK_POSITIONS).write(source.add(d * BLOCK_POSITIONS).read()) };
                }
            }

            #[inline(always)]
            unsafe fn copy_value(from: Place<*const u8>, to: Place<*mut u8>, dims: usize) {
                let source = from.tile.cast::<$number>().wrapping_add(from.position * dims);
                let target = to.tile.cast::<$number>().wrapping_add(to.position * dims);
                // SAFETY: row `position` of both tiles, which are different ones, has `dims` numbers.
                unsafe { std::ptr::copy_nonoverlapping(source, target, dims) };
            }
        }

        impl FloatTile for $name {
            #[inline(always)]
            unsafe fn key<L: F32x16>(tile: *const u8, d: usize) -> L {
                // SAFETY: row `d` of the tile.
                unsafe { L::$load(Self::key_at(tile, d).cast()) }
            }

            #[inline(always)]
            unsafe fn value<L: F32x16>(tile: *const u8, dims: usize, position: usize, vector: usize) -> L {
                // SAFETY: row `position` of the tile has `dims` numbers.
                unsafe { L::$load(Self::value_at(tile, dims, position, vector).cast()) }
            }

            #[inline(always)]
            fn key_at(tile: *const u8, d: usize) -> *const u8 {
                tile.cast::<$number>().wrapping_add(d * BLOCK_POSITIONS).cast()
            }

            #[inline(always)]
            fn value_at(tile: *const u8, dims: usize, position: usize, vector: usize) -> *const u8 {
                tile.cast::<$number>().wrapping_add(position * dims + 16 * vector).cast()
            }
        }
    };
}

float_tile!(F32, f32, load, |x: f32| x);
float_tile!(F16, u16, load_f16, |x: f32| f16::from_f32(x).to_bits());
float_tile!(Bf16, u16, load_bf16, |x: f32| bf16::from_f32(x).to_bits());
