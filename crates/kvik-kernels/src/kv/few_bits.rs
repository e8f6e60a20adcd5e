//! Formats of 3 to 6 bits a number, with one scale a head vector.
//!
//! ```text
//! word     8 rows of 16 columns: [16] { lower bits: LOW bytes } [16] { upper bits: HIGH bytes }
//! lower    LOW bits of each row: those of row 2 i at LOW i, those of row 2 i + 1 at 4 LOW + LOW i
//! upper    the same with HIGH
//! scales   [16 positions] { a small float: 1 byte }       groups of 512 dimensions: most head vectors are one
//! ```
//!
//! A value `c` of `b` bits stands for `(c - (2^b - 1) / 2) * scale`: as many steps below 0 as above, and none at 0,
//! since the numbers of a rotated vector are symmetric and few are near 0 in steps of the coarse formats.

use super::quantised::{Quantised, bytes, groups, scales_at};
use super::scale::Steps;
use super::tile::{Place, Tile};
use super::{BLOCK_POSITIONS, HEAD_DIM_MAX};
use crate::f32x16::{F32x16, LANES};
use crate::i32x16::I32x16;

/// Values of `LOW + HIGH` bits, of which the lower and the upper ones are stored apart.
pub(crate) struct FewBits<const LOW: usize, const HIGH: usize>;

pub(crate) type Q3 = FewBits<2, 1>;
pub(crate) type Q4 = FewBits<4, 0>;
pub(crate) type Q5 = FewBits<4, 1>;
pub(crate) type Q6 = FewBits<4, 2>;

/// Rows of a word.
const ROWS: usize = 8;

impl<const LOW: usize, const HIGH: usize> FewBits<LOW, HIGH> {
    const STEPS: Steps = Steps::of((LOW + HIGH) as u32);
    const LOW_MASK: u32 = (1 << LOW) - 1;

    /// The lower and the upper bits of `column` in the words at `from`, `rows` of which are below those of
    /// `columns` columns.
    #[inline(always)]
    fn places(tile: *const u8, columns: usize, word_row: usize, column: usize) -> [*const u8; 2] {
        let word = (word_row * columns + column / LANES * LANES) * Self::WORD;
        let (word, lane) = (tile.wrapping_add(word), column % LANES);
        [word.wrapping_add(lane * LOW), word.wrapping_add(LANES * LOW + lane * HIGH)]
    }

    /// The quantised values of `numbers`, a group whose scale for `position` is among `scales`.
    ///
    /// # Safety
    /// Scales of 16 positions are writable.
    #[inline(always)]
    unsafe fn quantise(scales: *mut u8, position: usize, numbers: &[f32], values: &mut [u32; HEAD_DIM_MAX]) {
        let (scale, factor) = Self::STEPS.best_scale(numbers);
        // SAFETY: the caller's promise.
        unsafe { scales.add(position).write(scale) };
        for (value, &x) in values.iter_mut().zip(numbers) {
            *value = Self::STEPS.quantise(x, factor);
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
        let source = scales_at::<Self>(from.tile, rows, columns).wrapping_add(from.position);
        let target = scales_at::<Self>(to.tile, rows, columns).cast_mut().wrapping_add(to.position);
        for group in 0..groups::<Self>(dims) {
            let at = group * Self::SCALES;
            // SAFETY: the caller's promise.
            unsafe { target.add(at).write(source.add(at).read()) };
        }
    }
}

/// The lowest bit of a row in its column of `bits` bits a row.
#[inline(always)]
const fn shift(bits: usize, row: usize) -> usize {
    bits * (row / 2) + 4 * bits * (row % 2)
}

/// Reads a column of `BITS` bits a row.
///
/// # Safety
/// `BITS` bytes are readable.
#[inline(always)]
unsafe fn read<const BITS: usize>(from: *const u8) -> u32 {
    let mut bytes = [0; 4];
    // SAFETY: the caller's promise; no format has more than 4 bits.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), BITS) };
    u32::from_le_bytes(bytes)
}

/// Writes a column of `BITS` bits a row.
///
/// # Safety
/// `BITS` bytes are writable.
#[inline(always)]
unsafe fn write<const BITS: usize>(to: *mut u8, column: u32) {
    // SAFETY: the caller's promise; no format has more than 4 bits.
    unsafe { std::ptr::copy_nonoverlapping(column.to_le_bytes().as_ptr(), to, BITS) };
}

/// Replaces the bits of a row in 16 columns of `BITS` bits a row.
///
/// # Safety
/// 16 columns are readable and writable.
#[inline(always)]
unsafe fn replace<const BITS: usize>(columns: *mut u8, row: usize, values: [u32; LANES]) {
    let (mask, shift) = ((1_u32 << BITS) - 1, shift(BITS, row));
    for (i, value) in values.into_iter().enumerate() {
        let column = columns.wrapping_add(i * BITS);
        // SAFETY: the caller's promise. Other rows of the column keep their bits.
        unsafe { write::<BITS>(column, read::<BITS>(column) & !(mask << shift) | (value & mask) << shift) };
    }
}

impl<const LOW: usize, const HIGH: usize> Tile for FewBits<LOW, HIGH> {
    const QUANTISED: bool = true;

    fn key_bytes(head_dim: usize) -> usize {
        bytes::<Self>(head_dim, BLOCK_POSITIONS, head_dim)
    }

    fn value_bytes(dims: usize) -> usize {
        bytes::<Self>(BLOCK_POSITIONS, dims, dims)
    }

    #[inline(always)]
    unsafe fn write_key(tile: *mut u8, position: usize, key: &[f32]) {
        let scales = scales_at::<Self>(tile, key.len(), BLOCK_POSITIONS).cast_mut();
        let mut values = [0; HEAD_DIM_MAX];
        for (g, numbers) in key.chunks(Self::GROUP).enumerate() {
            // SAFETY: the caller's promise; a word holds eight dimensions of 16 positions.
            unsafe {
                Self::quantise(scales.add(g * Self::SCALES), position, numbers, &mut values);
                for (word, values) in values[..numbers.len()].chunks(ROWS).enumerate() {
                    let (mut low, mut high) = (0, 0);
                    for (row, value) in values.iter().enumerate() {
                        low |= (value & Self::LOW_MASK) << shift(LOW, row);
                        high |= (value >> LOW) << shift(HIGH, row);
                    }
                    let word = g * (Self::GROUP / ROWS) + word;
                    let [lower, upper] = Self::places(tile, BLOCK_POSITIONS, word, position);
                    write::<LOW>(lower.cast_mut(), low);
                    write::<HIGH>(upper.cast_mut(), high);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn write_value(tile: *mut u8, dims: usize, position: usize, value: &[f32]) {
        let scales = scales_at::<Self>(tile, BLOCK_POSITIONS, dims).cast_mut();
        let mut values = [0; HEAD_DIM_MAX];
        for (g, numbers) in value.chunks(Self::GROUP).enumerate() {
            // SAFETY: the caller's promise; a word holds eight positions of 16 dimensions, and rows of a tile are
            // whole lanes, those after the last dimension of any value.
            unsafe {
                Self::quantise(scales.add(g * Self::SCALES), position, numbers, &mut values);
                for start in (0..numbers.len()).step_by(LANES) {
                    let column = g * Self::GROUP + start;
                    let [lower, upper] = Self::places(tile, dims, position / ROWS, column);
                    let lanes: [u32; LANES] = std::array::from_fn(|i| values[start + i]);
                    replace::<LOW>(lower.cast_mut(), position % ROWS, lanes);
                    if const { HIGH > 0 } {
                        replace::<HIGH>(upper.cast_mut(), position % ROWS, lanes.map(|value| value >> LOW));
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn copy_key(from: Place<*const u8>, to: Place<*mut u8>, head_dim: usize) {
        for word in 0..head_dim.div_ceil(ROWS) {
            let [lower, upper] = Self::places(from.tile, BLOCK_POSITIONS, word, from.position);
            let [to_lower, to_upper] = Self::places(to.tile, BLOCK_POSITIONS, word, to.position);
            // SAFETY: the caller's promise; all rows of a word belong to the position of its column.
            unsafe {
                write::<LOW>(to_lower.cast_mut(), read::<LOW>(lower));
                write::<HIGH>(to_upper.cast_mut(), read::<HIGH>(upper));
            }
        }
        // SAFETY: the caller's promise.
        unsafe { Self::copy_scales(from, to, [head_dim, BLOCK_POSITIONS], head_dim) };
    }

    #[inline(always)]
    unsafe fn copy_value(from: Place<*const u8>, to: Place<*mut u8>, dims: usize) {
        let [row, to_row] = [from.position, to.position].map(|position| position % ROWS);
        for column in (0..dims).step_by(LANES) {
            let [lower, upper] = Self::places(from.tile, dims, from.position / ROWS, column);
            let [to_lower, to_upper] = Self::places(to.tile, dims, to.position / ROWS, column);
            // SAFETY: the caller's promise: 16 columns of both tiles.
            unsafe {
                let of = |i: usize| read::<LOW>(lower.wrapping_add(i * LOW)) >> shift(LOW, row);
                replace::<LOW>(to_lower.cast_mut(), to_row, std::array::from_fn(of));
                if const { HIGH > 0 } {
                    let of = |i: usize| read::<HIGH>(upper.wrapping_add(i * HIGH)) >> shift(HIGH, row);
                    replace::<HIGH>(to_upper.cast_mut(), to_row, std::array::from_fn(of));
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { Self::copy_scales(from, to, [BLOCK_POSITIONS, dims], dims) };
    }
}

impl<const LOW: usize, const HIGH: usize> Quantised for FewBits<LOW, HIGH> {
    const ROWS: usize = ROWS;
    /// Eight rows of so many bits.
    const WORD: usize = LOW + HIGH;
    const GROUP: usize = 512;
    /// Stored values are unsigned, relative to the minimum; it follows from the scale.
    const HAS_MIN: bool = true;
    const SCALES: usize = BLOCK_POSITIONS;
    /// Lower and upper bits, the latter where they belong in a value.
    type Words<I: I32x16> = [I::Word; 2];

    #[inline(always)]
    unsafe fn words<I: I32x16>(from: *const u8) -> [I::Word; 2] {
        let upper = from.wrapping_add(LANES * LOW);
        // SAFETY: the caller's promise: 16 columns of LOW bytes, then of HIGH bytes.
        unsafe {
            let low = if const { LOW == 4 } { I::load_word(from) } else { I::load_halves(from, 0) };
            let high = match const { HIGH } {
                0 => low,
                1 => I::load_quarters(upper, LOW),
                _ => I::load_halves(upper, LOW),
            };
            [low, high]
        }
    }

    #[inline(always)]
    fn pairs<I: I32x16>([low, high]: [I::Word; 2], i: usize) -> I::Pairs {
        let lower = I::fields(low, LOW * i, Self::LOW_MASK as i16);
        if const { HIGH == 0 } {
            return lower;
        }
        I::join(lower, I::fields(high, HIGH * i, const { ((1 << HIGH) - 1) << LOW }))
    }

    #[inline(always)]
    unsafe fn turn<I: I32x16>(from: *const u8, to: *mut u8, stride: usize) {
        let mut pairs = [[0_u8; 2 * LANES]; LANES / 2];
        for (word, pairs) in pairs.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            for column in 0..LANES {
                let [lower, upper] = Self::places(from, LANES, word, column);
                // SAFETY: the caller's promise: 16 columns of two words.
                let (low, high) = unsafe { (read::<LOW>(lower), read::<HIGH>(upper)) };
                for row in 0..ROWS {
                    let low = low >> shift(LOW, row) & Self::LOW_MASK;
                    let high = high >> shift(HIGH, row) & const { (1 << HIGH) - 1 };
                    pairs[row / 2][2 * column + row % 2] = (low | high << LOW) as u8;
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { I::turn_bytes(pairs.as_ptr().cast(), to, stride) };
    }

    #[inline(always)]
    unsafe fn scale<L: F32x16>(scales: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_small(scales) }
    }

    #[inline(always)]
    unsafe fn min<L: F32x16>(scales: *const u8) -> L {
        // SAFETY: the caller's promise, and the lanes are those of the machine.
        unsafe { Self::scale::<L>(scales).mul(L::splat(const { Self::STEPS.min() })) }
    }
}
