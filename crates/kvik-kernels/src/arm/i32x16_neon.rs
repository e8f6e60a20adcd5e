//! Sixteen sums as four NEON registers.

use std::arch::aarch64::*;

use super::f32x16_neon::Neon;
use crate::i32x16::I32x16;

/// Every aarch64 machine has NEON.
#[derive(Clone, Copy)]
pub(crate) struct NeonSums([int32x4_t; 4]);

/// The first and the second numbers of sixteen pairs, separated so that each is in its sum's lane without a
/// shuffle.
#[derive(Clone, Copy)]
pub(crate) struct NeonPairs {
    first: [int16x8_t; 2],
    second: [int16x8_t; 2],
}

// Every intrinsic below belongs to NEON: see the contract of `I32x16`.
impl I32x16 for NeonSums {
    type Floats = Neon;
    type Pairs = NeonPairs;
    /// The lower and the upper halves of the lanes.
    type Word = [[uint16x8_t; 2]; 2];

    #[inline(always)]
    unsafe fn zero() -> NeonSums {
        // SAFETY: the machine has NEON.
        NeonSums([unsafe { vdupq_n_s32(0) }; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const i32) -> NeonSums {
        // SAFETY: as above; 16 elements are readable.
        NeonSums(std::array::from_fn(|i| unsafe { vld1q_s32(from.add(4 * i)) }))
    }

    #[inline(always)]
    unsafe fn splat_pair(from: *const i16) -> NeonPairs {
        // SAFETY: as above; a pair is readable.
        unsafe { NeonPairs { first: [vdupq_n_s16(*from); 2], second: [vdupq_n_s16(*from.add(1)); 2] } }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const i8) -> NeonPairs {
        // SAFETY: as above; 32 bytes are readable.
        unsafe {
            let int8x16x2_t(first, second) = vld2q_s8(from);
            NeonPairs {
                first: [vmovl_s8(vget_low_s8(first)), vmovl_high_s8(first)],
                second: [vmovl_s8(vget_low_s8(second)), vmovl_high_s8(second)],
            }
        }
    }

    #[inline(always)]
    unsafe fn load_word(from: *const u8) -> Self::Word {
        // SAFETY: as above; 64 bytes are readable.
        unsafe {
            let uint16x8x2_t(low, high) = vld2q_u16(from.cast());
            let uint16x8x2_t(low_after, high_after) = vld2q_u16(from.add(32).cast());
            [[low, low_after], [high, high_after]]
        }
    }

    #[inline(always)]
    unsafe fn load_halves(from: *const u8, shift: usize) -> Self::Word {
        // SAFETY: as above; 32 bytes are readable.
        unsafe {
            let halves = [vld1q_u16(from.cast()), vld1q_u16(from.add(16).cast())];
            let shift = vdupq_n_s16(shift as i16);
            let lower = halves.map(|half| vshlq_u16(vandq_u16(half, vdupq_n_u16(0xff)), shift));
            [lower, halves.map(|half| vshlq_u16(vshrq_n_u16::<8>(half), shift))]
        }
    }

    #[inline(always)]
    unsafe fn load_quarters(from: *const u8, shift: usize) -> Self::Word {
        // SAFETY: as above; 16 bytes are readable.
        unsafe {
            let bytes = [vmovl_u8(vld1_u8(from)), vmovl_u8(vld1_u8(from.add(8)))];
            let shift = vdupq_n_s16(shift as i16);
            let lower = bytes.map(|byte| vshlq_u16(vandq_u16(byte, vdupq_n_u16(15)), shift));
            [lower, bytes.map(|byte| vshlq_u16(vshrq_n_u16::<4>(byte), shift))]
        }
    }

    #[inline(always)]
    fn fields([low, high]: Self::Word, shift: usize, mask: i16) -> NeonPairs {
        // SAFETY: the machine has NEON.
        let field = |bits: uint16x8_t| unsafe {
            let shifted = vshlq_u16(bits, vdupq_n_s16(-(shift as i16)));
            vandq_s16(vreinterpretq_s16_u16(shifted), vdupq_n_s16(mask))
        };
        NeonPairs { first: low.map(field), second: high.map(field) }
    }

    #[inline(always)]
    fn join(a: NeonPairs, b: NeonPairs) -> NeonPairs {
        // SAFETY: the machine has NEON.
        let both =
            |a: [int16x8_t; 2], b: [int16x8_t; 2]| unsafe { [vorrq_s16(a[0], b[0]), vorrq_s16(a[1], b[1])] };
        NeonPairs { first: both(a.first, b.first), second: both(a.second, b.second) }
    }

    #[inline(always)]
    unsafe fn turn_bytes(from: *const u8, to: *mut u8, stride: usize) {
        // SAFETY: as above; a pair of rows has 32 bytes, and so has a pair of columns.
        unsafe {
            let each_turned = vld1q_u8([0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15].as_ptr());
            for (first_row, first_column) in [(0, 0), (4, 0), (0, 4), (4, 4)] {
                // Four by four lanes of two by two bytes.
                let mut rows = [vdupq_n_u32(0); 4];
                for (i, row) in rows.iter_mut().enumerate() {
                    let bytes = vld1q_u8(from.add(32 * (first_row + i) + 4 * first_column));
                    *row = vreinterpretq_u32_u8(vqtbl1q_u8(bytes, each_turned));
                }
                let [a, b, c, d] = rows;
                let even = [vtrn1q_u32(a, b), vtrn1q_u32(c, d)].map(|x| vreinterpretq_u64_u32(x));
                let odd = [vtrn2q_u32(a, b), vtrn2q_u32(c, d)].map(|x| vreinterpretq_u64_u32(x));
                let turned = [
                    vtrn1q_u64(even[0], even[1]),
                    vtrn1q_u64(odd[0], odd[1]),
                    vtrn2q_u64(even[0], even[1]),
                    vtrn2q_u64(odd[0], odd[1]),
                ];
                for (i, columns) in turned.into_iter().enumerate() {
                    let to = to.add((first_column + i) * stride + 4 * first_row);
                    vst1q_u8(to, vreinterpretq_u8_u64(columns));
                }
            }
        }
    }

    #[inline(always)]
    fn add_products(self, a: NeonPairs, b: NeonPairs) -> NeonSums {
        let NeonSums(mut sums) = self;
        for half in 0..2 {
            for (a, b) in [(a.first[half], b.first[half]), (a.second[half], b.second[half])] {
                // SAFETY: the machine has NEON.
                unsafe {
                    sums[2 * half] = vmlal_s16(sums[2 * half], vget_low_s16(a), vget_low_s16(b));
                    sums[2 * half + 1] = vmlal_high_s16(sums[2 * half + 1], a, b);
                }
            }
        }
        NeonSums(sums)
    }

    #[inline(always)]
    fn to_floats(self) -> Neon {
        // SAFETY: the machine has NEON.
        Neon::from_registers(self.0.map(|sums| unsafe { vcvtq_f32_s32(sums) }))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut i32) {
        for i in 0..4 {
            // SAFETY: 16 elements are writable.
            unsafe { vst1q_s32(to.add(4 * i), self.0[i]) };
        }
    }
}
