//! Top-p: the smallest set of likeliest tokens whose probability reaches p, without a sort.
//!
//! One pass sums the whole mass, another the mass of narrow buckets of logits below the largest.
//! Whole buckets are kept until p is nearly reached; only the bucket in which it is reached is
//! sorted. The second pass fills the [`NEAR`] buckets first, which hold all of p unless the distribution
//! is almost flat.

use kvik_cache::Token;
use kvik_kernels::vectorised;

use super::select::{self, Candidate};

/// Number of buckets; the last takes all logits more than `BUCKETS / PER_NAT` below the largest.
const BUCKETS: usize = 2048;
/// Buckets for each unit of the logit.
const PER_NAT: f32 = 64.0;
/// Buckets that are filled first.
const NEAR: usize = 8 * PER_NAT as usize;
/// Logits taken at once, so that the arithmetic becomes SIMD.
const LANE: usize = 16;

/// Fills `candidates` with the nucleus, in no particular order. `max` is the largest logit of
/// `logits`, shape `[vocab]`, and finite.
pub(super) fn nucleus(logits: &[f32], max: f32, p: f32, candidates: &mut Vec<Candidate>) {
    let wanted = f64::from(p) * select::exp_sum(logits, max);
    let near = last_bucket(&bucket_masses(logits, max, NEAR), wanted, NEAR);
    let (last, before) = near
        .or_else(|| last_bucket(&bucket_masses(logits, max, BUCKETS), wanted, BUCKETS))
        .unwrap_or((BUCKETS, 0.0));
    candidates.clear();
    let mut border = Vec::new();
    let edge = Edge { max, floor: floor(max, last + 1), last: last as u32 };
    edge.collect(logits, candidates, &mut border);
    border.sort_unstable_by(select::descending);
    cut(&mut border, max, wanted - before);
    candidates.extend(border);
}

/// Where a nucleus ends: in the bucket `last`, whose logits and those before are at least `floor`.
struct Edge {
    max: f32,
    floor: f32,
    last: u32,
}

impl Edge {
    /// Fills `inside` with the tokens in the buckets before the last one, and `border` with those in it.
    fn collect(&self, logits: &[f32], inside: &mut Vec<Candidate>, border: &mut Vec<Candidate>) {
        let (lanes, rest) = logits.as_chunks::<LANE>();
        vectorised(
            #[inline(always)]
            || {
                for (lane, first) in lanes.iter().zip((0..).step_by(LANE)) {
                    if lane.iter().fold(false, |any, &logit| any | (logit >= self.floor)) {
                        self.collect_lane(lane, first, inside, border);
                    }
                }
            },
        );
        for (&logit, token) in rest.iter().zip((lanes.len() * LANE) as Token..) {
            match self.bucket(logit) {
                bucket if bucket < self.last => inside.push(Candidate { token, logit }),
                bucket if bucket == self.last => border.push(Candidate { token, logit }),
                _ => {}
            }
        }
    }

    /// Where a distribution is broad no branch can be foreseen: every token is written, and those inside stay.
    #[inline(always)]
    fn collect_lane(
        &self,
        lane: &[f32; LANE],
        first: Token,
        inside: &mut Vec<Candidate>,
        border: &mut Vec<Candidate>,
    ) {
        let buckets = one_by_one(lane.map(
            #[inline(always)]
            |logit| self.bucket(logit),
        ));
        let candidates = lane.iter().zip(first..).map(|(&logit, token)| Candidate { token, logit });
        let candidates = candidates.zip(buckets);
        let (mut kept, mut count) = ([Candidate { token: 0, logit: 0.0 }; LANE], 0);
        for (candidate, bucket) in candidates.clone() {
            kept[count % LANE] = candidate;
            count += usize::from(bucket < self.last);
        }
        inside.extend_from_slice(&kept[..count]);
        if buckets.iter().fold(false, |any, &bucket| any | (bucket == self.last)) {
            border.extend(
                candidates.filter(|(_, bucket)| *bucket == self.last).map(|(candidate, _)| candidate),
            );
        }
    }

    /// The bucket of a logit, or none that there is where it is below the floor or NaN.
    #[inline(always)]
    fn bucket(&self, logit: f32) -> u32 {
        if logit >= self.floor { bucket(logit, self.max) } else { u32::MAX }
    }
}

/// What was computed in a vector and is used one by one: by way of memory, since taking it out of a register
/// element by element takes several times as long.
#[inline(always)]
fn one_by_one<T>(values: [T; LANE]) -> [T; LANE] {
    std::hint::black_box(values)
}

/// Truncates sorted candidates where their mass reaches `wanted`; keeps at least the first.
pub(super) fn cut(candidates: &mut Vec<Candidate>, max: f32, wanted: f64) {
    let mut reached = 0.0;
    for index in 0..candidates.len() {
        reached += weight(candidates[index], max);
        if reached >= wanted {
            candidates.truncate(index + 1);
            return;
        }
    }
}

/// Probability of a candidate, up to a factor.
pub(super) fn weight(candidate: Candidate, max: f32) -> f64 {
    f64::from(select::exp(candidate.logit - max))
}

/// Masses of the buckets below `end`; later ones are incomplete.
fn bucket_masses(logits: &[f32], max: f32, end: usize) -> [f64; BUCKETS] {
    let mut masses = [0f64; BUCKETS];
    let floor = floor(max, end);
    let (lanes, rest) = logits.as_chunks::<LANE>();
    vectorised(
        #[inline(always)]
        || {
            for lane in lanes {
                if lane.iter().fold(false, |any, &logit| any | (logit >= floor)) {
                    let weights = one_by_one(lane.map(
                        #[inline(always)]
                        |logit| f64::from(select::exp(logit - max)),
                    ));
                    let buckets = one_by_one(lane.map(
                        #[inline(always)]
                        |logit| bucket(logit, max),
                    ));
                    for (bucket, weight) in buckets.into_iter().zip(weights) {
                        masses[bucket as usize % BUCKETS] += weight;
                    }
                }
            }
        },
    );
    for &logit in rest {
        masses[bucket(logit, max) as usize] += f64::from(select::exp(logit - max));
    }
    masses
}

/// A lower bound on the logits in the buckets below `end`, whatever the rounding.
fn floor(max: f32, end: usize) -> f32 {
    if end < BUCKETS { max - (end as f32 + 0.5) / PER_NAT } else { f32::MIN }
}

/// The bucket of a logit; larger logits are in lower buckets. NaN, whose mass is 0, is in the last.
#[inline(always)]
fn bucket(logit: f32, max: f32) -> u32 {
    // Adding 2^23 rounds to an integer and leaves it in the low bits. The conversions of the language round as well, but
    // not in vectors.
    const ROUND: f32 = 8_388_608.0;
    let at = ((max - logit) * PER_NAT).min((BUCKETS - 1) as f32);
    let nearest = (at + ROUND) - ROUND;
    let below = if nearest > at { nearest - 1.0 } else { nearest };
    (below + ROUND).to_bits() % BUCKETS as u32
}

/// The bucket below `end` in which the mass reaches `wanted`, and the mass of the buckets before it.
fn last_bucket(masses: &[f64; BUCKETS], wanted: f64, end: usize) -> Option<(usize, f64)> {
    let mut before = 0.0;
    for (index, &mass) in masses[..end].iter().enumerate() {
        if before + mass >= wanted {
            return Some((index, before));
        }
        before += mass;
    }
    None
}
