//! The token that the defined order of sums draws, found by sums in the quickest order.
//!
//! Which token a draw gives depends on the last bit of a sum only where the draw falls as near to an end of the token's
//! share as sums can differ. So the weights, which are those of the defined order to the bit, are added in sixteen lanes,
//! and the answer is certain where the draw is further than [`bound`] from both ends. The few others are left to the
//! defined order, which `draw` and `nucleus` state.

use kvik_cache::Token;
use kvik_kernels::vectorised;

use super::select::{self, Candidate, LANE};

/// Weights that are summed together, and computed again where the draw falls among them.
pub(super) const PART: usize = 1024;

/// Tokens of which one is drawn: those whose logits are at least `floor`, and then those of the border.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) floor: f32,
    pub(super) border: Vec<Candidate>,
}

/// How far two computations of one place in a running sum can be apart, for `terms` that are not negative and sum up to
/// about `total`.
///
/// Let u = 2^-53, n the number of terms and S their exact sum. The terms are f32, so their conversion is exact. Adding
/// them in any order gives s(1 + d) with |d| <= (n - 1) u / (1 - (n - 1) u) for the sum s of any of them (Higham,
/// Accuracy and Stability of Numerical Algorithms, 4.2), which is below 1.01 n u for n < 2^40. In either order
///
/// - the place that is drawn is the product of a number in [0, 1) and a sum of all: within 1.02 n u S;
/// - an end of a share is a sum, within 1.01 n u S, or is taken from that place in at most n + PART subtractions, each
///   within 1.01 u S because what is left is between 0 and S: within 1.01 (2 n + PART) u S together with the sums of the
///   parts that are taken;
/// - the weight that it is compared with is a sum of at most PART terms, within 1.01 PART u S.
///
/// So a place and an end are compared within 3.1 (n + PART) u S in the defined order and within 2.1 n u S in this one,
/// together less than 6 (n + PART) u S. Where they are further apart both say the same. The factor of 8 pays for the
/// error of `total` itself and for a last rounding of the difference.
pub(super) fn bound(terms: usize, total: f64) -> f64 {
    const UNIT: f64 = f64::EPSILON / 2.0;
    8.0 * (terms + PART) as f64 * UNIT * total
}

impl Kept {
    /// All tokens.
    pub(super) fn all() -> Kept {
        Kept { floor: f32::NEG_INFINITY, border: Vec::new() }
    }

    /// Keeps no token whose logit is below `floor`.
    pub(super) fn raise(&mut self, floor: f32) {
        self.floor = self.floor.max(floor);
        self.border.retain(|candidate| candidate.logit >= floor);
    }

    /// The token that `unit` in `[0, 1)` draws from `logits`, shape `[vocab]`; `None` where only the defined order knows.
    /// `max` is the largest logit, and finite.
    pub(super) fn draw(&self, logits: &[f32], max: f32, temperature: f32, unit: f64) -> Option<Token> {
        let weight = |logit: f32| f64::from(select::exp((logit - max) / temperature));
        let masses = self.masses(logits, max, temperature);
        let border: f64 = self.border.iter().map(|candidate| weight(candidate.logit)).sum();
        let total = masses.iter().sum::<f64>() + border;
        let place = Place { at: unit * total, bound: bound(logits.len() + self.border.len(), total) };
        let (mut before, mut first) = (0.0, 0);
        for (mass, part) in masses.iter().zip(logits.chunks(PART)) {
            if place.at < before + mass {
                let of = |&logit: &f32| if logit >= self.floor { weight(logit) } else { 0.0 };
                return place.within(before, (first..).zip(part.iter().map(of)));
            }
            before += mass;
            first += PART as Token;
        }
        place.within(before, self.border.iter().map(|candidate| (candidate.token, weight(candidate.logit))))
    }

    /// What each [`PART`] of the tokens that are at least the floor weighs.
    fn masses(&self, logits: &[f32], max: f32, temperature: f32) -> Vec<f64> {
        let floor = self.floor;
        let mut masses = Vec::with_capacity(logits.len().div_ceil(PART));
        vectorised(
            #[inline(always)]
            || {
                for part in logits.chunks(PART) {
                    let (lanes, rest) = part.as_chunks::<LANE>();
                    let mut sums = [0f64; LANE];
                    for lane in lanes {
                        if lane.iter().fold(false, |any, &logit| any | (logit >= floor)) {
                            for (sum, &logit) in sums.iter_mut().zip(lane) {
                                let weight = select::exp((logit - max) / temperature);
                                *sum += f64::from(if logit >= floor { weight } else { 0.0 });
                            }
                        }
                    }
                    let mut mass: f64 = sums.iter().sum();
                    for &logit in rest {
                        let weight = select::exp((logit - max) / temperature);
                        mass += f64::from(if logit >= floor { weight } else { 0.0 });
                    }
                    masses.push(mass);
                }
            },
        );
        masses
    }
}

/// Where a draw falls in the running sum, and from which distance on that is certain.
struct Place {
    at: f64,
    bound: f64,
}

impl Place {
    /// The one of `tokens`, with their weights, in whose share the place certainly is; `before` weigh those before them.
    fn within(&self, mut before: f64, tokens: impl Iterator<Item = (Token, f64)>) -> Option<Token> {
        for (token, weight) in tokens {
            let after = before + weight;
            if self.at < after {
                let is_certain = self.at - before > self.bound && after - self.at > self.bound;
                // From 0 on every draw is in the share of the first token that has one: nothing is before it.
                let is_first = before == 0.0 && after - self.at > self.bound;
                return (is_certain || is_first).then_some(token);
            }
            before = after;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::Sampling;
    use crate::sampler::draw::{draw_in_order, draw_quickly};
    use crate::sampler::random;
    use crate::sampler::tests::random_logits;

    const LAST_UNIT: f64 = 1.0 - f64::EPSILON / 2.0;

    fn warm() -> Sampling {
        Sampling { temperature: 0.8, ..Sampling::GREEDY }
    }

    /// What sums in the quickest order draw, and what the defined order does. Logits without a finite largest are
    /// settled before either.
    fn both(sampling: &Sampling, logits: &[f32], unit: f64) -> Option<(Option<Token>, Option<Token>)> {
        let max = select::largest(logits);
        max.is_finite().then(|| {
            let quick = draw_quickly(sampling, logits, max, unit, &mut Vec::new());
            (quick, draw_in_order(sampling, logits, max, unit, &mut Vec::new(), &mut Vec::new()))
        })
    }

    /// Logits of one kind; what is special in them stands at every `step`.
    fn hostile(kind: u8, len: usize, step: usize, seed: u64) -> Vec<f32> {
        let noise = random_logits(len, 1.0, 0.0, seed);
        let special = |at: usize, x: f32| if at.is_multiple_of(step) { x } else { noise[at] };
        let one = |at: usize, x: f32, others: f32| if at == step % len { x } else { others };
        let logit = |at: usize| match kind {
            0 => 0.25,
            1 => special(at, f32::NEG_INFINITY),
            2 => special(at, f32::NAN),
            3 => special(at, f32::MIN),
            4 => one(at, 1e30, -1e30),
            5 => one(at, 60.0, noise[at]),
            6 => noise[at] * 0.01,
            7 => noise[at] * 1e6,
            8 => (at % step) as f32 * 1e-3 - 20.0,
            9 => noise[at].round(),
            10 => special(at, 12.0),
            11 => one(at, -3.0, f32::NEG_INFINITY),
            12 => noise[at] * 1e-42,
            13 => -((at / step) as f32),
            _ => noise[at] * 3.0,
        };
        (0..len).map(logit).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        /// Wherever the quick order gives a token, the defined order gives the same; also for draws that fall next to the
        /// end of a share.
        #[test]
        fn what_is_certain_is_what_the_defined_order_draws(
            kind in 0u8..15,
            len in prop_oneof![1usize..40, 1000usize..1100, 8192usize..20_000],
            step in 1usize..3000,
            seed in any::<u64>(),
            temperature in prop_oneof![Just(1f32), Just(0.8), Just(1e-9), Just(f32::MAX), Just(f32::INFINITY), 0.05f32..4.0],
            top_p in prop_oneof![Just(1f32), Just(0.95), Just(0.0), Just(0.999_999_9), 0f32..1.0],
            min_p in prop_oneof![4 => Just(0f32), 1 => Just(1f32), 1 => 0f32..0.2],
        ) {
            let sampling = Sampling { temperature, top_p, min_p, ..Sampling::GREEDY };
            let logits = hostile(kind, len, step, seed);
            let share = (step % len) as f64 / len as f64;
            let units = [0.0, f64::MIN_POSITIVE, share, share.next_up(), share.next_down().max(0.0), LAST_UNIT];
            for unit in units.into_iter().chain((0..4).map(|at| random::unit(seed, at))) {
                if let Some((Some(quick), in_order)) = both(&sampling, &logits, unit) {
                    prop_assert_eq!(Some(quick), in_order, "kind {}, unit {}", kind, unit);
                }
            }
        }
    }

    /// Else nothing would be quicker, and the property above would hold for want of answers.
    #[test]
    fn ordinary_draws_are_certain() {
        let top_p = |top_p: f32| Sampling { top_p, ..warm() };
        let settings = [
            warm(),
            Sampling { temperature: 1.7, ..warm() },
            Sampling { min_p: 0.01, ..warm() },
            top_p(0.95),
            top_p(0.5),
        ];
        for sampling in settings {
            for spread in [0.02, 0.3, 1.0] {
                let certain = (0..60).filter(|&seed| {
                    let logits = random_logits(20_011, spread, 0.0, seed);
                    let (quick, in_order) = both(&sampling, &logits, random::unit(seed, 0)).unwrap();
                    quick.is_some_and(|quick| Some(quick) == in_order)
                });
                assert!(certain.count() >= 55, "{sampling:?}, {spread}");
            }
        }
    }

    /// Four equal shares: every end of one is where a sum in another order may fall on either side.
    #[test]
    fn a_draw_at_the_end_of_a_share_is_left_to_the_defined_order() {
        for (unit, expect) in [(0.25, None), (0.5, None), (0.6, Some(2)), (0.0, Some(0)), (LAST_UNIT, None)] {
            let (quick, in_order) = both(&warm(), &[1.0; 4], unit).unwrap();
            assert_eq!(quick, expect, "{unit}");
            assert_eq!(in_order, Some((unit * 4.0) as Token), "{unit}");
        }
    }

    /// The greatest last loses least, the greatest first most.
    #[test]
    fn sums_in_any_order_are_within_the_bound() {
        let logits = random_logits(150_001, 4.0, 0.0, 3);
        let mut weights: Vec<f64> =
            logits.iter().map(|&logit| f64::from(select::exp(logit - 16.0))).collect();
        let sum = |weights: &[f64]| weights.iter().sum::<f64>();
        let given = sum(&weights);
        weights.sort_by(f64::total_cmp);
        let rising = sum(&weights);
        weights.reverse();
        let falling = sum(&weights);
        assert!(rising != falling, "the order matters");
        for other in [rising, falling] {
            assert!((given - other).abs() < bound(weights.len(), given));
        }
    }
}
