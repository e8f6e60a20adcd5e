//! AVX-512 with VNNI, with or without BF16: sixteen lanes are one register.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one intrinsic of the features that an `Avx512` proves"
)]

use std::arch::x86_64::*;

use crate::lanes::{Lanes, dot_pairs};

/// Proof of AVX-512 F, BW, VL, DQ and VNNI, and of BF16 if `BF16`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool>(());

impl<const BF16: bool> Avx512<BF16> {
    /// # Safety
    /// The machine has the features.
    pub(crate) unsafe fn new() -> Avx512<BF16> {
        Avx512(())
    }
}

// SAFETY: every method is the instruction of its name.
unsafe impl<const BF16: bool> Lanes for Avx512<BF16> {
    type Int = __m512i;
    type Float = __m512;

    type Run = __m512i;

    const SUMS: usize = 24;
    const UNSIGNED: bool = true;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> __m512 {
        unsafe { _mm512_loadu_ps(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }

    #[inline(always)]
    fn splat(self, value: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn splat_f32(self, value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn blend(self, mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_ternarylogic_epi32::<0b1100_1010>(mask, a, b) }
    }

    #[inline(always)]
    fn shift_left(self, a: __m512i, by: i32) -> __m512i {
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(by)) }
    }

    #[inline(always)]
    fn shift_right(self, a: __m512i, by: i32) -> __m512i {
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(by)) }
    }

    #[inline(always)]
    fn shift_right_shorts(self, a: __m512i, by: i32) -> __m512i {
        unsafe { _mm512_sra_epi16(a, _mm_cvtsi32_si128(by)) }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: __m512i) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, index)
        }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, _mm512_mullo_epi32(b, c)) }
    }

    #[inline(always)]
    fn mul_add_short(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        // The upper half of `b` is zero, so that of `c` adds nothing.
        self.dot_shorts(a, b, c)
    }

    #[inline(always)]
    fn dot_shorts(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        unsafe { _mm512_dpwssd_epi32(a, b, c) }
    }

    #[inline(always)]
    fn begin(self, acc: __m512i) -> __m512i {
        acc
    }

    #[inline(always)]
    fn end<const WIDE: bool>(self, _acc: __m512i, run: __m512i) -> __m512i {
        run
    }

    #[inline(always)]
    fn dot<const WIDE: bool>(self, acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, codes, x) }
    }

    #[inline(always)]
    fn to_float(self, a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn mul_f32(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn as_float(self, a: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(a) }
    }

    #[inline(always)]
    fn dot_bf16(self, acc: __m512, w: __m512i, x: __m512i) -> __m512 {
        if BF16 {
            let pairs = |a| unsafe { std::mem::transmute::<__m512i, __m512bh>(a) };
            unsafe { _mm512_dpbf16_ps(acc, pairs(w), pairs(x)) }
        } else {
            dot_pairs(self, acc, w, x)
        }
    }

    #[inline(always)]
    unsafe fn store(self, a: __m512, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, a) }
    }
}
