//! Top-p: the smallest set of likeliest tokens whose probability reaches p, without a sort.
//!
//! One pass sums the whole mass and lists the tokens near the likeliest, which hold all of p unless the distribution is
//! almost flat; only then are all tokens listed. The mass of the listed is summed by narrow buckets of logits below the
//! largest. Whole buckets are kept until p is nearly reached; only the bucket in which it is reached is sorted.

use kvik_cache::Token;

use super::select::{self, Candidate, LANE};

/// Number of buckets; the last takes all logits more than `BUCKETS / PER_NAT` below the largest.
pub(super) const BUCKETS: usize = 2048;
/// Buckets for each unit of the logit.
pub(super) const PER_NAT: f32 = 64.0;
/// Buckets whose tokens are listed first.
pub(super) const NEAR: usize = 8 * PER_NAT as usize;

/// Fills `candidates` with the nucleus, in no particular order. `max` is the largest logit of
/// `logits`, shape `[vocab]`, and finite.
pub(super) fn nucleus(logits: &[f32], max: f32, p: f32, candidates: &mut Vec<Candidate>) {
    let wanted = f64::from(p) * list(logits, max, NEAR, candidates);
    let near = last_bucket(&bucket_masses(candidates, max), wanted, NEAR);
    let (last, before) = near.unwrap_or_else(|| {
        list(logits, max, BUCKETS, candidates);
        last_bucket(&bucket_masses(candidates, max), wanted, BUCKETS).unwrap_or((BUCKETS, 0.0))
    });
    let mut border = Vec::new();
    candidates.retain(|&candidate| {
        let bucket = bucket(candidate.logit, max) as usize;
        if bucket == last {
            border.push(candidate);
        }
        bucket < last
    });
    border.sort_unstable_by(select::descending);
    cut(&mut border, max, wanted - before);
    candidates.extend(border);
}

/// Fills `candidates` with the possible tokens in the buckets below `end`, in the order of their ids, and gives the mass
/// of all tokens.
fn list(logits: &[f32], max: f32, end: usize, candidates: &mut Vec<Candidate>) -> f64 {
    candidates.clear();
    let floor = floor(max, end);
    let is_listed = |logit: f32| logit >= floor && (bucket(logit, max) as usize) < end;
    let mut extend = |logits: &[f32], first: usize| {
        let tokens = logits.iter().zip(first as Token..).filter(|(logit, _)| is_listed(**logit));
        candidates.extend(tokens.map(|(&logit, token)| Candidate { token, logit }));
    };
    let total = select::exp_sum_with(
        logits,
        max,
        #[inline(always)]
        |first, lane, _| {
            if lane.iter().fold(false, |any, &logit| any | (logit >= floor)) {
                extend(lane, first);
            }
        },
    );
    let (lanes, rest) = logits.as_chunks::<LANE>();
    extend(rest, lanes.len() * LANE);
    total
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

/// Masses of the buckets, each summed in the order of `candidates`.
fn bucket_masses(candidates: &[Candidate], max: f32) -> [f64; BUCKETS] {
    let mut masses = [0f64; BUCKETS];
    for &candidate in candidates {
        masses[bucket(candidate.logit, max) as usize] += weight(candidate, max);
    }
    masses
}

/// A lower bound on the logits in the buckets below `end`, whatever the rounding.
fn floor(max: f32, end: usize) -> f32 {
    if end < BUCKETS { max - (end as f32 + 0.5) / PER_NAT } else { f32::MIN }
}

/// The bucket of a logit; larger logits are in lower buckets. NaN, whose mass is 0, is in the last.
#[inline(always)]
pub(super) fn bucket(logit: f32, max: f32) -> u32 {
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
