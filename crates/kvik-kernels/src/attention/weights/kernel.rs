//! The arithmetic on attention weights, generic over lanes: with scalar lanes, the specification.
//!
//! A weight is p times the factor of its split, exp(m of the split - m of the row) / l. Positions are processed in
//! ascending blocks of 16 stored positions, whichever of them count; heads and rows in order.

use crate::attention::kernel::{Softmax, between};
use crate::attention::{SPLIT, WeightReduce};
use crate::f32x16::{F32x16, LANES, load_first, store_first};

/// The weights of one row for the query heads of one KV head, as recorded by a call of attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowWeights<'a> {
    /// `[group][stride]` probabilities of stored positions, in whole blocks.
    pub p: &'a [f32],
    pub stride: usize,
    /// `[group][splits]`
    pub factors: &'a [f32],
    pub splits: usize,
    /// End of the visible stored positions; the weights before the first visible one are 0.
    pub end: usize,
    /// Number of visible stored positions.
    pub count: usize,
}

/// The contribution of one row to a reduction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReduceCall<'a> {
    pub row: RowWeights<'a>,
    pub reduce: WeightReduce,
    /// `[group]` divisors of the weights of each query head, applied first.
    pub divisors: &'a [f32],
    /// The positions that take part, all visible to the row.
    pub start: usize,
    pub end: usize,
}

/// The functions of one instruction set, which the machine must have.
#[derive(Clone, Copy)]
pub(crate) struct WeightKernels {
    /// Converts the maxima of splits to their factors.
    pub factors: unsafe fn(maxima: &mut [f32], sum: Softmax),
    /// Adds a query head's weights at positions `start..end`, per lane, to `sums`.
    pub sum: unsafe fn(row: RowWeights<'_>, head: usize, start: usize, end: usize, sums: &mut [f32; LANES]),
    /// Reduces a row into `acc`, which begins with stored position `first`, a multiple of 16.
    pub reduce: unsafe fn(call: &ReduceCall<'_>, first: usize, acc: &mut [f32]),
}

/// Declares `KERNELS` for one type of lanes, compiled with its target features.
macro_rules! weight_kernels {
    ($lanes:ty $(, $features:literal)?) => {
        /// The arithmetic on attention weights in these lanes.
        pub(super) const KERNELS: $crate::attention::weights::kernel::WeightKernels = {
            use $crate::attention::kernel::Softmax;
            use $crate::attention::weights::kernel::{self, ReduceCall, RowWeights, WeightKernels};

            $(#[target_feature(enable = $features)])?
            unsafe fn factors(maxima: &mut [f32], sum: Softmax) {
                // SAFETY: the contract of `WeightKernels`.
                unsafe { kernel::factors::<$lanes>(maxima, sum) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn sum(row: RowWeights<'_>, head: usize, start: usize, end: usize, sums: &mut [f32; 16]) {
                // SAFETY: as above.
                unsafe { kernel::sum::<$lanes>(row, head, start, end, sums) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn reduce(call: &ReduceCall<'_>, first: usize, acc: &mut [f32]) {
                // SAFETY: as above.
                unsafe { kernel::reduce::<$lanes>(call, first, acc) }
            }
            WeightKernels { factors, sum, reduce }
        };
    };
}
pub(crate) use weight_kernels;

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn factors<L: F32x16>(maxima: &mut [f32], sum: Softmax) {
    for maxima in maxima.chunks_mut(LANES) {
        // SAFETY: at most 16 elements.
        unsafe {
            let m: L = load_first(maxima.as_ptr(), maxima.len());
            let factors = m.sub(L::splat(sum.m)).exp().div(L::splat(sum.l));
            store_first(factors, maxima.as_mut_ptr(), maxima.len());
        }
    }
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn sum<L: F32x16>(
    row: RowWeights<'_>,
    head: usize,
    start: usize,
    end: usize,
    sums: &mut [f32; LANES],
) {
    // SAFETY: 16 lanes of whole blocks.
    unsafe {
        let mut lanes = L::load(sums.as_ptr());
        for block in (start / LANES * LANES..end).step_by(LANES) {
            let nothing = L::splat(0.0);
            let weights = between(block, &(start..end), row.block::<L>(head, block), nothing);
            lanes = lanes.add(weights);
        }
        lanes.store(sums.as_mut_ptr());
    }
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn reduce<L: F32x16>(call: &ReduceCall<'_>, first: usize, acc: &mut [f32]) {
    // SAFETY: as the caller's.
    unsafe {
        let (zero, one) = (L::splat(0.0), L::splat(1.0));
        let group = L::splat(call.divisors.len() as f32);
        let alike = L::splat(1.0 / call.row.count as f32);
        match call.reduce {
            WeightReduce::Sum => update(
                call,
                first,
                acc,
                plus::<L>,
                #[inline(always)]
                |acc: L, sum| acc.add(sum.div(group)),
            ),
            WeightReduce::Decayed(decay) => {
                let decay = L::splat(decay);
                update(
                    call,
                    first,
                    acc,
                    plus::<L>,
                    #[inline(always)]
                    |acc: L, sum| acc.mul_add(decay, sum.div(group)),
                );
            }
            WeightReduce::Above => update(
                call,
                first,
                acc,
                plus::<L>,
                #[inline(always)]
                |acc: L, sum| acc.add(alike.select_less(sum.div(group), one, zero)),
            ),
            WeightReduce::Max => {
                update(call, first, acc, greater::<L>, greater);
            }
        }
    }
}

#[inline(always)]
fn plus<L: F32x16>(a: L, b: L) -> L {
    a.add(b)
}

/// The larger of both; `before` if they do not compare.
#[inline(always)]
fn greater<L: F32x16>(before: L, weight: L) -> L {
    weight.max(before)
}

/// Replaces each element of `acc` by `update` of it and of the weights of all query heads, combined by `combine`
/// in the order of query heads.
#[inline(always)]
unsafe fn update<L: F32x16>(
    call: &ReduceCall<'_>,
    first: usize,
    acc: &mut [f32],
    combine: impl Fn(L, L) -> L,
    update: impl Fn(L, L) -> L,
) {
    for block in (call.start / LANES * LANES..call.end).step_by(LANES) {
        let acc = &mut acc[block - first..];
        let count = acc.len().min(LANES);
        // SAFETY: `count` elements of `acc`; the row has whole blocks.
        unsafe {
            let mut weights = call.row.block::<L>(0, block).div(L::splat(call.divisors[0]));
            for (head, &divisor) in call.divisors.iter().enumerate().skip(1) {
                weights = combine(weights, call.row.block::<L>(head, block).div(L::splat(divisor)));
            }
            let before: L =
                if count == LANES { L::load(acc.as_ptr()) } else { load_first(acc.as_ptr(), count) };
            let after = between(block, &(call.start..call.end), update(before, weights), before);
            if count == LANES {
                after.store(acc.as_mut_ptr());
            } else {
                store_first(after, acc.as_mut_ptr(), count);
            }
        }
    }
}

impl RowWeights<'_> {
    /// The weights of a query head at 16 positions from `block` on; 0 at invisible positions.
    #[inline(always)]
    unsafe fn block<L: F32x16>(&self, head: usize, block: usize) -> L {
        let p = &self.p[head * self.stride + block..][..LANES];
        let factor = self.factors[head * self.splits + block / SPLIT];
        // SAFETY: 16 elements.
        unsafe { L::load(p.as_ptr()).mul(L::splat(factor)) }
    }
}
