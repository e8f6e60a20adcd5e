//! A quantised block of a file, split into quantised values, integer scales and the two half floats.

use half::f16;

use super::WeightType;
use crate::u32x16::Bits;

/// A block of any quantised type. Types of 32 values use the first 32 of `codes`.
///
/// `m` is *added*: K-quants, which subtract `dmin`, store its negative.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) codes: [u8; 256],
    pub(crate) scales: [i8; 16],
    pub(crate) mins: [u8; 16],
    pub(crate) d: f16,
    pub(crate) m: f16,
    /// Replaces `d` in types with exponents.
    pub(crate) exponent: u8,
}

impl Default for Block {
    fn default() -> Block {
        Block { codes: [0; 256], scales: [1; 16], mins: [1; 16], d: f16::ZERO, m: f16::ZERO, exponent: 0 }
    }
}

impl Block {
    /// Reads a block from `bytes`, exactly `ty.block_bytes()`.
    pub(crate) fn read(&mut self, ty: WeightType, bytes: &[u8]) {
        self.read_units(ty, bytes);
        for (part, codes) in self.codes[..ty.block_len()].as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let words = codes_of_part(ty, part, |at| words_at(bytes, at));
            codes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        }
    }

    /// Reads all but the quantised values.
    #[inline(always)]
    pub(crate) fn read_units(&mut self, ty: WeightType, bytes: &[u8]) {
        assert_eq!(bytes.len(), ty.block_bytes());
        match ty {
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 | WeightType::Q14_0 => {
                unreachable!("{NO_CODES}")
            }
            WeightType::Q8_0 | WeightType::Q4_0 | WeightType::Iq4Nl | WeightType::Q5_0 => {
                self.d = half_at(bytes, 0)
            }
            WeightType::Q4_1 | WeightType::Q5_1 => (self.d, self.m) = (half_at(bytes, 0), half_at(bytes, 2)),
            WeightType::Mxfp4 => self.exponent = bytes[0],
            WeightType::Q2K => self.read_q2_k(bytes),
            WeightType::Q3K => self.read_q3_k(bytes),
            WeightType::Q4K | WeightType::Q5K => self.read_k_min(bytes),
            WeightType::Q6K => self.read_q6_k(bytes),
        }
    }

    #[inline(always)]
    fn read_q2_k(&mut self, bytes: &[u8]) {
        for (sub, byte) in bytes[..16].iter().enumerate() {
            self.scales[sub] = (byte & 15) as i8;
            self.mins[sub] = byte >> 4;
        }
        self.d = half_at(bytes, 80);
        self.m = -half_at(bytes, 82);
    }

    /// Sixteen scales of six bits in twelve bytes.
    #[inline(always)]
    fn read_q3_k(&mut self, bytes: &[u8]) {
        let packed = &bytes[96..108];
        for sub in 0..16 {
            let low = packed[sub % 8] >> (sub / 8 * 4) & 15;
            let high = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
            self.scales[sub] = (low | high << 4) as i8 - 32;
        }
        self.d = half_at(bytes, 108);
    }

    #[inline(always)]
    fn read_q6_k(&mut self, bytes: &[u8]) {
        for (scale, byte) in self.scales.iter_mut().zip(&bytes[192..208]) {
            *scale = *byte as i8;
        }
        self.d = half_at(bytes, 208);
    }

    /// `d, dmin` and eight pairs of six-bit scales and mins in twelve bytes.
    #[inline(always)]
    fn read_k_min(&mut self, bytes: &[u8]) {
        self.d = half_at(bytes, 0);
        self.m = -half_at(bytes, 2);
        let packed = &bytes[4..16];
        for sub in 0..4 {
            self.scales[sub] = (packed[sub] & 63) as i8;
            self.mins[sub] = packed[sub + 4] & 63;
            self.scales[sub + 4] = (packed[sub + 8] & 15 | packed[sub] >> 6 << 4) as i8;
            self.mins[sub + 4] = packed[sub + 8] >> 4 | packed[sub + 4] >> 6 << 4;
        }
    }
}

/// The quantised values of the 32 columns from `32 * part` of a block on, four in a word. `words(at)` returns 32
/// bytes of the block, from byte `at` on; bytes past the block may have any value.
///
/// The layouts, in bytes:
///
/// ```text
/// Q8_0   d[2] q[32]                       Q2_K   scales[16] q[64] d[2] dmin[2]
/// Q4_0   d[2] q[16]                       Q3_K   high[32] q[64] scales[12] d[2]
/// MXFP4  exponent[1] q[16]                Q4_K   d[2] dmin[2] scales[12] q[128]
/// Q4_1   d[2] m[2] q[16]                  Q5_K   d[2] dmin[2] scales[12] high[32] q[128]
/// Q5_0   d[2] high[4] q[16]               Q6_K   low[128] high[64] scales[16] d[2]
/// Q5_1   d[2] m[2] high[4] q[16]
/// ```
#[inline(always)]
pub(crate) fn codes_of_part<W: Bits>(ty: WeightType, part: usize, words: impl Fn(usize) -> [W; 8]) -> [W; 8] {
    let (low, high) = pieces_of_part(ty, part);
    let low = words(low);
    let low = match ty {
        WeightType::Q8_0 => turned_over(low, 0x80 * BITS),
        WeightType::Q2K | WeightType::Q3K => bits_of(low, part % 4 * 2, CRUMBS),
        WeightType::Q4K | WeightType::Q5K => bits_of(low, part % 2 * 4, NIBBLES),
        WeightType::Q6K => bits_of(low, part % 4 / 2 * 4, NIBBLES),
        _ => halves(low),
    };
    let Some(high) = high else { return low };
    let high = words(high);
    match ty {
        WeightType::Q3K => above(low, bits_of(high, part, BITS), 2),
        WeightType::Q5K => above(low, bits_of(high, part, BITS), 4),
        WeightType::Q6K => above(low, bits_of(high, part % 4 * 2, CRUMBS), 4),
        _ => above(low, spread(high[0]), 4),
    }
}

/// The offsets in a block of the lower bits of a part's quantised values, and of the upper bits if stored
/// separately.
#[inline(always)]
fn pieces_of_part(ty: WeightType, part: usize) -> (usize, Option<usize>) {
    match ty {
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 | WeightType::Q14_0 => {
            unreachable!("{NO_CODES}")
        }
        WeightType::Mxfp4 => (1, None),
        WeightType::Q8_0 | WeightType::Q4_0 | WeightType::Iq4Nl => (2, None),
        WeightType::Q4_1 => (4, None),
        WeightType::Q5_0 => (6, Some(2)),
        WeightType::Q5_1 => (8, Some(4)),
        WeightType::Q2K => (16 + part / 4 * 32, None),
        WeightType::Q3K => (32 + part / 4 * 32, Some(0)),
        WeightType::Q4K => (16 + part / 2 * 32, None),
        WeightType::Q5K => (48 + part / 2 * 32, Some(16)),
        WeightType::Q6K => (part / 4 * 64 + part % 2 * 32, Some(128 + part / 4 * 32)),
    }
}

const NO_CODES: &str = "only types of `codes` have such blocks";

/// Masks of the lowest bit, the lowest two and the lowest four bits of each byte.
const BITS: u32 = 0x0101_0101;
const CRUMBS: u32 = 3 * BITS;
const NIBBLES: u32 = 15 * BITS;

/// Extracts the bits `mask` of every byte after a shift right by `shift`. The mask also removes the bits that
/// move in from the next byte.
#[inline(always)]
fn bits_of<W: Bits>(mut words: [W; 8], shift: usize, mask: u32) -> [W; 8] {
    for word in &mut words {
        *word = word.shift_right(shift).and(mask);
    }
    words
}

/// Combines quantised values with their bits from `shift` on, which are stored separately.
#[inline(always)]
fn above<W: Bits>(mut low: [W; 8], high: [W; 8], shift: usize) -> [W; 8] {
    for (low, high) in low.iter_mut().zip(high) {
        *low = low.or(high.shift_left(shift));
    }
    low
}

/// Splits 16 bytes into 32 nibbles: byte j holds values j and j + 16.
#[inline(always)]
fn halves<W: Bits>(mut words: [W; 8]) -> [W; 8] {
    for group in 0..4 {
        let both = words[group];
        (words[group], words[group + 4]) = (both.and(NIBBLES), both.shift_right(4).and(NIBBLES));
    }
    words
}

/// Expands bit j of `bits` to value j.
#[inline(always)]
fn spread<W: Bits>(bits: W) -> [W; 8] {
    let mut spread = [bits; 8];
    for (group, word) in spread.iter_mut().enumerate() {
        let four = bits.shift_right(4 * group).and(15);
        // Four copies, each shifted by 7 more than the last, put each of the four bits in the lowest position
        // of its byte.
        let copies = four.or(four.shift_left(7)).or(four.shift_left(14).or(four.shift_left(21)));
        *word = copies.and(BITS);
    }
    spread
}

/// Inverts the bits of `mask` in all words.
#[inline(always)]
fn turned_over<W: Bits>(mut words: [W; 8], mask: u32) -> [W; 8] {
    for word in &mut words {
        *word = word.xor(mask);
    }
    words
}

/// Eight words from byte `at` on; bytes past the end are zero.
fn words_at(bytes: &[u8], at: usize) -> [u32; 8] {
    let mut piece = [0; 32];
    let there = &bytes[at..bytes.len().min(at + 32)];
    piece[..there.len()].copy_from_slice(there);
    let (words, _) = piece.as_chunks::<4>();
    std::array::from_fn(|word| u32::from_le_bytes(words[word]))
}

fn half_at(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]])
}
