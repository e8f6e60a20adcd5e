//! The weight types as Rust types, so that a kernel is compiled for each.

use crate::activations::WIDE;
use crate::matrix::{CHUNK, GROUPS};
use crate::quant::{Codes, Scales, WeightType};

/// A weight type at compile time.
pub(crate) trait Format {
    const TYPE: WeightType;
    /// Number of rows from which tiles are [unpacked](super::inner_loop::InnerLoop::Unpacked) once for all of
    /// them; `None` if never.
    const UNPACK_ROWS: Option<usize>;
    /// Whether 512-bit vectors multiply eight rows by weights faster than the next weights arrive from memory.
    const ARRIVE_LATE: bool =
        Self::TYPE.block_bytes() >= Self::TYPE.block_len() && !matches!(Self::TYPE, WeightType::F16);
}

/// A quantised type at compile time.
pub(crate) trait Coded: Format {
    const CODES: Codes = Self::TYPE.codes().expect("only quantised types are `Coded`");
    /// Whether quantised values use the full range of a byte.
    const WIDE: bool = Self::CODES.low_bits == 8 || Self::CODES.levels.is_some();
    const CODE_MAX: usize = (1 << (Self::CODES.low_bits + Self::CODES.high_bits)) - 1;
    /// Groups of four columns whose dot products fit in a run, see [`Lanes::Run`](crate::lanes::Lanes::Run).
    const RUN: usize = {
        let groups = i16::MAX as usize / (2 * 127 * Self::CODE_MAX);
        if Self::WIDE || groups >= GROUPS { GROUPS } else { 1 << groups.ilog2() }
    };
    /// Whether scales are unsigned and the dot product of a sub-block fits in 16 bits.
    const SHORT: bool = {
        let unsigned = matches!(Self::CODES.scales, Scales::WithMins | Scales::Nibbles);
        unsigned && Self::CODES.offset == 0 && Self::CODE_MAX * 127 * Self::CODES.sub_len <= i16::MAX as usize
    };
    const BLOCK: usize = Self::CODES.block_len;
    const CHUNKS: usize = Self::BLOCK / CHUNK;
}

macro_rules! formats {
    ($($ty:ident)*) => {$(
        formats!($ty as $ty, None);
    )*};
    ($ty:ident as $of:ident, $unpack_rows:expr) => {
        pub(crate) struct $ty;

        impl Format for $ty {
            const TYPE: WeightType = WeightType::$of;
            const UNPACK_ROWS: Option<usize> = $unpack_rows;
        }
    };
}

macro_rules! coded {
    ($($ty:ident)*) => {
        formats!($($ty)*);
        $(impl Coded for $ty {})*
    };
}

formats!(F32 Bf16);
formats!(F16 as F16, Some(4 * WIDE));
formats!(Q14_0 as Q14_0, Some(2 * WIDE));
// 14-bit values unpacked to 16 bits each.
formats!(WholeShorts as Q14_0, None);
coded!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2K Q3K Q4K Q5K Q6K Iq4Nl Mxfp4);
