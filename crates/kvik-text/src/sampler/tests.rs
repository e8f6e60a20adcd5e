use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn neutral() -> Sampling {
    Sampling { temperature: 1.0, seed: 1, ..Sampling::GREEDY }
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..neutral() }
}

/// A mask of the tokens that are allowed.
fn mask(vocab: usize, is_allowed: impl Fn(Token) -> bool) -> Vec<u32> {
    let bit = |token: Token| u32::from((token as usize) < vocab && is_allowed(token)) << (token % 32);
    let word = |word: usize| (0..32).map(|index| bit(word as Token * 32 + index)).sum();
    (0..vocab.div_ceil(32)).map(word).collect()
}

/// Samples once after `prompt` and `answer`.
fn sample(sampling: &Sampling, prompt: &[Token], answer: &[Token], logits: &[f32]) -> Option<Token> {
    let mut sampler = Sampler::new(sampling, 0, prompt);
    answer.iter().for_each(|&token| sampler.accept(token));
    sampler.sample(logits, None, &mut Scratch::default())
}

/// The tokens that occur in many draws.
fn support(sampling: &Sampling, logits: &[f32]) -> BTreeSet<Token> {
    let mut sampler = Sampler::new(sampling, 0, &[]);
    let mut scratch = Scratch::default();
    (0..3000)
        .map(|_| {
            let token = sampler.sample(logits, None, &mut scratch).unwrap();
            sampler.accept(token);
            token
        })
        .collect()
}

#[test]
fn greedy_takes_the_largest_logit_and_the_lowest_id_among_equals() {
    let cases: &[(&[f32], Option<Token>)] = &[
        (&[0.0, 2.0, 1.0], Some(1)),
        (&[3.0, 1.0, 3.0], Some(0)),
        (&[f32::NAN, -1.0, f32::NAN], Some(1)),
        (&[1.0, f32::INFINITY, f32::INFINITY], Some(1)),
        (&[f32::NAN, f32::NAN], None),
        (&[f32::NEG_INFINITY], None),
        (&[], None),
    ];
    for (logits, expect) in cases {
        assert_eq!(sample(&greedy(), &[], &[], logits), *expect, "{logits:?}");
        let drawn = sample(&neutral(), &[], &[], logits);
        assert_eq!(drawn.is_some(), expect.is_some(), "{logits:?}");
    }
    let mut long = vec![0.5; 1000];
    long[777] = 2.0;
    long[900] = 2.0;
    assert_eq!(sample(&greedy(), &[], &[], &long), Some(777));
}

#[test]
fn end_tokens_are_forbidden_until_min_tokens() {
    let logits = [9.0, 1.0, 2.0, 8.0];
    for sampling in [greedy(), neutral()] {
        let sampling = Sampling { min_tokens: 3, ..sampling };
        let mut sampler = Sampler::new(&sampling, 0, &[]).holding_back(&[0, 3, 99]);
        let mut scratch = Scratch::default();
        for _ in 0..3 {
            let token = sampler.sample(&logits, None, &mut scratch).unwrap();
            assert!(token == 1 || token == 2);
            sampler.accept(token);
        }
        if sampling.temperature == 0.0 {
            assert_eq!(sampler.sample(&logits, None, &mut scratch), Some(0));
        }
    }
}

#[test]
fn bias_and_penalties_edit_single_logits() {
    let logits = [1.0, 2.0, 3.0, -1.0];
    let bias = Sampling { logit_bias: vec![(2, f32::NEG_INFINITY), (99, 5.0)], ..greedy() };
    assert_eq!(sample(&bias, &[], &[], &logits), Some(1));

    // 3 / 4 < 2; the prompt counts.
    let repetition = Sampling { repetition_penalty: 4.0, ..greedy() };
    assert_eq!(sample(&repetition, &[2], &[], &logits), Some(1));
    // The penalty covers only the last token.
    let short = Sampling { penalty_last_n: 1, ..repetition.clone() };
    assert_eq!(sample(&short, &[2, 0], &[], &logits), Some(2));

    // Presence and frequency penalties ignore the prompt.
    let presence = Sampling { presence_penalty: 1.5, ..greedy() };
    assert_eq!(sample(&presence, &[2], &[], &logits), Some(2));
    assert_eq!(sample(&presence, &[], &[2], &logits), Some(1));
    let frequency = Sampling { frequency_penalty: 0.6, ..greedy() };
    assert_eq!(sample(&frequency, &[], &[2], &logits), Some(2));
    assert_eq!(sample(&frequency, &[], &[2, 2], &logits), Some(1));
}

#[test]
fn negative_logits_are_multiplied() {
    let repetition = Sampling { repetition_penalty: 2.0, ..greedy() };
    assert_eq!(sample(&repetition, &[0], &[], &[-1.0, -1.5]), Some(1));
}

#[test]
fn a_mask_forbids_all_other_tokens() {
    let logits: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let sampler = Sampler::new(&greedy(), 0, &[]);
    let mut scratch = Scratch::default();
    assert_eq!(sampler.sample(&logits, Some(&mask(100, |_| false)), &mut scratch), None);
    let two = mask(100, |token| token == 3 || token == 65);
    assert_eq!(sampler.sample(&logits, Some(&two), &mut scratch), Some(65));
}

#[test]
fn truncation_keeps_the_expected_tokens() {
    // Probabilities 0.4, 0.3, 0.2, 0.1.
    let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].map(f32::ln).to_vec();
    let check = |sampling: Sampling, expect: &[Token]| {
        let expect: BTreeSet<Token> = expect.iter().copied().collect();
        assert_eq!(support(&sampling, &logits), expect, "{sampling:?}");
    };
    check(neutral(), &[0, 1, 2, 3]);
    check(Sampling { top_k: 2, ..neutral() }, &[1, 3]);
    check(Sampling { top_k: 9, ..neutral() }, &[0, 1, 2, 3]);
    check(Sampling { top_p: 0.65, ..neutral() }, &[1, 3]);
    check(Sampling { top_p: 0.75, ..neutral() }, &[1, 2, 3]);
    check(Sampling { top_p: 0.0, ..neutral() }, &[1]);
    check(Sampling { min_p: 0.6, ..neutral() }, &[1, 3]);
    check(Sampling { min_p: 1.0, ..neutral() }, &[1]);
    // After top-k the rest is renormalised: 0.4/0.7 reaches 0.57.
    check(Sampling { top_k: 2, top_p: 0.57, ..neutral() }, &[1]);
    check(Sampling { top_k: 3, min_p: 0.6, ..neutral() }, &[1, 3]);
    check(Sampling { temperature: 1e-6, ..neutral() }, &[1]);
}

/// SplitMix64's mixing (Steele, Lea, Flood 2014), so that logits are the same on every machine.
fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Normally distributed logits, of which some may be raised.
fn random_logits(vocab: usize, spread: f32, peak: f32, seed: u64) -> Vec<f32> {
    let logit = |token: usize| {
        let bits = mixed(mixed(seed) ^ token as u64);
        let parts = [bits & 0xffff, bits >> 16 & 0xffff, bits >> 32 & 0xffff, bits >> 48];
        let noise = parts.iter().map(|&part| part as f32).sum::<f32>() / 65536.0 - 2.0;
        noise * 1.75 * spread + if token % 500 == 7 { peak } else { 0.0 }
    };
    (0..vocab).map(logit).collect()
}

/// Faster code must not change a single draw, nor may other instructions (`KVIK_ISA`). The digest dates from the
/// change by which top-p and constraints are drawn first and checked afterwards.
#[test]
fn draws_are_what_they_always_were() {
    let warm = Sampling { temperature: 0.8, ..neutral() };
    let top_p = |top_p: f32| Sampling { top_p, ..warm.clone() };
    let settings = [
        greedy(),
        warm.clone(),
        Sampling { temperature: 1.7, ..neutral() },
        Sampling { top_k: 40, ..top_p(0.95) },
        top_p(0.95),
        top_p(0.3),
        Sampling { min_p: 0.001, ..top_p(0.999) },
        Sampling { min_p: 0.05, ..warm.clone() },
    ];
    let shapes =
        [(20_011, 2.0, 12.0), (20_011, 3.0, 0.0), (9_000, 0.3, 0.0), (9_000, 12.0, 0.0), (50, 1.0, 3.0)];
    let mut digest = 0;
    for (vocab, spread, peak) in shapes {
        let mask = mask(vocab, |token| mixed(u64::from(token)).is_multiple_of(5));
        for (setting, sampling) in (0..).zip(&settings) {
            let (mut sampler, mut scratch) = (Sampler::new(sampling, 0, &[]), Scratch::default());
            for draw in 0..40 {
                let logits = random_logits(vocab, spread, peak, draw * 8 + setting);
                let mask = (draw % 4 == 3).then_some(mask.as_slice());
                let token = sampler.sample(&logits, mask, &mut scratch).unwrap();
                sampler.accept(token);
                digest = mixed(digest ^ u64::from(token));
            }
        }
    }
    assert_eq!(digest, 0x2e70_7185_735d_43e2);
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].map(f32::ln).to_vec();
    for sampling in [neutral(), Sampling { top_k: 3, ..neutral() }] {
        let mut sampler = Sampler::new(&sampling, 0, &[]);
        let mut scratch = Scratch::default();
        let mut counts = [0f64; 4];
        for _ in 0..20_000 {
            let token = sampler.sample(&logits, None, &mut scratch).unwrap();
            sampler.accept(token);
            counts[token as usize] += 1.0 / 20_000.0;
        }
        let expect = if sampling.top_k == 0 { [0.1, 0.4, 0.2, 0.3] } else { [0.0, 0.444, 0.222, 0.333] };
        for (got, expect) in counts.iter().zip(expect) {
            assert!((got - expect).abs() < 0.015, "{counts:?}");
        }
    }
}

#[test]
fn the_draw_depends_on_seed_choice_and_index_only() {
    let logits = vec![0.0; 1000];
    let sampling = neutral();
    let run = |choice: u32, skip: usize| -> Vec<Token> {
        let mut sampler = Sampler::new(&sampling, choice, &[]);
        let mut scratch = Scratch::default();
        let tokens = (0..50).map(|_| {
            let token = sampler.sample(&logits, None, &mut scratch).unwrap();
            sampler.accept(token);
            token
        });
        tokens.skip(skip).collect()
    };
    assert_eq!(run(0, 0), run(0, 0));
    assert_ne!(run(0, 0), run(1, 0));
    assert_eq!(run(0, 10), run(0, 0)[10..]);
}

#[test]
fn a_sibling_draws_what_the_sampler_of_its_choice_does() {
    let logits = random_logits(100, 3.0, 0.0, 5);
    let penalties = Sampling { repetition_penalty: 1.5, frequency_penalty: 0.5, min_tokens: 9, ..neutral() };
    for penalty_last_n in [0, 7] {
        let sampling = Sampling { penalty_last_n, ..penalties.clone() };
        let new = |choice| Sampler::new(&sampling, choice, &[7, 8, 9, 7]).holding_back(&[3]);
        for (mut sampler, mut expected) in [0, 1, 63].map(|choice| (new(0).sibling(choice), new(choice))) {
            for _ in 0..40 {
                let token = sampler.sample(&logits, None, &mut Scratch::default());
                assert_eq!(token, expected.sample(&logits, None, &mut Scratch::default()));
                sampler.accept(token.unwrap());
                expected.accept(token.unwrap());
            }
        }
    }
}

#[test]
fn logprobs_are_normalised() {
    let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].map(|p| p.ln() + 7.0).to_vec();
    let (chosen, top) = logprobs(&logits, 0, 2, &mut Scratch::default());
    assert!((chosen - 0.1f32.ln()).abs() < 1e-5);
    assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3]);
    assert!((top[0].1 - 0.4f32.ln()).abs() < 1e-5);
    let (nan, _) = logprobs(&[f32::NAN, 1.0], 0, 2, &mut Scratch::default());
    assert!(nan.is_nan());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The selection equals a full stable sort, equal logits included.
    #[test]
    fn top_equals_a_sort(
        logits in prop::collection::vec(prop_oneof![
            8 => (-40i32..40).prop_map(|x| x as f32 / 4.0),
            1 => Just(f32::NAN),
            1 => Just(f32::NEG_INFINITY),
        ], 0..700),
        count in 0usize..300,
    ) {
        let mut expect: Vec<(Token, f32)> = logits.iter().enumerate()
            .filter(|(_, x)| **x > f32::NEG_INFINITY)
            .map(|(i, &x)| (i as Token, x)).collect();
        expect.sort_by(|a, b| b.1.total_cmp(&a.1));
        expect.truncate(count);
        let mut got = Vec::new();
        select::top(&logits, count, &mut got);
        let got: Vec<(Token, f32)> = got.iter().map(|c| (c.token, c.logit)).collect();
        prop_assert_eq!(got, expect);
    }

    /// No input makes the sampler panic, sample a forbidden token or leave the vocabulary.
    #[test]
    fn never_panics_and_never_picks_the_impossible(
        logits in prop::collection::vec(prop_oneof![
            6 => -30f32..30.0,
            1 => prop_oneof![Just(f32::NAN), Just(f32::NEG_INFINITY), Just(f32::INFINITY), Just(f32::MAX), Just(f32::MIN)],
        ], 1..600),
        temperature in prop_oneof![Just(0f32), Just(1e-9), 0.1f32..3.0, Just(f32::INFINITY)],
        top_k in 0usize..50, top_p in 0f32..1.2, min_p in 0f32..1.2, seed in any::<u64>(),
    ) {
        let sampling = Sampling { temperature, top_k, top_p, min_p, seed, ..neutral() };
        let token = sample(&sampling, &[], &[], &logits);
        match token {
            Some(token) => prop_assert!(logits[token as usize] > f32::NEG_INFINITY),
            None => prop_assert!(!logits.iter().any(|&x| x > f32::NEG_INFINITY)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Top-p keeps the tokens that a full sort in f64 keeps, except for tokens exactly at the border.
    #[test]
    fn nucleus_equals_a_sort(
        seed in any::<u64>(), len in 1usize..3000, spread in 0.1f32..30.0, p in 0f32..1.0,
    ) {
        let logits: Vec<f32> = (0..len as u64)
            .map(|i| random::units(seed, i).next().unwrap() as f32 * spread - 3.0)
            .map(|x| if x < spread * 0.05 - 3.0 { f32::NEG_INFINITY } else { x })
            .collect();
        prop_assume!(logits.iter().any(|x| x.is_finite()));
        let row = distribution::Distribution::of(&logits);
        let kept = |p: f64| distribution(&logits, &Sampling { top_p: 1.0, ..neutral() }, p);
        let (min, max) = (kept(f64::from(p) - 1e-6), kept(f64::from(p) + 1e-6));
        let mut masses = Vec::new();
        for token in 0..len {
            if !row.is_in_nucleus(token as Token, p, &mut masses) {
                prop_assert!(min[token] == 0.0, "{} is missing", token);
            } else if logits[token] > f32::NEG_INFINITY {
                prop_assert!(max[token] > 0.0, "{} is not of it", token);
            }
        }
    }
}

/// The probabilities of all tokens by a full sort, in f64: top-k, the share `p` of the rest, min-p, temperature.
fn distribution(logits: &[f32], sampling: &Sampling, p: f64) -> Vec<f64> {
    let mut ranked: Vec<usize> = (0..logits.len()).filter(|&i| logits[i] > f32::NEG_INFINITY).collect();
    ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if sampling.top_k > 0 {
        ranked.truncate(sampling.top_k);
    }
    let most = f64::from(logits[ranked[0]]);
    let weight = |token: usize| (f64::from(logits[token]) - most).exp();
    let (total, mut reached) = (ranked.iter().map(|&token| weight(token)).sum::<f64>(), 0.0);
    ranked.retain(|&token| {
        let is_kept = reached == 0.0 || reached < p * total;
        reached += weight(token);
        is_kept && weight(token) >= f64::from(sampling.min_p) * (1.0 - 1e-6)
    });
    let warm = |token: usize| weight(token).powf(1.0 / f64::from(sampling.temperature));
    let total: f64 = ranked.iter().map(|&token| warm(token)).sum();
    let mut probabilities = vec![0.0; logits.len()];
    ranked.iter().for_each(|&token| probabilities[token] = warm(token) / total);
    probabilities
}

/// Deviation of counts of draws from `probabilities`: chi-squared over its degrees of freedom, in units of its
/// standard deviation. Tokens with a low expected count are grouped; an impossible token gives infinity.
fn surprise(counts: &[u32], probabilities: &[f64]) -> f64 {
    if counts.iter().zip(probabilities).any(|(&count, &probability)| count > 0 && probability == 0.0) {
        return f64::INFINITY;
    }
    let draws = f64::from(counts.iter().sum::<u32>());
    let (mut squares, mut groups, mut group) = (0.0, 0.0, (0.0, 0.0));
    for (&count, &probability) in counts.iter().zip(probabilities) {
        group = (group.0 + f64::from(count), group.1 + probability * draws);
        if group.1 >= 20.0 {
            squares += (group.0 - group.1).powi(2) / group.1;
            (groups, group) = (groups + 1.0, (0.0, 0.0));
        }
    }
    let free = f64::max(groups - 1.0, 1.0);
    (squares - free) / (2.0 * free).sqrt()
}

/// Draws from a normal distribution with some raised logits, in several parts, with equal logits among them.
#[test]
fn draws_have_the_probabilities_of_a_sort() {
    let warm = Sampling { temperature: 0.8, ..neutral() };
    let settings = [
        neutral(),
        warm.clone(),
        Sampling { temperature: 2.5, top_p: 0.9, ..neutral() },
        Sampling { top_p: 0.95, ..warm.clone() },
        Sampling { top_p: 0.3, ..warm.clone() },
        Sampling { top_p: 0.05, temperature: 1.5, ..neutral() },
        Sampling { top_p: 0.9, min_p: 0.05, ..warm.clone() },
        Sampling { min_p: 0.1, ..warm.clone() },
        Sampling { top_k: 40, top_p: 0.8, ..warm.clone() },
    ];
    // Without negative zero, which the sort would distinguish from zero.
    let rounded = |logit: f32| (logit * 4.0).round() / 4.0 + 0.0;
    for (spread, peak) in [(0.3, 0.0), (2.0, 0.0), (1.0, 6.0)] {
        let logits: Vec<f32> = random_logits(2500, spread, peak, 7).into_iter().map(rounded).collect();
        for sampling in &settings {
            let probabilities = distribution(&logits, sampling, f64::from(sampling.top_p));
            let (mut sampler, mut scratch) = (Sampler::new(sampling, 0, &[]), Scratch::default());
            let mut counts = vec![0; logits.len()];
            for _ in 0..kvik_testing::effort(10_000, 40_000) {
                let token = sampler.sample(&logits, None, &mut scratch).unwrap();
                sampler.accept(token);
                counts[token as usize] += 1;
            }
            let surprise = surprise(&counts, &probabilities);
            assert!(surprise.abs() < 4.0, "{surprise} of {sampling:?}, spread {spread}, peak {peak}");
        }
    }
}

/// A token found without the mask equals that of the mask, and both have the mask's probabilities.
#[test]
fn likely_tokens_and_the_mask_behind_them_have_the_probabilities_of_the_mask() {
    let logits = random_logits(2500, 1.0, 6.0, 7);
    let draws = kvik_testing::effort(10_000, 40_000);
    for (one_of, sampling) in
        [(2, neutral()), (5, Sampling { temperature: 0.8, ..neutral() }), (40, neutral())]
    {
        let is_allowed = |token: Token| mixed(u64::from(token)).is_multiple_of(one_of);
        let mask = mask(logits.len(), is_allowed);
        let masked: Vec<f32> = (0..)
            .zip(&logits)
            .map(|(token, &logit)| if is_allowed(token) { logit } else { f32::NEG_INFINITY })
            .collect();
        let (mut sampler, mut scratch) = (Sampler::new(&sampling, 0, &[]), Scratch::default());
        let (mut counts, mut tried) = (vec![0; logits.len()], 0);
        for _ in 0..draws {
            let likely = sampler
                .sample_likely(&logits, &mut scratch, |token| Ok::<bool, ()>(is_allowed(token)))
                .unwrap();
            tried += u32::from(likely.is_some());
            let token = sampler.sample(&logits, Some(&mask), &mut scratch).unwrap();
            assert!(likely.is_none_or(|likely| likely == token), "the mask gives another");
            sampler.accept(token);
            counts[token as usize] += 1;
        }
        assert!((draws / 40..draws).contains(&tried), "{tried} of one in {one_of}");
        let surprise = surprise(&counts, &distribution(&masked, &sampling, 1.0));
        assert!(surprise.abs() < 4.0, "{surprise} of one in {one_of}");
    }
}

#[test]
fn the_likeliest_allowed_token_is_found_without_the_mask_if_it_is_near() {
    let mut logits = random_logits(3000, 1.0, 0.0, 3);
    (logits[700], logits[70], logits[2900]) = (9.0, 9.0, 9.5);
    let sampler = Sampler::new(&greedy(), 0, &[]);
    let ask = |refused: &[Token]| {
        let mut asked = 0;
        let found = sampler.sample_likely(&logits, &mut Scratch::default(), |token| {
            asked += 1;
            Ok::<bool, ()>(!refused.contains(&token))
        });
        (found.unwrap(), asked)
    };
    assert_eq!(ask(&[]), (Some(2900), 1));
    assert_eq!(ask(&[2900]), (Some(70), 2));
    assert_eq!(ask(&[2900, 70]), (Some(700), 3));
    assert_eq!(ask(&(0..3000).collect::<Vec<Token>>()), (None, TRIES));
    let failing = |_| Err("grammar");
    assert_eq!(sampler.sample_likely(&logits, &mut Scratch::default(), failing), Err("grammar"));
    // Truncation by the mass of all allowed tokens needs the mask.
    let top_p = Sampler::new(&Sampling { top_p: 0.9, ..neutral() }, 0, &[]);
    assert_eq!(top_p.sample_likely(&logits, &mut Scratch::default(), failing), Ok(None));
}
