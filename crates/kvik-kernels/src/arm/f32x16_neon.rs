//! Sixteen lanes as four NEON registers.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::f32x16::F32x16;
use crate::small_floats::{SMALL_BASE, SMALL_NAN, SMALL_SHIFT};

/// Every aarch64 machine has NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon([float32x4_t; 4]);

impl Neon {
    #[inline(always)]
    fn each(f: impl Fn(usize) -> float32x4_t) -> Neon {
        Neon([f(0), f(1), f(2), f(3)])
    }

    /// Builds the lanes from four registers of four lanes.
    #[inline(always)]
    pub(super) fn from_registers(lanes: [float32x4_t; 4]) -> Neon {
        Neon(lanes)
    }
}

// Every instruction below belongs to NEON: see the contract of `F32x16`.
impl F32x16 for Neon {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Neon {
        // SAFETY: the machine has NEON.
        Neon([unsafe { vdupq_n_f32(x) }; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Neon {
        // SAFETY: as above; 16 elements are readable.
        Neon::each(|i| unsafe { vld1q_f32(from.add(4 * i)) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Neon {
        // SAFETY: as above; 16 elements are readable.
        Neon::each(|i| unsafe {
            let half = vld1_u16(from.add(4 * i));
            let wide: float32x4_t;
            // The intrinsic needs a type that is not stable; the instruction is part of NEON.
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) half, options(pure, nomem, nostack));
            wide
        })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Neon {
        // SAFETY: as above; 16 elements are readable.
        Neon::each(|i| unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(4 * i)))) })
    }

    #[inline(always)]
    unsafe fn load_small(from: *const u8) -> Neon {
        // SAFETY: as above; 16 bytes are readable.
        Neon::each(|i| unsafe {
            let stored = vld1q_u32([0, 1, 2, 3].map(|lane| u32::from(*from.add(4 * i + lane))).as_ptr());
            let base = vdupq_n_u32(SMALL_BASE);
            let bits = vaddq_u32(vshlq_n_u32::<{ SMALL_SHIFT as i32 }>(stored), base);
            let bits = vandq_u32(bits, vtstq_u32(stored, stored));
            let is_nan = vceqq_u32(stored, vdupq_n_u32(SMALL_NAN.into()));
            vreinterpretq_f32_u32(vbslq_u32(is_nan, vdupq_n_u32(f32::NAN.to_bits()), bits))
        })
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch reads nothing.
        unsafe { asm!("prfm pldl2keep, [{0}]", in(reg) at, options(readonly, nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for i in 0..4 {
            // SAFETY: 16 elements are writable.
            unsafe { vst1q_f32(to.add(4 * i), self.0[i]) };
        }
    }

    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        for i in 0..4 {
            // SAFETY: 16 elements are writable.
            unsafe { vst1_s16(to.add(4 * i), vmovn_s32(vcvtnq_s32_f32(self.0[i]))) };
        }
    }

    #[inline(always)]
    fn add(self, other: Neon) -> Neon {
        // SAFETY: the machine has NEON.
        Neon::each(|i| unsafe { vaddq_f32(self.0[i], other.0[i]) })
    }

    #[inline(always)]
    fn sub(self, other: Neon) -> Neon {
        // SAFETY: the machine has NEON.
        Neon::each(|i| unsafe { vsubq_f32(self.0[i], other.0[i]) })
    }

    #[inline(always)]
    fn mul(self, other: Neon) -> Neon {
        // SAFETY: the machine has NEON.
        Neon::each(|i| unsafe { vmulq_f32(self.0[i], other.0[i]) })
    }

    #[inline(always)]
    fn div(self, other: Neon) -> Neon {
        // SAFETY: the machine has NEON.
        Neon::each(|i| unsafe { vdivq_f32(self.0[i], other.0[i]) })
    }

    #[inline(always)]
    fn mul_add(self, factor: Neon, addend: Neon) -> Neon {
        // SAFETY: the machine has NEON.
        Neon::each(|i| unsafe { vfmaq_f32(addend.0[i], self.0[i], factor.0[i]) })
    }

    #[inline(always)]
    fn max(self, other: Neon) -> Neon {
        // SAFETY: the machine has NEON. Its own maximum instruction treats NaN differently.
        Neon::each(|i| unsafe { vbslq_f32(vcgtq_f32(self.0[i], other.0[i]), self.0[i], other.0[i]) })
    }

    #[inline(always)]
    fn first(self, count: usize, other: Neon) -> Neon {
        // SAFETY: the machine has NEON; the array has as many elements as a register lanes.
        Neon::each(|i| unsafe {
            let lanes = vld1q_u32([0, 1, 2, 3].as_ptr());
            let left = count.saturating_sub(4 * i) as u32;
            vbslq_f32(vcltq_u32(lanes, vdupq_n_u32(left)), self.0[i], other.0[i])
        })
    }

    #[inline(always)]
    fn select_less(self, bound: Neon, yes: Neon, no: Neon) -> Neon {
        // SAFETY: the machine has NEON.
        Neon::each(|i| unsafe { vbslq_f32(vcltq_f32(self.0[i], bound.0[i]), yes.0[i], no.0[i]) })
    }

    #[inline(always)]
    fn power_of_two(self) -> Neon {
        // SAFETY: the machine has NEON.
        Neon::each(|i| unsafe {
            let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(self.0[i]));
            vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(127 << 23)))
        })
    }
}
