//! Every policy by itself: the scores of facts that are plain to see.

use super::rules::Scene;
use super::*;
use crate::retain::facts::{HeadFacts, LayerFacts};
use crate::retain::state::LayerState;

/// The scores of one head of 16 positions.
fn scores(policy: Policy, head: HeadFacts, quota: usize) -> Vec<f32> {
    let scene = Scene { at: 16, layer: 0, quotas: &[quota] };
    let layer = LayerFacts { heads: vec![head] };
    policy.rules().scores(scene, &layer, &mut LayerState::default()).remove(0)
}

fn positions() -> HeadFacts {
    HeadFacts { positions: (0..16).collect(), ..HeadFacts::default() }
}

#[test]
fn later_positions_score_higher_under_sinks() {
    assert!(scores(Sinks::DEFAULT.into(), positions(), 8).is_sorted());
}

#[test]
fn a_sample_is_a_first_and_a_last_quarter_and_an_even_middle() {
    let scores = scores(Sample::DEFAULT.into(), positions(), 8);
    let taken: Vec<usize> = (0..16).filter(|&index| scores[index] >= 1.0).collect();
    assert_eq!(taken, [0, 1, 2, 4, 7, 10, 14, 15]);
}

#[test]
fn a_sample_of_thinned_positions_is_even_by_position() {
    let head =
        HeadFacts { positions: vec![0, 1, 8, 12, 20, 28, 29, 30, 31, 32, 33, 34], ..HeadFacts::default() };
    let scores = scores(Sample::DEFAULT.into(), head, 8);
    let taken: Vec<usize> = (0..12).filter(|&index| scores[index] >= 1.0).collect();
    assert_eq!(taken, [0, 1, 2, 4, 5, 6, 10, 11], "8, 20, 28 and 29 are nearest to every sixth position");
}

#[test]
fn chance_depends_on_seed_layer_head_and_position_only() {
    let layer = LayerFacts { heads: vec![positions(), positions()] };
    let of = |seed, layer_index, layer: &LayerFacts| {
        let scene = Scene { at: 16, layer: layer_index, quotas: &[8, 8] };
        Random { seed }.scores(scene, layer, &mut LayerState::default())
    };
    let all = [of(0, 0, &layer), of(1, 0, &layer), of(0, 1, &layer)].concat();
    for (one, first) in all.iter().enumerate() {
        assert!(all[..one].iter().all(|second| first != second), "scores differ by seed, layer and head");
    }
    let thinned = LayerFacts { heads: vec![HeadFacts { positions: vec![3, 9], ..HeadFacts::default() }] };
    assert_eq!(of(0, 0, &thinned)[0], [all[0][3], all[0][9]], "what was dropped before does not matter");
}

#[test]
fn norms_and_likeness_are_scores() {
    let values: Vec<f32> = (0..16).map(|i| (i * 7 % 16) as f32).collect();
    let negative: Vec<f32> = values.iter().map(|value| -value).collect();
    let keys = || HeadFacts { key_norms: values.clone(), ..positions() };
    assert_eq!(scores(Knorm::DEFAULT.into(), keys(), 8), negative);
    assert_eq!(scores(Knorm { order: NormOrder::Large }.into(), keys(), 8), values);
    let head = HeadFacts { value_norms: values.clone(), ..positions() };
    assert_eq!(scores(Vnorm::DEFAULT.into(), head, 8), values);
    let head = HeadFacts { likeness: values.clone(), ..positions() };
    assert_eq!(scores(Keydiff::DEFAULT.into(), head, 8), negative);
    let head = HeadFacts { mass: values.clone(), value_norms: vec![2.0; 16], ..positions() };
    assert_eq!(scores(Kvzip::DEFAULT.into(), head.clone(), 8), values);
    let doubled: Vec<f32> = values.iter().map(|value| 2.0 * value).collect();
    assert_eq!(scores(Kvzip { vnorm: true }.into(), head, 8), doubled);
}

#[test]
fn snapkv_averages_over_neighbours_before_the_window() {
    let mut mass = vec![0.0; 16];
    (mass[0], mass[9], mass[12]) = (10.0, 5.0, 7.0);
    let head = HeadFacts { mass, ..positions() };
    let policy = Snapkv { window: 6, pool: 5 };
    let pooled = [2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0];
    assert_eq!(scores(policy.into(), head, 8), pooled);
    assert_eq!(
        (policy.recent(16), policy.recent(8), policy.recent(1)),
        (6, 4, 1),
        "at most half of the sequence"
    );
}
