//! The arithmetic of statistics of keys, values and queries, generic over lanes: with scalar lanes, the
//! specification.
//!
//! Second moments are a symmetric matrix, of which one half is stored: of each row `i` the columns from the start
//! of the block of 16 that contains `i`. Blocks of 16 rows are contiguous, each `[16][its columns]`; see
//! [`half_len`].

#![expect(clippy::needless_range_loop, reason = "register blocks are written as the matrices they are")]

use crate::attention::kernel::{Scoring, Seen, Softmax, softmax as softmax_of};
use crate::f32x16::{F32x16, LANES, load_first, store_first};

/// Keys whose logits are computed at a time: with wide registers, 8 rows of the matrix for all of them.
pub(crate) const KEYS: usize = 3 * LANES;

/// The functions of one instruction set, which the machine must have.
#[derive(Clone, Copy)]
pub(crate) struct FactsKernels {
    /// The sum of products: lane `i` adds those of elements `i, i + 16, ..` by FMA, then the tree of [`F32x16::sum`].
    pub dot: unsafe fn(x: &[f32], y: &[f32]) -> f32,
    /// `acc = fma(x, factor, acc)`
    pub add_scaled: unsafe fn(acc: &mut [f32], x: &[f32], factor: f32),
    /// Adds rows, `[n, lanes]`, to their sum `[lanes]` and, by FMA, to the stored half of their second moments.
    pub add_moments: unsafe fn(rows: &[f32], sum: &mut [f32], moments: &mut [f32]),
    /// `mean . k + k' half k` of [`KEYS`] keys, `[lanes][KEYS]`: see [`logits`].
    pub logits: Logits,
    /// See [`softmax_of`]; the scores are whole blocks of 16.
    pub softmax: unsafe fn(scores: &mut [f32], count: usize) -> Softmax,
}

/// Logits of [`KEYS`] keys for one query head.
pub(crate) type Logits = unsafe fn(keys: &[f32], mean: &[f32], half: &[f32], to: &mut [f32; KEYS]);

/// Declares `KERNELS` for one type of lanes, compiled with its target features.
macro_rules! facts_kernels {
    ($lanes:ty $(, $features:literal)?) => {
        /// Facts in these lanes.
        pub(super) const KERNELS: $crate::facts::kernel::FactsKernels = {
            use $crate::attention::kernel::Softmax;
            use $crate::facts::kernel::{self, FactsKernels, KEYS};

            $(#[target_feature(enable = $features)])?
            unsafe fn dot(x: &[f32], y: &[f32]) -> f32 {
                // SAFETY: the contract of `FactsKernels`.
                unsafe { kernel::dot::<$lanes>(x, y) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn add_scaled(acc: &mut [f32], x: &[f32], factor: f32) {
                // SAFETY: as above.
                unsafe { kernel::add_scaled::<$lanes>(acc, x, factor) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn add_moments(rows: &[f32], sum: &mut [f32], moments: &mut [f32]) {
                // SAFETY: as above.
                unsafe { kernel::add_moments::<$lanes>(rows, sum, moments) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn logits(keys: &[f32], mean: &[f32], half: &[f32], to: &mut [f32; KEYS]) {
                // SAFETY: as above.
                unsafe { kernel::logits::<$lanes>(keys, mean, half, to) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn softmax(scores: &mut [f32], count: usize) -> Softmax {
                // SAFETY: as above.
                unsafe { kernel::softmax::<$lanes>(scores, count) }
            }
            FactsKernels { dot, add_scaled, add_moments, logits, softmax }
        };
    };
}
pub(crate) use facts_kernels;

/// Elements of the stored half of a symmetric matrix of `lanes` rows, a multiple of 16.
pub(crate) fn half_len(lanes: usize) -> usize {
    let blocks = lanes / LANES;
    blocks * (blocks + 1) / 2 * LANES * LANES
}

/// Offset in the stored half of the block of 16 rows that begins with row `start`.
#[inline(always)]
pub(crate) fn half_start(lanes: usize, start: usize) -> usize {
    half_len(lanes) - half_len(lanes - start)
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn dot<L: F32x16>(x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len());
    let (x, x_tail) = x.as_chunks::<LANES>();
    let (y, y_tail) = y.as_chunks::<LANES>();
    // SAFETY: 16 elements of both, or those of the tails, which are equally long.
    unsafe {
        let mut sums = L::splat(0.0);
        for (x, y) in x.iter().zip(y) {
            sums = L::load(x.as_ptr()).mul_add(L::load(y.as_ptr()), sums);
        }
        // Most vectors are whole lanes, and a tail takes longer than they do.
        if !x_tail.is_empty() {
            let x: L = load_first(x_tail.as_ptr(), x_tail.len());
            sums = x.mul_add(load_first(y_tail.as_ptr(), x_tail.len()), sums);
        }
        sums.sum()
    }
}

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn add_scaled<L: F32x16>(acc: &mut [f32], x: &[f32], factor: f32) {
    assert_eq!(acc.len(), x.len());
    let (acc, acc_tail) = acc.as_chunks_mut::<LANES>();
    let (x, x_tail) = x.as_chunks::<LANES>();
    // SAFETY: 16 elements of both, or those of the tails, which are equally long.
    unsafe {
        let factor = L::splat(factor);
        for (acc, x) in acc.iter_mut().zip(x) {
            L::load(x.as_ptr()).mul_add(factor, L::load(acc.as_ptr())).store(acc.as_mut_ptr());
        }
        if !x_tail.is_empty() {
            let x: L = load_first(x_tail.as_ptr(), x_tail.len());
            let sum = x.mul_add(factor, load_first(acc_tail.as_ptr(), acc_tail.len()));
            store_first(sum, acc_tail.as_mut_ptr(), acc_tail.len());
        }
    }
}

/// # Safety
/// As [`softmax_of`]; inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn softmax<L: F32x16>(scores: &mut [f32], count: usize) -> Softmax {
    assert!(count.next_multiple_of(LANES) <= scores.len());
    let seen = Seen { start: 0, end: count as u32 };
    // SAFETY: whole blocks of scores.
    unsafe { softmax_of::<L>(scores.as_mut_ptr(), seen, Scoring { scale: 1.0, softcap: None }) }
}

/// Rows are added one by one to every element, so their division into calls does not matter.
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn add_moments<L: F32x16>(rows: &[f32], sum: &mut [f32], moments: &mut [f32]) {
    let lanes = sum.len();
    assert!(
        lanes.is_multiple_of(LANES) && rows.len().is_multiple_of(lanes) && moments.len() == half_len(lanes)
    );
    // SAFETY: whole blocks of rows and columns of all three.
    unsafe {
        for start in (0..lanes).step_by(LANES) {
            let mut total = L::load(sum.as_ptr().add(start));
            for row in rows.chunks_exact(lanes) {
                total = total.add(L::load(row.as_ptr().add(start)));
            }
            total.store(sum.as_mut_ptr().add(start));
            let columns = lanes - start;
            let block = &mut moments[half_start(lanes, start)..][..LANES * columns];
            if const { L::WIDE } {
                block_moments::<L, 8, 3>(rows, lanes, start, block);
            } else {
                block_moments::<L, 4, 1>(rows, lanes, start, block);
            }
        }
    }
}

/// Adds to the block of 16 rows of the moments that begins with row `start`, `M` rows and `N` vectors at a time.
#[inline(always)]
unsafe fn block_moments<L: F32x16, const M: usize, const N: usize>(
    rows: &[f32],
    lanes: usize,
    start: usize,
    block: &mut [f32],
) {
    let columns = lanes - start;
    for m in (0..LANES).step_by(M) {
        let mut column = 0;
        while column < columns {
            let to = &mut block[m * columns + column..];
            let at = [start + m, start + column];
            // SAFETY: as many vectors as there are columns left.
            column += unsafe {
                match (columns - column) / LANES {
                    left if left >= N => tile_moments::<L, M, N>(rows, lanes, at, to, columns),
                    2 => tile_moments::<L, M, 2>(rows, lanes, at, to, columns),
                    _ => tile_moments::<L, M, 1>(rows, lanes, at, to, columns),
                }
            };
        }
    }
}

/// Adds the products of elements `at[0]..` and `at[1]..` of all rows to `M` rows and `N` vectors; returns their
/// number of columns.
#[inline(always)]
unsafe fn tile_moments<L: F32x16, const M: usize, const N: usize>(
    rows: &[f32],
    lanes: usize,
    at: [usize; 2],
    to: &mut [f32],
    columns: usize,
) -> usize {
    assert!(to.len() >= (M - 1) * columns + N * LANES && at[0] + M <= lanes && at[1] + N * LANES <= lanes);
    // SAFETY: `M` rows of `N` vectors fit `to`, and those elements each of the rows.
    unsafe {
        let to = to.as_mut_ptr();
        let mut sums = [[L::splat(0.0); N]; M];
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = L::load(to.add(m * columns + n * LANES));
            }
        }
        for row in rows.chunks_exact(lanes) {
            let row = row.as_ptr();
            let mut right = [L::splat(0.0); N];
            for n in 0..N {
                right[n] = L::load(row.add(at[1] + n * LANES));
            }
            for m in 0..M {
                let left = L::splat(*row.add(at[0] + m));
                for n in 0..N {
                    sums[m][n] = left.mul_add(right[n], sums[m][n]);
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                sums[m][n].store(to.add(m * columns + n * LANES));
            }
        }
    }
    N * LANES
}

/// Order of a logit: the FMA over ascending dimensions of the mean and the key; then over ascending rows of the
/// matrix, the FMA of the key's element and the row times the key, which is the FMA over its ascending stored
/// columns.
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn logits<L: F32x16>(keys: &[f32], mean: &[f32], half: &[f32], to: &mut [f32; KEYS]) {
    let lanes = mean.len();
    let shaped = lanes.is_multiple_of(LANES) && keys.len() == lanes * KEYS && half.len() == half_len(lanes);
    assert!(shaped, "{lanes} dimensions");
    // SAFETY: the shapes of the call.
    unsafe {
        if const { L::WIDE } {
            vector_logits::<L, 8, 3>(keys, mean, half, 0, to);
        } else {
            for vector in 0..KEYS / LANES {
                vector_logits::<L, 4, 1>(keys, mean, half, vector * LANES, to);
            }
        }
    }
}

/// Computes `N` vectors of keys from key `first` on, `M` rows of the matrix at a time.
#[inline(always)]
unsafe fn vector_logits<L: F32x16, const M: usize, const N: usize>(
    keys: &[f32],
    mean: &[f32],
    half: &[f32],
    first: usize,
    to: &mut [f32; KEYS],
) {
    let lanes = mean.len();
    // SAFETY: dimension `d < lanes` of `N` vectors of keys; rows and columns of the kept half.
    unsafe {
        let key = |d: usize, n: usize| L::load(keys.as_ptr().add(d * KEYS + first + n * LANES));
        let mut logits = [L::splat(0.0); N];
        for d in 0..lanes {
            for n in 0..N {
                logits[n] = L::splat(mean[d]).mul_add(key(d, n), logits[n]);
            }
        }
        for start in (0..lanes).step_by(LANES) {
            let columns = lanes - start;
            let block = &half[half_start(lanes, start)..][..LANES * columns];
            for m in (0..LANES).step_by(M) {
                let rows = &block[m * columns..][..M * columns];
                let mut sums = [[L::splat(0.0); N]; M];
                for column in 0..columns {
                    for i in 0..M {
                        let factor = L::splat(*rows.as_ptr().add(i * columns + column));
                        for n in 0..N {
                            sums[i][n] = factor.mul_add(key(start + column, n), sums[i][n]);
                        }
                    }
                }
                for i in 0..M {
                    for n in 0..N {
                        logits[n] = sums[i][n].mul_add(key(start + m + i, n), logits[n]);
                    }
                }
            }
        }
        for n in 0..N {
            logits[n].store(to[first + n * LANES..][..LANES].as_mut_ptr());
        }
    }
}
