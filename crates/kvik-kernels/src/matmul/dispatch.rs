//! Selection of the compiled kernel for an instruction set and a weight type, once per call.

use std::ops::Range;

use super::Job;
use super::family::*;
use super::formats::*;
#[cfg(target_arch = "x86_64")]
use super::tiled::TiledAmx;
use crate::activations::Activations;
use crate::quant::WeightType;
use crate::{Isa, scalar};

/// The kernel of `isa`, which the machine must have, for `ty`.
pub(super) fn kernel(isa: Isa, ty: WeightType) -> Kernel {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => of::<Avx2>(ty),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni if ty.codes().is_some() => coded::<AvxVnni>(ty),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => of::<Avx2>(ty),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if ty == WeightType::Bf16 => Avx512Bf16::run::<Bf16>,
        #[cfg(target_arch = "x86_64")]
        Isa::Amx if ty == WeightType::Bf16 => TiledAmx::run_bf16,
        #[cfg(target_arch = "x86_64")]
        Isa::Amx if ty.codes().is_some() => coded::<TiledAmx>(ty),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => of::<Avx512>(ty),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => of::<Neon>(ty),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => of::<NeonDot>(ty),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => of::<NeonI8mm>(ty),
        _ => specification,
    }
}

/// The kernel of a family for `ty`.
fn of<K: Family>(ty: WeightType) -> Kernel {
    match ty {
        WeightType::F32 => K::run::<F32>,
        WeightType::F16 => K::run::<F16>,
        WeightType::Bf16 => K::run::<Bf16>,
        WeightType::Q14_0 => K::run::<Q14_0>,
        _ => coded::<K>(ty),
    }
}

/// The kernel of a family for the quantised type `ty`.
pub(super) fn coded<K: CodedFamily>(ty: WeightType) -> Kernel {
    match ty {
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 | WeightType::Q14_0 => {
            unreachable!("these have no codes of bytes")
        }
        WeightType::Q8_0 => K::run_codes::<Q8_0>,
        WeightType::Q4_0 => K::run_codes::<Q4_0>,
        WeightType::Q4_1 => K::run_codes::<Q4_1>,
        WeightType::Q5_0 => K::run_codes::<Q5_0>,
        WeightType::Q5_1 => K::run_codes::<Q5_1>,
        WeightType::Q2K => K::run_codes::<Q2K>,
        WeightType::Q3K => K::run_codes::<Q3K>,
        WeightType::Q4K => K::run_codes::<Q4K>,
        WeightType::Q5K => K::run_codes::<Q5K>,
        WeightType::Q6K => K::run_codes::<Q6K>,
        WeightType::Iq4Nl => K::run_codes::<Iq4Nl>,
        WeightType::Mxfp4 => K::run_codes::<Mxfp4>,
    }
}

/// The kernel of the scalar family.
///
/// # Safety
/// As [`Kernel`].
unsafe fn specification(
    job: &Job,
    span: Range<usize>,
    _after: *const u8,
    x: &Activations,
    rows: Range<usize>,
) {
    for tile in span {
        for panel in x.panels(job.weights.weight_type(), rows.clone()) {
            // SAFETY: as the caller promises.
            unsafe { scalar::matmul::tile(job.weights, tile, x, panel, job.out) };
        }
    }
}
