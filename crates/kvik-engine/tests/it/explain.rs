//! `explain` predicts what a request then finds in the cache.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kvik_model::batch::{Batch, Runner};
use kvik_model::observation::Watched;

use crate::fake::*;
use kvik_cache::{AuxiliaryState, BlockId, StopReason};
use kvik_engine::api::{Probe, Request, RequestError};
use kvik_engine::config::EngineConfig;
use kvik_engine::engine::Engine;
use proptest::prelude::*;

fn engine(blocks: usize) -> Engine {
    let runner = FakeRunner::new(blocks, config().batch_rows_max());
    Engine::start(runner, vocabulary(), cache_config(blocks), config()).unwrap()
}

/// Known tokens and the reason why there are no more.
fn found(probe: Probe) -> (usize, StopReason) {
    (probe.known_tokens, probe.stop)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Prompts of few tokens share prefixes of every length; the cache is so small that it evicts.
    #[test]
    fn explain_predicts_what_the_request_finds(
        asked in prop::collection::vec((0..4u64, 1..120usize, 0..3usize, 0..4u8), 1..40),
    ) {
        let engine = engine(24);
        for (seed, len, max_tokens, salt) in asked {
            let prompt = prompt(seed % 2, len).into_iter().chain(prompt(seed, 20)).collect();
            let request = Request { salt: [salt % 2; 16], reuse: salt > 0, ..request(prompt, max_tokens) };
            let probe = engine.explain(request.clone()).unwrap();
            prop_assert_eq!(engine.explain(request.clone()).unwrap().known_tokens, probe.known_tokens);
            let report = engine.generate(request).unwrap().report;
            prop_assert_eq!(probe.prompt_tokens, report.prompt_tokens);
            prop_assert_eq!(probe.known_tokens, report.cached_tokens);
            prop_assert_eq!(Some(probe.stop), report.cache);
            prop_assert_eq!(report.prompt_tokens, report.cached_tokens + report.computed_tokens);
        }
    }
}

#[test]
fn explain_reveals_no_prompts_of_other_tenants() {
    let engine = engine(100);
    let asking = |salt: u8| Request { salt: [salt; 16], ..request(prompt(1, 50), 1) };
    engine.generate(asking(1)).unwrap();
    assert_eq!(found(engine.explain(asking(1)).unwrap()), (49, StopReason::Complete));
    assert_eq!(found(engine.explain(asking(2)).unwrap()), (0, StopReason::FirstSeen));
    let private = Request { reuse: false, ..asking(1) };
    assert_eq!(found(engine.explain(private.clone()).unwrap()), (0, StopReason::Private));
    assert_eq!(engine.generate(private).unwrap().report.cache, Some(StopReason::Private));
}

#[test]
fn an_explanation_is_refused_as_the_request_would_be() {
    let engine = engine(4);
    assert_eq!(engine.explain(request(vec![], 1)), Err(RequestError::EmptyPrompt));
    assert!(matches!(engine.explain(request(prompt(1, 65), 1)), Err(RequestError::OverBudget { .. })));
    engine.shutdown(Duration::ZERO);
    assert_eq!(engine.explain(request(prompt(1, 6), 1)), Err(RequestError::Stopping));
}

/// A model that waits for a permit at every step, until the sender of permits is dropped.
struct Gated {
    runner: FakeRunner,
    permits: Receiver<()>,
}

impl Runner for Gated {
    fn vocab_len(&self) -> usize {
        self.runner.vocab_len()
    }

    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
        self.runner.copy_partial(from, to, positions);
    }

    fn read_block(&self, block: BlockId, into: &mut [u8]) {
        self.runner.read_block(block, into);
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        self.runner.write_block(block, bytes);
    }

    fn forward(&mut self, batch: &Batch<'_>, watched: &mut [Watched<'_>]) -> &[f32] {
        let _ = self.permits.recv();
        self.runner.forward(batch, watched)
    }
}

#[test]
fn explain_reports_blocks_that_are_still_being_computed() {
    let config = EngineConfig { prefill_rows_max: 16, ..config() };
    let (permits, gate) = channel();
    let gated = Gated { runner: FakeRunner::new(200, config.batch_rows_max()), permits: gate };
    let engine = Engine::start(gated, vocabulary(), cache_config(200), config).unwrap();
    let (client, long) = (Client::default(), prompt(1, 1600));
    engine.submit(request(long.clone(), 2), Box::new(client.clone())).unwrap();
    permits.send(()).unwrap();
    while engine.stats().running == 0 {
        std::thread::yield_now();
    }
    // The answer comes between two of the prefill's 100 steps.
    let probe = std::thread::scope(|scope| {
        let (engine, asked) = (&engine, request(long.clone(), 1));
        let answer = scope.spawn(move || engine.explain(asked).unwrap());
        while !answer.is_finished() {
            permits.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        answer.join().unwrap()
    });
    assert!(!client.has_ended() && probe.known_tokens < 1600, "{probe:?}");
    assert_eq!((probe.stop, probe.known_tokens % 16), (StopReason::StillComputing, 0), "{probe:?}");
    drop(permits);
    let other = request(long[..1000].iter().copied().chain([5, 5]).collect(), 1);
    let report = engine.generate(other).unwrap().report;
    assert_eq!(report.cached_tokens, 1000, "a real request waits for it");
}

/// What `explain` says of a request, which is what its answer then says.
fn explained(world: &mut World, asked: &Request) -> (usize, StopReason) {
    let probe = world.scheduler.probe(asked);
    let client = world.submit(asked.clone());
    world.settle();
    let report = client.answer().unwrap().report;
    assert_eq!((report.cached_tokens, report.cache), (probe.known_tokens, Some(probe.stop)), "{asked:?}");
    assert_eq!(report.evicted, probe.evicted);
    found(probe)
}

/// Tokens whose attention is observed are computed, cached or not.
#[test]
fn explain_knows_what_a_retention_policy_observes() {
    for (policy, expect) in [
        ("h2o:0.5", (0, StopReason::Retained)),
        ("snapkv:0.5,window=8", (92, StopReason::Retained)),
        ("keydiff:0.5", (99, StopReason::Complete)),
    ] {
        let mut world = World::new(config(), 200);
        explained(&mut world, &request(prompt(1, 100), 1));
        let retention = Some(policy.parse().unwrap());
        let asked = Request { retention, ..request(prompt(1, 100), 2) };
        assert_eq!(explained(&mut world, &asked), expect, "{policy}");
        let other = Request { retention, ..request(prompt(2, 100), 2) };
        explained(&mut world, &other);
    }
}

/// The state after the prompt is behind its last token, which is computed.
#[test]
fn explain_knows_which_state_can_be_reused() {
    let auxiliary = AuxiliaryState { block_bytes: BLOCK_BYTES, windows: None, state_bytes: BLOCK_BYTES };
    let mut world = World::new(EngineConfig { auxiliary, draft_rows_max: 0, ..config() }, 200);
    let asked = request(prompt(1, 40), 1);
    assert_eq!(explained(&mut world, &asked), (0, StopReason::FirstSeen));
    assert_eq!(explained(&mut world, &asked), (32, StopReason::NoStateKept));
}

/// A state cannot be rewound, and a sequence that has forgotten holds other positions: neither can be forked.
#[test]
fn explain_promises_of_a_running_sequence_what_can_be_reused() {
    let state = AuxiliaryState { block_bytes: BLOCK_BYTES, windows: None, state_bytes: BLOCK_BYTES };
    let forgets = Some("sinks:0.5,every=20".parse().unwrap());
    let none = AuxiliaryState::default();
    for (auxiliary, retention, expect) in
        [(none, None, Some(36)), (state, None, Some(32)), (none, forgets, None)]
    {
        let mut world = World::new(EngineConfig { auxiliary, draft_rows_max: 0, ..config() }, 200);
        world.submit(Request { ignore_eos: true, retention, ..request(prompt(1, 40), 60) });
        (0..6).for_each(|_| world.step());
        assert_eq!(world.scheduler.running(), 1);
        let mut tokens = prompt(1, 40);
        tokens[36] ^= 1;
        let asked = request(tokens, 2);
        let probe = world.scheduler.probe(&asked);
        let client = world.submit(asked);
        world.settle();
        let cached = client.answer().unwrap().report.cached_tokens;
        assert_eq!(probe.known_tokens, cached, "{auxiliary:?} {retention:?}");
        assert!(expect.is_none_or(|expect| expect == cached), "{cached} instead of {expect:?}");
    }
}
