//! Sixteen sums as two AVX2 registers, with or without AVX-VNNI.

use std::arch::x86_64::*;

use super::f32x16_avx2::Avx2;
use crate::i32x16::I32x16;

/// Exists only on machines with AVX2, and with AVX-VNNI if `VNNI`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Sums<const VNNI: bool>(__m256i, __m256i);

/// A register plus the products of two pairs per lane.
#[inline(always)]
fn add_products<const VNNI: bool>(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: called for lanes whose existence proves the instructions.
    unsafe {
        match VNNI {
            true => _mm256_dpwssd_avx_epi32(sum, a, b),
            false => _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)),
        }
    }
}

/// Implements [`I32x16::turn_bytes`] with 256-bit registers.
///
/// # Safety
/// As there, and the machine has AVX2.
#[inline(always)]
pub(super) unsafe fn turn_bytes(from: *const u8, to: *mut u8, stride: usize) {
    // SAFETY: the caller's promise: a pair of rows has 32 bytes, and so has a pair of columns.
    unsafe {
        let lane = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
        let each_turned = _mm256_broadcastsi128_si256(lane);
        for half in 0..2 {
            // Four by four lanes of two by two bytes, twice: of the first 8 rows, and in the other half of
            // the last.
            let mut rows = [_mm256_setzero_si256(); 4];
            for (i, row) in rows.iter_mut().enumerate() {
                let at = from.add(32 * i + 16 * half);
                let (first, last) = (_mm_loadu_si128(at.cast()), _mm_loadu_si128(at.add(128).cast()));
                *row = _mm256_shuffle_epi8(_mm256_set_m128i(last, first), each_turned);
            }
            let [a, b, c, d] = rows;
            let (ab, ab_after) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd, cd_after) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            let turned = [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ab_after, cd_after),
                _mm256_unpackhi_epi64(ab_after, cd_after),
            ];
            for (i, columns) in turned.into_iter().enumerate() {
                _mm256_storeu_si256(to.add((4 * half + i) * stride).cast(), columns);
            }
        }
    }
}

/// The lower `width` bits of each lane in its lower half, and the next in its upper half, at `shift` in both.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn spread(lanes: __m256i, width: usize, shift: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let lower = _mm256_sll_epi32(lanes, _mm_cvtsi32_si128(shift as i32));
        let upper = _mm256_sll_epi32(lanes, _mm_cvtsi32_si128((16 - width + shift) as i32));
        let mask = _mm256_set1_epi16((((1 << width) - 1) << shift) as i16);
        _mm256_and_si256(_mm256_blend_epi16::<0xaa>(lower, upper), mask)
    }
}

// Every intrinsic below belongs to AVX2, which the machine has: see the contract of `I32x16`.
impl<const VNNI: bool> I32x16 for Avx2Sums<VNNI> {
    type Floats = Avx2;
    type Pairs = (__m256i, __m256i);
    type Word = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the machine has AVX2.
        let zero = unsafe { _mm256_setzero_si256() };
        Avx2Sums(zero, zero)
    }

    #[inline(always)]
    unsafe fn load(from: *const i32) -> Self {
        // SAFETY: as above; 16 elements are readable.
        unsafe { Avx2Sums(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())) }
    }

    #[inline(always)]
    unsafe fn splat_pair(from: *const i16) -> Self::Pairs {
        // SAFETY: as above; a pair is readable.
        let pair = unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) };
        (pair, pair)
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const i8) -> Self::Pairs {
        // SAFETY: as above; 32 bytes are readable.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast()));
            (_mm256_cvtepi8_epi16(low), _mm256_cvtepi8_epi16(high))
        }
    }

    #[inline(always)]
    unsafe fn load_word(from: *const u8) -> Self::Word {
        // SAFETY: as above; 64 bytes are readable.
        unsafe { (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())) }
    }

    #[inline(always)]
    unsafe fn load_halves(from: *const u8, shift: usize) -> Self::Word {
        // SAFETY: as above; 32 bytes are readable.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast()));
            let (low, high) = (_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high));
            (spread(low, 8, shift), spread(high, 8, shift))
        }
    }

    #[inline(always)]
    unsafe fn load_quarters(from: *const u8, shift: usize) -> Self::Word {
        // SAFETY: as above; 16 bytes are readable.
        unsafe {
            let (low, high) = (_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.add(8).cast()));
            let (low, high) = (_mm256_cvtepu8_epi32(low), _mm256_cvtepu8_epi32(high));
            (spread(low, 4, shift), spread(high, 4, shift))
        }
    }

    #[inline(always)]
    fn fields(word: Self::Word, shift: usize, mask: i16) -> Self::Pairs {
        // SAFETY: the machine has AVX2.
        unsafe {
            let (mask, shift) = (_mm256_set1_epi16(mask), _mm_cvtsi32_si128(shift as i32));
            let low = _mm256_and_si256(_mm256_srl_epi16(word.0, shift), mask);
            (low, _mm256_and_si256(_mm256_srl_epi16(word.1, shift), mask))
        }
    }

    #[inline(always)]
    fn join(a: Self::Pairs, b: Self::Pairs) -> Self::Pairs {
        // SAFETY: the machine has AVX2.
        unsafe { (_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn turn_bytes(from: *const u8, to: *mut u8, stride: usize) {
        // SAFETY: the machine has AVX2; the caller's promise.
        unsafe { turn_bytes(from, to, stride) };
    }

    #[inline(always)]
    fn add_products(self, a: Self::Pairs, b: Self::Pairs) -> Self {
        Avx2Sums(add_products::<VNNI>(self.0, a.0, b.0), add_products::<VNNI>(self.1, a.1, b.1))
    }

    #[inline(always)]
    fn to_floats(self) -> Avx2 {
        // SAFETY: the machine has AVX2.
        unsafe { Avx2::from_halves(_mm256_cvtepi32_ps(self.0), _mm256_cvtepi32_ps(self.1)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut i32) {
        // SAFETY: 16 elements are writable.
        unsafe {
            _mm256_storeu_si256(to.cast(), self.0);
            _mm256_storeu_si256(to.add(8).cast(), self.1);
        }
    }
}
