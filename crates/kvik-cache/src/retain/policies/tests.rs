//! Every policy by itself: its scores for simple facts.

use super::rules::{Room, Scene};
use super::*;
use crate::retain::facts::{HeadFacts, LayerFacts, Reduce, Watch, WatchedRows};
use crate::retain::mix::mixed;
use crate::retain::state::LayerState;

/// The scores of one head of 16 positions.
fn scores(policy: Policy, head: HeadFacts, quota: usize) -> Vec<f32> {
    let rows = match policy.rules().watch(0) {
        Watch::Attention { rows: WatchedRows::Last(rows), .. } => rows,
        _ => 16,
    };
    let scene = Scene { at: 16, layer: 0, rows, rooms: &[Room { quota, first: 0, last: 0 }] };
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
        let scene = Scene { at: 16, layer: layer_index, rows: 16, rooms: &[] };
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
    let head = HeadFacts { gated: values.clone(), ..positions() };
    assert_eq!(scores(Gated::DEFAULT.into(), head, 8), values);
    let head = HeadFacts { mass: values.clone(), value_norms: vec![2.0; 16], ..positions() };
    assert_eq!(scores(Kvzip::DEFAULT.into(), head.clone(), 8), values);
    let doubled: Vec<f32> = values.iter().map(|value| 2.0 * value).collect();
    assert_eq!(scores(Kvzip { vnorm: true, ..Kvzip::DEFAULT }.into(), head, 8), doubled);
}

#[test]
fn snapkv_averages_over_neighbours_before_the_window() {
    let mut mass = vec![0.0; 16];
    (mass[0], mass[9], mass[12]) = (10.0, 5.0, 7.0);
    let head = HeadFacts { mass, ..positions() };
    let policy = Snapkv { window: WindowRows::Rows(6), pool: 5 };
    let pooled = [2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0];
    assert_eq!(scores(policy.into(), head, 8), pooled);
    assert_eq!(
        (policy.recent(16), policy.recent(8), policy.recent(1)),
        (6, 4, 1),
        "at most half of the sequence"
    );
}

/// Distinct values in no order.
fn values(seed: u64) -> Vec<f32> {
    (0..16).map(|index| (mixed(seed << 32 | index) >> 48) as f32 / 65536.0).collect()
}

fn observed(mass: &[f32]) -> HeadFacts {
    HeadFacts { mass: mass.to_vec(), ..positions() }
}

#[test]
fn h2o_divides_by_the_rows_that_could_see_a_position() {
    let mass = values(1);
    assert_eq!(scores(H2o { mean: false, ..H2o::DEFAULT }.into(), observed(&mass), 8), mass);
    let means: Vec<f32> = mass.iter().zip(0..).map(|(mass, index)| mass / (16 - index) as f32).collect();
    assert_eq!(scores(H2o::DEFAULT.into(), observed(&mass), 8), means);
}

#[test]
fn h2o_with_wide_sketches_counts_as_h2o_with_exact_counters() {
    for (mean, decay) in [(false, 1.0), (true, 1.0), (true, 0.5)] {
        let policy = H2o { mean, counter: Counter::Sketch, width: 1 << 16, decay };
        let (mut state, mut exact, mut rows) = (LayerState::default(), vec![0.0; 30], vec![0.0; 30]);
        let mut since = 0;
        for at in [12, 20, 30] {
            let mass: Vec<f32> = (0..at).map(|index| values(at as u64)[index % 16]).collect();
            for position in 0..at {
                exact[position] = exact[position] * decay + mass[position];
                rows[position] = rows[position] * decay + (at - position.max(since)) as f32;
            }
            since = at;
            let head = HeadFacts { positions: (0..at as u32).collect(), mass, ..HeadFacts::default() };
            let scene = Scene { at, layer: 0, rows: at, rooms: &[] };
            let scores = policy.scores(scene, &LayerFacts { heads: vec![head] }, &mut state).remove(0);
            for (position, score) in scores.into_iter().enumerate() {
                let expected = exact[position] / if mean { rows[position] } else { 1.0 };
                assert!(
                    (score - expected).abs() <= 1e-5 * expected,
                    "{position} of {at}: {score}, {expected}"
                );
            }
        }
    }
}

#[test]
fn scissorhands_counts_how_often_a_position_was_found_unimportant() {
    // In a window of 8 rows, 8..16: position 2 was important to all, 9 to all of its 7 rows, 12 to none of 4.
    let mut above = vec![0.0; 16];
    (above[2], above[9], above[10]) = (8.0, 7.0, 1.0);
    let scores = scores(Scissorhands { window: 8 }.into(), observed(&above), 8);
    assert_eq!(scores[..3], [-8.0, -8.0, 0.0]);
    assert_eq!(scores[9..13], [0.0, -5.0, -5.0, -4.0]);
}

#[test]
fn every_window_keeps_its_most_important_positions() {
    let mass = values(2);
    let scores = scores(Windowed { size: 4 }.into(), observed(&mass), 8);
    let mean = |index: usize| mass[index] / (16 - index) as f32;
    for window in [0..4, 4..8, 8..12, 12..16] {
        let mut order: Vec<usize> = window.collect();
        order.sort_by(|&a, &b| mean(b).total_cmp(&mean(a)));
        let places: Vec<f32> = order.iter().map(|&index| scores[index]).collect();
        assert_eq!(places, [0.0, -1.0, -2.0, -3.0]);
    }
}

#[test]
fn decay_fades_by_a_factor_of_e_in_a_hundred_rows() {
    let Watch::Attention { reduce: Reduce::Decayed(row), .. } = Decay::DEFAULT.watch(0) else {
        panic!("decay watches decayed attention");
    };
    assert!((row.powi(100) - (-1.0_f32).exp()).abs() < 1e-5);
    let mass = values(3);
    assert_eq!(scores(Decay::DEFAULT.into(), observed(&mass), 8), mass);
}

#[test]
fn expected_attention_counts_as_much_as_the_value_it_reads() {
    let (expected, norms) = (values(4), values(5));
    let head = || HeadFacts { expected: expected.clone(), value_norms: norms.clone(), ..positions() };
    let products: Vec<f32> =
        expected.iter().zip(&norms).map(|(expected, norm)| (expected + 0.25) * norm).collect();
    assert_eq!(scores(Expected { epsilon: 0.25, ..Expected::DEFAULT }.into(), head(), 8), products);
    assert_eq!(scores(Expected { vnorm: false, ..Expected::DEFAULT }.into(), head(), 8), expected);
    assert_eq!(Expected::DEFAULT.watch(6), Watch::Queries { skip: 6 }, "sinks are skipped");
}
