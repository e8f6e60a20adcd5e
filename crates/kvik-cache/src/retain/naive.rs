//! The obviously correct twin of `decide`: it sorts all positions and takes them one by one.

use std::cmp::Ordering;

use super::amounts::{Budget, Cut};
use super::facts::{Decision, LayerFacts};
use super::heads::HeadImportance;
use super::policies::{Room, Scene};
use super::retention::Retention;
use super::state::PolicyState;

/// A stored position, and its class.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    layer: usize,
    head: usize,
    index: u32,
    position: usize,
    score: f32,
    class: Class,
}

/// The classes, in increasing order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    CutOff,
    Scored,
    Latest,
    First,
}

/// Orders the position to be retained first before the other.
fn rather(a: &Candidate, b: &Candidate) -> Ordering {
    let by_score = || match (a.score.is_nan(), b.score.is_nan()) {
        (false, false) => b.score.partial_cmp(&a.score).unwrap(),
        (a, b) => a.cmp(&b),
    };
    let within = match a.class {
        Class::First => a.position.cmp(&b.position),
        Class::Latest => b.position.cmp(&a.position),
        Class::Scored | Class::CutOff => by_score().then(b.position.cmp(&a.position)),
    };
    b.class.cmp(&a.class).then(within).then((a.layer, a.head).cmp(&(b.layer, b.head)))
}

pub(super) fn decide(
    retention: &Retention,
    at: usize,
    facts: &[LayerFacts],
    heads: Option<&HeadImportance>,
    state: &mut PolicyState,
) -> Decision {
    let quotas = quotas(retention, at, facts, heads);
    let mut candidates = Vec::new();
    for (layer, layer_facts) in facts.iter().enumerate() {
        let rooms: Vec<Room> = quotas[layer].iter().map(|&quota| retention.room(at, quota)).collect();
        let scene = Scene { at, layer, rows: retention.rows_before(at).len(), rooms: &rooms };
        candidates.extend(of_layer(retention, scene, layer_facts, state));
    }
    candidates.sort_by(rather);
    let mut decision =
        Decision { kept: facts.iter().map(|layer| vec![Vec::new(); layer.heads.len()]).collect() };
    // The guaranteed positions of each head come first.
    for candidate in &candidates {
        let kept = &mut decision.kept[candidate.layer][candidate.head];
        let floor = match retention.budget {
            Budget::Layer { floor } => (quotas[candidate.layer][0] as f32 * floor) as usize,
            _ => 1,
        };
        if kept.is_empty() || kept.len() < floor && candidate.class > Class::CutOff {
            kept.push(candidate.index);
        }
    }
    for candidate in candidates.iter().filter(|candidate| candidate.class > Class::CutOff) {
        let (layer, head) = (candidate.layer, candidate.head);
        let lengths = |layer: &Vec<Vec<u32>>| layer.iter().map(Vec::len).sum::<usize>();
        let full = match retention.budget {
            Budget::All => {
                decision.kept.iter().map(lengths).sum::<usize>()
                    >= quotas.iter().flatten().sum::<usize>().max(all_heads(retention, at, facts))
            }
            Budget::Layer { .. } => lengths(&decision.kept[layer]) >= quotas[layer].iter().sum(),
            _ => decision.kept[layer][head].len() >= quotas[layer][head],
        };
        if !full && !decision.kept[layer][head].contains(&candidate.index) {
            decision.kept[layer][head].push(candidate.index);
        }
    }
    decision.kept.iter_mut().flatten().for_each(|kept| kept.sort_unstable());
    decision
}

/// The number of positions that all heads retain together where all compete.
fn all_heads(retention: &Retention, at: usize, facts: &[LayerFacts]) -> usize {
    retention.keep.positions(at, facts.iter().map(|layer| layer.heads.len()).sum())
}

/// `[layers][kv_heads]`
fn quotas(
    retention: &Retention,
    at: usize,
    facts: &[LayerFacts],
    heads: Option<&HeadImportance>,
) -> Vec<Vec<usize>> {
    let mean = retention.keep.positions(at, 1);
    let equal = |quota: usize| facts.iter().map(|layer| vec![quota; layer.heads.len()]).collect::<Vec<_>>();
    match (retention.budget, heads) {
        (Budget::Calibrated, Some(heads)) => calibrated(retention, at, facts, heads),
        (Budget::Pyramid { beta }, _) => {
            let layers = pyramid(retention, at, facts, f64::from(beta));
            facts.iter().zip(layers).map(|(layer, quota)| vec![quota; layer.heads.len()]).collect()
        }
        (Budget::All, _) => {
            let heads = facts.iter().map(|layer| layer.heads.len()).sum::<usize>();
            equal(all_heads(retention, at, facts) / heads)
        }
        _ => equal(mean),
    }
}

/// PyramidKV's formula, a second implementation.
fn pyramid(retention: &Retention, at: usize, facts: &[LayerFacts], beta: f64) -> Vec<usize> {
    let (at_f, window, layers) = (at as f64, retention.forced(at).1 as f64, facts.len());
    let mean = retention.keep.mean(at);
    let (mut least, mut most) = (mean / beta, 2.0 * mean - mean / beta);
    if most >= at_f - window {
        (least, most) = (2.0 * mean - (at_f - window), at_f - window);
    }
    if most < least || least < window.max(1.0) || layers == 1 {
        return vec![retention.keep.positions(at, 1); layers];
    }
    let slope = (most - least) / (layers as f64 - 1.0);
    let mut quotas: Vec<usize> =
        (0..layers).map(|layer| (most - layer as f64 * slope).round_ties_even() as usize).collect();
    let all = |quotas: &[usize]| {
        facts.iter().zip(quotas).map(|(layer, quota)| layer.heads.len() * quota).sum::<usize>()
    };
    let mut layer = 0;
    while all(&quotas) > all_heads(retention, at, facts) {
        quotas[layer] = (quotas[layer] - 1).max(1);
        layer = (layer + 1) % layers;
    }
    quotas
}

/// Quotas raised step by step.
fn calibrated(
    retention: &Retention,
    at: usize,
    facts: &[LayerFacts],
    heads: &HeadImportance,
) -> Vec<Vec<usize>> {
    let shape: Vec<usize> = facts.iter().map(|layer| layer.heads.len()).collect();
    let (weights, total) = (heads.weights(&shape), retention.keep.positions(at, shape.iter().sum()));
    let (first, last) = retention.forced(at);
    let least = (first + last).min(total / weights.len());
    let stored: Vec<usize> =
        facts.iter().flat_map(|layer| layer.heads.iter().map(|head| head.positions.len())).collect();
    let mut quotas: Vec<usize> = stored.iter().map(|&stored| stored.min(least).max(1)).collect();
    let mut level = 0;
    while quotas.iter().sum::<usize>() < total
        && quotas.iter().zip(&stored).any(|(quota, stored)| quota < stored)
    {
        level += 1;
        for head in 0..quotas.len() {
            let wanted = stored[head].min(level * weights[head] as usize / 1000);
            while quotas[head] < wanted && quotas.iter().sum::<usize>() < total {
                quotas[head] += 1;
            }
        }
    }
    let mut quotas = quotas.into_iter();
    shape.iter().map(|&heads| quotas.by_ref().take(heads).collect()).collect()
}

fn of_layer(
    retention: &Retention,
    scene: Scene,
    facts: &LayerFacts,
    state: &mut PolicyState,
) -> Vec<Candidate> {
    let scores = retention.policy.rules().scores(scene, facts, state.layer(scene.layer));
    let mut candidates = Vec::new();
    for (head, (stored, scores)) in facts.heads.iter().zip(scores).enumerate() {
        let (sinks, mut recent) = retention.forced(scene.at);
        if let Cut::Hybrid { recent: share } = retention.cut {
            recent = recent.max((scene.rooms[head].quota as f32 * share) as usize);
        }
        let mut of_head = Vec::new();
        for (index, (&position, &score)) in stored.positions.iter().zip(&scores).enumerate() {
            let position = position as usize;
            let class = match position {
                _ if position < sinks => Class::First,
                _ if position + recent >= scene.at => Class::Latest,
                _ => Class::Scored,
            };
            of_head.push(Candidate { layer: scene.layer, head, index: index as u32, position, score, class });
        }
        cut(retention.cut, &mut of_head);
        candidates.extend(of_head);
    }
    candidates
}

fn cut(cut: Cut, candidates: &mut [Candidate]) {
    let scores: Vec<f64> =
        candidates.iter().filter(|c| c.class == Class::Scored).map(|c| f64::from(c.score)).collect();
    let mean = scores.iter().sum::<f64>() / scores.len() as f64;
    let deviation =
        (scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>() / scores.len() as f64).sqrt();
    for candidate in candidates.iter_mut().filter(|candidate| candidate.class == Class::Scored) {
        let stays = match cut {
            Cut::Top | Cut::Hybrid { .. } => true,
            Cut::Threshold(limit) => candidate.score > limit,
            Cut::Dynamic { beta } => candidate.score > (mean - f64::from(beta) * deviation) as f32,
        };
        if !stays {
            candidate.class = Class::CutOff;
        }
    }
}
