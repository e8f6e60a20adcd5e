//! Blocks of 32 values of 14 bits and a common half float, for half floats that are to be multiplied as integers.
//!
//! A product of two such values has 26 bits and the sum of a block 31, so 32-bit integers hold it exactly. The
//! error of a value is at most `max / 16,382` of its block; that of a half float is up to `|x| / 2,048`.

use half::f16;

/// The maximum quantised value: `32 * SHORT_MAX * SHORT_MAX` fits an `i32`.
pub(crate) const SHORT_MAX: i32 = (1 << 13) - 1;

/// Added to a float of small magnitude, rounds it to an integer, half to even, in the lowest bits.
pub(crate) const ROUNDER: f32 = 12_582_912.0;

/// The maximum magnitude; NaN counts as greater than infinity.
///
/// Compared as integers, which have the same order as magnitudes, because a maximum of floats is not vectorised.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.abs().to_bits());
    }
    f32::from_bits(largest)
}

/// A block: a value is `d * code / SHORT_MAX`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShortBlock {
    /// The maximum magnitude, rounded up.
    pub(crate) d: f16,
    pub(crate) codes: [i16; ShortBlock::LEN],
}

impl ShortBlock {
    /// Values per block.
    pub(crate) const LEN: usize = 32;
    /// Bytes per block: `d, codes`.
    pub(crate) const BYTES: usize = 2 + 2 * ShortBlock::LEN;

    /// Quantises `x`, `LEN` values, to the nearest values of a block.
    #[inline(always)]
    pub(super) fn quantize(x: &[f32]) -> ShortBlock {
        let d = at_least(largest(x));
        let inverse = if d == f16::ZERO { 0.0 } else { SHORT_MAX as f32 / d.to_f32() };
        let mut codes = [0; ShortBlock::LEN];
        for (code, x) in codes.iter_mut().zip(x) {
            *code = (x * inverse + ROUNDER).to_bits() as i16;
        }
        ShortBlock { d, codes }
    }

    /// Reads a block from `bytes`, `BYTES` of them.
    pub(crate) fn read(bytes: &[u8]) -> ShortBlock {
        let (halves, _) = bytes.as_chunks::<2>();
        ShortBlock {
            d: f16::from_le_bytes(halves[0]),
            codes: std::array::from_fn(|i| i16::from_le_bytes(halves[1 + i])),
        }
    }

    /// Writes the block in the format of `read`.
    #[inline(always)]
    pub(super) fn write(&self, bytes: &mut [u8]) {
        let (halves, _) = bytes.as_chunks_mut::<2>();
        halves[0] = self.d.to_le_bytes();
        for (half, code) in halves[1..].iter_mut().zip(self.codes) {
            *half = code.to_le_bytes();
        }
    }

    /// The value at `index`.
    pub(crate) fn value(&self, index: usize) -> f32 {
        self.d.to_f32() * f32::from(self.codes[index]) / SHORT_MAX as f32
    }
}

/// The smallest half float that is not below `x`, which is not negative.
fn at_least(x: f32) -> f16 {
    let near = f16::from_f32(x);
    if near.to_f32() < x { f16::from_bits(near.to_bits() + 1) } else { near }
}

/// Dequantises whole blocks.
pub(super) fn dequantize(raw: &[u8], out: &mut [f32]) {
    for (bytes, out) in raw.chunks_exact(ShortBlock::BYTES).zip(out.chunks_exact_mut(ShortBlock::LEN)) {
        let block = ShortBlock::read(bytes);
        out.iter_mut().enumerate().for_each(|(index, out)| *out = block.value(index));
    }
}
