//! Plain Rust, compiled for the vector instructions of the machine.

use crate::Isa;

/// Runs `work`, compiled for the vector instructions of this machine, as is everything inlined into it. Closures
/// and functions that it calls must be `#[inline(always)]` to benefit.
///
/// No result depends on it: the compiler neither fuses nor reorders floating-point operations.
#[inline]
pub fn vectorised<T>(work: impl FnOnce() -> T) -> T {
    match Isa::current() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions of its family.
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { avx512(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 | Isa::AvxVnni => unsafe { avx2(work) },
        _ => work(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn avx512<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<T>(work: impl FnOnce() -> T) -> T {
    work()
}
