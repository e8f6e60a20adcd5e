//! Float lanes as an array: the specification of every operation.

use half::{bf16, f16};

use crate::f32x16::{F32x16, LANES};
use crate::small_floats::widened;

/// Sixteen values, computed one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Scalar([f32; LANES]);

impl Scalar {
    #[inline(always)]
    fn zip(self, other: Scalar, f: impl Fn(f32, f32) -> f32) -> Scalar {
        Scalar(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    /// # Safety
    /// 16 elements are readable at `from`.
    #[inline(always)]
    unsafe fn convert<T: Copy>(from: *const T, f: impl Fn(T) -> f32) -> Scalar {
        // SAFETY: the caller's promise.
        Scalar(std::array::from_fn(|i| f(unsafe { from.add(i).read_unaligned() })))
    }
}

impl F32x16 for Scalar {
    const WIDE: bool = false;
    const BLOCKED: bool = false;

    unsafe fn splat(x: f32) -> Scalar {
        Scalar([x; LANES])
    }

    unsafe fn load(from: *const f32) -> Scalar {
        // SAFETY: the caller's promise.
        unsafe { Scalar::convert(from, |x| x) }
    }

    unsafe fn load_f16(from: *const u16) -> Scalar {
        // SAFETY: the caller's promise.
        unsafe { Scalar::convert(from, |bits| f16::from_bits(bits).to_f32()) }
    }

    unsafe fn load_bf16(from: *const u16) -> Scalar {
        // SAFETY: the caller's promise.
        unsafe { Scalar::convert(from, |bits| bf16::from_bits(bits).to_f32()) }
    }

    unsafe fn load_small(from: *const u8) -> Scalar {
        // SAFETY: the caller's promise.
        unsafe { Scalar::convert(from, widened) }
    }

    unsafe fn prefetch(_at: *const u8) {}

    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) };
    }

    unsafe fn store_i16(self, to: *mut i16) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[i16; LANES]>().write_unaligned(self.0.map(|x| x.round_ties_even() as i16)) };
    }

    fn add(self, other: Scalar) -> Scalar {
        self.zip(other, |a, b| a + b)
    }

    fn sub(self, other: Scalar) -> Scalar {
        self.zip(other, |a, b| a - b)
    }

    fn mul(self, other: Scalar) -> Scalar {
        self.zip(other, |a, b| a * b)
    }

    fn div(self, other: Scalar) -> Scalar {
        self.zip(other, |a, b| a / b)
    }

    fn mul_add(self, factor: Scalar, addend: Scalar) -> Scalar {
        Scalar(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], addend.0[i])))
    }

    fn max(self, other: Scalar) -> Scalar {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    fn first(self, count: usize, other: Scalar) -> Scalar {
        Scalar(std::array::from_fn(|i| if i < count { self.0[i] } else { other.0[i] }))
    }

    fn select_less(self, bound: Scalar, yes: Scalar, no: Scalar) -> Scalar {
        Scalar(std::array::from_fn(|i| if self.0[i] < bound.0[i] { yes.0[i] } else { no.0[i] }))
    }

    fn power_of_two(self) -> Scalar {
        Scalar(self.0.map(|n| f32::from_bits((n.to_bits() << 23).wrapping_add(127 << 23))))
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
impl Scalar {
    /// Pairs of four bfloats of each eight, starting at the one at `first`.
    fn pairs_of_eights(self, upper: Scalar, first: usize) -> Scalar {
        let bfloat = |line: Scalar, i: usize| line.0[i / 2].to_bits() >> (i % 2 * 16) & 0xffff;
        Scalar(std::array::from_fn(|i| {
            let i = i / 4 * 8 + first + i % 4;
            f32::from_bits(bfloat(self, i) | bfloat(upper, i) << 16)
        }))
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
impl crate::f32x16::BfloatLanes for Scalar {
    unsafe fn pair_up(lower: *const u16, upper: *const u16) -> Scalar {
        // SAFETY: the caller's promise.
        let [lower, upper] = [lower, upper].map(|at| unsafe { at.cast::<[u16; LANES]>().read_unaligned() });
        Scalar(std::array::from_fn(|i| f32::from_bits(u32::from(lower[i]) | u32::from(upper[i]) << 16)))
    }

    fn pair_first(self, upper: Scalar) -> Scalar {
        self.pairs_of_eights(upper, 0)
    }

    fn pair_second(self, upper: Scalar) -> Scalar {
        self.pairs_of_eights(upper, 4)
    }

    fn in_order(first: Scalar, second: Scalar) -> [Scalar; 2] {
        let lane =
            |i: usize| if i % 8 < 4 { first.0[i / 8 * 4 + i % 4] } else { second.0[i / 8 * 4 + i % 4] };
        [0, LANES].map(|start| Scalar(std::array::from_fn(|i| lane(start + i))))
    }

    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(self.0.map(|x| crate::narrow::bfloat(x) as u16)) };
    }

    unsafe fn dot_bf16(self, a: Scalar, b: Scalar) -> Scalar {
        use crate::narrow::flush;

        let bfloats = |x: f32| [x.to_bits() << 16, x.to_bits() & 0xffff_0000].map(f32::from_bits).map(flush);
        Scalar(std::array::from_fn(|i| {
            let ([a_even, a_odd], [b_even, b_odd]) = (bfloats(a.0[i]), bfloats(b.0[i]));
            flush(a_even.mul_add(b_even, flush(a_odd.mul_add(b_odd, flush(self.0[i])))))
        }))
    }
}
