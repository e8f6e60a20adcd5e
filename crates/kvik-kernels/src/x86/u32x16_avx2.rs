//! Sixteen words as two AVX2 registers.

use std::arch::x86_64::*;

use crate::u32x16::{Bits, U32x16};

/// Exists only on machines with AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Words([__m256i; 2]);

// Every intrinsic below belongs to AVX2, which the machine has: see the contract of `U32x16`.
impl Bits for Avx2Words {
    #[inline(always)]
    fn and(self, mask: u32) -> Avx2Words {
        // SAFETY: the machine has AVX2.
        let mask = unsafe { _mm256_set1_epi32(mask as i32) };
        // SAFETY: as above.
        Avx2Words(unsafe { [_mm256_and_si256(self.0[0], mask), _mm256_and_si256(self.0[1], mask)] })
    }

    #[inline(always)]
    fn or(self, other: Avx2Words) -> Avx2Words {
        let (a, b) = (self.0, other.0);
        // SAFETY: as above.
        Avx2Words(unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] })
    }

    #[inline(always)]
    fn xor(self, mask: u32) -> Avx2Words {
        // SAFETY: as above.
        let mask = unsafe { _mm256_set1_epi32(mask as i32) };
        // SAFETY: as above.
        Avx2Words(unsafe { [_mm256_xor_si256(self.0[0], mask), _mm256_xor_si256(self.0[1], mask)] })
    }

    #[inline(always)]
    fn shift_left(self, by: usize) -> Avx2Words {
        // SAFETY: as above.
        let by = unsafe { _mm_cvtsi32_si128(by as i32) };
        // SAFETY: as above.
        Avx2Words(unsafe { [_mm256_sll_epi32(self.0[0], by), _mm256_sll_epi32(self.0[1], by)] })
    }

    #[inline(always)]
    fn shift_right(self, by: usize) -> Avx2Words {
        // SAFETY: as above.
        let by = unsafe { _mm_cvtsi32_si128(by as i32) };
        // SAFETY: as above.
        Avx2Words(unsafe { [_mm256_srl_epi32(self.0[0], by), _mm256_srl_epi32(self.0[1], by)] })
    }
}

impl U32x16 for Avx2Words {
    #[inline(always)]
    unsafe fn turned(rows: *const u8, stride: usize) -> [Avx2Words; 8] {
        // SAFETY: the caller's rows have eight words, and the machine has AVX2.
        let load = |row: usize| unsafe { _mm256_loadu_si256(rows.add(row * stride).cast()) };
        let eight = |row: usize| {
            let rows = [load(row), load(row + 1), load(row + 2), load(row + 3)];
            let others = [load(row + 4), load(row + 5), load(row + 6), load(row + 7)];
            // SAFETY: the machine has AVX2.
            unsafe { turned_eights(turned_fours(rows), turned_fours(others)) }
        };
        let (a, b) = (eight(0), eight(8));
        let word = |i: usize| Avx2Words([a[i], b[i]]);
        [word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7)]
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller provides room for 64 bytes.
        unsafe { _mm256_storeu_si256(to.cast(), self.0[0]) };
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(to.add(32).cast(), self.0[1]) };
    }
}

/// Transposes four words of four rows in each half of the registers: swaps words, then pairs of words.
#[target_feature(enable = "avx2")]
#[inline]
fn turned_fours(rows: [__m256i; 4]) -> [__m256i; 4] {
    let (a, b) = (_mm256_unpacklo_epi32(rows[0], rows[1]), _mm256_unpacklo_epi32(rows[2], rows[3]));
    let (c, d) = (_mm256_unpackhi_epi32(rows[0], rows[1]), _mm256_unpackhi_epi32(rows[2], rows[3]));
    [
        _mm256_unpacklo_epi64(a, b),
        _mm256_unpackhi_epi64(a, b),
        _mm256_unpacklo_epi64(c, d),
        _mm256_unpackhi_epi64(c, d),
    ]
}

/// Swaps halves of registers.
#[target_feature(enable = "avx2")]
#[inline]
fn turned_eights(a: [__m256i; 4], b: [__m256i; 4]) -> [__m256i; 8] {
    let mut out = [_mm256_setzero_si256(); 8];
    for word in 0..4 {
        out[word] = _mm256_permute2x128_si256::<0x20>(a[word], b[word]);
        out[word + 4] = _mm256_permute2x128_si256::<0x31>(a[word], b[word]);
    }
    out
}
