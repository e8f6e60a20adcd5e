//! Budgets: the division of positions among heads.

use std::ops::Range;

use super::amounts::Budget;
use super::heads::{HeadImportance, WEIGHT_MAX, WEIGHT_MIN};
use super::retention::Retention;

/// Heads whose positions compete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Indices of the heads, counted over all layers.
    pub(super) heads: Range<usize>,
    /// Positions that they retain together, at least one each.
    pub(super) quota: usize,
    /// Positions that each retains in any case, if it has them.
    pub(super) floor: usize,
}

/// The groups of all heads, in the order of the heads, when the sequence has `at` tokens. `stored` is
/// `[layers][kv_heads]`: the number of positions each stores. Together the groups retain no more than
/// `retention.keep` allows.
///
/// Without head importance, [`Budget::Calibrated`] divides as [`Budget::Head`] does.
pub(super) fn groups(
    retention: &Retention,
    at: usize,
    stored: &[Vec<usize>],
    importance: Option<&HeadImportance>,
) -> Vec<Group> {
    let heads: usize = stored.iter().map(Vec::len).sum();
    let quota = retention.keep.positions(at, 1);
    let equal = || vec![quota; heads];
    match (retention.budget, importance) {
        (Budget::Head, _) | (Budget::Calibrated, None) => each(equal()),
        (Budget::Pyramid { beta }, _) => {
            let shape: Vec<usize> = stored.iter().map(Vec::len).collect();
            let layers = pyramid(retention, at, &shape, beta).unwrap_or_else(|| vec![quota; shape.len()]);
            each(layers.iter().zip(stored).flat_map(|(&quota, heads)| vec![quota; heads.len()]).collect())
        }
        (Budget::Layer { floor }, _) => {
            let floor = ((quota as f32 * floor) as usize).max(1);
            by_layer(stored).map(|heads| Group { quota: quota * heads.len(), floor, heads }).collect()
        }
        (Budget::All, _) => {
            vec![Group { heads: 0..heads, quota: retention.keep.positions(at, heads), floor: 1 }]
        }
        (Budget::Calibrated, Some(importance)) => each(calibrated(retention, at, stored, importance)),
    }
}

/// A group for each head.
fn each(quotas: Vec<usize>) -> Vec<Group> {
    let group = |(head, quota)| Group { heads: head..head + 1, quota, floor: 1 };
    quotas.into_iter().enumerate().map(group).collect()
}

/// The heads of each layer.
fn by_layer(stored: &[Vec<usize>]) -> impl Iterator<Item = Range<usize>> {
    stored.iter().scan(0, |start, heads| {
        let range = *start..*start + heads.len();
        *start = range.end;
        Some(range)
    })
}

/// The number of positions that a head of each layer retains, in even steps from the first layer down to the last.
/// `None` if there are too few layers, or the sequence is too short for steps above the forced positions.
fn pyramid(retention: &Retention, at: usize, shape: &[usize], beta: f32) -> Option<Vec<usize>> {
    let layers = shape.len();
    let mean = retention.keep.mean(at);
    let window = retention.forced(at).1 as f64;
    let mut least = mean / f64::from(beta);
    let mut most = 2.0 * mean - least;
    if most >= at as f64 - window {
        most = at as f64 - window;
        least = 2.0 * mean - most;
    }
    if !(most >= least && least >= window.max(1.0)) || layers < 2 {
        return None;
    }
    let step = (most - least) / (layers - 1) as f64;
    let quota = |layer| (most - layer as f64 * step).round_ties_even() as usize;
    Some(lowered((0..layers).map(quota).collect(), shape, retention.keep.positions(at, shape.iter().sum())))
}

/// Lowers `quotas` of a head of each layer, from the first on, until all heads together retain at most `total`:
/// rounding exceeds it by a few positions, and by more where the layers differ in heads.
fn lowered(mut quotas: Vec<usize>, shape: &[usize], total: usize) -> Vec<usize> {
    let mut sum: usize = quotas.iter().zip(shape).map(|(quota, heads)| quota * heads).sum();
    for layer in (0..shape.len()).cycle() {
        if sum <= total {
            break;
        }
        if quotas[layer] > 1 {
            quotas[layer] -= 1;
            sum -= shape[layer];
        }
    }
    quotas
}

/// The number of positions that each head retains: proportional to its weight, and at least the forced ones.
fn calibrated(
    retention: &Retention,
    at: usize,
    stored: &[Vec<usize>],
    importance: &HeadImportance,
) -> Vec<usize> {
    let shape: Vec<usize> = stored.iter().map(Vec::len).collect();
    let (stored, weights) = (stored.concat(), importance.weights(&shape));
    let total = retention.keep.positions(at, stored.len());
    let (first, last) = retention.forced(at);
    let least = first.saturating_add(last).min(total / stored.len().max(1)).max(1);
    let quota = |level: usize, head: usize| {
        (level * weights[head] as usize / WEIGHT_MAX as usize).max(least).min(stored[head]).max(1)
    };
    let at_level = |level: usize| (0..stored.len()).map(move |head| quota(level, head));
    let full = at * (WEIGHT_MAX / WEIGHT_MIN) as usize;
    let level = highest(full, |level| at_level(level).sum::<usize>() <= total);
    // The remainder is less than the next level needs: the first heads get it.
    let mut left = total.saturating_sub(at_level(level).sum());
    let next = at_level(level + 1).zip(at_level(level)).map(|(next, quota)| {
        let more = left.min(next - quota);
        left -= more;
        quota + more
    });
    next.collect()
}

/// The highest number up to `max` for which `holds`, or 0; `holds` must be monotone.
fn highest(max: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match holds(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low
}
