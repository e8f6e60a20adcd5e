//! AVX2 with FMA and F16C, with or without AVX-VNNI: sixteen lanes are two registers.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is intrinsics of the features that an `Avx2` proves"
)]

use std::arch::x86_64::*;

use crate::lanes::Lanes;

/// Proof of AVX2, FMA and F16C, and of AVX-VNNI if `VNNI`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// # Safety
    /// The machine has the features.
    pub(crate) unsafe fn new() -> Avx2<VNNI> {
        Avx2(())
    }
}

// SAFETY: every method is the instruction of its name, once per half.
unsafe impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type Int = [__m256i; 2];
    type Float = [__m256; 2];

    type Run = [__m256i; 2];

    const SUMS: usize = 6;
    const UNSIGNED: bool = VNNI;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> [__m256i; 2] {
        unsafe {
            let (low, high) = (_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.add(8).cast()));
            [_mm256_cvtepu8_epi32(low), _mm256_cvtepu8_epi32(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> [__m256i; 2] {
        unsafe {
            let (low, high) = (_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.add(8).cast()));
            [_mm256_cvtepi8_epi32(low), _mm256_cvtepi8_epi32(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> [__m256; 2] {
        unsafe { [_mm256_loadu_ps(from.cast()), _mm256_loadu_ps(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> [__m256; 2] {
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast()));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }

    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }

    #[inline(always)]
    fn splat(self, value: i32) -> [__m256i; 2] {
        unsafe { [_mm256_set1_epi32(value); 2] }
    }

    #[inline(always)]
    fn splat_f32(self, value: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    fn and(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn or(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn xor(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn blend(self, mask: [__m256i; 2], a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        self.or(self.and(mask, a), unsafe {
            [_mm256_andnot_si256(mask[0], b[0]), _mm256_andnot_si256(mask[1], b[1])]
        })
    }

    #[inline(always)]
    fn shift_left(self, a: [__m256i; 2], by: i32) -> [__m256i; 2] {
        unsafe {
            let by = _mm_cvtsi32_si128(by);
            [_mm256_sll_epi32(a[0], by), _mm256_sll_epi32(a[1], by)]
        }
    }

    #[inline(always)]
    fn shift_right(self, a: [__m256i; 2], by: i32) -> [__m256i; 2] {
        unsafe {
            let by = _mm_cvtsi32_si128(by);
            [_mm256_srl_epi32(a[0], by), _mm256_srl_epi32(a[1], by)]
        }
    }

    #[inline(always)]
    fn shift_right_shorts(self, a: [__m256i; 2], by: i32) -> [__m256i; 2] {
        unsafe {
            let by = _mm_cvtsi32_si128(by);
            [_mm256_sra_epi16(a[0], by), _mm256_sra_epi16(a[1], by)]
        }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, index[0]), _mm256_shuffle_epi8(table, index[1])]
        }
    }

    #[inline(always)]
    fn add(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul_add(self, a: [__m256i; 2], b: [__m256i; 2], c: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { add(a, [_mm256_mullo_epi32(b[0], c[0]), _mm256_mullo_epi32(b[1], c[1])]) }
    }

    #[inline(always)]
    fn mul_add_short(self, a: [__m256i; 2], b: [__m256i; 2], c: [__m256i; 2]) -> [__m256i; 2] {
        // The upper halves of `b` are zero, so those of `c` add nothing.
        self.dot_shorts(a, b, c)
    }

    #[inline(always)]
    fn dot_shorts(self, a: [__m256i; 2], b: [__m256i; 2], c: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            [
                _mm256_add_epi32(a[0], _mm256_madd_epi16(b[0], c[0])),
                _mm256_add_epi32(a[1], _mm256_madd_epi16(b[1], c[1])),
            ]
        }
    }

    #[inline(always)]
    fn begin(self, acc: [__m256i; 2]) -> [__m256i; 2] {
        if VNNI { acc } else { self.splat(0) }
    }

    #[inline(always)]
    fn dot<const WIDE: bool>(self, run: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            if VNNI {
                let dot = _mm256_dpbusd_avx_epi32;
                return [dot(run[0], codes[0], x[0]), dot(run[1], codes[1], x[1])];
            }
            if WIDE {
                return add(run, [wide_dot(codes[0], x[0]), wide_dot(codes[1], x[1])]);
            }
            let pairs = _mm256_maddubs_epi16;
            [_mm256_add_epi16(run[0], pairs(codes[0], x[0])), _mm256_add_epi16(run[1], pairs(codes[1], x[1]))]
        }
    }

    #[inline(always)]
    fn end<const WIDE: bool>(self, acc: [__m256i; 2], run: [__m256i; 2]) -> [__m256i; 2] {
        match (VNNI, WIDE) {
            (true, _) => run,
            (false, true) => add(acc, run),
            (false, false) => add(acc, [add_neighbours(run[0]), add_neighbours(run[1])]),
        }
    }

    #[inline(always)]
    fn to_float(self, a: [__m256i; 2]) -> [__m256; 2] {
        unsafe { [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])] }
    }

    #[inline(always)]
    fn mul_f32(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fma(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn as_float(self, a: [__m256i; 2]) -> [__m256; 2] {
        unsafe { [_mm256_castsi256_ps(a[0]), _mm256_castsi256_ps(a[1])] }
    }

    #[inline(always)]
    unsafe fn store(self, a: [__m256; 2], to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, a[0]);
            _mm256_storeu_ps(to.add(8), a[1]);
        }
    }
}

#[inline(always)]
fn add(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
    unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
}

/// Four products of arbitrary bytes without VNNI. Pairs are summed in 16 bits, which would saturate for unsigned
/// values above 128; the sign of signed ones is moved to `x` (|-128| * 127 * 2 fits).
#[inline(always)]
fn wide_dot(codes: __m256i, x: __m256i) -> __m256i {
    unsafe { add_neighbours(_mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))) }
}

/// Sums pairs of adjacent 16-bit numbers.
#[inline(always)]
fn add_neighbours(pairs: __m256i) -> __m256i {
    unsafe { _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)) }
}
