//! Top-p: the smallest set of likeliest tokens whose probability reaches p, without a sort.
//!
//! One pass sums the whole mass, another the mass of narrow buckets of logits below the largest.
//! Whole buckets are kept until p is nearly reached; only the bucket in which it is reached is
//! sorted. The second pass fills the [`NEAR`] buckets first, which hold all of p unless the distribution
//! is almost flat.

use kvik_cache::Token;

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
    let floor = floor(max, last + 1);
    for (index, lane) in logits.chunks(LANE).enumerate() {
        if !lane.iter().fold(false, |any, &logit| any | (logit >= floor)) {
            continue;
        }
        for (offset, &logit) in lane.iter().enumerate().filter(|(_, logit)| **logit >= floor) {
            let candidate = Candidate { token: (index * LANE + offset) as Token, logit };
            match bucket(logit, max) as usize {
                inside if inside < last => candidates.push(candidate),
                inside if inside == last => border.push(candidate),
                _ => {}
            }
        }
    }
    border.sort_unstable_by(select::descending);
    cut(&mut border, max, wanted - before);
    candidates.extend(border);
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
    for lane in lanes {
        if lane.iter().fold(false, |any, &logit| any | (logit >= floor)) {
            let weights = lane.map(|logit| select::exp(logit - max));
            let buckets = lane.map(|logit| bucket(logit, max));
            for (bucket, weight) in buckets.into_iter().zip(weights) {
                masses[bucket as usize % BUCKETS] += f64::from(weight);
            }
        }
    }
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
    // Signed, because there is no SIMD conversion to unsigned numbers on plain x86-64.
    ((max - logit) * PER_NAT).min((BUCKETS - 1) as f32) as i32 as u32
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
