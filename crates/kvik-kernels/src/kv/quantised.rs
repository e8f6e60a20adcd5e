//! Formats of small integers, which attention multiplies as integers.
//!
//! The quantised values of a tile are a matrix that is summed over its rows: for K a row is a dimension and a
//! column a position, for V a row is a position and a column a dimension. Several rows share a word, so that a
//! register of 16 columns holds pairs of rows, as a dot product of 16-bit pairs needs them.
//!
//! ```text
//! Q8        [rows / 2][columns] { 2 bytes }   bytes in order
//! Q3 to Q6  [rows / 8][columns / 16] { 16 columns of eight rows }   see `few_bits`
//!
//! K tile   rows = head_dim, 16 columns, then   [groups of dimensions] scales
//! V tile   16 rows, columns = dims, then       [groups of dimensions] scales
//!
//! scales of Q8        [16 positions] f32      groups of 512 dimensions: most head vectors are one
//! scales of the rest  [16 positions] a byte   the same groups
//! ```
//!
//! Vectors are stored [rotated](super::rotate). The dequantised element is `value * scale`, in formats of few bits
//! `value * scale + minimum`, where the minimum follows from the scale.

use super::tile::{Place, Tile};
use super::{BLOCK_POSITIONS, factor_to, max_magnitude};
use crate::f32x16::{F32x16, ROUND};
use crate::i32x16::I32x16;

/// Reading of the quantised values of one format; pointers as in [`Tile`].
pub(crate) trait Quantised: Tile {
    /// Rows that share a word.
    const ROWS: usize;
    /// Bytes of a word: one column of those rows.
    const WORD: usize;
    /// Dimensions that share scales.
    const GROUP: usize;
    /// Whether a group has a minimum.
    const HAS_MIN: bool;
    /// Bytes of a group's scales.
    const SCALES: usize;
    /// 16 columns of a word in registers.
    type Words<I: I32x16>: Copy;

    unsafe fn words<I: I32x16>(from: *const u8) -> Self::Words<I>;
    /// Rows `2 i` and `2 i + 1` of the words.
    fn pairs<I: I32x16>(words: Self::Words<I>, i: usize) -> I::Pairs;
    /// Transposes words of 16 rows and 16 columns to words of [`Q8`], as [`I32x16::turn_bytes`] does.
    unsafe fn turn<I: I32x16>(from: *const u8, to: *mut u8, stride: usize);
    /// The scales of 16 positions at `scales`.
    unsafe fn scale<L: F32x16>(scales: *const u8) -> L;
    /// The minima of 16 positions; 0 in formats without minima.
    unsafe fn min<L: F32x16>(scales: *const u8) -> L;
}

/// Number of groups of `dims` dimensions.
pub(crate) fn groups<C: Quantised>(dims: usize) -> usize {
    dims.div_ceil(C::GROUP)
}

/// Start of the scales of a tile.
#[inline(always)]
pub(crate) fn scales_at<C: Quantised>(tile: *const u8, rows: usize, columns: usize) -> *const u8 {
    tile.wrapping_add(rows.div_ceil(C::ROWS) * columns * C::WORD)
}

/// Bytes of a tile of either kind.
pub(super) fn bytes<C: Quantised>(rows: usize, columns: usize, dims: usize) -> usize {
    rows.div_ceil(C::ROWS) * columns * C::WORD + groups::<C>(dims) * C::SCALES
}

/// Symmetric 8-bit values; the maximum magnitude of a group becomes 127.
pub(crate) struct Q8;

/// The value that the maximum magnitude of a group becomes.
const MAGNITUDE_MAX: f32 = 127.0;

impl Q8 {
    /// The place of a value in a tile of `columns` columns.
    #[inline(always)]
    fn place(tile: *const u8, columns: usize, row: usize, column: usize) -> *const u8 {
        tile.wrapping_add((row / 2 * columns + column) * 2 + row % 2)
    }

    /// Writes the scales of a vector and its values, element `i` where `place(i)` says.
    ///
    /// # Safety
    /// The scales of its groups at `scales` and all places are writable.
    #[inline(always)]
    unsafe fn write(scales: *mut u8, position: usize, vector: &[f32], place: impl Fn(usize) -> *const u8) {
        for (g, numbers) in vector.chunks(Q8::GROUP).enumerate() {
            let max = max_magnitude(numbers);
            let factor = factor_to(MAGNITUDE_MAX, max);
            let scale = scales.wrapping_add(g * Q8::SCALES).cast::<f32>().wrapping_add(position);
            // SAFETY: the caller's promise.
            unsafe { scale.write_unaligned(max / MAGNITUDE_MAX) };
            for (i, &x) in numbers.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { place(g * Q8::GROUP + i).cast_mut().write(quantise(x * factor)) };
            }
        }
    }

    /// Copies the scales of all groups of `dims` dimensions; tiles have `rows` and `columns`.
    ///
    /// # Safety
    /// Both tiles have scales for every group.
    #[inline(always)]
    unsafe fn copy_scales(
        from: Place<*const u8>,
        to: Place<*mut u8>,
        [rows, columns]: [usize; 2],
        dims: usize,
    ) {
        let source = scales_at::<Q8>(from.tile, rows, columns).cast::<f32>().wrapping_add(from.position);
        let target = scales_at::<Q8>(to.tile, rows, columns).cast::<f32>().wrapping_add(to.position);
        for group in 0..groups::<Q8>(dims) {
            let at = group * BLOCK_POSITIONS;
            // SAFETY: the caller's promise.
            unsafe { target.cast_mut().add(at).write_unaligned(source.add(at).read_unaligned()) };
        }
    }
}

/// `x` in steps, rounded half to even. NaN becomes the minimum, never a value out of range.
#[expect(clippy::manual_clamp, reason = "clamp keeps NaN")]
#[inline(always)]
fn quantise(x: f32) -> u8 {
    let value = x.max(-MAGNITUDE_MAX).min(MAGNITUDE_MAX);
    (value + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as u8
}

impl Tile for Q8 {
    const QUANTISED: bool = true;

    fn key_bytes(head_dim: usize) -> usize {
        bytes::<Q8>(head_dim, BLOCK_POSITIONS, head_dim)
    }

    fn value_bytes(dims: usize) -> usize {
        bytes::<Q8>(BLOCK_POSITIONS, dims, dims)
    }

    #[inline(always)]
    unsafe fn write_key(tile: *mut u8, position: usize, key: &[f32]) {
        let scales = scales_at::<Q8>(tile, key.len(), BLOCK_POSITIONS).cast_mut();
        let place = |row: usize| Q8::place(tile, BLOCK_POSITIONS, row, position);
        // SAFETY: the caller's promise; every dimension is a row, every position a column.
        unsafe { Q8::write(scales, position, key, place) };
    }

    #[inline(always)]
    unsafe fn write_value(tile: *mut u8, dims: usize, position: usize, value: &[f32]) {
        let scales = scales_at::<Q8>(tile, BLOCK_POSITIONS, dims).cast_mut();
        let place = |column: usize| Q8::place(tile, dims, position, column);
        // SAFETY: the caller's promise; every position is a row, every dimension a column.
        unsafe { Q8::write(scales, position, value, place) };
    }

    #[inline(always)]
    unsafe fn copy_key(from: Place<*const u8>, to: Place<*mut u8>, head_dim: usize) {
        let source = from.tile.cast::<[u8; 2]>().wrapping_add(from.position);
        let target = to.tile.cast::<[u8; 2]>().wrapping_add(to.position);
        for row in 0..head_dim.div_ceil(2) {
            let at = row * BLOCK_POSITIONS;
            // SAFETY: the caller's promise; both rows of a word belong to the position of its column.
            unsafe { target.add(at).write(source.add(at).read()) };
        }
        // SAFETY: the caller's promise.
        unsafe { Q8::copy_scales(from, to, [head_dim, BLOCK_POSITIONS], head_dim) };
    }

    #[inline(always)]
    unsafe fn copy_value(from: Place<*const u8>, to: Place<*mut u8>, dims: usize) {
        let source = Q8::place(from.tile, dims, from.position, 0);
        let target = Q8::place(to.tile, dims, to.position, 0).cast_mut();
        for column in 0..dims {
            // SAFETY: the caller's promise: a byte of each column belongs to the position.
            unsafe { target.add(2 * column).write(source.add(2 * column).read()) };
        }
        // SAFETY: the caller's promise.
        unsafe { Q8::copy_scales(from, to, [BLOCK_POSITIONS, dims], dims) };
    }
}

impl Quantised for Q8 {
    const ROWS: usize = 2;
    const WORD: usize = 2;
    /// The maximum that [`I32x16`] can sum: all dimensions of most heads.
    const GROUP: usize = 512;
    const HAS_MIN: bool = false;
    const SCALES: usize = 4 * BLOCK_POSITIONS;
    type Words<I: I32x16> = I::Pairs;

    #[inline(always)]
    unsafe fn words<I: I32x16>(from: *const u8) -> I::Pairs {
        // SAFETY: the caller's promise: 16 columns of two bytes.
        unsafe { I::load_bytes(from.cast()) }
    }

    #[inline(always)]
    fn pairs<I: I32x16>(words: I::Pairs, _i: usize) -> I::Pairs {
        words
    }

    #[inline(always)]
    unsafe fn turn<I: I32x16>(from: *const u8, to: *mut u8, stride: usize) {
        // SAFETY: the caller's promise.
        unsafe { I::turn_bytes(from, to, stride) };
    }

    #[inline(always)]
    unsafe fn scale<L: F32x16>(scales: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(scales.cast()) }
    }

    #[inline(always)]
    unsafe fn min<L: F32x16>(_scales: *const u8) -> L {
        // SAFETY: the lanes are those of the machine.
        unsafe { L::splat(0.0) }
    }
}
