//! Compiles code that is generic over float lanes for each instruction set.

/// Compiles kernels of [`F32x16`](crate::f32x16::F32x16) for each instruction set by `$kernels!(lanes, features)`,
/// which defines a constant `KERNELS`, and defines `kernels_of`, which selects among them.
macro_rules! float_variants {
    ($kernels:ident, $of:ty) => {
        #[cfg(any(test, not(target_arch = "aarch64")))]
        mod scalar {
            super::$kernels!(crate::scalar::f32x16::Scalar);
        }
        /// Every aarch64 machine has NEON.
        #[cfg(all(not(test), target_arch = "aarch64"))]
        use neon as scalar;

        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            super::$kernels!(crate::x86::f32x16_avx2::Avx2, "avx2,fma,f16c");
        }

        #[cfg(target_arch = "x86_64")]
        mod avx512 {
            super::$kernels!(
                crate::x86::f32x16_avx512::Avx512,
                "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
            );
        }

        #[cfg(target_arch = "aarch64")]
        mod neon {
            super::$kernels!(crate::arm::f32x16_neon::Neon, "neon");
        }

        /// The kernels of `isa`.
        pub(super) fn kernels_of(isa: crate::Isa) -> $of {
            use crate::Isa;
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::KERNELS,
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::AvxVnni => avx2::KERNELS,
                #[cfg(target_arch = "aarch64")]
                Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => neon::KERNELS,
                _ => scalar::KERNELS,
            }
        }
    };
}
pub(crate) use float_variants;
