//! Sequences that forget: the same answers as a naive twin that forgets over a plain list, whatever else runs,
//! however prompts are cut, whatever is cached or evicted; and nobody else's answer changes.

use crate::fake::twin::words;
use crate::fake::{VOCAB, World, config, prompt, request, tightened_answer, twin_answer};
use kvik_cache::{AuxiliaryState, Reach, Token, Windows};
use kvik_engine::api::{Request, RequestError};
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::RequestLimits;
use kvik_kernels::{KvFormat, KvLayer, KvLayout};
use proptest::prelude::*;

/// Policies of every kind: by place, by vectors, observed in all rows and in the last ones, expected, repeated.
const RETENTIONS: [&str; 17] = [
    "sinks:40,every=16",
    "sinks:0.5,every=20",
    "sample:0.5,every=24",
    "random:0.3",
    "knorm:0.5,every=20",
    "knorm:48,order=large,every=16",
    "vnorm:0.25,every=40",
    "keydiff:0.6,every=33",
    "h2o:0.4,every=16",
    "h2o:64,every=16",
    "h2o:0.5,every=32,counter=sketch",
    "scissorhands:0.5,window=32,every=32",
    "snapkv:0.5,window=1,every=17",
    "snapkv:0.5,window=16,every=32",
    "snapkv:60,window=8,every=16",
    "decay:0.4,every=16",
    "kvzip:0.5,budget=head",
];

fn with_repeat(config: EngineConfig) -> EngineConfig {
    EngineConfig { repeat: words(), ..config }
}

/// A request that reads what is kept of its first `prefix` tokens.
fn of_prefix(prompt: Vec<Token>, max_tokens: usize, retention: &str, prefix: usize) -> Request {
    Request { kept_prefix: Some(prefix), ..forgetful(prompt, max_tokens, retention) }
}

fn forgetful(prompt: Vec<Token>, max_tokens: usize, retention: &str) -> Request {
    let retention = Some(retention.parse().unwrap());
    Request { ignore_eos: true, retention, ..request(prompt, max_tokens) }
}

#[test]
fn a_sequence_forgets_what_its_twin_forgets() {
    for retention in RETENTIONS {
        let mut world = World::new(with_repeat(config()), 200);
        let prompt = prompt(1, 150);
        let request = forgetful(prompt, 60, retention);
        let client = world.submit(request.clone());
        world.settle();
        let answer = client.answer().unwrap_or_else(|| panic!("{retention}: {:?}", client.error()));
        assert_eq!(answer.choices[0].1, twin_answer(&request, 4096), "{retention}");
        let retained = answer.report.retained.expect("it has forgotten");
        assert!(retained.dropped > 0 && retained.kept > 0, "{retention}: {retained:?}");
    }
}

/// One request of the property test.
#[derive(Debug, Clone)]
struct Ask {
    seed: u64,
    len: usize,
    max_tokens: usize,
    retention: Option<usize>,
    /// Blocks of its prefix of which a part is kept, instead of what the whole sequence keeps.
    prefix: Option<usize>,
    /// Steps before it comes.
    after: usize,
    choices: u32,
}

impl Ask {
    fn request(&self) -> Request {
        let prompt = prompt(self.seed, self.len);
        let prefix = self.prefix.map(|blocks| 16 * blocks).filter(|&prefix| prefix <= self.len);
        let request = match (self.retention, prefix) {
            (Some(index), Some(prefix)) => of_prefix(prompt, self.max_tokens, RETENTIONS[index], prefix),
            (Some(index), None) => forgetful(prompt, self.max_tokens, RETENTIONS[index]),
            (None, _) => Request { ignore_eos: true, ..request(prompt, self.max_tokens) },
        };
        Request { choices: self.choices, ..request }
    }
}

fn ask() -> impl Strategy<Value = Ask> {
    let retention = prop::option::weighted(0.8, 0..RETENTIONS.len());
    let prefix = prop::option::weighted(0.4, 1..10_usize);
    (0..3_u64, 1..200_usize, 1..40_usize, retention, prefix, 0..12_usize, 1..3_u32).prop_map(
        |(seed, len, max_tokens, retention, prefix, after, choices)| Ask {
            seed,
            len,
            max_tokens,
            retention,
            prefix,
            after,
            choices,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Requests that share prefixes, forget or not, in a cache with room for all or for few, cut in any way.
    #[test]
    fn nothing_around_a_sequence_changes_what_it_answers(
        asks in prop::collection::vec(ask(), 1..9),
        blocks in 26..120_usize,
        rows in 1..80_usize,
        mixed in 1..40_usize,
    ) {
        let config =
            EngineConfig { prefill_rows_max: rows, prefill_rows_mixed_max: mixed, ..with_repeat(config()) };
        let mut world = World::new(config, blocks);
        let mut clients = Vec::new();
        for ask in &asks {
            (0..ask.after).for_each(|_| world.step());
            // What can never fit is refused at once; all else is answered.
            if world.limits.check(&ask.request()).is_ok() {
                clients.push((ask, ask.request(), world.submit(ask.request())));
            }
        }
        world.settle();
        for (ask, request, client) in &clients {
            let expect = twin_answer(request, 4096);
            let answer = client.answer();
            prop_assert!(answer.is_some(), "{ask:?}: {:?}", client.error());
            for choice in answer.unwrap().choices {
// Little room may end an answer early, as little context does.
                let whole = blocks >= 60 || ask.retention.is_none();
                let agrees = if whole { choice.1 == expect } else { expect.starts_with(&choice.1) };
                prop_assert!(agrees, "{ask:?}: {:?} and not {expect:?}", choice.1);
            }
        }
    }
}

#[test]
fn what_is_kept_of_a_prefix_is_made_once_and_read_by_all_who_ask_for_it() {
    for retention in RETENTIONS {
        let mut world = World::new(with_repeat(config()), 300);
        let prefix = prompt(1, 160);
        let mut first_rows = 0;
        for (index, question) in [&[9, 9, 8][..], &[7, 6, 5, 4], &[9, 9, 8]].into_iter().enumerate() {
            let asked = of_prefix([&prefix, question].concat(), 30, retention, 160);
            let before = world.runner.rows.load(std::sync::atomic::Ordering::Relaxed);
            let client = world.submit(asked.clone());
            world.settle();
            let rows = world.runner.rows.load(std::sync::atomic::Ordering::Relaxed) - before;
            let answer = client.answer().unwrap_or_else(|| panic!("{retention}: {:?}", client.error()));
            assert_eq!(answer.choices[0].1, twin_answer(&asked, 4096), "{retention}");
            let report = answer.report;
            match index {
                0 => first_rows = rows,
                _ => {
                    assert_eq!(report.cached_tokens, 160, "{retention}");
                    assert_eq!(rows, question.len() + 29, "{retention}");
                    assert!(first_rows >= 160 + rows - 1, "{retention}");
                }
            }
            assert!(report.retained.is_some_and(|retained| retained.dropped > 0), "{retention}");
        }
        // Who does not ask for it gets the exact prefix, which is in the cache as well.
        let exact = Request { ignore_eos: true, ..request([&prefix[..], &[9, 9, 8]].concat(), 30) };
        let client = world.submit(exact.clone());
        world.settle();
        assert_eq!(client.answer().unwrap().choices[0].1, twin_answer(&exact, 4096));
    }
}

#[test]
fn a_prefix_that_is_none_is_refused() {
    let world = World::new(with_repeat(config()), 100);
    for prefix in [0, 8, 17, 112] {
        let error = world.limits.check(&of_prefix(prompt(1, 100), 5, "keydiff:0.5", prefix)).unwrap_err();
        assert!(error.to_string().contains("retain.prefix"), "{error}");
    }
}

/// A policy would thin what a window drops by itself; who asks for none is served.
#[test]
fn a_model_with_windows_refuses_retention() {
    let windows = Windows { reach: Reach::Last(64), part_bytes: 8, step_positions: 64 };
    let auxiliary = AuxiliaryState { block_bytes: 8, windows: Some(windows), state_bytes: 0 };
    let config = EngineConfig { auxiliary, ..with_repeat(config()) };
    let world = World::new(config, 100);
    let refused = world.limits.check(&forgetful(prompt(1, 50), 10, "sinks:40,every=16")).unwrap_err();
    assert!(refused.to_string().contains("window"), "{refused}");
    assert!(world.limits.check(&request(prompt(1, 50), 10)).is_ok());
}

/// One vector for all heads is neither the keys nor the values that policies judge.
#[test]
fn a_model_with_latent_attention_refuses_retention() {
    let world = World::new(EngineConfig { latent: true, ..with_repeat(config()) }, 100);
    let refused = world.limits.check(&forgetful(prompt(1, 50), 10, "sinks:40,every=16")).unwrap_err();
    assert!(refused.to_string().contains("latent attention"), "{refused}");
    assert!(world.limits.check(&request(prompt(1, 50), 10)).is_ok());
}

/// Only what stays within the context goes on beyond it: sinks that keep a share, as all of it, once had no context at
/// all, and attended over distances that the model does not know.
#[test]
fn sinks_go_on_beyond_the_context_if_they_keep_no_more_than_it_has() {
    let world = World::new(EngineConfig { context_tokens: 100, ..with_repeat(config()) }, 400);
    let long = |retention: &str| world.limits.check(&forgetful(prompt(1, 150), 10, retention));
    let answer = |retention: &str| world.limits.answer_tokens(&forgetful(prompt(1, 90), 1000, retention));
    let shares = ["sinks:1", "sinks:0.9"];
    let many = ["sinks:5000", "sinks:64", "sinks:69,every=32"];
    for retention in [&shares[..], &many, &["sinks:64,every=32,protect=16", "knorm:64"]].concat() {
        let refused = RequestError::PromptTooLong { prompt_tokens: 150, context_tokens: 100 };
        assert_eq!((long(retention), answer(retention)), (Err(refused), 11), "{retention}");
    }
    for retention in ["sinks:64,every=32", "sinks:68,every=32"] {
        assert_eq!((long(retention), answer(retention)), (Ok(()), 1000), "{retention}");
        let endless = forgetful(prompt(1, 90), usize::MAX, retention);
        assert_eq!(world.limits.answer_tokens(&endless), usize::MAX - 89, "{retention}");
    }
}

/// A tile holds positions of layers with its formats only: where layers compete, dropping frees no more than the layers
/// of a format give up, and one layer may keep what all others drop.
#[test]
fn what_layers_of_one_format_may_keep_is_counted() {
    let layer = |format| KvLayer::full(1, 8, format, format);
    let tokens = |formats: [KvFormat; 4], retention: &str| {
        let config = EngineConfig::new(&KvLayout::new(formats.map(layer).to_vec()), [0; 32], 4096);
        RequestLimits::new(&config, 26, VOCAB).answer_tokens(&forgetful(prompt(1, 320), 10, retention))
    };
    let (same, apart) = ([KvFormat::F32; 4], [KvFormat::F32, KvFormat::F16, KvFormat::F16, KvFormat::F16]);
    assert_eq!(tokens(same, "knorm:0.1,budget=all"), 10, "20 blocks of the prompt, and few for what is kept");
    assert_eq!(tokens(apart, "knorm:0.1,budget=all"), 1, "a layer may keep 128 of its 320 positions");
    assert_eq!(tokens(apart, "knorm:0.1"), 10, "each layer keeps as many");
}

/// Four conversations that keep everything fill the budget; sixteen run in it that keep a quarter, thinned from the
/// first token on, and what they drop is given back at once.
#[test]
fn sixteen_conversations_at_a_quarter_run_in_the_budget_of_four() {
    let (prompt_len, answer) = (1000, 200);
    let blocks = 4 * (prompt_len + answer) / 16;
    for retention in ["knorm:240,every=32", "sinks:240,every=32", "h2o:240,every=32"] {
        let mut world = World::new(with_repeat(config()), blocks);
        let asked: Vec<Request> =
            (0..16).map(|seed| forgetful(prompt(seed, prompt_len), answer, retention)).collect();
        let clients: Vec<_> = asked.iter().map(|request| world.submit(request.clone())).collect();
        let (mut together, mut most) = (0, 0);
        while !world.scheduler.is_idle() {
            world.step();
            let stats = world.scheduler.cache().stats();
            together = together.max(world.scheduler.running());
            most = most.max(stats.blocks - stats.free);
        }
        assert_eq!((together, world.scheduler.counters().preemptions), (16, 0), "{retention}");
        assert!(most <= blocks);
        for (asked, client) in asked.iter().zip(&clients) {
            assert_eq!(client.answer().unwrap().choices[0].1, twin_answer(asked, 4096), "{retention}");
        }
    }
}

/// The last token of a prompt is computed for its logits, also where all of the prompt is a prefix kept in part.
#[test]
fn a_prefix_that_is_the_whole_prompt_is_answered_again_and_again() {
    for retention in ["keydiff:0.5", "h2o:0.5", "kvzip:0.5,budget=head"] {
        let mut world = World::new(with_repeat(config()), 100);
        let asked = of_prefix(prompt(1, 64), 10, retention, 64);
        for _ in 0..3 {
            let client = world.submit(asked.clone());
            world.settle();
            assert_eq!(client.answer().unwrap().choices[0].1, twin_answer(&asked, 4096), "{retention}");
        }
    }
}

/// How requests that come together are answered in a budget: at most so many at a time, the times that one was
/// preempted, and the times that one was told to forget. Each answers as its twin does at the points of its report.
fn in_budget(asked: &[Request], blocks: usize) -> (usize, u64, u64) {
    let mut world = World::new(with_repeat(config()), blocks);
    let clients: Vec<_> = asked.iter().map(|request| world.submit(request.clone())).collect();
    let mut together = 0;
    while !world.scheduler.is_idle() {
        world.step();
        together = together.max(world.scheduler.running());
    }
    world.check_idle();
    for (asked, client) in asked.iter().zip(&clients) {
        let answer = client.answer().unwrap_or_else(|| panic!("{:?}", client.error()));
        let tightened = answer.report.retained.map_or_else(Vec::new, |retained| retained.tightened);
        assert_eq!(answer.choices[0].1, tightened_answer(asked, 4096, &tightened), "{tightened:?}");
    }
    let counters = world.scheduler.counters();
    (together, counters.preemptions, counters.tightened)
}

/// Four requests of 320 tokens each, in a budget for three of them.
#[test]
fn who_may_forgets_before_anybody_is_preempted() {
    let prompts = |retention: &str| -> Vec<Request> {
        (0..4).map(|seed| forgetful(prompt(seed, 160), 160, retention)).collect()
    };
    for policy in ["knorm:0.25,every=32", "h2o:0.25,every=32", "sinks:64,every=32"] {
        let exact: Vec<Request> =
            prompts(policy).into_iter().map(|asked| Request { retention: None, ..asked }).collect();
        let (_, preempted, tightened) = in_budget(&exact, 64);
        assert!(preempted > 0 && tightened == 0, "{policy}: {preempted} {tightened}");
        let (together, preempted, tightened) = in_budget(&prompts(&format!("{policy},when=pressure")), 64);
        assert_eq!((together, preempted), (4, 0), "{policy}");
        assert!(tightened > 0, "{policy}");
        // Nobody forgets where there is room.
        assert_eq!(in_budget(&prompts(&format!("{policy},when=pressure")), 200), (4, 0, 0), "{policy}");
    }
}

/// Three that run leave no room for a fourth, which need not wait for them to end.
#[test]
fn who_may_forgets_before_anybody_waits_for_room() {
    let asked = |when: &str| -> Vec<Request> {
        let retention = format!("keydiff:0.2,every=32{when}");
        (0..4).map(|seed| forgetful(prompt(seed, 300), 90, &retention)).collect()
    };
    let exact: Vec<Request> =
        asked("").into_iter().map(|asked| Request { retention: None, ..asked }).collect();
    let (together, _, _) = in_budget(&exact, 68);
    assert!(together < 4);
    let (together, preempted, tightened) = in_budget(&asked(",when=pressure"), 68);
    assert_eq!((together, preempted), (4, 0));
    assert!(tightened > 0);
}

/// Older requests that keep everything take the room of one that has been told to forget: it begins anew, and passes
/// the same points again.
#[test]
fn who_is_preempted_after_memory_was_short_answers_as_if_it_had_not_been() {
    for policy in ["knorm:0.4,every=16", "h2o:0.4,every=16", "sinks:40,every=16"] {
        let retention = format!("{policy},when=pressure");
        let exact =
            (0..3).map(|seed| Request { retention: None, ..forgetful(prompt(seed, 160), 300, &retention) });
        let asked: Vec<Request> = exact.chain([forgetful(prompt(3, 160), 200, &retention)]).collect();
        let (_, preempted, tightened) = in_budget(&asked, 80);
        assert!(preempted > 0 && tightened > 0, "{policy}: {preempted} {tightened}");
    }
}
