//! The arithmetic of the small operations, generic over lanes: with scalar lanes, the specification.
//!
//! Elementwise operations compute the same for every [element](super::elements), regardless of its position.

use super::activation::Activation;
use super::elements::{each, part, update};
use super::logits::{Mass, Weighing};
use crate::f32x16::{F32x16, LANES, load_first, store_first};

/// The functions of one instruction set, which the machine must have.
#[derive(Clone, Copy)]
pub(crate) struct OpsKernels {
    /// The sum of squares: lane `i` adds elements `i, i + 16, ..` by FMA, then the tree of [`F32x16::sum`].
    pub sum_squares: unsafe fn(x: &[f32]) -> f32,
    /// `x = x * factor * weight`
    pub scale: unsafe fn(x: &mut [f32], factor: f32, weight: &[f32]),
    /// See [`Activation`]; `up` is as long as `x` if the activation is gated.
    pub activate: unsafe fn(activation: Activation, x: &mut [f32], up: &[f32]),
    /// `x = exp(x - max x)`, over the sum of all; `x` is not empty.
    pub softmax: unsafe fn(x: &mut [f32]),
    /// `x = 1 / (1 + exp(-x))`
    pub sigmoid: unsafe fn(x: &mut [f32]),
    /// `x = x + y`
    pub add: unsafe fn(x: &mut [f32], y: &[f32]),
    /// `x = cap * tanh(x / cap)`
    pub soft_cap: unsafe fn(x: &mut [f32], cap: f32),
    /// `x = exp(x)`
    #[cfg_attr(not(test), expect(dead_code, reason = "attention has it inline; here it is tested"))]
    pub exp: unsafe fn(x: &mut [f32]),
    /// See [`largest`](super::logits::largest).
    pub largest: unsafe fn(logits: &[f32]) -> f32,
    /// See [`mass`](super::logits::mass).
    pub mass: unsafe fn(logits: &[f32], weighing: Weighing, above: f32) -> Mass,
    /// See [`weigh`](super::logits::weigh).
    pub weigh: unsafe fn(logits: &mut [f32], weighing: Weighing),
    pub rotate: Rotate,
}

/// Rotates the pairs `(low[i], high[i])` by the angles of `cos` and `sin`.
pub(crate) type Rotate = unsafe fn(low: &mut [f32], high: &mut [f32], cos: &[f32], sin: &[f32]);

/// Declares `KERNELS` for one type of lanes, compiled with its target features.
macro_rules! ops_kernels {
    ($lanes:ty $(, $features:literal)?) => {
        /// The small operations in these lanes.
        pub(super) const KERNELS: $crate::ops::kernel::OpsKernels = {
            use $crate::ops::activation::{self, Activation};
            use $crate::ops::gating;
            use $crate::ops::kernel::{self, OpsKernels};
            use $crate::ops::logits::{self, Mass, Weighing};

            $(#[target_feature(enable = $features)])?
            unsafe fn sum_squares(x: &[f32]) -> f32 {
                // SAFETY: the contract of `OpsKernels`.
                unsafe { kernel::sum_squares::<$lanes>(x) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn scale(x: &mut [f32], factor: f32, weight: &[f32]) {
                // SAFETY: as above.
                unsafe { kernel::scale::<$lanes>(x, factor, weight) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn activate(activation: Activation, x: &mut [f32], up: &[f32]) {
                // SAFETY: as above.
                unsafe { activation::run::<$lanes>(activation, x, up) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn softmax(x: &mut [f32]) {
                // SAFETY: as above.
                unsafe { gating::softmax_row::<$lanes>(x) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn sigmoid(x: &mut [f32]) {
                // SAFETY: as above.
                unsafe { gating::sigmoid_each::<$lanes>(x) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn add(x: &mut [f32], y: &[f32]) {
                // SAFETY: as above.
                unsafe { kernel::add::<$lanes>(x, y) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn soft_cap(x: &mut [f32], cap: f32) {
                // SAFETY: as above.
                unsafe { kernel::soft_cap::<$lanes>(x, cap) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn exp(x: &mut [f32]) {
                // SAFETY: as above.
                unsafe { kernel::exp::<$lanes>(x) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn rotate(low: &mut [f32], high: &mut [f32], cos: &[f32], sin: &[f32]) {
                // SAFETY: as above.
                unsafe { kernel::rotate::<$lanes>(low, high, cos, sin) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn largest(logits: &[f32]) -> f32 {
                // SAFETY: as above.
                unsafe { logits::find_largest::<$lanes>(logits) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn mass(logits: &[f32], weighing: Weighing, above: f32) -> Mass {
                // SAFETY: as above.
                unsafe { logits::sum_weights::<$lanes>(logits, weighing, above) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn weigh(logits: &mut [f32], weighing: Weighing) {
                // SAFETY: as above.
                unsafe { logits::weigh_each::<$lanes>(logits, weighing) }
            }
            OpsKernels {
                sum_squares,
                scale,
                activate,
                softmax,
                sigmoid,
                add,
                soft_cap,
                exp,
                largest,
                mass,
                weigh,
                rotate,
            }
        };
    };
}
pub(crate) use ops_kernels;

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn sum_squares<L: F32x16>(x: &[f32]) -> f32 {
    let (whole, tail) = x.as_chunks::<LANES>();
    // SAFETY: 16 elements, or those of the tail.
    unsafe {
        let mut sums = L::splat(0.0);
        for x in whole {
            let x = L::load(x.as_ptr());
            sums = x.mul_add(x, sums);
        }
        let x: L = load_first(tail.as_ptr(), tail.len());
        x.mul_add(x, sums).sum()
    }
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn scale<L: F32x16>(x: &mut [f32], factor: f32, weight: &[f32]) {
    // SAFETY: as the caller's.
    unsafe {
        let factor = L::splat(factor);
        update(
            x,
            weight,
            #[inline(always)]
            |x: L, weight| x.mul(factor).mul(weight),
        );
    }
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn add<L: F32x16>(x: &mut [f32], y: &[f32]) {
    // SAFETY: as the caller's.
    unsafe {
        update(
            x,
            y,
            #[inline(always)]
            |x: L, y| x.add(y),
        );
    }
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn exp<L: F32x16>(x: &mut [f32]) {
    // SAFETY: as the caller's.
    unsafe { each(x, L::exp) };
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn soft_cap<L: F32x16>(x: &mut [f32], cap: f32) {
    // SAFETY: as the caller's.
    unsafe {
        let cap = L::splat(cap);
        each(
            x,
            #[inline(always)]
            |x: L| x.div(cap).tanh().mul(cap),
        );
    }
}

/// `(low, high) = (low cos - high sin, low sin + high cos)`, both by one product and one FMA.
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn rotate<L: F32x16>(low: &mut [f32], high: &mut [f32], cos: &[f32], sin: &[f32]) {
    let len = low.len();
    assert!(high.len() == len && cos.len() == len && sin.len() == len);
    for start in (0..len).step_by(LANES) {
        let count = (len - start).min(LANES);
        // SAFETY: `start + count <= len`, the length of all four.
        unsafe {
            let (a, b) = (part::<L>(low, start, count), part::<L>(high, start, count));
            let (c, s) = (part::<L>(cos, start, count), part::<L>(sin, start, count));
            let minus_bs = L::splat(0.0).sub(b.mul(s));
            store_first(a.mul_add(c, minus_bs), low.as_mut_ptr().add(start), count);
            store_first(a.mul_add(s, b.mul(c)), high.as_mut_ptr().add(start), count);
        }
    }
}
