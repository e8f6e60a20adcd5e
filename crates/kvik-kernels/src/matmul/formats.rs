//! The weight types as types, so that a kernel is compiled for each.

use super::kernel::{Outputs, TILES, code_tiles, float_tiles};
use crate::activations::{Activations, Panel};
use crate::lanes::Lanes;
use crate::matrix::{CHUNK, Matrix};
use crate::quant::{Codes, WeightType};

/// A weight type at compile time.
pub(crate) trait Format {
    const TYPE: WeightType;

    /// Computes `tiles` for rows `first..first + R` of `panel`.
    ///
    /// # Safety
    /// The tiles and rows exist, `weights` are of this type, and `x` holds as many columns in its form.
    unsafe fn tiles<L: Lanes, const R: usize>(
        lanes: L,
        weights: &Matrix,
        tiles: [usize; TILES],
        x: &Activations,
        panel: Panel,
        first: usize,
    ) -> Outputs<R>;
}

/// A quantised type at compile time.
pub(crate) trait Coded: Format {
    const CODES: Codes = Self::TYPE.codes().expect("only quantised types are `Coded`");
    /// Codes of the full range of a byte.
    const WIDE: bool = Self::CODES.low_bits == 8 || Self::CODES.levels.is_some();
    const BLOCK: usize = Self::CODES.block_len;
    const CHUNKS: usize = Self::BLOCK / CHUNK;
}

macro_rules! formats {
    ($tiles:ident: $($ty:ident)*) => {$(
        pub(crate) struct $ty;

        impl Format for $ty {
            const TYPE: WeightType = WeightType::$ty;

            #[inline(always)]
            unsafe fn tiles<L: Lanes, const R: usize>(
                lanes: L,
                weights: &Matrix,
                tiles: [usize; TILES],
                x: &Activations,
                panel: Panel,
                first: usize,
            ) -> Outputs<R> {
                // SAFETY: as the caller promises.
                unsafe { $tiles::<L, $ty, R>(lanes, weights, tiles, x, panel, first) }
            }
        }
    )*};
}

macro_rules! coded {
    ($($ty:ident)*) => {
        formats!(code_tiles: $($ty)*);
        $(impl Coded for $ty {})*
    };
}

formats!(float_tiles: F32 F16 Bf16);
coded!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2K Q3K Q4K Q5K Q6K Iq4Nl);
