//! The arithmetic of attention, compiled for each instruction set.

use super::kernel::{AttentionKernels, attention_kernels};
use crate::Isa;
use crate::kv::KvLayer;

#[cfg(any(test, not(target_arch = "aarch64")))]
mod scalar {
    super::attention_kernels!(crate::scalar::f32x16::Scalar, crate::scalar::i32x16::ScalarSums);
}
/// Every machine has these.
#[cfg(all(not(test), target_arch = "aarch64"))]
use neon as scalar;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    super::attention_kernels!(
        crate::x86::f32x16_avx2::Avx2,
        crate::x86::i32x16_avx2::Avx2Sums<false>,
        "avx2,fma,f16c"
    );
}

#[cfg(target_arch = "x86_64")]
mod avxvnni {
    super::attention_kernels!(
        crate::x86::f32x16_avx2::Avx2,
        crate::x86::i32x16_avx2::Avx2Sums<true>,
        floats of super::avx2,
        "avx2,fma,f16c,avxvnni"
    );
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    super::attention_kernels!(
        crate::x86::f32x16_avx512::Avx512,
        crate::x86::i32x16_avx512::Avx512Sums,
        "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
    );
}

#[cfg(target_arch = "x86_64")]
mod avx512_bf16 {
    crate::attention::bfloats::bfloat_kernels!(
        crate::x86::f32x16_avx512::Avx512,
        crate::attention::bfloats::Vectors<crate::x86::f32x16_avx512::Avx512>,
        super::avx512::kernels,
        "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c"
    );
}

#[cfg(target_arch = "x86_64")]
mod amx {
    mod bfloats {
        crate::attention::bfloats::bfloat_kernels!(
            crate::x86::f32x16_avx512::Avx512,
            crate::attention::bfloats::Units<crate::x86::amx::Amx>,
            crate::attention::variants::avx512::kernels,
            "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c"
        );
    }
    crate::attention::tiled::tiled_kernels!(
        crate::x86::amx::Amx,
        crate::x86::i32x16_avx512::Avx512Sums,
        bfloats::kernels,
        "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
    );
}

/// As on a machine with matrix units, or with vectors that multiply bfloats, on any machine.
#[cfg(all(test, target_arch = "x86_64"))]
pub(super) mod emulated {
    pub(in crate::attention) mod vectors {
        crate::attention::bfloats::bfloat_kernels!(
            crate::scalar::f32x16::Scalar,
            crate::attention::bfloats::Vectors<crate::scalar::f32x16::Scalar>,
            crate::attention::variants::scalar::kernels
        );
    }
    mod bfloats {
        crate::attention::bfloats::bfloat_kernels!(
            crate::scalar::f32x16::Scalar,
            crate::attention::bfloats::Units<crate::x86::amx::Emulated>,
            crate::attention::variants::scalar::kernels
        );
    }
    crate::attention::tiled::tiled_kernels!(
        crate::x86::amx::Emulated,
        crate::scalar::i32x16::ScalarSums,
        bfloats::kernels
    );
}

#[cfg(target_arch = "aarch64")]
mod neon {
    super::attention_kernels!(crate::arm::f32x16_neon::Neon, crate::arm::i32x16_neon::NeonSums, "neon");
}

/// The kernels of attention of `isa` for the formats of `layer`.
pub(super) fn kernels(isa: Isa, layer: &KvLayer) -> AttentionKernels {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => amx::kernels(layer),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => avx512_bf16::kernels(layer),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::kernels(layer),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => avxvnni::kernels(layer),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::kernels(layer),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => neon::kernels(layer),
        _ => scalar::kernels(layer),
    }
}

/// The kernels that those of `isa` equal to the bit: the scalar ones, except over bfloats where the machine multiplies
/// them, in an order of its own.
#[cfg(test)]
pub(super) fn specification(isa: Isa, layer: &KvLayer) -> AttentionKernels {
    #[cfg(target_arch = "x86_64")]
    use super::bfloats::specification::{OfUnits, OfVectors};
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => of_bfloats::<OfUnits>(layer),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => of_bfloats::<OfVectors>(layer),
        _ => scalar::kernels(layer),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
fn of_bfloats<O: super::bfloats::specification::Order>(layer: &KvLayer) -> AttentionKernels {
    use super::bfloats::specification;
    use crate::kv::{KvFormat, KvValues};

    let others = scalar::kernels(layer);
    AttentionKernels {
        scores: if layer.k == KvFormat::Bf16 { specification::scores::<O> } else { others.scores },
        values: match (layer.values, layer.k, layer.v) {
            (KvValues::Stored, _, KvFormat::Bf16) => specification::values::<O>,
            (KvValues::OfKeys, KvFormat::Bf16, _) => specification::latents::<O>,
            _ => others.values,
        },
        ..others
    }
}
