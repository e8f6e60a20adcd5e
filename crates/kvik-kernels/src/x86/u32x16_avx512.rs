//! Sixteen words as one AVX-512 register.

use std::arch::x86_64::*;

use crate::u32x16::{Bits, U32x16};

/// Exists only on machines with AVX-512 F.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Words(__m512i);

// Every intrinsic below belongs to AVX-512 F, which the machine has: see the contract of `U32x16`.
impl Bits for Avx512Words {
    #[inline(always)]
    fn and(self, mask: u32) -> Avx512Words {
        // SAFETY: the machine has AVX-512.
        Avx512Words(unsafe { _mm512_and_si512(self.0, _mm512_set1_epi32(mask as i32)) })
    }

    #[inline(always)]
    fn or(self, other: Avx512Words) -> Avx512Words {
        // SAFETY: as above.
        Avx512Words(unsafe { _mm512_or_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, mask: u32) -> Avx512Words {
        // SAFETY: as above.
        Avx512Words(unsafe { _mm512_xor_si512(self.0, _mm512_set1_epi32(mask as i32)) })
    }

    #[inline(always)]
    fn shift_left(self, by: usize) -> Avx512Words {
        // SAFETY: as above.
        Avx512Words(unsafe { _mm512_sll_epi32(self.0, _mm_cvtsi32_si128(by as i32)) })
    }

    #[inline(always)]
    fn shift_right(self, by: usize) -> Avx512Words {
        // SAFETY: as above.
        Avx512Words(unsafe { _mm512_srl_epi32(self.0, _mm_cvtsi32_si128(by as i32)) })
    }
}

impl U32x16 for Avx512Words {
    /// Loads two rows per register, such that rows are in order after quarters of registers have been swapped.
    #[inline(always)]
    unsafe fn turned(rows: *const u8, stride: usize) -> [Avx512Words; 8] {
        // SAFETY: the caller's rows have eight words, and the machine has AVX-512.
        let load = |row: usize| unsafe { _mm256_loadu_si256(rows.add(row * stride).cast()) };
        // SAFETY: the machine has AVX-512.
        let two =
            |row: usize| unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(load(row)), load(row + 4)) };
        // SAFETY: as above.
        let a = unsafe { turned_fours([two(0), two(1), two(2), two(3)]) };
        // SAFETY: as above.
        let b = unsafe { turned_fours([two(8), two(9), two(10), two(11)]) };
        // SAFETY: as above.
        let lower = |i: usize| Avx512Words(unsafe { _mm512_shuffle_i64x2::<0x88>(a[i], b[i]) });
        // SAFETY: as above.
        let upper = |i: usize| Avx512Words(unsafe { _mm512_shuffle_i64x2::<0xdd>(a[i], b[i]) });
        [lower(0), lower(1), lower(2), lower(3), upper(0), upper(1), upper(2), upper(3)]
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller provides room for 64 bytes.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) };
    }
}

/// Transposes four words of four rows in each quarter of the registers: swaps words, then pairs of words.
#[target_feature(enable = "avx512f")]
#[inline]
fn turned_fours(rows: [__m512i; 4]) -> [__m512i; 4] {
    let (a, b) = (_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpacklo_epi32(rows[2], rows[3]));
    let (c, d) = (_mm512_unpackhi_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[2], rows[3]));
    [
        _mm512_unpacklo_epi64(a, b),
        _mm512_unpackhi_epi64(a, b),
        _mm512_unpacklo_epi64(c, d),
        _mm512_unpackhi_epi64(c, d),
    ]
}
