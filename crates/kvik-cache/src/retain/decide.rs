//! The decision: facts in, positions out.

use std::ops::Range;

use super::amounts::Cut;
use super::budget::{Group, groups};
use super::facts::{Decision, HeadFacts, LayerFacts};
use super::heads::HeadImportance;
use super::policies::{Room, Scene};
use super::rank;
use super::retention::Retention;
use super::state::PolicyState;

/// Decides which stored positions each KV head retains when the sequence has `at` tokens: the forced positions, and
/// the highest scores for the rest; of equal scores the later position.
///
/// Each head retains at least one position, and all together no more than `retention.keep` allows; where that is
/// less than the forced positions, the first ones are retained and then the latest. A head that stores nothing
/// retains nothing. `heads` is read by [`super::Budget::Calibrated`]; [`Retention::check_heads`] validates it.
/// `state` belongs to the sequence.
pub fn decide(
    retention: &Retention,
    at: usize,
    facts: &[LayerFacts],
    heads: Option<&HeadImportance>,
    state: &mut PolicyState,
) -> Decision {
    let stored: Vec<Vec<usize>> =
        facts.iter().map(|layer| layer.heads.iter().map(|head| head.positions.len()).collect()).collect();
    let groups = groups(retention, at, &stored, heads);
    let mut ranked = ranked(retention, at, facts, &groups, state);
    let mut kept = Vec::with_capacity(ranked.heads.len());
    let mut scratch = Vec::new();
    for group in &groups {
        kept.extend(keep(&mut ranked, group, &mut scratch));
    }
    let mut kept = kept.into_iter();
    Decision { kept: facts.iter().map(|layer| kept.by_ref().take(layer.heads.len()).collect()).collect() }
}

/// The ranks of all positions of all heads.
struct Ranked {
    /// Ranks, head after head.
    ranks: Vec<u64>,
    /// The range of each head in `ranks`.
    heads: Vec<Range<usize>>,
}

fn ranked(
    retention: &Retention,
    at: usize,
    facts: &[LayerFacts],
    groups: &[Group],
    state: &mut PolicyState,
) -> Ranked {
    let stored = facts.iter().flat_map(|layer| &layer.heads).map(|head| head.positions.len()).sum();
    let mut ranked = Ranked { ranks: Vec::with_capacity(stored), heads: Vec::new() };
    let quotas = groups.iter().flat_map(|group| group.heads.clone().map(|_| group.quota / group.heads.len()));
    let rooms: Vec<Room> = quotas.map(|quota| retention.room(at, quota)).collect();
    let rows = retention.rows_before(at).len();
    for (layer, layer_facts) in facts.iter().enumerate() {
        let rooms = &rooms[ranked.heads.len()..][..layer_facts.heads.len()];
        let scene = Scene { at, layer, rows, rooms };
        let scores = retention.policy.rules().scores(scene, layer_facts, state.layer(layer));
        for ((head, scores), room) in layer_facts.heads.iter().zip(&scores).zip(scene.rooms) {
            let start = ranked.ranks.len();
            rank_head(retention.cut, room.judged(&head.positions, at), head, scores, &mut ranked.ranks);
            ranked.heads.push(start..ranked.ranks.len());
        }
    }
    ranked
}

/// Appends the rank of each position of a head. Positions outside of `judged` are forced.
fn rank_head(cut: Cut, judged: Range<usize>, head: &HeadFacts, scores: &[f32], ranks: &mut Vec<u64>) {
    assert_eq!(scores.len(), head.positions.len(), "every stored position has its facts");
    let limit = limit(cut, &scores[judged.clone()]);
    let by_score = |(&score, &position)| match limit.is_none_or(|limit| score > limit) {
        true => rank::scored(score, position),
        false => rank::cut_off(score, position),
    };
    ranks.extend(head.positions[..judged.start].iter().map(|&position| rank::first(position)));
    ranks.extend(scores[judged.clone()].iter().zip(&head.positions[judged.clone()]).map(by_score));
    ranks.extend(head.positions[judged.end..].iter().map(|&position| rank::latest(position)));
}

/// The score that a position must exceed, if any.
fn limit(cut: Cut, scores: &[f32]) -> Option<f32> {
    match cut {
        Cut::Top | Cut::Hybrid { .. } => None,
        Cut::Threshold(limit) => Some(limit),
        Cut::Dynamic { beta } => {
            let count = scores.len() as f64;
            let mean = scores.iter().map(|&score| f64::from(score)).sum::<f64>() / count;
            let variance = scores.iter().map(|&score| (f64::from(score) - mean).powi(2)).sum::<f64>() / count;
            Some((mean - f64::from(beta) * variance.sqrt()) as f32)
        }
    }
}

/// The indices that each head of a group retains, ascending.
fn keep(ranked: &mut Ranked, group: &Group, scratch: &mut Vec<u64>) -> Vec<Vec<u32>> {
    for head in group.heads.clone() {
        assure(&mut ranked.ranks[ranked.heads[head].clone()], group.floor, scratch);
    }
    let heads = &ranked.heads[group.heads.clone()];
    let all = heads.first().map_or(0, |head| head.start)..heads.last().map_or(0, |head| head.end);
    scratch.clear();
    scratch.extend(ranked.ranks[all].iter().copied().filter(|&rank| !rank::is_cut_off(rank)));
    let quota = group.quota.min(scratch.len());
    if quota == 0 {
        return vec![Vec::new(); heads.len()];
    }
    let lowest = rank::threshold(scratch, quota);
    // Heads may hold the same rank: the first of them retain it.
    let mut equal = quota - scratch.iter().filter(|&&rank| rank > lowest).count();
    let mut stays = |rank: u64| {
        let last = rank == lowest && equal > 0;
        equal -= usize::from(last);
        last || rank > lowest
    };
    let mut kept = |head: &Range<usize>| {
        let ranks = ranked.ranks[head.clone()].iter().zip(0_u32..);
        ranks.filter(|&(&rank, _)| stays(rank)).map(|(_, index)| index).collect()
    };
    heads.iter().map(&mut kept).collect()
}

/// Marks the `floor` highest ranks of a head that passed the cut as assured, and the highest in any case.
fn assure(ranks: &mut [u64], floor: usize, scratch: &mut Vec<u64>) {
    let left = ranks.iter().filter(|&&rank| !rank::is_cut_off(rank)).count();
    let lowest = match floor.min(left) {
        0 | 1 => ranks.iter().copied().max().unwrap_or(0),
        count => {
            scratch.clear();
            scratch.extend_from_slice(ranks);
            rank::threshold(scratch, count)
        }
    };
    ranks.iter_mut().filter(|rank| **rank >= lowest).for_each(|rank| *rank = rank::assured(*rank));
}
