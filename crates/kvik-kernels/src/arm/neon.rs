//! NEON, with or without dot products and matrix products: sixteen lanes are four registers.
//!
//! The products are inline assembly: their intrinsics are not stable yet.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is intrinsics of the features that a `Neon` proves"
)]

use std::arch::aarch64::*;
use std::arch::asm;

use crate::lanes::Lanes;

/// Proof of NEON, of `dotprod` if `DOT`, and of `i8mm` if `MATRIX`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon<const DOT: bool, const MATRIX: bool>(());

impl<const DOT: bool, const MATRIX: bool> Neon<DOT, MATRIX> {
    /// # Safety
    /// The machine has the features.
    pub(crate) unsafe fn new() -> Neon<DOT, MATRIX> {
        Neon(())
    }
}

type Int = [int32x4_t; 4];
type Float = [float32x4_t; 4];

/// `[f(0), f(1), f(2), f(3)]`, without a closure.
macro_rules! quarters {
    ($i:ident => $value:expr) => {
        unsafe {
            [
                {
                    let $i = 0;
                    $value
                },
                {
                    let $i = 1;
                    $value
                },
                {
                    let $i = 2;
                    $value
                },
                {
                    let $i = 3;
                    $value
                },
            ]
        }
    };
}

// SAFETY: every method is the instruction of its name, once per quarter.
unsafe impl<const DOT: bool, const MATRIX: bool> Lanes for Neon<DOT, MATRIX> {
    type Int = Int;
    type Float = Float;

    type Run = Int;

    const SUMS: usize = 6;
    const TWO_INPUTS: bool = MATRIX;
    const UNSIGNED: bool = false;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> Int {
        quarters!(i => vreinterpretq_s32_u8(vld1q_u8(from.add(i * 16))))
    }

    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> Int {
        unsafe {
            let bytes = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> Int {
        unsafe {
            let bytes = vld1q_s8(from.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_s16(vget_high_s16(low)),
                vmovl_s16(vget_low_s16(high)),
                vmovl_s16(vget_high_s16(high)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> Float {
        quarters!(i => vreinterpretq_f32_u8(vld1q_u8(from.add(i * 16))))
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Float {
        quarters!(i => vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from.add(i * 8)))))
    }

    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) from, options(nostack, preserves_flags, readonly)) }
    }

    #[inline(always)]
    fn splat(self, value: i32) -> Int {
        unsafe { [vdupq_n_s32(value); 4] }
    }

    #[inline(always)]
    fn splat_f32(self, value: f32) -> Float {
        unsafe { [vdupq_n_f32(value); 4] }
    }

    #[inline(always)]
    fn and(self, a: Int, b: Int) -> Int {
        quarters!(i => vandq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn or(self, a: Int, b: Int) -> Int {
        quarters!(i => vorrq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn xor(self, a: Int, b: Int) -> Int {
        quarters!(i => veorq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn blend(self, mask: Int, a: Int, b: Int) -> Int {
        quarters!(i => vbslq_s32(vreinterpretq_u32_s32(mask[i]), a[i], b[i]))
    }

    #[inline(always)]
    fn shift_left(self, a: Int, by: i32) -> Int {
        quarters!(i => vshlq_s32(a[i], vdupq_n_s32(by)))
    }

    #[inline(always)]
    fn shift_right(self, a: Int, by: i32) -> Int {
        quarters!(i => vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a[i]), vdupq_n_s32(-by))))
    }

    #[inline(always)]
    fn shift_right_shorts(self, a: Int, by: i32) -> Int {
        quarters!(i => vreinterpretq_s32_s16(vshlq_s16(vreinterpretq_s16_s32(a[i]), vdupq_n_s16(-by as i16))))
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: Int) -> Int {
        quarters!(i => vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table.as_ptr()), vreinterpretq_u8_s32(index[i]))))
    }

    #[inline(always)]
    fn add(self, a: Int, b: Int) -> Int {
        quarters!(i => vaddq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn mul_add(self, a: Int, b: Int, c: Int) -> Int {
        quarters!(i => vmlaq_s32(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn dot_shorts(self, a: Int, b: Int, c: Int) -> Int {
        quarters!(i => {
            let (b, c) = (vreinterpretq_s16_s32(b[i]), vreinterpretq_s16_s32(c[i]));
            let (low, high) = (vmull_s16(vget_low_s16(b), vget_low_s16(c)), vmull_high_s16(b, c));
            vaddq_s32(a[i], vpaddq_s32(low, high))
        })
    }

    #[inline(always)]
    fn begin(self, acc: Int) -> Int {
        acc
    }

    #[inline(always)]
    fn end<const WIDE: bool>(self, _acc: Int, run: Int) -> Int {
        run
    }

    #[inline(always)]
    fn dot<const WIDE: bool>(self, acc: Int, codes: Int, x: Int) -> Int {
        if DOT {
            quarters!(i => sdot(acc[i], codes[i], x[i]))
        } else {
            quarters!(i => dot_pairs(acc[i], codes[i], x[i]))
        }
    }

    /// Interleaves the sums: each register of the result is a matrix of two rows of the tile and both inputs.
    #[inline(always)]
    fn begin_two(self, [a, b]: [Int; 2]) -> [Int; 2] {
        unsafe { zip(a, b) }
    }

    #[inline(always)]
    unsafe fn dot_two(self, [low, high]: [Int; 2], [a, b]: [Int; 2], x: [*const i8; 2]) -> [Int; 2] {
        let x = unsafe { vcombine_s32(vld1_s32(x[0].cast()), vld1_s32(x[1].cast())) };
        let [first, second] = unsafe { zip(a, b) };
        [quarters!(i => smmla(low[i], first[i], x)), quarters!(i => smmla(high[i], second[i], x))]
    }

    #[inline(always)]
    fn end_two(self, [low, high]: [Int; 2]) -> [Int; 2] {
        unsafe {
            [
                [
                    vuzp1q_s32(low[0], low[1]),
                    vuzp1q_s32(low[2], low[3]),
                    vuzp1q_s32(high[0], high[1]),
                    vuzp1q_s32(high[2], high[3]),
                ],
                [
                    vuzp2q_s32(low[0], low[1]),
                    vuzp2q_s32(low[2], low[3]),
                    vuzp2q_s32(high[0], high[1]),
                    vuzp2q_s32(high[2], high[3]),
                ],
            ]
        }
    }

    #[inline(always)]
    fn to_float(self, a: Int) -> Float {
        quarters!(i => vcvtq_f32_s32(a[i]))
    }

    #[inline(always)]
    fn mul_f32(self, a: Float, b: Float) -> Float {
        quarters!(i => vmulq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn fma(self, a: Float, b: Float, c: Float) -> Float {
        quarters!(i => vfmaq_f32(c[i], a[i], b[i]))
    }

    #[inline(always)]
    fn as_float(self, a: Int) -> Float {
        quarters!(i => vreinterpretq_f32_s32(a[i]))
    }

    #[inline(always)]
    unsafe fn store(self, a: Float, to: *mut f32) {
        quarters!(i => vst1q_f32(to.add(i * 4), a[i]));
    }
}

/// Interleaves the lanes of `a` and `b`.
#[inline(always)]
unsafe fn zip(a: Int, b: Int) -> [Int; 2] {
    unsafe {
        [
            [vzip1q_s32(a[0], b[0]), vzip2q_s32(a[0], b[0]), vzip1q_s32(a[1], b[1]), vzip2q_s32(a[1], b[1])],
            [vzip1q_s32(a[2], b[2]), vzip2q_s32(a[2], b[2]), vzip1q_s32(a[3], b[3]), vzip2q_s32(a[3], b[3])],
        ]
    }
}

/// # Safety
/// The machine has `dotprod`.
#[inline(always)]
unsafe fn sdot(mut acc: int32x4_t, codes: int32x4_t, x: int32x4_t) -> int32x4_t {
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {acc:v}.4s, {codes:v}.16b, {x:v}.16b",
            acc = inout(vreg) acc,
            codes = in(vreg) codes,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Adds the products of two rows of eight quantised values with two rows of eight inputs: a two-by-two matrix.
///
/// # Safety
/// The machine has `i8mm`.
#[inline(always)]
unsafe fn smmla(mut acc: int32x4_t, codes: int32x4_t, x: int32x4_t) -> int32x4_t {
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {acc:v}.4s, {codes:v}.16b, {x:v}.16b",
            acc = inout(vreg) acc,
            codes = in(vreg) codes,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// [`sdot`] without `dotprod`: the sum of two products of magnitude 128 * 127 fits in 16 bits.
#[inline(always)]
unsafe fn dot_pairs(acc: int32x4_t, codes: int32x4_t, x: int32x4_t) -> int32x4_t {
    unsafe {
        let (codes, x) = (vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
        let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
        let high = vmull_high_s8(codes, x);
        vpadalq_s16(acc, vpaddq_s16(low, high))
    }
}
