//! Sixteen words as four NEON registers.

use std::arch::aarch64::*;

use crate::u32x16::{Bits, U32x16};

/// Every aarch64 machine has NEON.
#[derive(Clone, Copy)]
pub(crate) struct NeonWords([uint32x4_t; 4]);

impl Bits for NeonWords {
    #[inline(always)]
    fn and(self, mask: u32) -> NeonWords {
        let [a, b, c, d] = self.0;
        // SAFETY: the machine has NEON.
        let mask = unsafe { vdupq_n_u32(mask) };
        // SAFETY: as above.
        NeonWords(unsafe { [vandq_u32(a, mask), vandq_u32(b, mask), vandq_u32(c, mask), vandq_u32(d, mask)] })
    }

    #[inline(always)]
    fn or(self, other: NeonWords) -> NeonWords {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        // SAFETY: as above.
        NeonWords(unsafe { [vorrq_u32(a, e), vorrq_u32(b, f), vorrq_u32(c, g), vorrq_u32(d, h)] })
    }

    #[inline(always)]
    fn xor(self, mask: u32) -> NeonWords {
        let [a, b, c, d] = self.0;
        // SAFETY: as above.
        let mask = unsafe { vdupq_n_u32(mask) };
        // SAFETY: as above.
        NeonWords(unsafe { [veorq_u32(a, mask), veorq_u32(b, mask), veorq_u32(c, mask), veorq_u32(d, mask)] })
    }

    #[inline(always)]
    fn shift_left(self, by: usize) -> NeonWords {
        self.shifted(by as i32)
    }

    #[inline(always)]
    fn shift_right(self, by: usize) -> NeonWords {
        self.shifted(-(by as i32))
    }
}

impl NeonWords {
    /// Shifts left by `by`, or right if it is negative.
    #[inline(always)]
    fn shifted(self, by: i32) -> NeonWords {
        let [a, b, c, d] = self.0;
        // SAFETY: the machine has NEON.
        let by = unsafe { vdupq_n_s32(by) };
        // SAFETY: as above.
        NeonWords(unsafe { [vshlq_u32(a, by), vshlq_u32(b, by), vshlq_u32(c, by), vshlq_u32(d, by)] })
    }
}

impl U32x16 for NeonWords {
    #[inline(always)]
    unsafe fn turned(rows: *const u8, stride: usize) -> [NeonWords; 8] {
        // SAFETY: the caller's rows have eight words.
        let load = |row: usize, half: usize| unsafe {
            vreinterpretq_u32_u8(vld1q_u8(rows.add(row * stride + 16 * half)))
        };
        let fours = |row: usize, half: usize| {
            turned_fours([load(row, half), load(row + 1, half), load(row + 2, half), load(row + 3, half)])
        };
        let four_words = |half: usize| {
            let [a, b, c, d] = [fours(0, half), fours(4, half), fours(8, half), fours(12, half)];
            let word = |i: usize| NeonWords([a[i], b[i], c[i], d[i]]);
            [word(0), word(1), word(2), word(3)]
        };
        let ([a, b, c, d], [e, f, g, h]) = (four_words(0), four_words(1));
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        for (quarter, words) in self.0.into_iter().enumerate() {
            // SAFETY: the caller provides room for 64 bytes.
            unsafe { vst1q_u8(to.add(16 * quarter), vreinterpretq_u8_u32(words)) };
        }
    }
}

/// Transposes four words of four rows: swaps every other word, then pairs of words.
#[inline(always)]
fn turned_fours(rows: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    // SAFETY: the machine has NEON.
    unsafe {
        let (a, b) = (vtrn1q_u32(rows[0], rows[1]), vtrn2q_u32(rows[0], rows[1]));
        let (c, d) = (vtrn1q_u32(rows[2], rows[3]), vtrn2q_u32(rows[2], rows[3]));
        let pairs = |a: uint32x4_t, b: uint32x4_t| (vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b));
        let ((a, c), (b, d)) = (pairs(a, c), pairs(b, d));
        [
            vreinterpretq_u32_u64(vtrn1q_u64(a, c)),
            vreinterpretq_u32_u64(vtrn1q_u64(b, d)),
            vreinterpretq_u32_u64(vtrn2q_u64(a, c)),
            vreinterpretq_u32_u64(vtrn2q_u64(b, d)),
        ]
    }
}
