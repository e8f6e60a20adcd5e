//! Formats of small integers, which attention multiplies as integers.
//!
//! The quantised values of a tile are a matrix that is summed over its rows: for K a row is a dimension and a
//! column a position, for V a row is a position and a column a dimension. Several rows share a word, so that a
//! register of 16 columns holds pairs of rows, as a dot product of 16-bit pairs needs them.
//!
//! ```text
//! Q8        [rows / 2][columns] { 2 bytes }   bytes in order
//! Q4, Q4S   [rows / 8][columns] { 32 bits }   bits 4 i and 16 + 4 i: rows 2 i and 2 i + 1
//!
//! K tile   rows = head_dim, 16 columns, then   [groups of dimensions] scales
//! V tile   16 rows, columns = dims, then       [groups of dimensions] scales
//!
//! scales of Q8   [16 positions] f32                         groups of 512 dimensions: most head vectors are one
//! scales of Q4   [16 positions] scale, [16] minimum: bf16   groups of 32 dimensions
//! scales of Q4S  [16 positions] bf16                        groups of 512 dimensions
//! ```
//!
//! Vectors are stored [rotated](super::rotate). The dequantised element is `value * scale`, in Q4
//! `value * scale + minimum`. In Q4S the minimum is not stored: it is -8 scales.

use half::bf16;

use super::tile::{Place, Tile};
use super::{BLOCK_POSITIONS, factor_to, max_magnitude};
use crate::f32x16::{F32x16, LANES, ROUND};
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
    /// Bytes of a group's scales.
    const SCALES: usize;

    /// Computes the scales of a group and writes those of `position`; returns the quantiser of its elements.
    unsafe fn write_scales(scales: *mut u8, position: usize, numbers: &[f32]) -> Quantiser;
    /// Writes one quantised value.
    unsafe fn write(tile: *mut u8, columns: usize, row: usize, column: usize, value: i32);
    /// Copies the scales of one position of a group.
    unsafe fn copy_scales(from: Place<*const u8>, to: Place<*mut u8>);
    /// The lowest bit, in its word, of the quantised value of a row.
    fn shift(row: usize) -> u32;
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

/// A quantiser of the elements of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quantiser {
    min: f32,
    factor: f32,
    range: (f32, f32),
}

impl Quantiser {
    /// The quantised value of `x`.
    #[inline(always)]
    fn quantise(self, x: f32) -> i32 {
        // NaN becomes the minimum, never a value out of range.
        let value = ((x - self.min) * self.factor).max(self.range.0).min(self.range.1);
        (value + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32
    }
}

/// Bytes of a tile of either kind.
fn bytes<C: Quantised>(rows: usize, columns: usize, dims: usize) -> usize {
    rows.div_ceil(C::ROWS) * columns * C::WORD + groups::<C>(dims) * C::SCALES
}

/// Implements [`Tile`] for a quantised format.
macro_rules! quantised_tile {
    ($name:ident, words of $word:ty, values of $mask:literal) => {
        impl Tile for $name {
            const QUANTISED: bool = true;

            fn key_bytes(head_dim: usize) -> usize {
                bytes::<$name>(head_dim, BLOCK_POSITIONS, head_dim)
            }

            fn value_bytes(dims: usize) -> usize {
                bytes::<$name>(BLOCK_POSITIONS, dims, dims)
            }

            #[inline(always)]
            unsafe fn write_key(tile: *mut u8, position: usize, key: &[f32]) {
                let mut scales = scales_at::<$name>(tile, key.len(), BLOCK_POSITIONS).cast_mut();
                for (g, numbers) in key.chunks(<$name>::GROUP).enumerate() {
                    // SAFETY: the caller's promise; every dimension is a row, every position a column.
                    unsafe {
                        let quantiser = <$name>::write_scales(scales, position, numbers);
                        for (i, &x) in numbers.iter().enumerate() {
                            let row = g * <$name>::GROUP + i;
                            <$name>::write(tile, BLOCK_POSITIONS, row, position, quantiser.quantise(x));
                        }
                        scales = scales.add(<$name>::SCALES);
                    }
                }
            }

            #[inline(always)]
            unsafe fn write_value(tile: *mut u8, dims: usize, position: usize, value: &[f32]) {
                let mut scales = scales_at::<$name>(tile, BLOCK_POSITIONS, dims).cast_mut();
                for (g, numbers) in value.chunks(<$name>::GROUP).enumerate() {
                    // SAFETY: the caller's promise; every position is a row, every dimension a column.
                    unsafe {
                        let quantiser = <$name>::write_scales(scales, position, numbers);
                        for (i, &x) in numbers.iter().enumerate() {
                            let column = g * <$name>::GROUP + i;
                            <$name>::write(tile, dims, position, column, quantiser.quantise(x));
                        }
                        scales = scales.add(<$name>::SCALES);
                    }
                }
            }

            #[inline(always)]
            unsafe fn copy_key(from: Place<*const u8>, to: Place<*mut u8>, head_dim: usize) {
                let source = from.tile.cast::<$word>().wrapping_add(from.position);
                let target = to.tile.cast::<$word>().wrapping_add(to.position);
                for row in 0..head_dim.div_ceil(<$name>::ROWS) {
                    let at = row * BLOCK_POSITIONS;
                    // SAFETY: the caller's promise; all rows of a word belong to the position of its column.
                    unsafe { target.add(at).write_unaligned(source.add(at).read_unaligned()) };
                }
                // SAFETY: the caller's promise.
                unsafe { copy_all_scales::<$name>(from, to, [head_dim, BLOCK_POSITIONS], head_dim) };
            }

            #[inline(always)]
            unsafe fn copy_value(from: Place<*const u8>, to: Place<*mut u8>, dims: usize) {
                let word = |position: usize| position / <$name>::ROWS * dims;
                let source = from.tile.cast::<$word>().wrapping_add(word(from.position));
                let target = to.tile.cast::<$word>().wrapping_add(word(to.position));
                let [out, into] = [from.position, to.position].map(<$name>::shift);
                for column in 0..dims {
                    // SAFETY: the caller's promise. Other rows of the word keep their bits.
                    unsafe {
                        let value = <$word>::from_le(source.add(column).read_unaligned()) >> out & $mask;
                        let target = target.add(column);
                        let others = <$word>::from_le(target.read_unaligned()) & !($mask << into);
                        target.write_unaligned((others | value << into).to_le());
                    }
                }
                // SAFETY: the caller's promise.
                unsafe { copy_all_scales::<$name>(from, to, [BLOCK_POSITIONS, dims], dims) };
            }
        }
    };
}

/// Copies the scales of all groups of `dims` dimensions; tiles have `rows` and `columns`.
#[inline(always)]
unsafe fn copy_all_scales<C: Quantised>(
    from: Place<*const u8>,
    to: Place<*mut u8>,
    [rows, columns]: [usize; 2],
    dims: usize,
) {
    let source = scales_at::<C>(from.tile, rows, columns);
    let target = scales_at::<C>(to.tile, rows, columns).cast_mut();
    for group in 0..groups::<C>(dims) {
        let at = group * C::SCALES;
        let from = Place { tile: source.wrapping_add(at), ..from };
        // SAFETY: the caller's promise: both tiles have scales for every group.
        unsafe { C::copy_scales(from, Place { tile: target.wrapping_add(at), ..to }) };
    }
}

/// Symmetric 8-bit values; the maximum magnitude of a group becomes 127.
pub(crate) struct Q8;

quantised_tile!(Q8, words of u16, values of 0xff);

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

    #[inline(always)]
    unsafe fn write_scales(scales: *mut u8, position: usize, numbers: &[f32]) -> Quantiser {
        let max = max_magnitude(numbers);
        // SAFETY: the caller's promise.
        unsafe { scales.cast::<f32>().add(position).write_unaligned(max / 127.0) };
        let factor = factor_to(127.0, max);
        Quantiser { min: 0.0, factor, range: (-127.0, 127.0) }
    }

    #[inline(always)]
    unsafe fn write(tile: *mut u8, columns: usize, row: usize, column: usize, value: i32) {
        // SAFETY: the caller's promise.
        unsafe { tile.add((row / 2 * columns + column) * 2 + row % 2).write(value as u8) };
    }

    #[inline(always)]
    unsafe fn copy_scales(from: Place<*const u8>, to: Place<*mut u8>) {
        let (source, target) = (from.tile.cast::<f32>(), to.tile.cast::<f32>());
        // SAFETY: the caller's promise.
        unsafe { target.add(to.position).write_unaligned(source.add(from.position).read_unaligned()) };
    }

    #[inline(always)]
    fn shift(row: usize) -> u32 {
        8 * (row % 2) as u32
    }
}

/// 4-bit values in groups of 32 dimensions, each with a scale and a minimum.
pub(crate) struct Q4;

quantised_tile!(Q4, words of u32, values of 0xf);

impl Quantised for Q4 {
    const ROWS: usize = 8;
    const WORD: usize = 4;
    const GROUP: usize = 32;
    const HAS_MIN: bool = true;
    const SCALES: usize = 4 * BLOCK_POSITIONS;
    type Words<I: I32x16> = I::Word;

    #[inline(always)]
    unsafe fn words<I: I32x16>(from: *const u8) -> I::Word {
        // SAFETY: the caller's promise: 16 columns of four bytes.
        unsafe { I::load_word(from) }
    }

    #[inline(always)]
    fn pairs<I: I32x16>(words: I::Word, i: usize) -> I::Pairs {
        I::nibbles(words, i)
    }

    #[inline(always)]
    unsafe fn turn<I: I32x16>(from: *const u8, to: *mut u8, stride: usize) {
        let mut pairs = [[0_u8; 2 * LANES]; LANES / 2];
        for (w, pairs) in pairs.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            // SAFETY: the caller's promise: 16 columns of two words, in halves.
            let halves = unsafe { from.cast::<[u16; 2 * LANES]>().add(w).read_unaligned() };
            for (i, pairs) in pairs.iter_mut().enumerate() {
                for (value, half) in pairs.iter_mut().zip(halves) {
                    *value = (u16::from_le(half) >> (4 * i) & 15) as u8;
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { I::turn_bytes(pairs.as_ptr().cast(), to, stride) };
    }

    #[inline(always)]
    unsafe fn scale<L: F32x16>(scales: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_bf16(scales.cast()) }
    }

    #[inline(always)]
    unsafe fn min<L: F32x16>(scales: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_bf16(scales.add(2 * BLOCK_POSITIONS).cast()) }
    }

    #[inline(always)]
    unsafe fn write_scales(scales: *mut u8, position: usize, numbers: &[f32]) -> Quantiser {
        let min = bf16::from_f32(numbers.iter().copied().fold(f32::INFINITY, f32::min));
        let max = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // Uses scale and minimum as they are stored; rounding may have put the minimum above the maximum.
        let scale = bf16::from_f32(((max - min.to_f32()) / 15.0).max(0.0));
        // SAFETY: the caller's promise.
        unsafe {
            let scales = scales.cast::<u16>().add(position);
            scales.write_unaligned(scale.to_bits());
            scales.add(BLOCK_POSITIONS).write_unaligned(min.to_bits());
        }
        let scale = scale.to_f32();
        let factor = factor_to(1.0, scale);
        Quantiser { min: min.to_f32(), factor, range: (0.0, 15.0) }
    }

    #[inline(always)]
    unsafe fn write(tile: *mut u8, columns: usize, row: usize, column: usize, value: i32) {
        let word = tile.wrapping_add((row / 8 * columns + column) * 4).cast::<u32>();
        let shift = Q4::shift(row);
        // SAFETY: the caller's promise. Other rows of the word keep their bits.
        unsafe {
            let others = u32::from_le(word.read_unaligned()) & !(15 << shift);
            word.write_unaligned((others | (value as u32) << shift).to_le());
        }
    }

    #[inline(always)]
    unsafe fn copy_scales(from: Place<*const u8>, to: Place<*mut u8>) {
        let source = from.tile.cast::<u16>().wrapping_add(from.position);
        let target = to.tile.cast::<u16>().wrapping_add(to.position);
        for at in [0, BLOCK_POSITIONS] {
            // SAFETY: the caller's promise: the scale, and the minimum after all scales.
            unsafe { target.add(at).write_unaligned(source.add(at).read_unaligned()) };
        }
    }

    #[inline(always)]
    fn shift(row: usize) -> u32 {
        (4 * (row % 8 / 2) + 16 * (row % 2)) as u32
    }
}

/// Symmetric 4-bit values; the maximum magnitude of a head vector becomes 7.
pub(crate) struct Q4S;

quantised_tile!(Q4S, words of u32, values of 0xf);

/// The number that a stored 0 represents, in scales.
const ZERO: f32 = -8.0;

impl Quantised for Q4S {
    const ROWS: usize = Q4::ROWS;
    const WORD: usize = Q4::WORD;
    const GROUP: usize = Q8::GROUP;
    /// The words of Q4 are unsigned, so values are relative to the minimum.
    const HAS_MIN: bool = true;
    const SCALES: usize = 2 * BLOCK_POSITIONS;
    type Words<I: I32x16> = I::Word;

    #[inline(always)]
    unsafe fn words<I: I32x16>(from: *const u8) -> I::Word {
        // SAFETY: the caller's promise: 16 columns of a word as in Q4.
        unsafe { Q4::words::<I>(from) }
    }

    #[inline(always)]
    fn pairs<I: I32x16>(words: I::Word, i: usize) -> I::Pairs {
        Q4::pairs::<I>(words, i)
    }

    #[inline(always)]
    unsafe fn turn<I: I32x16>(from: *const u8, to: *mut u8, stride: usize) {
        // SAFETY: the caller's promise: words as in Q4.
        unsafe { Q4::turn::<I>(from, to, stride) };
    }

    #[inline(always)]
    unsafe fn scale<L: F32x16>(scales: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_bf16(scales.cast()) }
    }

    #[inline(always)]
    unsafe fn min<L: F32x16>(scales: *const u8) -> L {
        // SAFETY: the caller's promise, and the lanes are those of the machine.
        unsafe { Self::scale::<L>(scales).mul(L::splat(ZERO)) }
    }

    #[inline(always)]
    unsafe fn write_scales(scales: *mut u8, position: usize, numbers: &[f32]) -> Quantiser {
        let scale = bf16::from_f32(max_magnitude(numbers) / 7.0);
        // SAFETY: the caller's promise.
        unsafe { scales.cast::<u16>().add(position).write_unaligned(scale.to_bits()) };
        let scale = scale.to_f32();
        Quantiser { min: ZERO * scale, factor: factor_to(1.0, scale), range: (1.0, 15.0) }
    }

    #[inline(always)]
    unsafe fn write(tile: *mut u8, columns: usize, row: usize, column: usize, value: i32) {
        // SAFETY: the caller's promise: a word as in Q4.
        unsafe { Q4::write(tile, columns, row, column, value) };
    }

    #[inline(always)]
    unsafe fn copy_scales(from: Place<*const u8>, to: Place<*mut u8>) {
        let (source, target) = (from.tile.cast::<u16>(), to.tile.cast::<u16>());
        // SAFETY: the caller's promise.
        unsafe { target.add(to.position).write_unaligned(source.add(from.position).read_unaligned()) };
    }

    #[inline(always)]
    fn shift(row: usize) -> u32 {
        Q4::shift(row)
    }
}
