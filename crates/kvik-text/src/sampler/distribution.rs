//! A row of logits as a distribution over tokens.
//!
//! The row is weighted in parts whose sums are stored: a draw finds its part by the sums and its token by
//! weighting that part again, so a second draw from the same row costs very little.

use kvik_cache::Token;
use kvik_kernels::{Weighing, largest, mass, weigh};

/// Logits per part.
const PART: usize = 1024;

/// A row of logits, `[vocab]`.
#[derive(Clone, Copy)]
pub(super) struct Distribution<'a> {
    pub(super) logits: &'a [f32],
    /// The maximum logit; weights are meaningful if it is finite.
    pub(super) max: f32,
}

/// A subset of the tokens by rank: the likeliest is first, and of equal ones that with the lowest id.
#[derive(Clone, Copy)]
pub(super) struct Among {
    /// The token at which the bound changes.
    split: usize,
    /// Lower bounds, exclusive, of the logits: the first for tokens before `split`, the second for the others.
    bounds: [f32; 2],
}

impl Among {
    /// Tokens with a logit of at least `floor`; all possible tokens for negative infinity.
    pub(super) fn at_least(floor: f32) -> Among {
        Among { split: 0, bounds: [floor.next_down(); 2] }
    }

    /// The tokens ranked before `token`, whose logit is `logit`.
    pub(super) fn ahead_of(token: Token, logit: f32) -> Among {
        Among { split: token as usize, bounds: [logit.next_down(), logit] }
    }

    /// The pieces of a part of a row that begins with token `start`, split where the bound changes, with the
    /// bound of each.
    fn pieces<'a>(&self, start: usize, part: &'a [f32]) -> [(&'a [f32], f32); 2] {
        let (before, behind) = part.split_at(self.split.saturating_sub(start).min(part.len()));
        [(before, self.bounds[0]), (behind, self.bounds[1])]
    }
}

impl<'a> Distribution<'a> {
    pub(super) fn of(logits: &'a [f32]) -> Distribution<'a> {
        Distribution { logits, max: largest(logits) }
    }

    /// Fills `masses` with the weight at `rate` of the tokens `among` in each part; returns the weight of all
    /// tokens.
    pub(super) fn weigh(self, among: Among, rate: f32, masses: &mut Vec<f64>) -> f64 {
        let weighing = self.weighing(rate);
        masses.clear();
        let mut all = 0.0;
        for (start, part) in self.parts() {
            let pieces = among.pieces(start, part).map(|(piece, bound)| mass(piece, weighing, bound));
            masses.push(pieces.iter().map(|mass| f64::from(mass.above)).sum());
            all += pieces.iter().map(|mass| f64::from(mass.all)).sum::<f64>();
        }
        all
    }

    /// The token at which the running sum of weights exceeds `unit` of the total, in the order of ids; `masses`
    /// are the sums of the parts. `None` if all weights are zero.
    pub(super) fn pick(self, among: Among, rate: f32, masses: &[f64], unit: f64) -> Option<Token> {
        let (index, within) = pick(masses.iter().copied(), unit * masses.iter().sum::<f64>())?;
        let (start, part) = self.parts().nth(index)?;
        let mut weights = [0.0; PART];
        let weights = &mut weights[..part.len()];
        weights.copy_from_slice(part);
        weigh(weights, self.weighing(rate));
        let [(before, low), (_, high)] = among.pieces(start, part);
        let bound = |at: usize| if at < before.len() { low } else { high };
        let counted = |at: usize| if part[at] > bound(at) { f64::from(weights[at]) } else { 0.0 };
        pick((0..part.len()).map(counted), within).map(|(at, _)| (start + at) as Token)
    }

    /// The total weight of all tokens at `rate`.
    pub(super) fn mass(self, rate: f32) -> f64 {
        let parts = self.logits.chunks(PART);
        parts.map(|part| f64::from(mass(part, self.weighing(rate), f32::NEG_INFINITY).all)).sum()
    }

    /// Whether the tokens ranked before `token` have less than the share `p` of all probability; the first token
    /// is always in the nucleus.
    pub(super) fn is_in_nucleus(self, token: Token, p: f32, masses: &mut Vec<f64>) -> bool {
        let logit = self.logits[token as usize];
        if logit == self.max && !self.logits[..token as usize].contains(&logit) {
            return true;
        }
        let all = self.weigh(Among::ahead_of(token, logit), 1.0, masses);
        masses.iter().sum::<f64>() < f64::from(p) * all
    }

    fn weighing(self, rate: f32) -> Weighing {
        Weighing { origin: self.max, rate }
    }

    /// The parts, with the first token of each.
    fn parts(self) -> impl Iterator<Item = (usize, &'a [f32])> {
        (0..).step_by(PART).zip(self.logits.chunks(PART))
    }
}

/// The index at which the running sum of `weights` exceeds `target`, and the offset within it; if rounding
/// carries the target past the end, the end of the last non-zero weight.
pub(super) fn pick(weights: impl Iterator<Item = f64>, mut target: f64) -> Option<(usize, f64)> {
    let mut last = None;
    for (index, weight) in weights.enumerate() {
        if target < weight {
            return Some((index, target));
        }
        target -= weight;
        if weight > 0.0 {
            last = Some((index, weight));
        }
    }
    last
}
