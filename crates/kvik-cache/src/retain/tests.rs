//! `decide` compared with its twin, and properties of every retention.

use super::*;

/// Deterministic pseudo-random numbers.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (bits ^ (bits >> 27)) >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A fact: few distinct values, so that ties are common, and occasionally NaN or infinity.
    fn fact(&mut self) -> f32 {
        match self.below(40) {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => -0.0,
            n => (n / 2) as f32 / 16.0,
        }
    }
}

/// Heads that store each position below `at` with a probability of 3 in 4.
fn facts(chance: &mut Chance, at: usize, shape: &[usize]) -> Vec<LayerFacts> {
    let mut head = || {
        let mut positions: Vec<u32> = (0..at as u32).filter(|_| chance.below(4) > 0).collect();
        if positions.is_empty() {
            positions.push(0);
        }
        let mut some = || positions.iter().map(|_| chance.fact()).collect::<Vec<f32>>();
        let (mass, key_norms, value_norms) = (some(), some(), some());
        let (likeness, expected, gated) = (some(), some(), some());
        HeadFacts { positions, mass, key_norms, value_norms, likeness, expected, gated }
    };
    shape.iter().map(|&heads| LayerFacts { heads: (0..heads).map(|_| head()).collect() }).collect()
}

const BUDGETS: [Budget; 5] = [
    Budget::Head,
    Budget::Pyramid { beta: 4.0 },
    Budget::Layer { floor: 0.3 },
    Budget::All,
    Budget::Calibrated,
];

const CUTS: [Cut; 4] =
    [Cut::Top, Cut::Threshold(0.6), Cut::Dynamic { beta: 0.5 }, Cut::Hybrid { recent: 0.4 }];

/// A number of tokens, heads with facts, and a retention for them.
struct Case {
    at: usize,
    facts: Vec<LayerFacts>,
    heads: HeadImportance,
    retention: Retention,
}

/// Every policy under every budget and cut, `rounds` times.
fn every_case(rounds: usize, mut test: impl FnMut(Case)) {
    let mut chance = Chance(7);
    for _ in 0..rounds {
        for policy in Policy::ALL {
            for (budget, cut) in BUDGETS.into_iter().flat_map(|budget| CUTS.map(|cut| (budget, cut))) {
                test(case(&mut chance, policy, budget, cut));
            }
        }
    }
}

fn case(chance: &mut Chance, policy: Policy, budget: Budget, cut: Cut) -> Case {
    let at = 1 + chance.below(200);
    let shape: Vec<usize> = (0..1 + chance.below(4)).map(|_| 1 + chance.below(3)).collect();
    let keep = match chance.below(2) {
        0 => Keep::Share((1 + chance.below(100)) as f32 / 100.0),
        _ => Keep::Tokens(2 + chance.below(250)),
    };
    let mut retention = Retention { budget, cut, ..Retention::new(policy, keep) };
    if chance.below(2) == 0 {
        (retention.sinks, retention.recent) = (chance.below(8), Some(chance.below(12)));
        retention.protect = chance.below(10);
    }
    let layers = shape.iter().map(|&heads| (0..heads).map(|_| chance.below(5) as f32).collect()).collect();
    Case { at, facts: facts(chance, at, &shape), heads: HeadImportance { layers }, retention }
}

impl Case {
    fn decide(&self) -> Decision {
        decide(&self.retention, self.at, &self.facts, Some(&self.heads), &mut PolicyState::default())
    }

    fn heads(&self) -> usize {
        self.facts.iter().map(|layer| layer.heads.len()).sum()
    }
}

#[test]
fn decisions_are_those_of_the_naive_twin() {
    every_case(20, |case| {
        let twin = naive::decide(
            &case.retention,
            case.at,
            &case.facts,
            Some(&case.heads),
            &mut PolicyState::default(),
        );
        assert_eq!(case.decide(), twin, "{} at {}", case.retention, case.at);
    });
}

#[test]
fn every_head_keeps_some_positions_and_all_no_more_than_the_keep() {
    every_case(20, |case| {
        let decision = case.decide();
        for (heads, facts) in decision.kept.iter().zip(&case.facts) {
            for (kept, head) in heads.iter().zip(&facts.heads) {
                assert!(!kept.is_empty(), "{} at {}", case.retention, case.at);
                assert!(kept.is_sorted_by(|a, b| a < b), "{} at {}", case.retention, case.at);
                assert!((*kept.last().unwrap() as usize) < head.positions.len());
            }
        }
        let kept: usize = decision.kept.iter().flatten().map(Vec::len).sum();
        let allowed = case.retention.keep.positions(case.at, case.heads());
        assert!(kept <= allowed, "{} at {}: {kept} of {allowed}", case.retention, case.at);
    });
}

#[test]
fn first_latest_and_protected_positions_stay_where_the_keep_has_room() {
    let mut judged = 0;
    every_case(20, |case| {
        let forced = |head: &HeadFacts| {
            let (first, last) = case.retention.forced(case.at);
            let stays =
                |&&position: &&u32| (position as usize) < first || position as usize + last >= case.at;
            head.positions.iter().filter(stays).count()
        };
        let quota = case.retention.keep.positions(case.at, 1);
        // A pyramid gives its last layer less than the mean.
        if matches!(case.retention.budget, Budget::Pyramid { .. }) {
            return;
        }
        if case.facts.iter().flat_map(|layer| &layer.heads).any(|head| forced(head) > quota) {
            return;
        }
        judged += 1;
        for (heads, facts) in case.decide().kept.iter().zip(&case.facts) {
            for (kept, head) in heads.iter().zip(&facts.heads) {
                let positions = kept.iter().map(|&index| head.positions[index as usize]).collect();
                let kept = HeadFacts { positions, ..HeadFacts::default() };
                assert_eq!(forced(&kept), forced(head), "{} at {}", case.retention, case.at);
            }
        }
    });
    assert!(judged > 500, "{judged} cases have room");
}

#[test]
fn every_policy_retains_the_first_four_positions_by_default() {
    for policy in Policy::ALL {
        for keep in ["0.5", "64", "1MiB"] {
            let text = format!("{}:{keep}", policy.name());
            let retention: Retention = text.parse().unwrap();
            assert_eq!((retention.sinks, retention.forced(1000).0), (4, 4), "{text}");
            assert_eq!(format!("{text},sinks=4").parse(), Ok(retention), "{text}: the same, said aloud");
            let without: Retention = format!("{text},sinks=0").parse().unwrap();
            assert_eq!(without.forced(1000).0, 0, "{text}");
        }
    }
}

#[test]
fn a_window_takes_no_more_than_the_first_positions_leave() {
    let mut crowded = 0;
    every_case(10, |case| {
        // Longer than any keep: the first positions stay all the same, and as many of the latest as there is room for.
        let retention = Retention { recent: Some(case.at), ..case.retention };
        let (first, quota) = (retention.forced(case.at).0, retention.keep.positions(case.at, 1));
        let wide = Case { retention, ..case };
        let decision = wide.decide();
        let kept: usize = decision.kept.iter().flatten().map(Vec::len).sum();
        assert!(kept <= retention.keep.positions(wide.at, wide.heads()), "{retention} at {}", wide.at);
        // A pyramid gives its last layer less than the mean.
        if matches!(retention.budget, Budget::Pyramid { .. }) || quota < first {
            return;
        }
        crowded += usize::from(quota < wide.at);
        let stored = wide.facts.iter().flat_map(|layer| &layer.heads);
        for (kept, head) in decision.kept.iter().flatten().zip(stored) {
            let leading = head.positions.iter().filter(|&&position| (position as usize) < first).count();
            assert!(!kept.is_empty() && kept.len() >= leading, "{retention} at {}", wide.at);
            assert!(
                kept.iter().zip(0..leading as u32).all(|(&kept, index)| kept == index),
                "{retention} at {}",
                wide.at
            );
        }
    });
    assert!(crowded > 1000, "{crowded} cases have less room than the window");
}

#[test]
fn a_window_that_shrinks_leaves_half_of_what_is_kept_to_scores() {
    let mut chance = Chance(13);
    let mut shrunk = 0;
    for _ in 0..600 {
        let (at, keep) = (1 + chance.below(2000), 1 + chance.below(100));
        let retention: Retention =
            format!("snapkv:{:.2},sinks={}", keep as f32 / 100.0, chance.below(9)).parse().unwrap();
        let ((first, last), quota) = (retention.forced(at), retention.keep.positions(at, 1));
        assert_eq!(
            retention.rows_before(at),
            at - last..at,
            "{retention} at {at}: what is observed is retained"
        );
        assert!((1..=64.min((at / 2).max(1))).contains(&last), "{retention} at {at}: {last}");
        assert!(2 * last <= quota.saturating_sub(first).max(2), "{retention} at {at}: {last} of {quota}");
        shrunk += usize::from(last < 64.min(at / 2));
    }
    assert!(shrunk > 100, "{shrunk} windows are shorter than published");
    let forced = |text: &str, at| text.parse::<Retention>().unwrap().forced(at);
    assert_eq!(forced("snapkv:0.2", 256), (4, 23), "a quota of 51");
    assert_eq!(forced("snapkv:0.2,window=64,sinks=0", 256), (0, 64), "what a request names is what it gets");
    assert_eq!(forced("snapkv:0.2,recent=30", 256), (4, 30));
    assert_eq!(forced("snapkv:0.5", 2000), (4, 64));
}

/// Retentions of every kind, with odd values everywhere.
fn retentions(rounds: usize, mut test: impl FnMut(Retention)) {
    let mut chance = Chance(11);
    every_case(rounds, |case| {
        let mut retention = Retention { every: 256 + chance.below(300), ..case.retention };
        if chance.below(4) == 0 {
            retention.keep = Keep::Bytes(1 + chance.next() % (1 << 40));
        }
        test(retention);
    });
}

#[test]
fn a_retention_reads_what_it_writes() {
    retentions(5, |retention| {
        let text = retention.to_string();
        let read = text.parse::<Retention>();
        if let Err(RetentionError::KeepBelowForced { .. }) = read {
            return;
        }
        assert_eq!(read, Ok(retention), "{text}");
    });
}

#[test]
fn texts_say_policy_keep_and_options() {
    let check = |text: &str, canonical: &str| {
        assert_eq!(text.parse::<Retention>().unwrap().to_string(), canonical, "{text}");
    };
    check("snapkv", "snapkv:0.5");
    check("snapkv:1", "snapkv:1");
    check("sinks:1024,sinks=4", "sinks:1024");
    check("keydiff:0.25,sinks=0", "keydiff:0.25,sinks=0");
    check("snapkv:0.25,window=auto", "snapkv:0.25");
    check("kvzip:0.25,budget=all", "kvzip:0.25");
    check("kvzip:.25,budget=head", "kvzip:0.25,budget=head");
    check("knorm:0.3, order=large, budget=layer", "knorm:0.3,order=large,budget=layer:0.2");
    check("snapkv:64MiB,window=64", "snapkv:64MiB,window=64");
    check("snapkv:2048MiB,pool=7,window=32,every=128", "snapkv:2GiB,window=32,pool=7,every=128");
    check("sinks:0.5,every=64,cut=top,protect=0", "sinks:0.5");
    check("knorm:0.5,when=pressure,protect=4", "knorm:0.5,protect=4,when=pressure");
    check("h2o:0.5,when=either", "h2o:0.5,when=either");
    check("snapkv:0.5,when=points", "snapkv:0.5");
    check("h2o:512,budget=all,every=128", "h2o:512,budget=all,every=128");
    check("h2o:512,mean=true,counter=sketch,decay=0.9", "h2o:512,counter=sketch,decay=0.9");
    check("decay:1024,lambda=0.07", "decay:1024,lambda=0.07");
    check("random:0.5,cut=hybrid,recent=8,seed=3", "random:0.5,seed=3,cut=hybrid:0.5,recent=8");
}

#[test]
fn what_cannot_be_read_or_used_is_named() {
    let check = |text: &str, says: &[&str]| {
        let error = text.parse::<Retention>().unwrap_err().to_string();
        assert!(says.iter().all(|said| error.contains(said)), "{text}: {error}");
    };
    check("h3o:0.5", &["policy", "`h3o`", "snapkv", "kvzip"]);
    check("snapkv:0", &["keep", "`0`"]);
    check("snapkv:0.0", &["keep", "`0`"]);
    check("snapkv:1.5", &["keep", "`1.5`", "share"]);
    check("snapkv:nan", &["keep", "`nan`"]);
    check("snapkv:-3", &["keep", "`-3`"]);
    check("snapkv:0MiB", &["keep", "bytes"]);
    check("snapkv:99999999999GiB", &["keep"]);
    check("snapkv:40,window=64", &["keep", "40", "first 4", "last 64", "at least 68"]);
    check("keydiff:3", &["keep", "first 4", "at least 4", "lower sinks"]);
    check("sinks:100,sinks=90,recent=20", &["keep", "first 90", "last 20", "at least 110"]);
    check("sinks:100,protect=200", &["keep", "first 200"]);
    check("snapkv:0.5,budget=heads", &["budget", "`heads`", "calibrated"]);
    check("snapkv:0.5,budget=layer:2", &["budget", "`layer:2`"]);
    check("snapkv:0.5,budget=pyramid:0", &["budget", "`pyramid:0`"]);
    check("snapkv:0.5,cut=threshold", &["cut", "threshold:SCORE"]);
    check("snapkv:0.5,cut=hybrid:7", &["cut", "`hybrid:7`"]);
    check("snapkv:0.5,every=0", &["every", "`0`"]);
    check("knorm:0.5,when=never", &["when", "`never`", "points, pressure or either"]);
    check("snapkv:0.5,when=either", &["when", "`either`", "points", "snapkv"]);
    check("kvzip:0.5,when=pressure", &["when", "`pressure`", "points", "kvzip"]);
    check("snapkv:0.5,every=32", &["every", "`32`", "64 rows"]);
    check("h2o:0.5,counter=some", &["counter", "`some`", "exact, sketch"]);
    check("h2o:0.5,decay=0.5", &["decay", "`0.5`", "exact counters"]);
    check("h2o:0.5,mean=yes", &["mean", "`yes`", "true or false"]);
    check("h2o:0.5,width=3,counter=sketch", &["width", "`3`"]);
    check("window:0.5,size=0", &["size", "`0`"]);
    check("decay:0.5,lambda=-1", &["lambda", "`-1`"]);
    check("expected:0.5,epsilon=nan", &["epsilon", "`NaN`"]);
    check("scissorhands:0.5,window=0", &["window", "`0`"]);
    check("snapkv:0.5,sinks=few", &["sinks", "`few`"]);
    check("snapkv:0.5,pool=4", &["pool", "`4`", "odd"]);
    check("snapkv:0.5,window=0", &["window", "`0`"]);
    check("snapkv:0.5,window=most", &["window", "`most`", "auto"]);
    check("snapkv:0.5,order=large", &["order", "snapkv", "window, pool, budget"]);
    check("knorm:0.5,order=huge", &["order", "`huge`", "small, large"]);
    check("snapkv:0.5,every", &["every", "name=value"]);
}

#[test]
fn models_must_have_heads_for_the_budget() {
    let check = |text: &str, shape: &[usize], named: Option<&str>| {
        let result = text.parse::<Retention>().unwrap().check(shape);
        assert_eq!(result.as_ref().err().is_some(), named.is_some(), "{text} {shape:?}");
        let error = result.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(named.is_none_or(|named| error.starts_with("budget") && error.contains(named)), "{error}");
    };
    check("knorm:0.5,budget=layer", &[2, 2], None);
    check("knorm:0.5,budget=layer", &[1, 1], Some("KV heads"));
    check("knorm:0.5,budget=all", &[1, 1], None);
    check("knorm:0.5,budget=all", &[1], Some("KV heads"));
    check("knorm:0.5,budget=pyramid", &[8], Some("layers"));
    check("knorm:0.5", &[1], None);
}

#[test]
fn a_model_that_lacks_what_a_retention_needs_refuses_it() {
    let check = |text: &str, model: ModelShape<'_>| text.parse::<Retention>().unwrap().check_model(&model);
    let plain = ModelShape { kv_heads: &[2, 2], windows: false, latent: false, heads: None, gated: false };
    let measured = HeadImportance { layers: vec![vec![1.0; 2]; 2] };
    assert_eq!(check("knorm:0.5,budget=all", plain), Ok(()));
    let windows = ModelShape { windows: true, ..plain };
    assert_eq!(check("knorm:0.5", windows), Err(RetentionError::Windows));
    assert_eq!(check("knorm:0.5", ModelShape { latent: true, ..plain }), Err(RetentionError::Latent));
    assert_eq!(check("knorm:0.5,budget=calibrated", plain), Err(RetentionError::NotCalibrated));
    let calibrated = ModelShape { heads: Some(&measured), ..plain };
    assert_eq!(check("knorm:0.5,budget=calibrated", calibrated), Ok(()));
    assert_eq!(check("gated:0.5", calibrated), Err(RetentionError::NoGates));
    assert_eq!(check("gated:0.5", ModelShape { gated: true, ..plain }), Ok(()));
}

#[test]
fn only_gated_needs_gates() {
    for policy in Policy::ALL {
        let retention = Retention::new(policy, Keep::Share(0.5));
        let expected = if policy.name() == "gated" { Err(RetentionError::NoGates) } else { Ok(()) };
        assert_eq!(retention.check_gates(false), expected, "{retention}");
        assert_eq!(retention.check_gates(true), Ok(()), "{retention}");
    }
}

#[test]
fn the_calibrated_budget_needs_an_importance_of_every_head() {
    let retention: Retention = "knorm:0.5,budget=calibrated".parse().unwrap();
    let measured = HeadImportance { layers: vec![vec![0.0; 2]; 3] };
    assert_eq!(retention.check_heads(&[2, 2, 2], Some(&measured)), Ok(()));
    assert_eq!(retention.check_heads(&[2, 2], Some(&measured)), Err(RetentionError::NotCalibrated));
    assert_eq!(retention.check_heads(&[2, 2, 2], None), Err(RetentionError::NotCalibrated));
    let head: Retention = "knorm:0.5".parse().unwrap();
    assert_eq!(head.check_heads(&[2, 2, 2], None), Ok(()));
}

#[test]
fn a_group_of_layers_may_retain_most_of_what_all_may() {
    let kept = |text: &str, groups: &[usize]| {
        text.parse::<Retention>().unwrap().points(1000, 4096).in_groups(groups).kept_max(1000)
    };
    for budget in ["all", "calibrated", "pyramid", "head", "layer"] {
        assert_eq!(kept(&format!("knorm:0.1,budget={budget}"), &[8, 0, 0, 0]), 100, "{budget}");
    }
    assert_eq!(kept("knorm:0.1,budget=all", &[2, 6]), 400);
    assert_eq!(kept("knorm:0.1,budget=calibrated", &[2, 18]), 1000, "no more than there are");
    assert_eq!(kept("knorm:0.1,budget=pyramid", &[2, 6]), 200, "at most twice the mean");
    assert_eq!((kept("knorm:0.1", &[2, 6]), kept("knorm:0.1,budget=layer", &[2, 6])), (100, 100));
}

#[test]
fn bytes_become_tokens() {
    let retention: Retention = "knorm:1MiB".parse().unwrap();
    assert_eq!(retention.resolve(1000).keep, Keep::Tokens(1048));
    let error = retention.resolve(1 << 20).check(&[2]).unwrap_err().to_string();
    assert!(error.starts_with("keep"), "{error}");
}

#[test]
fn a_share_is_the_share_that_its_digits_say() {
    for (share, at, heads, positions) in [
        (0.7, 100, 1, 70),
        (0.29, 100, 1, 29),
        (0.2, 5, 3, 3),
        (0.3, 1, 4, 4),
        (1.0, 7, 2, 14),
        (0.5, 7, 2, 7),
    ] {
        assert_eq!(Keep::Share(share).positions(at, heads), positions, "{share} of {heads} times {at}");
    }
}

/// All points up to `end`.
fn all_points(points: Points, end: usize) -> Vec<usize> {
    let after = |&point: &usize| points.next(point);
    std::iter::successors(points.next(0), after).take_while(|&point| point <= end).collect()
}

#[test]
fn a_sequence_forgets_after_the_prompt_and_then_every_so_often() {
    let check = |text: &str, prompt: usize, expected: &[usize]| {
        let points = text.parse::<Retention>().unwrap().points(prompt, 2048);
        assert_eq!(all_points(points, 3000), expected, "{text} {prompt}");
    };
    check("knorm:0.5,every=1000", 700, &[700, 1700, 2700]);
    check("knorm:500,every=1000", 1500, &[1500, 2500]);
    check("knorm:500,every=400", 1800, &[900, 1300, 1700, 1800, 2200, 2600, 3000]);
    check("knorm:500,every=400", 1700, &[900, 1300, 1700, 2100, 2500, 2900]);
    check("knorm:0.5,every=400", 2900, &[2048, 2448, 2848, 2900]);
    check("knorm:0.5,every=400,when=pressure", 2900, &[]);
    check("knorm:0.5,every=400,when=either", 700, &[700, 1100, 1500, 1900, 2300, 2700]);
    check("kvzip:0.5", 700, &[700]);
    check("kvzip:100", 2000, &[2000]);
    // The window's rows stay together.
    check("snapkv:500,every=400", 1764, &[900, 1300, 1764, 2164, 2564, 2964]);
    check("snapkv:500,every=400", 1765, &[900, 1300, 1700, 1765, 2165, 2565, 2965]);
}

#[test]
fn who_may_forget_at_any_time_observes_every_row() {
    let watched = |text: &str, passed: usize| {
        let retention: Retention = text.parse().unwrap();
        retention.watched(&retention.points(100, 4096), passed, passed + 30..passed + 40)
    };
    assert_eq!(watched("h2o:0.5,when=pressure", 0), 30..40);
    assert_eq!(watched("h2o:0.5,when=either", 170), 200..210);
    assert_eq!(watched("h2o:0.5", 170), 200..210);
    assert_eq!(watched("knorm:0.5,when=pressure", 170).len(), 0);
    let pressed = |text: &str| text.parse::<Retention>().unwrap().under_pressure_too().to_string();
    assert_eq!(pressed("keydiff:0.25"), "keydiff:0.25,when=either");
    assert_eq!(pressed("snapkv:0.25"), "snapkv:0.25");
    assert_eq!(pressed("kvzip:0.25"), "kvzip:0.25");
}

#[test]
fn a_point_is_the_same_from_wherever_it_is_asked_for() {
    retentions(3, |retention| {
        let (prompt, context) = (retention.every * 7 % 1000, 100 + retention.every * 3);
        let points = retention.resolve(1 << 30).points(prompt, context);
        let all = all_points(points, 2000);
        assert!(all.is_sorted_by(|a, b| a < b), "{retention}");
        assert!(prompt == 0 || all.contains(&prompt), "{retention}");
        for position in 0..2000 {
            let next = all.iter().copied().find(|&point| point > position);
            let found = points.next(position).filter(|&point| point <= 2000);
            assert_eq!(found, next, "{retention} after {position}");
        }
        // Rows are observed once, and the rows before a point belong to it.
        for (index, &point) in all.iter().enumerate() {
            let since = index.checked_sub(1).map_or(0, |index| all[index]);
            let watched = points.watched(point);
            assert!(since <= watched.start && watched.end == point, "{retention} {point}: {watched:?}");
        }
    });
}

#[test]
fn the_most_that_is_stored_is_known_before() {
    retentions(3, |retention| {
        if let Keep::Bytes(_) = retention.keep {
            return;
        }
        let (prompt, context) = (retention.every * 7 % 1000, 100 + retention.every * 3);
        let points = retention.points(prompt, context);
        let (mut stored, mut stored_max) = (0, 0);
        for position in 1..1500 {
            stored += 1;
            stored_max = stored_max.max(stored);
            assert_eq!(points.stored_max(position), stored_max, "{retention} {prompt} {position}");
            if points.next(position - 1) == Some(position) {
                stored = stored.min(retention.keep.positions(position, 1));
            }
        }
    });
}

#[test]
fn an_answer_without_end_stores_what_lies_between_two_points() {
    let points = "sinks:64,every=32".parse::<Retention>().unwrap().points(90, 4096);
    assert_eq!(points.stored_max(usize::MAX), points.stored_max(100_000));
}

#[test]
fn a_window_is_at_most_half_of_the_sequence() {
    let watched = |text: &str, prompt, at| {
        let retention: Retention = text.parse().unwrap();
        retention.points(prompt, 2048).watched(at)
    };
    assert_eq!(watched("snapkv:0.5", 1000, 1000), 936..1000);
    assert_eq!(watched("snapkv:0.5,window=64", 100, 100), 50..100);
    assert_eq!(watched("snapkv:0.5", 1, 1), 0..1);
    assert_eq!(watched("snapkv:0.5", 1000, 1256), 1192..1256);
    assert_eq!(watched("h2o:0.5", 1000, 1256), 1000..1256);
    assert_eq!(watched("h2o:0.5", 1000, 1000), 0..1000);
}

#[test]
fn only_repeating_needs_the_whole_prompt() {
    let kvzip: Retention = "kvzip:0.25".parse().unwrap();
    assert_eq!(kvzip.check_prompt(2048, 2048), Ok(()));
    let error = kvzip.check_prompt(2049, 2048).unwrap_err().to_string();
    assert!(error.starts_with("policy") && error.contains("2049") && error.contains("2048"), "{error}");
    let keydiff: Retention = "keydiff:0.25".parse().unwrap();
    assert_eq!(keydiff.check_prompt(1 << 20, 2048), Ok(()));
}

#[test]
fn a_pyramid_has_the_steps_that_kvpress_gives_it() {
    // The result of kvpress 0.5.5's PyramidKVPress for each layer.
    let check = |text: &str, at: usize, expected: &[usize]| {
        let retention: Retention = text.parse().unwrap();
        let stored = vec![vec![at; 2]; expected.len()];
        let groups = budget::groups(&retention, at, &stored, None);
        let quotas: Vec<usize> = groups.iter().step_by(2).map(|group| group.quota).collect();
        assert_eq!(quotas, expected, "{text} at {at}");
    };
    check("snapkv:0.5,budget=pyramid", 1000, &[936, 762, 587, 413, 238, 64]);
    check("snapkv:0.25,budget=pyramid", 1000, &[250; 6]);
    check("snapkv:0.5,window=32,budget=pyramid:4", 300, &[262, 150, 38]);
    check("snapkv:0.7,window=8,budget=pyramid:5", 613, &[605, 546, 488, 429, 370, 312, 253]);
    check("snapkv:0.5,window=64,budget=pyramid", 100, &[50; 6]);
    let layers = [
        926, 893, 859, 826, 793, 759, 726, 692, 659, 625, 592, 559, 525, 492, 458, 425, 391, 358, 325, 291,
        258, 224, 191, 157, 124, 91, 57, 24,
    ];
    check("snapkv:0.25,window=16,budget=pyramid", 1900, &layers);
}

#[test]
fn numbers_beyond_any_sequence_are_refused_or_harmless() {
    let (mut refused, mut harmless) = (0, 0);
    for policy in Policy::ALL {
        let mut options: Vec<&str> = vec!["sinks", "recent", "every", "protect", "keep"];
        let mut with_options = policy;
        options.extend(with_options.options().into_iter().map(|(name, _)| name));
        for (option, keep) in options.into_iter().flat_map(|option| [(option, "0.5"), (option, "300")]) {
            let text = match option {
                "keep" => format!("{}:{}", policy.name(), u64::MAX),
                _ => format!("{}:{keep},budget=calibrated,{option}={}", policy.name(), u64::MAX),
            };
            let Ok(retention) = text.parse::<Retention>() else {
                refused += 1;
                continue;
            };
            harmless += 1;
            let points = retention.points(5000, 2048);
            assert!(points.next(6000) > Some(6000) || points.next(6000).is_none(), "{text}");
            assert!(points.stored_max(6000) <= 6000, "{text}");
            assert!(points.stored_max(6000) <= points.stored_max(usize::MAX), "{text}");
            let facts = facts(&mut Chance(3), 100, &[2, 2]);
            let heads = HeadImportance { layers: vec![vec![1.0; 2]; 2] };
            let decision = decide(&retention, 100, &facts, Some(&heads), &mut PolicyState::default());
            assert!(decision.kept.iter().flatten().all(|kept| !kept.is_empty()), "{text}");
        }
    }
    assert!(refused > 50 && harmless > 50, "{refused} refused, {harmless} harmless");
}
