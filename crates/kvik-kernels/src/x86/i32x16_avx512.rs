//! Sixteen sums as one AVX-512 register.

use std::arch::x86_64::*;

use super::f32x16_avx512::Avx512;
use super::i32x16_avx2::turn_bytes;
use crate::i32x16::I32x16;

/// Exists only on machines with AVX-512 F, BW and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Sums(__m512i);

/// The lower `width` bits of each lane in its lower half, and the next in its upper half, at `shift` in both.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn spread(lanes: __m512i, width: usize, shift: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let lower = _mm512_sll_epi32(lanes, _mm_cvtsi32_si128(shift as i32));
        let upper = _mm512_sll_epi32(lanes, _mm_cvtsi32_si128((16 - width + shift) as i32));
        let mask = ((1 << width) - 1) << shift;
        let lower = _mm512_and_si512(lower, _mm512_set1_epi32(mask));
        _mm512_or_si512(lower, _mm512_and_si512(upper, _mm512_set1_epi32(mask << 16)))
    }
}

// Every intrinsic below belongs to AVX-512 F, BW or VNNI, which the machine has: see the contract of `I32x16`.
impl I32x16 for Avx512Sums {
    type Floats = Avx512;
    type Pairs = __m512i;
    type Word = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Avx512Sums {
        // SAFETY: the machine has AVX-512.
        Avx512Sums(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn load(from: *const i32) -> Avx512Sums {
        // SAFETY: as above; 16 elements are readable.
        Avx512Sums(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn splat_pair(from: *const i16) -> __m512i {
        // SAFETY: as above; a pair is readable.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const i8) -> __m512i {
        // SAFETY: as above; 32 bytes are readable.
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_word(from: *const u8) -> __m512i {
        // SAFETY: as above; 64 bytes are readable.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_halves(from: *const u8, shift: usize) -> __m512i {
        // SAFETY: as above; 32 bytes are readable.
        unsafe { spread(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())), 8, shift) }
    }

    #[inline(always)]
    unsafe fn load_quarters(from: *const u8, shift: usize) -> __m512i {
        // SAFETY: as above; 16 bytes are readable.
        unsafe { spread(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())), 4, shift) }
    }

    #[inline(always)]
    fn fields(word: __m512i, shift: usize, mask: i16) -> __m512i {
        // SAFETY: the machine has AVX-512 BW.
        unsafe {
            let shifted = _mm512_srl_epi16(word, _mm_cvtsi32_si128(shift as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi16(mask))
        }
    }

    #[inline(always)]
    fn join(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the machine has AVX-512.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn turn_bytes(from: *const u8, to: *mut u8, stride: usize) {
        // SAFETY: the machine has AVX2; the caller's promise.
        unsafe { turn_bytes(from, to, stride) };
    }

    #[inline(always)]
    fn add_products(self, a: __m512i, b: __m512i) -> Avx512Sums {
        // SAFETY: the machine has VNNI.
        Avx512Sums(unsafe { _mm512_dpwssd_epi32(self.0, a, b) })
    }

    #[inline(always)]
    fn to_floats(self) -> Avx512 {
        // SAFETY: the machine has AVX-512.
        Avx512::from_register(unsafe { _mm512_cvtepi32_ps(self.0) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut i32) {
        // SAFETY: 16 elements are writable.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) };
    }
}
