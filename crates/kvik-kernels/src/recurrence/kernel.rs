//! The arithmetic of recurrences, generic over lanes: with scalar lanes, the specification.

use super::StateRule;
use crate::f32x16::{F32x16, LANES, load_first, store_first};
use crate::ops::activation::silu;
use crate::ops::elements::part;

/// The functions of one instruction set, which the machine must have.
#[derive(Clone, Copy)]
pub(crate) struct RecurrenceKernels {
    /// The outputs of some channels for one row.
    pub convolve: unsafe fn(taps: &Taps<'_>, out: &mut [f32]),
    /// Updates the state of up to 16 values of one head, `[key_dim][16]`, with one row, and reads it.
    pub advance: unsafe fn(state: &mut [f32], step: &Step<'_>, out: &mut [f32]),
}

/// The operands of a convolution for one row of some channels.
pub(crate) struct Taps<'a> {
    /// The last inputs, the row's own at the end: `[width][channels]`.
    pub inputs: &'a [&'a [f32]],
    /// `[width][channels]`
    pub weights: &'a [&'a [f32]],
    /// `[channels]`
    pub bias: Option<&'a [f32]>,
    /// Whether `x / (1 + exp(-x))` follows.
    pub silu: bool,
}

/// The input of one row to one head.
pub(crate) struct Step<'a> {
    pub rule: StateRule,
    /// `[key_dim]` each.
    pub k: &'a [f32],
    pub q: &'a [f32],
    /// At most 16 values.
    pub v: &'a [f32],
    pub decay: f32,
    pub rate: f32,
    pub skip: f32,
}

/// Declares `KERNELS` for one type of lanes, compiled with its target features.
macro_rules! recurrence_kernels {
    ($lanes:ty $(, $features:literal)?) => {
        /// Recurrences in these lanes.
        pub(super) const KERNELS: $crate::recurrence::kernel::RecurrenceKernels = {
            use $crate::recurrence::kernel::{self, RecurrenceKernels, Step, Taps};

            $(#[target_feature(enable = $features)])?
            unsafe fn convolve(taps: &Taps<'_>, out: &mut [f32]) {
                // SAFETY: the contract of `RecurrenceKernels`.
                unsafe { kernel::convolve::<$lanes>(taps, out) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn advance(state: &mut [f32], step: &Step<'_>, out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { kernel::advance::<$lanes>(state, step, out) }
            }
            RecurrenceKernels { convolve, advance }
        };
    };
}
pub(crate) use recurrence_kernels;

/// Starts with the oldest input: a product, then one FMA for each further input; then the bias.
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn convolve<L: F32x16>(taps: &Taps<'_>, out: &mut [f32]) {
    let channels = out.len();
    let fits = |x: &&[f32]| x.len() == channels;
    assert!(taps.inputs.len() == taps.weights.len() && !taps.inputs.is_empty());
    assert!(taps.inputs.iter().chain(taps.weights).all(fits) && taps.bias.iter().all(fits));
    for start in (0..channels).step_by(LANES) {
        let count = (channels - start).min(LANES);
        // SAFETY: all slices are as long as `out`; the machine has the lanes.
        unsafe {
            let mut sum = part::<L>(taps.inputs[0], start, count).mul(part(taps.weights[0], start, count));
            for (input, weight) in taps.inputs.iter().zip(taps.weights).skip(1) {
                sum = part::<L>(input, start, count).mul_add(part(weight, start, count), sum);
            }
            if let Some(bias) = taps.bias {
                sum = sum.add(part(bias, start, count));
            }
            let result = if taps.silu { silu(sum) } else { sum };
            store_first(result, out.as_mut_ptr().add(start), count);
        }
    }
}

/// Number of separate sums over the rows of a state: row `i` is added to sum `i % SUMS`.
const SUMS: usize = 4;

/// With `S` the state, `[key_dim]` rows of 16 values:
///
/// ```text
/// d = rate (v - decay (k S))  for the delta rule,  rate v  for a scan
/// S = S decay + k d           a product and an FMA
/// out = q S + skip v          an FMA, unless skip is 0
/// ```
///
/// Sums over rows are FMAs in four sums, row `i` in sum `i % 4`, then `(0 + 1) + (2 + 3)`.
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn advance<L: F32x16>(state: &mut [f32], step: &Step<'_>, out: &mut [f32]) {
    let &Step { rule, k, q, v, decay, rate, skip } = step;
    assert!(q.len() == k.len() && state.len() == k.len() * LANES);
    assert!(v.len() <= LANES && out.len() == v.len());
    // SAFETY: the lengths are checked; the machine has the lanes.
    unsafe {
        let v: L = load_first(v.as_ptr(), v.len());
        let (decay, rate) = (L::splat(decay), L::splat(rate));
        let change = match rule {
            StateRule::Delta => rate.mul(v.sub(decay.mul(read::<L>(state, k)))),
            StateRule::Scan => rate.mul(v),
        };
        let mut result = update(state, k, q, decay, change);
        if skip != 0.0 {
            result = v.mul_add(L::splat(skip), result);
        }
        store_first(result, out.as_mut_ptr(), out.len());
    }
}

/// `k S`
///
/// # Safety
/// As the caller's; `S` has as many rows as `k` elements.
#[inline(always)]
unsafe fn read<L: F32x16>(state: &[f32], k: &[f32]) -> L {
    let (rows, _) = state.as_chunks::<LANES>();
    let (row_groups, row_tail) = rows.as_chunks::<SUMS>();
    let (k_groups, k_tail) = k.as_chunks::<SUMS>();
    // SAFETY: every row has 16 elements; the machine has the lanes.
    unsafe {
        let mut sums = [L::splat(0.0); SUMS];
        for (rows, k) in row_groups.iter().zip(k_groups) {
            for i in 0..SUMS {
                sums[i] = L::load(rows[i].as_ptr()).mul_add(L::splat(k[i]), sums[i]);
            }
        }
        for ((row, &k), sum) in row_tail.iter().zip(k_tail).zip(&mut sums) {
            *sum = L::load(row.as_ptr()).mul_add(L::splat(k), *sum);
        }
        total(sums)
    }
}

/// `S = S decay + k change`, and `q S` of that.
///
/// # Safety
/// As the caller's; `S` has as many rows as `k` and `q` elements.
#[inline(always)]
unsafe fn update<L: F32x16>(state: &mut [f32], k: &[f32], q: &[f32], decay: L, change: L) -> L {
    let (rows, _) = state.as_chunks_mut::<LANES>();
    let (row_groups, row_tail) = rows.as_chunks_mut::<SUMS>();
    let (k_groups, k_tail) = k.as_chunks::<SUMS>();
    let (q_groups, q_tail) = q.as_chunks::<SUMS>();
    // SAFETY: every row has 16 elements; the machine has the lanes.
    unsafe {
        let mut sums = [L::splat(0.0); SUMS];
        for ((rows, k), q) in row_groups.iter_mut().zip(k_groups).zip(q_groups) {
            for i in 0..SUMS {
                let row = change.mul_add(L::splat(k[i]), L::load(rows[i].as_ptr()).mul(decay));
                row.store(rows[i].as_mut_ptr());
                sums[i] = row.mul_add(L::splat(q[i]), sums[i]);
            }
        }
        for (((row, &k), &q), sum) in row_tail.iter_mut().zip(k_tail).zip(q_tail).zip(&mut sums) {
            let new = change.mul_add(L::splat(k), L::load(row.as_ptr()).mul(decay));
            new.store(row.as_mut_ptr());
            *sum = new.mul_add(L::splat(q), *sum);
        }
        total(sums)
    }
}

#[inline(always)]
fn total<L: F32x16>([a, b, c, d]: [L; SUMS]) -> L {
    a.add(b).add(c.add(d))
}
