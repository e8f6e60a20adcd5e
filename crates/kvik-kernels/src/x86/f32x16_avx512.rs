//! Sixteen lanes as one AVX-512 register.

use std::arch::x86_64::*;

use crate::f32x16::{BfloatLanes, F32x16, LANES};
use crate::small_floats::{SMALL_BASE, SMALL_NAN, SMALL_SHIFT};

/// Exists only on machines with AVX-512 F.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

impl Avx512 {
    /// The lanes of one register.
    #[inline(always)]
    pub(super) fn from_register(lanes: __m512) -> Avx512 {
        Avx512(lanes)
    }

    #[inline(always)]
    fn bits(self) -> __m512i {
        // SAFETY: a value exists, so the machine has AVX-512.
        unsafe { _mm512_castps_si512(self.0) }
    }
}

// Every intrinsic below belongs to AVX-512 F, which the machine has: see the contract of `F32x16`.
impl F32x16 for Avx512 {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        Avx512(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Avx512 {
        // SAFETY: as above; 16 elements are readable.
        Avx512(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Avx512 {
        // SAFETY: as above; 16 elements are readable.
        Avx512(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Avx512 {
        // SAFETY: as above; 16 elements are readable.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn load_small(from: *const u8) -> Avx512 {
        // SAFETY: as above; 16 bytes are readable.
        unsafe {
            let stored = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let base = _mm512_set1_epi32(SMALL_BASE as i32);
            let shifted = _mm512_slli_epi32::<{ SMALL_SHIFT }>(stored);
            let bits = _mm512_maskz_add_epi32(_mm512_test_epi32_mask(stored, stored), shifted, base);
            let is_nan = _mm512_cmpeq_epi32_mask(stored, _mm512_set1_epi32(SMALL_NAN.into()));
            let nan = _mm512_set1_epi32(f32::NAN.to_bits() as i32);
            Avx512(_mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, is_nan, nan)))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: 16 elements are writable.
        unsafe { _mm512_storeu_ps(to, self.0) };
    }

    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        // SAFETY: 16 elements are writable.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(self.0))) };
    }

    #[inline(always)]
    fn add(self, other: Avx512) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        Avx512(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Avx512) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        Avx512(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Avx512) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        Avx512(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Avx512) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        Avx512(unsafe { _mm512_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul_add(self, factor: Avx512, addend: Avx512) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        Avx512(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    fn max(self, other: Avx512) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        Avx512(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn first(self, count: usize, other: Avx512) -> Avx512 {
        let mask = if count < 16 { (1 << count) - 1 } else { u16::MAX };
        // SAFETY: the machine has AVX-512.
        Avx512(unsafe { _mm512_mask_blend_ps(mask, other.0, self.0) })
    }

    #[inline(always)]
    fn select_less(self, bound: Avx512, yes: Avx512, no: Avx512) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, bound.0);
            Avx512(_mm512_mask_blend_ps(less, no.0, yes.0))
        }
    }

    #[inline(always)]
    fn power_of_two(self) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            Avx512(_mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23))))
        }
    }

    #[inline(always)]
    fn transpose(vectors: &mut [Avx512; LANES]) {
        // SAFETY: the machine has AVX-512.
        unsafe {
            for of in [0, 4, 8, 12] {
                transpose_quarters(&mut vectors[of..of + 4]);
            }
            for k in 0..4 {
                let [a, b, c, d] = [vectors[k].0, vectors[4 + k].0, vectors[8 + k].0, vectors[12 + k].0];
                let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                let (even_2, odd_2) =
                    (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
                vectors[k].0 = _mm512_shuffle_f32x4::<0x88>(even, even_2);
                vectors[4 + k].0 = _mm512_shuffle_f32x4::<0x88>(odd, odd_2);
                vectors[8 + k].0 = _mm512_shuffle_f32x4::<0xdd>(even, even_2);
                vectors[12 + k].0 = _mm512_shuffle_f32x4::<0xdd>(odd, odd_2);
            }
        }
    }
}

/// Transposes each quarter of four vectors: lanes `4 q + k` of all four become quarter `q` of vector `k`.
///
/// # Safety
/// The machine has AVX-512, and there are four vectors.
#[inline(always)]
unsafe fn transpose_quarters(vectors: &mut [Avx512]) {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b, c, d] = [vectors[0].0, vectors[1].0, vectors[2].0, vectors[3].0];
        let (low, low_2) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
        let (high, high_2) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
        vectors[0].0 = _mm512_shuffle_ps::<0b01_00_01_00>(low, low_2);
        vectors[1].0 = _mm512_shuffle_ps::<0b11_10_11_10>(low, low_2);
        vectors[2].0 = _mm512_shuffle_ps::<0b01_00_01_00>(high, high_2);
        vectors[3].0 = _mm512_shuffle_ps::<0b11_10_11_10>(high, high_2);
    }
}

// The instructions round half to even, and flush subnormal numbers to zero.
impl BfloatLanes for Avx512 {
    #[inline(always)]
    unsafe fn pair_up(lower: *const u16, upper: *const u16) -> Avx512 {
        // SAFETY: 16 numbers are readable at both, as the caller promises, and the machine has AVX-512 BW.
        unsafe {
            let [lower, upper] = [lower, upper].map(|at| _mm256_loadu_si256(at.cast()));
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lower), upper);
            Avx512(_mm512_castsi512_ps(_mm512_permutexvar_epi16(in_turns(), both)))
        }
    }

    #[inline(always)]
    fn pair_first(self, upper: Avx512) -> Avx512 {
        // SAFETY: values exist, so the machine has AVX-512; `Isa` guarantees that it also has BW.
        Avx512(unsafe { _mm512_castsi512_ps(_mm512_unpacklo_epi16(self.bits(), upper.bits())) })
    }

    #[inline(always)]
    fn pair_second(self, upper: Avx512) -> Avx512 {
        // SAFETY: as above.
        Avx512(unsafe { _mm512_castsi512_ps(_mm512_unpackhi_epi16(self.bits(), upper.bits())) })
    }

    #[inline(always)]
    fn in_order(first: Avx512, second: Avx512) -> [Avx512; 2] {
        // Groups of four lanes of the first register, each followed by one of the second.
        const FOURS: [[i32; 16]; 2] = {
            let mut indices = [[0; 16]; 2];
            let mut i = 0;
            while i < 32 {
                indices[i / 16][i % 16] = (i / 8 * 4 + i % 4 + i / 4 % 2 * 16) as i32;
                i += 1;
            }
            indices
        };
        // SAFETY: values exist, so the machine has AVX-512; an index is 64 readable bytes.
        FOURS.map(|fours| unsafe {
            Avx512(_mm512_permutex2var_ps(first.0, _mm512_loadu_si512(fours.as_ptr().cast()), second.0))
        })
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller's promise; both types are 256 bits.
        unsafe {
            let rounded = _mm512_cvtneps_pbh(self.0);
            _mm256_storeu_si256(to.cast(), std::mem::transmute::<__m256bh, __m256i>(rounded));
        }
    }

    #[inline(always)]
    unsafe fn dot_bf16(self, a: Avx512, b: Avx512) -> Avx512 {
        // SAFETY: the caller's promise; both types are 512 bits.
        unsafe {
            let pairs = |lanes: Avx512| std::mem::transmute::<__m512, __m512bh>(lanes.0);
            Avx512(_mm512_dpbf16_ps(self.0, pairs(a), pairs(b)))
        }
    }
}

/// Interleaves the numbers of the lower half of a register with those of the upper half.
#[inline(always)]
fn in_turns() -> __m512i {
    const INDICES: [u16; 32] = {
        let mut indices = [0; 32];
        let mut i = 0;
        while i < 32 {
            indices[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        indices
    };
    // SAFETY: both are 512 bits.
    unsafe { std::mem::transmute::<[u16; 32], __m512i>(INDICES) }
}
