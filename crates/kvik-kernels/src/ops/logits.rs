//! Operations of sampling on a row of logits: the maximum, and sums of exponentials.
//!
//! These operations do not use the pool: its threads already work on different rows, one per sequence.

use super::elements::{each, part};
use super::kernels;
use crate::f32x16::{F32x16, LANES};

/// The weight function of a logit: `exp((logit - origin) * rate)`, and 0 for NaN.
///
/// `origin` is finite and not below any logit; `rate` is positive and finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighing {
    /// The logit of weight 1: the maximum.
    pub origin: f32,
    /// The reciprocal of the temperature.
    pub rate: f32,
}

/// Sums of the weights of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mass {
    /// The sum over logits above a bound.
    pub above: f32,
    /// The sum over all logits.
    pub all: f32,
}

/// The maximum of `logits`, ignoring NaN; negative infinity if there is none.
pub fn largest(logits: &[f32]) -> f32 {
    // SAFETY: the kernels are those of the machine.
    unsafe { (kernels().largest)(logits) }
}

/// Sums the weights of `logits`, and of those above the bound `above`.
///
/// Sums are in single precision: for a thousand logits their error is at most 1e-5, and mostly 1e-7.
pub fn mass(logits: &[f32], weighing: Weighing, above: f32) -> Mass {
    // SAFETY: as above.
    unsafe { (kernels().mass)(logits, weighing, above) }
}

/// Replaces logits by their weights.
pub fn weigh(logits: &mut [f32], weighing: Weighing) {
    // SAFETY: as above.
    unsafe { (kernels().weigh)(logits, weighing) };
}

/// Vectors compared in parallel, since each comparison depends on the previous one.
const BESIDE: usize = 4;

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(super) unsafe fn find_largest<L: F32x16>(logits: &[f32]) -> f32 {
    let (groups, rest) = logits.as_chunks::<{ BESIDE * LANES }>();
    // SAFETY: every part lies inside its slice; the machine has the lanes.
    unsafe {
        let mut best = [L::splat(f32::NEG_INFINITY); BESIDE];
        for group in groups {
            for (at, best) in best.iter_mut().enumerate() {
                *best = L::load(group.as_ptr().add(at * LANES)).max(*best);
            }
        }
        let mut best = best[0].max(best[1]).max(best[2].max(best[3]));
        for start in (0..rest.len()).step_by(LANES) {
            let count = (rest.len() - start).min(LANES);
            best = part::<L>(rest, start, count).first(count, best).max(best);
        }
        best.maximum()
    }
}

/// Order of both sums: lane `i` adds the weights of elements `i, i + 16, ..`, then the tree of [`F32x16::sum`].
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(super) unsafe fn sum_weights<L: F32x16>(logits: &[f32], weighing: Weighing, above: f32) -> Mass {
    let (whole, tail) = logits.as_chunks::<LANES>();
    // SAFETY: 16 elements, or those of the tail; the machine has the lanes.
    unsafe {
        let (mut sums, bound) = ([L::splat(0.0); 2], L::splat(above));
        for logits in whole {
            sums = add_weights(sums, L::load(logits.as_ptr()), weighing, bound);
        }
        let rest = part::<L>(tail, 0, tail.len()).first(tail.len(), L::splat(f32::NEG_INFINITY));
        let [above, all] = add_weights(sums, rest, weighing, bound);
        Mass { above: above.sum(), all: all.sum() }
    }
}

/// Adds the weights of logits to the sum of those above the bound, and to the sum of all.
#[inline(always)]
fn add_weights<L: F32x16>(sums: [L; 2], logits: L, weighing: Weighing, bound: L) -> [L; 2] {
    let weight = weight(logits, weighing);
    // SAFETY: `logits` exists, so the machine has these lanes.
    let zero = unsafe { L::splat(0.0) };
    [sums[0].add(bound.select_less(logits, weight, zero)), sums[1].add(weight)]
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(super) unsafe fn weigh_each<L: F32x16>(logits: &mut [f32], weighing: Weighing) {
    // SAFETY: as the caller's.
    unsafe {
        each(
            logits,
            #[inline(always)]
            |logit: L| weight(logit, weighing),
        );
    }
}

#[inline(always)]
fn weight<L: F32x16>(logit: L, weighing: Weighing) -> L {
    // SAFETY: `logit` exists, so the machine has these lanes.
    let splat = |x: f32| unsafe { L::splat(x) };
    // If two values do not compare, `max` returns the second: NaN gets weight 0.
    logit.sub(splat(weighing.origin)).mul(splat(weighing.rate)).exp().max(splat(0.0))
}
