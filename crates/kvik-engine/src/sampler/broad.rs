//! Top-p over a broad distribution, where half of the vocabulary may be kept: the same nucleus as in `nucleus`, with one
//! pass over the weights and without a list of what is kept.
//!
//! A sample says in which few buckets the nucleus ends. The weights above them are added in the quickest order, and only
//! the tokens in them are written down. The mass before a bucket is then known as exactly as sums of another order can
//! be ([`quick::bound`]); where that leaves two answers, or the sample misled, there is none.

use std::ops::Range;

use kvik_cache::Token;

use super::nucleus::{BUCKETS, NEAR, PER_NAT, bucket};
use super::quick::{self, Kept};
use super::select::{self, Candidate, LANE};

/// Vocabularies below it are not worth a sample.
const VOCAB_MIN: usize = 8192;
/// One lane of so many is in the sample.
const STRIDE: usize = 64;
/// A distribution is broad if one token of so many is near the likeliest.
const BROAD_MIN: usize = 8;
/// How far the sample is trusted, in standard deviations.
const DEVIATIONS: f64 = 3.5;

/// The nucleus of `logits`, shape `[vocab]`, if the distribution is broad and quick sums say for certain what is in it.
/// `max` is the largest logit, and finite.
pub(super) fn nucleus(logits: &[f32], max: f32, p: f32, room: &mut Vec<Candidate>) -> Option<Kept> {
    let window = Window::new(sample(logits, max, f64::from(p))?, max);
    let (total, above) = window.scan(logits, max, room);
    let wanted = f64::from(p) * total;
    let bound = quick::bound(logits.len() + BUCKETS, total);
    let (last, before) = window.last_bucket(max, room, above, wanted, bound)?;
    let mut border: Vec<Candidate> = std::mem::take(room);
    border.retain(|candidate| bucket(candidate.logit, max) == last);
    border.sort_unstable_by(select::descending);
    let kept = cut(&border, max, wanted - before - bound);
    if kept != cut(&border, max, wanted - before + bound) {
        return None;
    }
    border.truncate(kept);
    Some(Kept { floor: floor_of(last, max), border })
}

/// The buckets in which the nucleus ends by a sample of the distribution; `None` where it is not broad.
fn sample(logits: &[f32], max: f32, p: f64) -> Option<Range<u32>> {
    if logits.len() < VOCAB_MIN {
        return None;
    }
    let (mut masses, mut squares, mut near, mut taken) = ([0f64; BUCKETS], 0.0, 0, 0);
    for lane in logits.as_chunks::<LANE>().0.iter().step_by(STRIDE) {
        for &logit in lane {
            let (weight, bucket) = (f64::from(select::exp(logit - max)), bucket(logit, max));
            masses[bucket as usize] += weight;
            squares += weight * weight;
            near += usize::from((bucket as usize) < NEAR);
        }
        taken += LANE;
    }
    if near * BROAD_MIN < taken {
        return None;
    }
    let total: f64 = masses.iter().sum();
    // The number of equal weights whose sum would be as uncertain (Kish).
    let effective = total * total / squares;
    let error = DEVIATIONS * (p.max(0.0) * (1.0 - p) / effective).sqrt() + 1.0 / effective;
    let reaches = |part: f64| {
        let mut reached = 0.0;
        let bucket = masses.iter().position(|mass| {
            reached += mass;
            reached >= part * total
        });
        bucket.unwrap_or(BUCKETS) as u32
    };
    let end = match p + error {
        part if part < 1.0 => reaches(part) + 1,
        // The least likely are hardly in a sample.
        _ => reaches(1.0) + PER_NAT as u32,
    };
    // The last bucket holds all the rest.
    (end < BUCKETS as u32).then(|| reaches(p - error)..end)
}

/// Buckets in one of which a nucleus may end.
struct Window {
    buckets: Range<u32>,
    /// The least logit before the buckets, and the least in them.
    above: f32,
    least: f32,
}

impl Window {
    fn new(buckets: Range<u32>, max: f32) -> Window {
        Window { above: floor_of(buckets.start, max), least: floor_of(buckets.end, max), buckets }
    }

    /// Fills `inside` with the tokens in the buckets; gives the mass of all tokens, summed as [`select::exp_sum`] does,
    /// and that of the tokens before the buckets.
    fn scan(&self, logits: &[f32], max: f32, inside: &mut Vec<Candidate>) -> (f64, f64) {
        inside.clear();
        let mut sums = [0f64; LANE];
        let total = select::exp_sum_with(
            logits,
            max,
            #[inline(always)]
            |first, lane, weights| {
                for ((sum, &logit), &weight) in sums.iter_mut().zip(lane).zip(weights) {
                    *sum += f64::from(if logit >= self.above { weight } else { 0.0 });
                }
                let is_inside = |logit: f32| (logit >= self.least) & (logit < self.above);
                if lane.iter().fold(false, |any, &logit| any | is_inside(logit)) {
                    self.collect(lane, first, inside);
                }
            },
        );
        let (lanes, rest) = logits.as_chunks::<LANE>();
        self.collect(rest, lanes.len() * LANE, inside);
        let rest = rest.iter().filter(|&&logit| logit >= self.above);
        let rest = rest.map(|&logit| f64::from(select::exp(logit - max)));
        (total, sums.iter().sum::<f64>() + rest.sum::<f64>())
    }

    #[inline(always)]
    fn collect(&self, logits: &[f32], first: usize, inside: &mut Vec<Candidate>) {
        for (&logit, token) in logits.iter().zip(first as Token..) {
            if logit >= self.least && logit < self.above {
                inside.push(Candidate { token, logit });
            }
        }
    }

    /// The bucket in which the mass reaches `wanted`, and the mass before it; `inside` are the tokens in the buckets, and
    /// `before` is the mass before them. `None` where two buckets come within `bound` of it, or it is none of these.
    fn last_bucket(
        &self,
        max: f32,
        inside: &[Candidate],
        mut before: f64,
        wanted: f64,
        bound: f64,
    ) -> Option<(u32, f64)> {
        let mut masses = vec![0f64; self.buckets.len()];
        for candidate in inside {
            let index = bucket(candidate.logit, max) - self.buckets.start;
            masses[index as usize] += f64::from(select::exp(candidate.logit - max));
        }
        let starts_before = self.buckets.start == 0 || before < wanted - bound;
        for (bucket, mass) in self.buckets.clone().zip(masses) {
            let reached = before + mass;
            if reached >= wanted - bound {
                return (starts_before && reached >= wanted + bound).then_some((bucket, before));
            }
            before = reached;
        }
        None
    }
}

/// How many of `sorted` candidates it takes to reach `wanted`: all if it takes more, and at least one.
fn cut(sorted: &[Candidate], max: f32, wanted: f64) -> usize {
    let mut reached = 0.0;
    let end = sorted.iter().position(|candidate| {
        reached += f64::from(select::exp(candidate.logit - max));
        reached >= wanted
    });
    end.map_or(sorted.len(), |index| index + 1)
}

/// The least logit in a bucket before `end`; infinity where there is none. Buckets go down as logits go up, so it is
/// found by halves among all floats up to `max`.
fn floor_of(end: u32, max: f32) -> f32 {
    if end == 0 {
        return f32::INFINITY;
    }
    // `low` is in `end` or behind it, `high` before it: in the order of the floats.
    let (mut low, mut high) = (ordered(f32::NEG_INFINITY), ordered(max));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if bucket(float(middle), max) < end { high = middle } else { low = middle }
    }
    float(high)
}

/// An integer for each float, in the order of the floats.
fn ordered(x: f32) -> i64 {
    let bits = x.to_bits();
    if bits >> 31 == 0 { i64::from(bits) } else { -i64::from(bits & 0x7fff_ffff) }
}

fn float(ordered: i64) -> f32 {
    let magnitude = f32::from_bits(ordered.unsigned_abs() as u32);
    if ordered < 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::nucleus;
    use crate::sampler::tests::random_logits;

    #[test]
    fn the_floor_of_a_bucket_is_the_least_float_before_it() {
        for max in [0.0f32, -0.0, 1.0, -3.7, 88.0, 1e-40, 1e5, -1e5, 1e30, f32::MAX, -f32::MAX] {
            for end in [1, 2, 63, 64, 500, 2047] {
                let floor = floor_of(end, max);
                assert!(floor <= max && bucket(floor, max) < end, "{max} {end}: {floor}");
                let below = float(ordered(floor) - 1);
                assert!(bucket(below, max) >= end, "{max} {end}: {floor}");
            }
        }
        assert_eq!(floor_of(0, 1.0), f32::INFINITY);
    }

    /// The same tokens as in `nucleus`, and in the border in the same order.
    #[test]
    fn a_broad_nucleus_is_the_nucleus() {
        let (mut found, mut cases) = (0, 0);
        for seed in 0..120 {
            let spread = [0.0, 0.05, 0.3, 1.0, 1.5][seed as usize % 5];
            let p = [0.95, 0.3, 0.999, 0.9, 0.01, 0.0][seed as usize % 6];
            let logits = random_logits(10_000 + 7 * seed as usize, spread, 0.0, seed);
            let max = select::largest(&logits);
            let mut expect = Vec::new();
            nucleus::nucleus(&logits, max, p, &mut expect);
            cases += 1;
            let Some(kept) = nucleus(&logits, max, p, &mut Vec::new()) else { continue };
            found += 1;
            let inside = logits.iter().zip(0..).filter(|(logit, _)| **logit >= kept.floor);
            let inside = inside.map(|(&logit, token)| Candidate { token, logit });
            assert_eq!(inside.chain(kept.border).collect::<Vec<_>>(), expect, "{seed}");
        }
        assert!(found * 10 >= cases * 9, "{found} of {cases}");
    }

    #[test]
    fn a_distribution_with_few_likely_tokens_is_not_broad() {
        let logits = random_logits(20_000, 1.0, 20.0, 1);
        assert!(sample(&logits, select::largest(&logits), 0.95).is_none());
    }
}
