//! One format's tiles: the keys or the values of one block, layer and KV head.
//!
//! ```text
//! K tile  [head_dim][16 positions]     a row = one dimension: positions are the lanes
//! V tile  [16 positions][dims]         a row = one position: dimensions are the lanes
//! ```
//!
//! `dims` is the head dimension rounded up to whole lanes; the padding holds zeros.
//! `Q8` puts 16 f32 scales, one per position, behind the numbers. Everything that is stored for a
//! position depends on that position alone.

use half::{bf16, f16};

use super::{BLOCK_POSITIONS, KvFormat};
use crate::f32x16::F32x16;

/// Reads and writes the tiles of one format.
///
/// All pointers are to the start of a tile of this format, readable (writable) for its whole length;
/// `position < 16`, `d < head_dim` and `16 * vector < dims`. [`F32x16`] are those of the machine.
pub(crate) trait Tile {
    /// Whether the numbers of a position are to be multiplied by its scale.
    const SCALED: bool = false;
    /// Whether vectors are turned before they are stored: queries and results must be turned too.
    const ROTATED: bool = false;
    /// Dimensions of a key that are read with the same [`Tile::Group`].
    const GROUP: usize = usize::MAX;
    /// What the keys of one group of dimensions are read with.
    type Group<L: F32x16>: Copy;

    /// Bytes of a tile with `rows * 16` numbers.
    fn bytes(rows: usize) -> usize;

    /// What the group that holds dimension `d` is read with.
    unsafe fn key_group<L: F32x16>(tile: *const u8, head_dim: usize, d: usize) -> Self::Group<L>;
    /// Dimension `d` of the keys at 16 positions.
    unsafe fn key<L: F32x16>(tile: *const u8, group: Self::Group<L>, d: usize) -> L;
    /// 16 dimensions of the value at `position`.
    unsafe fn value<L: F32x16>(tile: *const u8, dims: usize, position: usize, vector: usize) -> L;
    /// Where [`Tile::key`] and [`Tile::value`] read.
    fn key_at(tile: *const u8, d: usize) -> *const u8;
    fn value_at(tile: *const u8, dims: usize, position: usize, vector: usize) -> *const u8;
    /// The scales of the 16 positions of a tile of `rows * 16` numbers, 1 in formats without.
    unsafe fn scales<L: F32x16>(_tile: *const u8, _rows: usize) -> L {
        // SAFETY: the lanes are those of the machine.
        unsafe { L::splat(1.0) }
    }

    unsafe fn write_key(tile: *mut u8, position: usize, key: &[f32]);
    unsafe fn write_value(tile: *mut u8, dims: usize, position: usize, value: &[f32]);
}

/// Calls `$body` with `$tile` naming the type of the tiles of a format.
macro_rules! with_tile {
    ($format:expr, $tile:ident => $body:expr) => {
        match $format {
            $crate::kv::KvFormat::F32 => {
                type $tile = $crate::kv::tile::F32;
                $body
            }
            $crate::kv::KvFormat::F16 => {
                type $tile = $crate::kv::tile::F16;
                $body
            }
            $crate::kv::KvFormat::Bf16 => {
                type $tile = $crate::kv::tile::Bf16;
                $body
            }
            $crate::kv::KvFormat::Q8 => {
                type $tile = $crate::kv::tile::Q8;
                $body
            }
            $crate::kv::KvFormat::Q4 => {
                type $tile = $crate::kv::q4::Q4;
                $body
            }
        }
    };
}
pub(crate) use with_tile;

/// Bytes of a tile of `rows * 16` numbers.
pub(crate) fn tile_bytes(format: KvFormat, rows: usize) -> usize {
    with_tile!(format, T => T::bytes(rows))
}

/// Whether a format stores turned vectors.
pub(crate) fn is_rotated(format: KvFormat) -> bool {
    with_tile!(format, T => T::ROTATED)
}

/// Numbers that are converted one by one: `T` in memory, `$load` into lanes, `$convert` from f32.
macro_rules! float_tile {
    ($name:ident, $number:ty, $load:ident, $convert:expr) => {
        pub(crate) struct $name;

        impl Tile for $name {
            type Group<L: F32x16> = ();

            #[inline(always)]
            unsafe fn key_group<L: F32x16>(_tile: *const u8, _head_dim: usize, _d: usize) {}

            fn bytes(rows: usize) -> usize {
                rows * BLOCK_POSITIONS * size_of::<$number>()
            }

            #[inline(always)]
            unsafe fn key<L: F32x16>(tile: *const u8, (): (), d: usize) -> L {
                // SAFETY: row `d` of the tile.
                unsafe { L::$load(Self::key_at(tile, d).cast()) }
            }

            #[inline(always)]
            fn key_at(tile: *const u8, d: usize) -> *const u8 {
                tile.cast::<$number>().wrapping_add(d * BLOCK_POSITIONS).cast()
            }

            #[inline(always)]
            fn value_at(tile: *const u8, dims: usize, position: usize, vector: usize) -> *const u8 {
                tile.cast::<$number>().wrapping_add(position * dims + 16 * vector).cast()
            }

            #[inline(always)]
            unsafe fn value<L: F32x16>(tile: *const u8, dims: usize, position: usize, vector: usize) -> L {
                // SAFETY: row `position` of the tile has `dims` numbers.
                unsafe { L::$load(Self::value_at(tile, dims, position, vector).cast()) }
            }

            unsafe fn write_key(tile: *mut u8, position: usize, key: &[f32]) {
                let column = tile.cast::<$number>().wrapping_add(position);
                for (d, &x) in key.iter().enumerate() {
                    // SAFETY: row `d`, lane `position` of the tile.
                    unsafe { column.add(d * BLOCK_POSITIONS).write($convert(x)) };
                }
            }

            unsafe fn write_value(tile: *mut u8, dims: usize, position: usize, value: &[f32]) {
                let row = tile.cast::<$number>().wrapping_add(position * dims);
                for d in 0..dims {
                    let x = value.get(d).copied().unwrap_or(0.0);
                    // SAFETY: row `position` of the tile has `dims` numbers.
                    unsafe { row.add(d).write($convert(x)) };
                }
            }
        }
    };
}

float_tile!(F32, f32, load, |x: f32| x);
float_tile!(F16, u16, load_f16, |x: f32| f16::from_f32(x).to_bits());
float_tile!(Bf16, u16, load_bf16, |x: f32| bf16::from_f32(x).to_bits());

/// Symmetric 8-bit numbers; a head vector's greatest magnitude becomes 127.
pub(crate) struct Q8;

impl Q8 {
    /// The scale of a head vector and the factor that turns its numbers into integers.
    fn scale(x: &[f32]) -> (f32, f32) {
        let greatest = x.iter().fold(0.0, |greatest: f32, x| greatest.max(x.abs()));
        let factor = if greatest > 0.0 { 127.0 / greatest } else { 0.0 };
        (greatest / 127.0, factor)
    }

    fn scales_at(tile: *const u8, rows: usize) -> *const f32 {
        tile.wrapping_add(rows * BLOCK_POSITIONS).cast()
    }
}

impl Tile for Q8 {
    const SCALED: bool = true;
    type Group<L: F32x16> = ();

    #[inline(always)]
    unsafe fn key_group<L: F32x16>(_tile: *const u8, _head_dim: usize, _d: usize) {}

    fn bytes(rows: usize) -> usize {
        rows * BLOCK_POSITIONS + BLOCK_POSITIONS * size_of::<f32>()
    }

    #[inline(always)]
    unsafe fn key<L: F32x16>(tile: *const u8, (): (), d: usize) -> L {
        // SAFETY: row `d` of the tile.
        unsafe { L::load_i8(Q8::key_at(tile, d).cast()) }
    }

    #[inline(always)]
    fn key_at(tile: *const u8, d: usize) -> *const u8 {
        tile.wrapping_add(d * BLOCK_POSITIONS)
    }

    #[inline(always)]
    fn value_at(tile: *const u8, dims: usize, position: usize, vector: usize) -> *const u8 {
        tile.wrapping_add(position * dims + 16 * vector)
    }

    #[inline(always)]
    unsafe fn value<L: F32x16>(tile: *const u8, dims: usize, position: usize, vector: usize) -> L {
        // SAFETY: row `position` of the tile has `dims` numbers.
        unsafe { L::load_i8(Q8::value_at(tile, dims, position, vector).cast()) }
    }

    #[inline(always)]
    unsafe fn scales<L: F32x16>(tile: *const u8, rows: usize) -> L {
        // SAFETY: the scales end the tile.
        unsafe { L::load(Q8::scales_at(tile, rows)) }
    }

    unsafe fn write_key(tile: *mut u8, position: usize, key: &[f32]) {
        let (scale, factor) = Q8::scale(key);
        for (d, &x) in key.iter().enumerate() {
            let number = (x * factor).round_ties_even() as i8;
            // SAFETY: row `d`, lane `position` of the tile.
            unsafe { tile.cast::<i8>().add(d * BLOCK_POSITIONS + position).write(number) };
        }
        // SAFETY: the scales end the tile.
        unsafe { Q8::scales_at(tile, key.len()).cast_mut().add(position).write(scale) };
    }

    unsafe fn write_value(tile: *mut u8, dims: usize, position: usize, value: &[f32]) {
        let (scale, factor) = Q8::scale(value);
        for d in 0..dims {
            let x = value.get(d).copied().unwrap_or(0.0);
            let number = (x * factor).round_ties_even() as i8;
            // SAFETY: row `position` of the tile has `dims` numbers.
            unsafe { tile.cast::<i8>().add(position * dims + d).write(number) };
        }
        // SAFETY: the scales end the tile.
        unsafe { Q8::scales_at(tile, dims).cast_mut().add(position).write(scale) };
    }
}
