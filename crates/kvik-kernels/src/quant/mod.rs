//! Weight types of model files: the block layout of each, its dequantisation, and the simple quantisers.
//!
//! `block` splits blocks of any type, of one row or of many in parallel; `dequantize` here and `Matrix::pack`
//! both read its result, so a new type is one row of `codes` and an arm each of `Block::read_units`,
//! `pieces_of_part` and `codes_of_part`. Only the code that loads a file is optimised.

mod block;
mod quantize;
mod short;
#[cfg(test)]
mod tests;

use half::bf16;

pub(crate) use block::{Block, codes_of_part};
pub use quantize::quantize;
pub(crate) use short::{ROUNDER, SHORT_MAX, ShortBlock, largest};

use crate::narrow::widened;
use crate::vectorised;

/// The element type of a weight tensor: the types of GGUF by their names, and one that only conversions produce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the other names are GGUF's own")]
pub enum WeightType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Mxfp4,
    /// A half float and 32 values of 14 bits; never in a file.
    Q14_0,
}

/// The properties of a quantised type, for packing and for kernels.
///
/// A value is `d * scale * (level(code) - offset) + m * min`, where `level` is the identity or a table and `d` a half
/// float or a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Codes {
    /// Values that share `d` and `m`: 32 or 256.
    pub(crate) block_len: usize,
    /// Values that share one integer scale (and min): 16, 32, or the block.
    pub(crate) sub_len: usize,
    /// Bits of a quantised value in the low plane: 8, 4 or 2.
    pub(crate) low_bits: usize,
    /// Bits of a quantised value in the high plane: 0, 1 or 2.
    pub(crate) high_bits: usize,
    /// The quantised value (or level) that represents zero.
    pub(crate) offset: i32,
    /// The levels that quantised values index, plus 128; `None` if a value is its own level.
    pub(crate) levels: Option<&'static [u8; 16]>,
    /// The integer scales of sub-blocks.
    pub(crate) scales: Scales,
    /// Whether `m` exists.
    pub(crate) has_min: bool,
    /// The type of `d`.
    pub(crate) unit: BlockUnit,
}

/// The format of the float that multiplies a block's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockUnit {
    /// A half float.
    Half,
    /// The exponent of a power of two, a byte (E8M0): half of `2^(byte - 127)`, since levels are doubled.
    Exponent,
}

/// The storage of integer scales in a packed tile, one per row and sub-block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scales {
    /// There are none: `scale` and `min` are 1.
    None,
    /// Signed bytes; no mins.
    Signed,
    /// A plane of unsigned scales and a plane of mins.
    WithMins,
    /// Scale in the low and min in the high half of one byte.
    Nibbles,
}

/// The sixteen levels of IQ4_NL, plus 128.
const IQ4_NL_LEVELS: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// Twice the sixteen numbers of E2M1 (sign, two bits of exponent, one of mantissa), plus 128.
const E2M1_LEVELS: [u8; 16] =
    [128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116];

impl WeightType {
    /// All types, in the order of the enumeration.
    pub const ALL: [WeightType; 16] = [
        WeightType::F32,
        WeightType::F16,
        WeightType::Bf16,
        WeightType::Q8_0,
        WeightType::Q4_0,
        WeightType::Q4_1,
        WeightType::Q5_0,
        WeightType::Q5_1,
        WeightType::Q2K,
        WeightType::Q3K,
        WeightType::Q4K,
        WeightType::Q5K,
        WeightType::Q6K,
        WeightType::Iq4Nl,
        WeightType::Mxfp4,
        WeightType::Q14_0,
    ];

    /// The type with this number in GGUF files.
    pub fn from_ggml(id: u32) -> Option<WeightType> {
        WeightType::ALL.into_iter().find(|ty| ty.ggml() == Some(id))
    }

    /// The number of this type in GGUF files; `None` if it does not occur there.
    pub fn ggml(self) -> Option<u32> {
        Some(match self {
            WeightType::F32 => 0,
            WeightType::F16 => 1,
            WeightType::Q4_0 => 2,
            WeightType::Q4_1 => 3,
            WeightType::Q5_0 => 6,
            WeightType::Q5_1 => 7,
            WeightType::Q8_0 => 8,
            WeightType::Q2K => 10,
            WeightType::Q3K => 11,
            WeightType::Q4K => 12,
            WeightType::Q5K => 13,
            WeightType::Q6K => 14,
            WeightType::Iq4Nl => 20,
            WeightType::Bf16 => 30,
            WeightType::Mxfp4 => 39,
            WeightType::Q14_0 => return None,
        })
    }

    /// The name as llama.cpp prints it.
    pub fn name(self) -> &'static str {
        match self {
            WeightType::F32 => "F32",
            WeightType::F16 => "F16",
            WeightType::Bf16 => "BF16",
            WeightType::Q8_0 => "Q8_0",
            WeightType::Q4_0 => "Q4_0",
            WeightType::Q4_1 => "Q4_1",
            WeightType::Q5_0 => "Q5_0",
            WeightType::Q5_1 => "Q5_1",
            WeightType::Q2K => "Q2_K",
            WeightType::Q3K => "Q3_K",
            WeightType::Q4K => "Q4_K",
            WeightType::Q5K => "Q5_K",
            WeightType::Q6K => "Q6_K",
            WeightType::Iq4Nl => "IQ4_NL",
            WeightType::Mxfp4 => "MXFP4",
            WeightType::Q14_0 => "Q14_0",
        }
    }

    /// Values in one block of the file.
    pub const fn block_len(self) -> usize {
        match (self, self.codes()) {
            (WeightType::Q14_0, _) => ShortBlock::LEN,
            (_, Some(codes)) => codes.block_len,
            (_, None) => 1,
        }
    }

    /// Bytes of one block in the file.
    pub const fn block_bytes(self) -> usize {
        match self {
            WeightType::F32 => 4,
            WeightType::F16 | WeightType::Bf16 => 2,
            WeightType::Q8_0 => 34,
            WeightType::Q4_0 | WeightType::Iq4Nl => 18,
            WeightType::Mxfp4 => 17,
            WeightType::Q4_1 => 20,
            WeightType::Q5_0 => 22,
            WeightType::Q5_1 => 24,
            WeightType::Q2K => 84,
            WeightType::Q3K => 110,
            WeightType::Q4K => 144,
            WeightType::Q5K => 176,
            WeightType::Q6K => 210,
            WeightType::Q14_0 => ShortBlock::BYTES,
        }
    }

    /// Bytes of a row of `cols` values, or `None` if `cols` is not whole blocks or the size overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let whole = cols.is_multiple_of(self.block_len());
        whole.then(|| (cols / self.block_len()).checked_mul(self.block_bytes())).flatten()
    }

    /// The properties of a quantised type; `None` for floats and 14-bit values.
    pub(crate) const fn codes(self) -> Option<Codes> {
        let plain = Codes {
            block_len: 32,
            sub_len: 32,
            low_bits: 4,
            high_bits: 0,
            offset: 0,
            levels: None,
            scales: Scales::None,
            has_min: false,
            unit: BlockUnit::Half,
        };
        let k_signed = Codes { block_len: 256, sub_len: 16, scales: Scales::Signed, ..plain };
        let k_min = Codes { block_len: 256, scales: Scales::WithMins, has_min: true, ..plain };
        Some(match self {
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 | WeightType::Q14_0 => return None,
            WeightType::Q8_0 => Codes { low_bits: 8, offset: 128, ..plain },
            WeightType::Q4_0 => Codes { offset: 8, ..plain },
            WeightType::Q4_1 => Codes { has_min: true, ..plain },
            WeightType::Q5_0 => Codes { high_bits: 1, offset: 16, ..plain },
            WeightType::Q5_1 => Codes { high_bits: 1, has_min: true, ..plain },
            WeightType::Iq4Nl => Codes { offset: 128, levels: Some(&IQ4_NL_LEVELS), ..plain },
            WeightType::Mxfp4 => {
                Codes { offset: 128, levels: Some(&E2M1_LEVELS), unit: BlockUnit::Exponent, ..plain }
            }
            WeightType::Q2K => Codes { low_bits: 2, sub_len: 16, scales: Scales::Nibbles, ..k_min },
            WeightType::Q3K => Codes { low_bits: 2, high_bits: 1, offset: 4, ..k_signed },
            WeightType::Q4K => k_min,
            WeightType::Q5K => Codes { high_bits: 1, ..k_min },
            WeightType::Q6K => Codes { high_bits: 2, offset: 32, ..k_signed },
        })
    }
}

impl Codes {
    /// The value at `index` of a block.
    pub(crate) fn value(&self, block: &Block, index: usize) -> f32 {
        let sub = index / self.sub_len;
        let level = self.level(block.codes[index]);
        let scaled = self.unit(block) * f32::from(block.scales[sub]) * level as f32;
        match self.has_min {
            true => scaled + block.m.to_f32() * f32::from(block.mins[sub]),
            false => scaled,
        }
    }

    /// The float that multiplies the values of a block.
    pub(crate) fn unit(&self, block: &Block) -> f32 {
        match self.unit {
            BlockUnit::Half => block.d.to_f32(),
            BlockUnit::Exponent => half_power(block.exponent),
        }
    }

    /// The level of a quantised value, minus the offset.
    pub(crate) fn level(&self, code: u8) -> i32 {
        let level = self.levels.map_or(code, |levels| levels[usize::from(code)]);
        i32::from(level) - self.offset
    }
}

/// `2^(exponent - 128)`, including subnormal results.
fn half_power(exponent: u8) -> f32 {
    let bits = match u32::from(exponent) {
        exponent @ 0..2 => 0x0020_0000 << exponent,
        exponent => (exponent - 1) << 23,
    };
    f32::from_bits(bits)
}

/// Dequantises whole blocks of a file: the definition of each type.
///
/// # Panics
/// Unless `raw` holds exactly `out.len()` values in whole blocks.
pub fn dequantize(ty: WeightType, raw: &[u8], out: &mut [f32]) {
    assert_eq!(Some(raw.len()), ty.row_bytes(out.len()), "{} blocks for {} values", ty.name(), out.len());
    match ty {
        WeightType::F32 => each(raw, out, f32::from_le_bytes),
        WeightType::F16 => halves(raw, out),
        WeightType::Bf16 => each(raw, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        WeightType::Q14_0 => short::dequantize(raw, out),
        _ => dequantize_blocks(ty, raw, out),
    }
}

fn each<const N: usize>(raw: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (elements, _) = raw.as_chunks::<N>();
    out.iter_mut().zip(elements).for_each(|(out, bytes)| *out = value(*bytes));
}

/// A loop of integer operations and one product, which the compiler vectorises.
fn halves(raw: &[u8], out: &mut [f32]) {
    let (halves, _) = raw.as_chunks::<2>();
    vectorised(
        #[inline(always)]
        || {
            for (out, half) in out.iter_mut().zip(halves) {
                *out = widened(u16::from_le_bytes(*half));
            }
        },
    );
}

fn dequantize_blocks(ty: WeightType, raw: &[u8], out: &mut [f32]) {
    let codes = ty.codes().expect("other types are handled by the caller");
    let mut block = Block::default();
    for (bytes, out) in raw.chunks_exact(ty.block_bytes()).zip(out.chunks_exact_mut(codes.block_len)) {
        block.read(ty, bytes);
        out.iter_mut().enumerate().for_each(|(index, out)| *out = codes.value(&block, index));
    }
}
