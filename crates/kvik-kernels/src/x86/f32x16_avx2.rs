//! Sixteen lanes as two AVX2 registers.

use std::arch::x86_64::*;

use crate::f32x16::{F32x16, LANES};
use crate::small_floats::{SMALL_BASE, SMALL_NAN, SMALL_SHIFT};

/// Exists only on machines with AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

impl Avx2 {
    /// Lanes 0 to 7 and 8 to 15.
    #[inline(always)]
    pub(super) fn from_halves(low: __m256, high: __m256) -> Avx2 {
        Avx2(low, high)
    }

    /// The lanes rounded half to even; 0 for NaN, which the conversion alone would map to the minimum integer.
    #[inline(always)]
    fn integers(x: __m256) -> __m256i {
        // SAFETY: the machine has AVX2.
        unsafe {
            let numbers = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_ORD_Q>(x, x));
            _mm256_and_si256(_mm256_cvtps_epi32(x), numbers)
        }
    }

    /// All bits set in the lanes of `a` below those of `b`.
    #[inline(always)]
    fn less(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the machine has AVX2.
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) }
    }
}

/// Eight small floats at `from`.
///
/// # Safety
/// They are readable, and the machine has AVX2.
#[inline(always)]
unsafe fn small(from: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let stored = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
        let base = _mm256_set1_epi32(SMALL_BASE as i32);
        let bits = _mm256_add_epi32(_mm256_slli_epi32::<{ SMALL_SHIFT as i32 }>(stored), base);
        let is_zero = _mm256_cmpeq_epi32(stored, _mm256_setzero_si256());
        let is_nan = _mm256_cmpeq_epi32(stored, _mm256_set1_epi32(SMALL_NAN.into()));
        let nan = _mm256_and_si256(is_nan, _mm256_set1_epi32(f32::NAN.to_bits() as i32));
        _mm256_castsi256_ps(_mm256_or_si256(_mm256_andnot_si256(_mm256_or_si256(is_zero, is_nan), bits), nan))
    }
}

// Every intrinsic below belongs to AVX2, FMA or F16C, which the machine has: see the contract of `F32x16`.
impl F32x16 for Avx2 {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Avx2 {
        // SAFETY: the machine has AVX2.
        let x = unsafe { _mm256_set1_ps(x) };
        Avx2(x, x)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Avx2 {
        // SAFETY: as above; 16 elements are readable.
        unsafe { Avx2(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Avx2 {
        // SAFETY: as above; 16 elements are readable.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast()));
            Avx2(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Avx2 {
        // SAFETY: as above; 16 elements are readable.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            let low = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low));
            Avx2(low, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)))
        }
    }

    #[inline(always)]
    unsafe fn load_small(from: *const u8) -> Avx2 {
        // SAFETY: as above; 16 bytes are readable.
        unsafe { Avx2(small(from), small(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: 16 elements are writable.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        // SAFETY: 16 elements are writable.
        unsafe {
            // Packing works within halves of registers: low 0-3, high 0-3, low 4-7, high 4-7.
            let packed = _mm256_packs_epi32(Avx2::integers(self.0), Avx2::integers(self.1));
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    fn add(self, other: Avx2) -> Avx2 {
        // SAFETY: the machine has AVX2.
        unsafe { Avx2(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn sub(self, other: Avx2) -> Avx2 {
        // SAFETY: the machine has AVX2.
        unsafe { Avx2(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn mul(self, other: Avx2) -> Avx2 {
        // SAFETY: the machine has AVX2.
        unsafe { Avx2(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn div(self, other: Avx2) -> Avx2 {
        // SAFETY: the machine has AVX2.
        unsafe { Avx2(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Avx2, addend: Avx2) -> Avx2 {
        // SAFETY: the machine has FMA.
        unsafe {
            let low = _mm256_fmadd_ps(self.0, factor.0, addend.0);
            Avx2(low, _mm256_fmadd_ps(self.1, factor.1, addend.1))
        }
    }

    #[inline(always)]
    fn max(self, other: Avx2) -> Avx2 {
        // SAFETY: the machine has AVX2.
        unsafe { Avx2(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn first(self, count: usize, other: Avx2) -> Avx2 {
        // SAFETY: the machine has AVX2.
        unsafe {
            let count = _mm256_set1_ps(count as f32);
            let low = _mm256_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0);
            let high = _mm256_setr_ps(8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0);
            let low = _mm256_blendv_ps(other.0, self.0, Avx2::less(low, count));
            Avx2(low, _mm256_blendv_ps(other.1, self.1, Avx2::less(high, count)))
        }
    }

    #[inline(always)]
    fn select_less(self, bound: Avx2, yes: Avx2, no: Avx2) -> Avx2 {
        // SAFETY: the machine has AVX2.
        unsafe {
            let low = _mm256_blendv_ps(no.0, yes.0, Avx2::less(self.0, bound.0));
            Avx2(low, _mm256_blendv_ps(no.1, yes.1, Avx2::less(self.1, bound.1)))
        }
    }

    #[inline(always)]
    fn power_of_two(self) -> Avx2 {
        // SAFETY: the machine has AVX2.
        unsafe {
            let bias = _mm256_set1_epi32(127 << 23);
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.1));
            let low = _mm256_castsi256_ps(_mm256_add_epi32(low, bias));
            Avx2(low, _mm256_castsi256_ps(_mm256_add_epi32(high, bias)))
        }
    }

    #[inline(always)]
    fn transpose(vectors: &mut [Avx2; LANES]) {
        // SAFETY: the machine has AVX2.
        unsafe {
            for of in [0, 4, 8, 12] {
                transpose_quarters(&mut vectors[of..of + 4]);
            }
            for k in 0..4 {
                // Quarter `q` of four vectors each: lanes `4 q + k` of all.
                let [a, b, c, d] = [vectors[k], vectors[4 + k], vectors[8 + k], vectors[12 + k]];
                let low = |a, b| _mm256_permute2f128_ps::<0x20>(a, b);
                let high = |a, b| _mm256_permute2f128_ps::<0x31>(a, b);
                vectors[k] = Avx2(low(a.0, b.0), low(c.0, d.0));
                vectors[4 + k] = Avx2(high(a.0, b.0), high(c.0, d.0));
                vectors[8 + k] = Avx2(low(a.1, b.1), low(c.1, d.1));
                vectors[12 + k] = Avx2(high(a.1, b.1), high(c.1, d.1));
            }
        }
    }
}

/// Transposes each quarter of four vectors: lanes `4 q + k` of all four become quarter `q` of vector `k`.
///
/// # Safety
/// The machine has AVX2, and there are four vectors.
#[inline(always)]
unsafe fn transpose_quarters(vectors: &mut [Avx2]) {
    let [a, b, c, d] = [vectors[0], vectors[1], vectors[2], vectors[3]];
    // SAFETY: the caller's promise.
    unsafe {
        let low = transpose_halves([a.0, b.0, c.0, d.0]);
        let high = transpose_halves([a.1, b.1, c.1, d.1]);
        for k in 0..4 {
            vectors[k] = Avx2(low[k], high[k]);
        }
    }
}

/// [`transpose_quarters`] for the halves of four registers.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn transpose_halves([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, low_2) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (high, high_2) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0b01_00_01_00>(low, low_2),
            _mm256_shuffle_ps::<0b11_10_11_10>(low, low_2),
            _mm256_shuffle_ps::<0b01_00_01_00>(high, high_2),
            _mm256_shuffle_ps::<0b11_10_11_10>(high, high_2),
        ]
    }
}
