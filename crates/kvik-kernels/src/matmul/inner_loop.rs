//! The inner loop of each weight type.

use super::formats::*;
use super::kernel::{Target, code_rows, float_rows, pair_rows, short_rows};
use crate::lanes::Lanes;

/// A weight type with its inner loop.
pub(crate) trait InnerLoop: Format {
    /// The type that tiles are unpacked to once for many rows, where unpacking for each panel would delay
    /// products.
    type Unpacked: InnerLoop;

    /// Computes `R` rows of a target.
    ///
    /// # Safety
    /// As [`float_rows`], [`pair_rows`], [`short_rows`] or [`code_rows`], whichever computes the type.
    unsafe fn rows<L: Lanes, const R: usize>(lanes: L, target: &Target);
}

macro_rules! inner_loop {
    ($rows:ident: $($ty:ident)*) => {$(
        inner_loop!($rows: $ty => $ty);
    )*};
    ($rows:ident: $ty:ident => $unpacked:ident) => {
        impl InnerLoop for $ty {
            type Unpacked = $unpacked;

            #[inline(always)]
            unsafe fn rows<L: Lanes, const R: usize>(lanes: L, target: &Target) {
                // SAFETY: as the caller promises.
                unsafe { $rows::<L, $ty, R>(lanes, target) }
            }
        }
    };
}

inner_loop!(float_rows: F32);
inner_loop!(float_rows: F16 => F32);
inner_loop!(pair_rows: Bf16);
inner_loop!(short_rows: Q14_0 => WholeShorts);
inner_loop!(short_rows: WholeShorts);
inner_loop!(code_rows: Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2K Q3K Q4K Q5K Q6K Iq4Nl Mxfp4);
