//! Probabilities of routers: softmax of rows, and sigmoid.

use super::elements::{each, part};
use super::{by_rows, kernels};
use crate::Pool;
use crate::f32x16::{F32x16, LANES, store_first};

/// Softmax of each row of `x`, `[n, d]`: `exp(x - max)` over its sum.
///
/// # Panics
/// If `x` is not whole rows.
pub fn softmax(pool: &Pool, x: &mut [f32], d: usize) {
    assert!(d > 0 && x.len().is_multiple_of(d), "x is [n, {d}]");
    let kernels = kernels();
    by_rows(pool, x, d, |_, rows| {
        for row in rows.chunks_exact_mut(d) {
            // SAFETY: the kernels are those of the machine.
            unsafe { (kernels.softmax)(row) };
        }
    });
}

/// `x = 1 / (1 + exp(-x))`
pub fn sigmoid(pool: &Pool, x: &mut [f32]) {
    let kernels = kernels();
    by_rows(pool, x, 1, |_, x| {
        // SAFETY: the kernels are those of the machine.
        unsafe { (kernels.sigmoid)(x) };
    });
}

/// Sum order: lane `i` adds `exp(x - max)` of elements `i, i + 16, ..`, then the tree of [`F32x16::sum`].
///
/// # Safety
/// Inlined into a function with the features of `L`; `x` is not empty.
#[inline(always)]
pub(super) unsafe fn softmax_row<L: F32x16>(x: &mut [f32]) {
    // SAFETY: every part lies inside the slice; the machine has the lanes.
    unsafe {
        let mut largest = L::splat(f32::NEG_INFINITY);
        for start in (0..x.len()).step_by(LANES) {
            let count = (x.len() - start).min(LANES);
            largest = part::<L>(x, start, count).first(count, largest).max(largest);
        }
        let (largest, mut sums) = (L::splat(largest.maximum()), L::splat(0.0));
        for start in (0..x.len()).step_by(LANES) {
            let count = (x.len() - start).min(LANES);
            let power = part::<L>(x, start, count).sub(largest).exp();
            sums = sums.add(power.first(count, L::splat(0.0)));
            store_first(power, x.as_mut_ptr().add(start), count);
        }
        let sum = L::splat(sums.sum());
        each(
            x,
            #[inline(always)]
            |x: L| x.div(sum),
        );
    }
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(super) unsafe fn sigmoid_each<L: F32x16>(x: &mut [f32]) {
    // SAFETY: as the caller's.
    unsafe {
        let (zero, one) = (L::splat(0.0), L::splat(1.0));
        each(
            x,
            #[inline(always)]
            |x: L| one.div(one.add(zero.sub(x).exp())),
        );
    }
}
