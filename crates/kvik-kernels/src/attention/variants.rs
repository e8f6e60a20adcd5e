//! The arithmetic of attention, compiled for each instruction set.

use super::kernel::AttentionKernels;
use crate::Isa;
use crate::kv::KvLayer;

/// Declares `kernels(layer)` for one type of lanes, compiled with its target features.
///
/// The kernels over floats are those of `$of`, if other lanes have the same.
macro_rules! attention_kernels {
    ($floats:ty, $sums:ty $(, $features:literal)?) => {
        $crate::attention::variants::float_kernels!($floats $(, $features)?);
        $crate::attention::variants::attention_kernels!($floats, $sums, floats of self $(, $features)?);
    };
    ($floats:ty, $sums:ty, floats of $of:path $(, $features:literal)?) => {
        /// The kernels for the layer's formats.
        pub(super) fn kernels(layer: &$crate::kv::KvLayer) -> $crate::attention::kernel::AttentionKernels {
            use $crate::attention::kernel::{
                self, AttentionKernels, ScoreCall, Scoring, Seen, Softmax, ValueCall,
            };
            use $crate::attention::{latent, quantised};
            use $crate::kv::KvValues;
            use $crate::kv::quantised::Quantised;
            use $crate::kv::tiles::{is_rotated, with_tile};
            use $of::{float_latents, float_scores, float_values};

            unsafe fn no_query(_q: &[f32], _to: &mut [f32]) {}
            $(#[target_feature(enable = $features)])?
            unsafe fn quantised_query<C: Quantised>(q: &[f32], to: &mut [f32]) {
                quantised::Query::write::<C>(q, to)
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn quantised_scores<C: Quantised>(call: &ScoreCall<'_>) {
                // SAFETY: the contract of `AttentionKernels`.
                unsafe { quantised::scores::<$sums, C>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn softmax(scores: *mut f32, seen: Seen, scoring: Scoring) -> Softmax {
                // SAFETY: as above.
                unsafe { kernel::softmax::<$floats>(scores, seen, scoring) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn quantised_values<C: Quantised>(call: &ValueCall<'_>) {
                // SAFETY: as above.
                unsafe { quantised::values::<$sums, C>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn quantised_latents<C: Quantised>(call: &ValueCall<'_>) {
                // SAFETY: as above.
                unsafe { latent::quantised_values::<$sums, C>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn fold(state: &mut Softmax, out: &mut [f32], split: Softmax, split_out: &[f32]) {
                // SAFETY: as above.
                unsafe { kernel::fold::<$floats>(state, out, split, split_out) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn finish<const ROTATED: bool>(out: &mut [f32], l: f32, head_dim: usize) {
                // SAFETY: as above.
                unsafe { kernel::finish::<$floats, ROTATED>(out, l, head_dim) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn finish_latents<const ROTATED: bool>(out: &mut [f32], l: f32, key_dim: usize) {
                // SAFETY: as above.
                unsafe { latent::finish::<$floats, ROTATED>(out, l, key_dim) }
            }
            let (k, v) = (layer.k, layer.v);
            let stored = AttentionKernels {
                query: with_tile!(k, T => no_query, C => quantised_query::<C>),
                scores: with_tile!(k, T => float_scores::<T>, C => quantised_scores::<C>),
                softmax,
                values: with_tile!(v, T => float_values::<T>, C => quantised_values::<C>),
                fold,
                finish: if is_rotated(v) { finish::<true> } else { finish::<false> },
            };
            match layer.values {
                KvValues::Stored => stored,
                KvValues::OfKeys => AttentionKernels {
                    values: with_tile!(k, T => float_latents::<T>, C => quantised_latents::<C>),
                    finish: if is_rotated(k) { finish_latents::<true> } else { finish_latents::<false> },
                    ..stored
                },
            }
        }
    };
}
use attention_kernels;

/// Declares the kernels over floats for one type of lanes.
macro_rules! float_kernels {
    ($floats:ty $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        pub(super) unsafe fn float_scores<T: $crate::kv::tile::FloatTile>(
            call: &$crate::attention::kernel::ScoreCall<'_>,
        ) {
            // SAFETY: the contract of `AttentionKernels`.
            unsafe { $crate::attention::floats::scores::<$floats, T>(call) }
        }
        $(#[target_feature(enable = $features)])?
        pub(super) unsafe fn float_values<T: $crate::kv::tile::FloatTile>(
            call: &$crate::attention::kernel::ValueCall<'_>,
        ) {
            // SAFETY: as above.
            unsafe { $crate::attention::floats::values::<$floats, T>(call) }
        }
        $(#[target_feature(enable = $features)])?
        pub(super) unsafe fn float_latents<T: $crate::kv::tile::FloatTile>(
            call: &$crate::attention::kernel::ValueCall<'_>,
        ) {
            // SAFETY: as above; transposed values are f32 in every format, so their products are compiled once.
            unsafe { $crate::attention::latent::float_values::<$floats, T>(call, add_turned) }
        }
        $(#[target_feature(enable = $features)])?
        unsafe fn add_turned(
            call: &$crate::attention::kernel::ValueCall<'_>,
            positions: ::std::ops::Range<usize>,
        ) {
            // SAFETY: as above.
            unsafe { $crate::attention::floats::add_values::<$floats, $crate::kv::tile::F32>(call, positions) }
        }
    };
}
use float_kernels;

#[cfg(any(test, not(target_arch = "aarch64")))]
mod scalar {
    super::attention_kernels!(crate::scalar::f32x16::Scalar, crate::scalar::i32x16::ScalarSums);
}
/// Every aarch64 machine has NEON.
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

/// Emulation, on any machine, of the kernels for matrix units and for vectors that multiply bfloats.
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

/// The kernels that those of `isa` equal to the bit: the scalar ones, except over bfloats on machines that
/// multiply them, which have an order of their own.
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
