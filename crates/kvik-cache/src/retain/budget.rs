//! Which heads share how many positions.

use std::ops::Range;

use super::heads::HeadImportance;
use super::rank::order;
use super::retention::{Budget, Retention};

/// Heads whose positions compete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Indices of the heads, counted over all layers.
    pub(super) heads: Range<usize>,
    /// Positions that they keep together, at least one each.
    pub(super) quota: usize,
    /// Positions that each keeps in any case, if it has them.
    pub(super) floor: usize,
}

/// The groups of all heads, in the order of the heads, when the sequence has `at` tokens. `stored` is
/// `[layers][kv_heads]`: how many positions each stores. Together they keep no more than `retention.keep` says.
///
/// Without the importance of heads [`Budget::Calibrated`] divides as [`Budget::Head`] does.
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

/// Each head by itself.
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

/// How many positions a head of each layer keeps, in even steps from the first layer down to the last. `None`:
/// the layers are too few or the sequence too short for steps, above the positions that are kept always.
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

/// `quotas` of a head of each layer, lowered from the first on until all heads together keep `total`: rounding
/// exceeds it by a few positions, and more where the layers differ in heads.
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

/// How many positions each head keeps: all heads the first and the latest; what is left goes to the heads in the
/// order of their importance, to each as much as it stores.
fn calibrated(
    retention: &Retention,
    at: usize,
    stored: &[Vec<usize>],
    importance: &HeadImportance,
) -> Vec<usize> {
    let stored_of: Vec<usize> = stored.concat();
    let total = retention.keep.positions(at, stored_of.len());
    let (first, last) = retention.forced(at);
    let base = first.saturating_add(last).min(total / stored_of.len().max(1)).max(1);
    let mut quotas: Vec<usize> = stored_of.iter().map(|&stored| stored.min(base)).collect();
    let mut left = total.saturating_sub(quotas.iter().sum());
    for head in by_importance(stored, importance) {
        let more = left.min(stored_of[head] - quotas[head]);
        quotas[head] += more;
        left -= more;
    }
    quotas.iter_mut().for_each(|quota| *quota = (*quota).max(1));
    quotas
}

/// The heads, those that matter most first, equal ones in their order. A head without an importance is last.
fn by_importance(stored: &[Vec<usize>], importance: &HeadImportance) -> Vec<usize> {
    let of = |layer: usize, head: usize| importance.layers.get(layer).and_then(|heads| heads.get(head));
    let heads =
        stored.iter().enumerate().flat_map(|(layer, heads)| (0..heads.len()).map(move |head| (layer, head)));
    let ranks: Vec<u32> =
        heads.map(|(layer, head)| of(layer, head).map_or(0, |&value| order(value))).collect();
    let mut heads: Vec<usize> = (0..ranks.len()).collect();
    heads.sort_by_key(|&head| std::cmp::Reverse(ranks[head]));
    heads
}
