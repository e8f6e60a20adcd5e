//! Expected attention: the attention that keys will get from future queries.

use std::ops::Range;

use super::kernel::{FactsKernels, KEYS, half_len};
use super::variants::kernels_of;
use super::{QueryMoments, Rows, run_tasks};
use crate::f32x16::LANES;
use crate::ops::RopeStyle;
use crate::threads::Disjoint;
use crate::{Isa, Pool};

/// Writes the attention that each key is expected to get from queries distributed like those observed, at
/// positions whose rotation is `rotation` on average: expected attention as in NVIDIA's kvpress.
///
/// If queries were normal, the mean of exp(q . k / sqrt(d)) would be the exponential of
/// `mean . k / sqrt(d) + k' covariance k / (2 d)`, with mean and covariance of the rotated queries. The result is
/// the softmax of these over all keys, averaged over the query heads.
///
/// * `rotation`: `[pairs]` mean cosine and sine of each pair's angle: see
///   [`RopeTable::mean_rotation`](crate::RopeTable::mean_rotation); elements without a pair are not rotated
/// * `keys`: the keys of one KV head, rotated by their positions: at least `n`, of which the first are used
/// * `heads`: its query heads
/// * `out`: `[n]`
///
/// # Panics
/// If a shape does not fit, a head does not exist, or no queries were observed.
pub fn expected_attention(
    pool: &Pool,
    moments: &QueryMoments,
    rotation: &[[f32; 2]],
    style: RopeStyle,
    keys: &dyn Rows,
    heads: Range<usize>,
    out: &mut [f32],
) {
    assert!(
        heads.start < heads.end && heads.end <= moments.heads(),
        "heads {heads:?} of {}",
        moments.heads()
    );
    assert!(moments.count() > 0, "no queries were observed");
    assert!(2 * rotation.len() <= moments.dim(), "{} pairs in {} elements", rotation.len(), moments.dim());
    assert!(keys.dim() == moments.dim(), "keys of {} and queries of {}", keys.dim(), moments.dim());
    let heads: Vec<HeadQueries> = heads.map(|head| HeadQueries::of(moments, head)).collect();
    let keys = Keys { keys, lanes: moments.lanes(), rotation, style };
    expected_with(Isa::current(), pool, &heads, &keys, out);
}

pub(super) fn expected_with(isa: Isa, pool: &Pool, heads: &[HeadQueries], keys: &Keys<'_>, out: &mut [f32]) {
    let kernels = kernels_of(isa);
    let room = out.len().next_multiple_of(KEYS);
    let mut logits = vec![0.0; heads.len() * room];
    keys.logits(kernels, pool, heads, out.len(), &mut logits);
    out.fill(0.0);
    for logits in logits.chunks_exact_mut(room.max(1)) {
        // SAFETY: the kernels are those of the machine.
        let l = unsafe { (kernels.softmax)(logits, out.len()) }.l;
        out.iter_mut().zip(logits).for_each(|(out, p)| *out += *p / l);
    }
    out.iter_mut().for_each(|out| *out /= heads.len() as f32);
}

/// The moments of the queries of one head before rotation, scaled for [`FactsKernels::logits`].
pub(super) struct HeadQueries {
    /// `[lanes]` mean over sqrt(d).
    mean: Vec<f32>,
    /// The stored half of the covariance over 2 d; entries that represent two elements are doubled.
    half: Vec<f32>,
}

impl HeadQueries {
    pub(super) fn of(moments: &QueryMoments, head: usize) -> HeadQueries {
        let (sums, second) = moments.of(head);
        let (lanes, dim, count) = (moments.lanes(), moments.dim() as f64, moments.count() as f64);
        let means: Vec<f64> = sums.iter().map(|&sum| f64::from(sum) / count).collect();
        let mut half = Vec::with_capacity(half_len(lanes));
        for i in 0..lanes {
            let start = i / LANES * LANES;
            for j in start..lanes {
                let covariance = f64::from(second[half.len()]) / count - means[i] * means[j];
                let times = if j < start + LANES { 1.0 } else { 2.0 };
                half.push((times * covariance / (2.0 * dim)) as f32);
            }
        }
        HeadQueries { mean: means.iter().map(|mean| (mean / dim.sqrt()) as f32).collect(), half }
    }
}

/// Keys, and the mean rotation of future queries.
///
/// With the rotation R, `(R mean) . k = mean . R'k` and `k' R covariance R' k` is that of `R'k` without R: so
/// keys are rotated back once, instead of the moments of every head.
pub(super) struct Keys<'a> {
    pub keys: &'a dyn Rows,
    pub lanes: usize,
    pub rotation: &'a [[f32; 2]],
    pub style: RopeStyle,
}

impl Keys<'_> {
    /// Writes the logits of the first `n` keys for each of `heads`, `[heads, n rounded up to whole KEYS]`.
    fn logits(&self, kernels: FactsKernels, pool: &Pool, heads: &[HeadQueries], n: usize, to: &mut [f32]) {
        let room = to.len() / heads.len();
        let to = Disjoint::new(to);
        let products = heads.len() * n * self.keys.dim() * self.lanes / 2;
        run_tasks(pool, room / KEYS, products, &|piece| {
            let mut columns = vec![0.0; self.lanes * KEYS];
            self.rotate_back(piece * KEYS..n.min((piece + 1) * KEYS), &mut columns);
            for (head, queries) in heads.iter().enumerate() {
                // SAFETY: a task has its keys; the kernels are those of the machine.
                unsafe {
                    let to = &mut to.range(head * room + piece * KEYS, KEYS).as_chunks_mut::<KEYS>().0[0];
                    (kernels.logits)(&columns, &queries.mean, &queries.half, to);
                }
            }
        });
    }

    /// Rotates these keys by the transposed mean rotation, into columns: `[lanes][KEYS]`.
    fn rotate_back(&self, keys: Range<usize>, columns: &mut [f32]) {
        let pairs = self.rotation.len();
        let pair = |i: usize| match self.style {
            RopeStyle::Interleaved => [2 * i, 2 * i + 1],
            RopeStyle::HalfSplit => [i, i + pairs],
        };
        let mut column = 0;
        self.keys.each(keys, &mut |key| {
            for (i, &[cos, sin]) in self.rotation.iter().enumerate() {
                let [low, high] = pair(i);
                columns[low * KEYS + column] = key[low] * cos + key[high] * sin;
                columns[high * KEYS + column] = key[high] * cos - key[low] * sin;
            }
            for (d, &x) in key.iter().enumerate().skip(2 * pairs) {
                columns[d * KEYS + column] = x;
            }
            column += 1;
        });
    }
}
