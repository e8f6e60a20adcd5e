//! One quantised block of a file, taken apart into codes, integer scales and the two half floats.

use half::f16;

use super::WeightType;

/// A block of any quantised type. Types of 32 values use the first 32 codes.
///
/// `m` is what is *added*: the K-quants, which subtract `dmin`, store its negative.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) codes: [u8; 256],
    pub(crate) scales: [i8; 16],
    pub(crate) mins: [u8; 16],
    pub(crate) d: f16,
    pub(crate) m: f16,
    /// In the place of `d` where the type has exponents.
    pub(crate) exponent: u8,
}

impl Default for Block {
    fn default() -> Block {
        Block { codes: [0; 256], scales: [1; 16], mins: [1; 16], d: f16::ZERO, m: f16::ZERO, exponent: 0 }
    }
}

impl Block {
    /// Reads the block that `bytes` (exactly `ty.block_bytes()`) holds.
    #[inline(always)]
    pub(crate) fn read(&mut self, ty: WeightType, bytes: &[u8]) {
        assert_eq!(bytes.len(), ty.block_bytes());
        match ty {
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 | WeightType::Q14_0 => {
                unreachable!("only types of `codes` have such blocks")
            }
            WeightType::Q8_0 => self.read_q8_0(bytes),
            WeightType::Q4_0 | WeightType::Iq4Nl => self.read_nibbles(bytes, 2, None),
            WeightType::Mxfp4 => self.read_mxfp4(bytes),
            WeightType::Q4_1 => self.read_nibbles(bytes, 4, None),
            WeightType::Q5_0 => self.read_nibbles(bytes, 6, Some(2)),
            WeightType::Q5_1 => self.read_nibbles(bytes, 8, Some(4)),
            WeightType::Q2K => self.read_q2_k(bytes),
            WeightType::Q3K => self.read_q3_k(bytes),
            WeightType::Q4K => self.read_q4_k(bytes),
            WeightType::Q5K => self.read_q5_k(bytes),
            WeightType::Q6K => self.read_q6_k(bytes),
        }
    }

    /// `d, q[32]`.
    #[inline(always)]
    fn read_q8_0(&mut self, bytes: &[u8]) {
        self.d = half_at(bytes, 0);
        each_word(&mut self.codes[..32], &bytes[2..34], |q| q ^ (0x80 * BITS));
    }

    /// `d, [m], [high bits: u32], nibbles[16]`: value j in the low, value j + 16 in the high half of byte j.
    #[inline(always)]
    fn read_nibbles(&mut self, bytes: &[u8], nibbles: usize, high: Option<usize>) {
        self.d = half_at(bytes, 0);
        if high.unwrap_or(nibbles) == 4 {
            self.m = half_at(bytes, 2);
        }
        self.read_halves(&bytes[nibbles..nibbles + 16]);
        if let Some(at) = high {
            let bits = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            for (j, code) in self.codes[..32].iter_mut().enumerate() {
                *code |= ((bits >> j & 1) as u8) << 4;
            }
        }
    }

    /// `exponent, nibbles[16]`.
    #[inline(always)]
    fn read_mxfp4(&mut self, bytes: &[u8]) {
        self.exponent = bytes[0];
        self.read_halves(&bytes[1..17]);
    }

    /// 32 nibbles: byte j carries values j and j + 16.
    #[inline(always)]
    fn read_halves(&mut self, bytes: &[u8]) {
        let (low_half, high_half) = self.codes[..32].split_at_mut(16);
        each_word(low_half, bytes, |both| both & NIBBLES);
        each_word(high_half, bytes, |both| both >> 4 & NIBBLES);
    }

    /// `scales[16], q[64], d, dmin`.
    #[inline(always)]
    fn read_q2_k(&mut self, bytes: &[u8]) {
        for (sub, byte) in bytes[..16].iter().enumerate() {
            self.scales[sub] = (byte & 15) as i8;
            self.mins[sub] = byte >> 4;
        }
        self.read_crumbs(&bytes[16..80]);
        self.d = half_at(bytes, 80);
        self.m = -half_at(bytes, 82);
    }

    /// `high[32], q[64], scales[12], d`.
    #[inline(always)]
    fn read_q3_k(&mut self, bytes: &[u8]) {
        self.read_crumbs(&bytes[32..96]);
        for (part, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            with_each_word(codes, &bytes[..32], |code, high| code | (high >> part & BITS) << 2);
        }
        let packed = &bytes[96..108];
        for sub in 0..16 {
            let low = packed[sub % 8] >> (sub / 8 * 4) & 15;
            let high = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
            self.scales[sub] = (low | high << 4) as i8 - 32;
        }
        self.d = half_at(bytes, 108);
    }

    /// `d, dmin, scales[12], q[128]`.
    #[inline(always)]
    fn read_q4_k(&mut self, bytes: &[u8]) {
        self.read_k_head(bytes);
        self.read_k_nibbles(&bytes[16..144]);
    }

    /// `d, dmin, scales[12], high[32], q[128]`.
    #[inline(always)]
    fn read_q5_k(&mut self, bytes: &[u8]) {
        self.read_k_head(bytes);
        self.read_k_nibbles(&bytes[48..176]);
        for (part, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            with_each_word(codes, &bytes[16..48], |code, high| code | (high >> part & BITS) << 4);
        }
    }

    /// `low[128], high[64], scales[16], d`.
    #[inline(always)]
    fn read_q6_k(&mut self, bytes: &[u8]) {
        for (part, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            let (half, quarter) = (part / 4, part % 4);
            let low = &bytes[half * 64 + quarter % 2 * 32..][..32];
            let high = &bytes[128 + half * 32..][..32];
            each_word(codes, low, |low| low >> (quarter / 2 * 4) & NIBBLES);
            with_each_word(codes, high, |code, high| code | (high >> (quarter * 2) & CRUMBS) << 4);
        }
        for (scale, byte) in self.scales.iter_mut().zip(&bytes[192..208]) {
            *scale = *byte as i8;
        }
        self.d = half_at(bytes, 208);
    }

    /// 256 two-bit codes: 32 bytes carry four runs of 32 values.
    #[inline(always)]
    fn read_crumbs(&mut self, bytes: &[u8]) {
        for (part, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            each_word(codes, &bytes[part / 4 * 32..], |four| four >> (part % 4 * 2) & CRUMBS);
        }
    }

    /// 256 nibbles: 32 bytes carry two runs of 32 values.
    #[inline(always)]
    fn read_k_nibbles(&mut self, bytes: &[u8]) {
        for (part, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            each_word(codes, &bytes[part / 2 * 32..], |both| both >> (part % 2 * 4) & NIBBLES);
        }
    }

    /// `d, dmin` and eight pairs of six-bit scales and mins in twelve bytes.
    #[inline(always)]
    fn read_k_head(&mut self, bytes: &[u8]) {
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

/// In each of eight bytes the lowest bit, the lowest two, the lowest four. A word shifted right has bits of the next byte
/// above its own, which a mask takes away.
const BITS: u64 = 0x0101_0101_0101_0101;
const CRUMBS: u64 = 3 * BITS;
const NIBBLES: u64 = 15 * BITS;

/// Writes what `code` makes of the bytes of `from`, eight at a time.
#[inline(always)]
fn each_word(to: &mut [u8], from: &[u8], code: impl Fn(u64) -> u64) {
    for (to, from) in to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
        *to = code(u64::from_le_bytes(*from)).to_le_bytes();
    }
}

/// Writes what `code` makes of what is there and the bytes of `from`.
#[inline(always)]
fn with_each_word(to: &mut [u8], from: &[u8], code: impl Fn(u64, u64) -> u64) {
    for (to, from) in to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
        *to = code(u64::from_le_bytes(*to), u64::from_le_bytes(*from)).to_le_bytes();
    }
}

fn half_at(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]])
}
