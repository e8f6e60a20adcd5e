//! Idle time: parts of prefixes are kept before these are evicted, and found by those who allow it. Who does not gets
//! what it would get without, and nobody waits for it longer than a step.

use crate::fake::*;
use kvik_cache::{DeletedPrompts, StopReason, TenantId, Token};
use kvik_engine::api::{PinnedPrompt, Request};
use kvik_engine::config::EngineConfig;
use kvik_engine::retain::repeat::RepeatPrompt;
use kvik_engine::schedule::Pause;
use proptest::prelude::*;

fn world(blocks: usize, retention: &str) -> World {
    let mut world = World::new(config(), blocks);
    world.scheduler.set_retain_idle(Some(retention.parse().unwrap()));
    world
}

/// Steps as the engine does, until there is nothing to do.
fn rest(world: &mut World) {
    for _ in 0..10_000 {
        if world.scheduler.next_pause() == Pause::Forever {
            return world.check_idle();
        }
        world.step();
    }
    panic!("idle time does not end");
}

fn ask(world: &mut World, request: Request) -> Answer {
    let client = world.submit(request);
    world.run_until_idle();
    client.answer().unwrap_or_else(|| panic!("{:?}", client.error()))
}

fn exact(prompt: Vec<Token>) -> Request {
    Request { ignore_eos: true, ..request(prompt, 8) }
}

/// The same where a part may be read.
fn allowing(prompt: Vec<Token>) -> Request {
    Request { kept_prefix: Some(prompt.len()), ..exact(prompt) }
}

fn turn(seed: u64, tokens: usize) -> Vec<Token> {
    prompt(seed, tokens)
}

/// An exact pool holds four of sixteen conversations; with idle time after each, all are found again.
#[test]
fn four_times_as_many_conversations_stay_within_a_budget() {
    let (tokens, count, blocks) = (1024, 16, 4 * 1040 / 16 + 30);
    let found = |retention: Option<&str>| {
        let mut world = World::new(config(), blocks);
        world.scheduler.set_retain_idle(retention.map(|text| text.parse().unwrap()));
        for seed in 0..count {
            ask(&mut world, exact(turn(seed, tokens)));
            rest(&mut world);
        }
        let returns = |world: &mut World, seed: u64| {
            let cached =
                ask(world, allowing([turn(seed, tokens), turn(99, 5)].concat())).report.cached_tokens;
            rest(world);
            cached >= tokens
        };
        // The latest first: each turn takes room.
        (0..count).rev().filter(|&seed| returns(&mut world, seed)).count()
    };
    assert!((3..=4).contains(&found(None)), "{}", found(None));
    assert_eq!(found(Some("keydiff:0.125")), 16);
}

/// What takes the place of a prefix is recognised when it is made, whatever its policy says of when.
#[test]
fn a_part_takes_the_place_of_its_prefix_whatever_it_says_of_when() {
    for when in ["points", "either"] {
        let mut world = world(100, &format!("keydiff:0.25,when={when}"));
        let old = turn(1, 512);
        ask(&mut world, exact(old.clone()));
        ask(&mut world, exact(turn(2, 700)));
        rest(&mut world);
        let cached = |retention: Option<&str>| PinnedPrompt {
            tokens: old.clone(),
            adapters: None,
            salt: [0; 16],
            tenant: TenantId(0),
            retention: retention.map(|text| text.parse().unwrap()),
        };
        let (exact, part) = (cached(None), cached(Some("keydiff:0.25")));
        let found = [exact, part].map(|prompt| world.scheduler.prefixes.cached(&prompt).ram);
        assert_eq!(found, [0, 512], "{when}");
    }
}

#[test]
fn a_report_says_that_a_part_was_read_and_others_never_read_it() {
    let mut world = world(100, "keydiff:0.25");
    let old = turn(1, 512);
    ask(&mut world, exact(old.clone()));
    // The second makes the pool nearly full, and the first the oldest.
    ask(&mut world, exact(turn(2, 700)));
    rest(&mut world);
    let asked = [old.clone(), turn(9, 5)].concat();
    let predicted = |world: &mut World| world.scheduler.probe(&allowing(asked.clone()));
    let found = predicted(&mut world);
    let read = ask(&mut world, allowing(asked.clone()));
    assert_eq!((found.known_tokens, Some(found.stop)), (read.report.cached_tokens, read.report.cache));
    let retained = read.report.retained.expect("a part was read");
    assert_eq!((retained.retention.to_string(), retained.dropped > 0), ("keydiff:0.25".to_owned(), true));
    assert_eq!((read.report.cached_tokens >= 512, read.report.cache), (true, Some(StopReason::Retained)));
    let alone = ask(&mut world, exact(asked.clone()));
    assert!(alone.report.retained.is_none());
    assert_eq!(alone.choices, solo(&exact(asked.clone())).choices);
    // Now more is known of it exactly.
    let found = predicted(&mut world);
    let again = ask(&mut world, allowing(asked.clone()));
    assert_eq!((found.known_tokens, Some(found.stop)), (again.report.cached_tokens, again.report.cache));
    assert_eq!((again.choices, again.report.retained), (alone.choices, None));
}

#[test]
fn a_prefix_that_is_used_often_is_kept_beside_the_exact_one() {
    let mut world = world(1000, "keydiff:0.25");
    let system = turn(1, 512);
    for seed in 2..4 {
        ask(&mut world, exact([system.clone(), turn(seed, 40)].concat()));
    }
    let before = world.rows();
    rest(&mut world);
    assert_eq!(world.rows(), before, "all of it is cached: nothing is computed for it");
    world.scheduler.evict(&turn(2, 16), [0; 16]);
    let found = ask(&mut world, allowing([system.clone(), turn(7, 10)].concat()));
    assert!(found.report.retained.is_none(), "the exact one is there");
    assert!(world.scheduler.cache().stats().shared > 512 / 16 + 8, "and so is the part");
}

/// The tokens of deleted prompts were once remembered for idle time, and compressed as soon as one was asked for again.
#[test]
fn what_is_deleted_is_neither_remembered_nor_compressed() {
    let system = turn(1, 512);
    let prompts: Vec<Vec<Token>> = (2..4).map(|seed| [system.clone(), turn(seed, 40)].concat()).collect();
    let part = PinnedPrompt {
        tokens: system.clone(),
        adapters: None,
        salt: [0; 16],
        tenant: TenantId(0),
        retention: Some("keydiff:0.25".parse().unwrap()),
    };
    for steps in 0..6_u64 {
        let mut world = world(1000, "keydiff:0.25");
        prompts.iter().for_each(|prompt| drop(ask(&mut world, exact(prompt.clone()))));
        (0..steps).for_each(|_| world.step());
        let deleted = DeletedPrompts::new(prompts.clone(), Vec::new());
        assert_eq!(world.scheduler.forget_deleted([0; 16], &deleted, false), 0, "after {steps} steps");
        ask(&mut world, exact([system.clone(), turn(9, 40)].concat()));
        rest(&mut world);
        assert_eq!(world.scheduler.prefixes.cached(&part).ram, 0, "after {steps} steps");
    }
}

/// A newcomer is admitted in the very step in which it would be without idle work.
#[test]
fn idle_work_gives_way_at_once() {
    for steps in 0..6_u64 {
        let mut world = World::new(EngineConfig { repeat: words(), ..config() }, 400);
        world.scheduler.set_retain_idle(Some("kvzip:0.25".parse().unwrap()));
        for seed in 2..4 {
            ask(&mut world, exact([turn(1, 512), turn(seed, 40)].concat()));
        }
        (0..steps).for_each(|_| world.step());
        assert_eq!((world.scheduler.submitted(), world.scheduler.queued()), (2, 0), "nobody is no client");
        let client = world.submit(exact(turn(50, 40)));
        world.step();
        assert_eq!(world.scheduler.running(), 1, "after {steps} steps it runs, and runs alone");
        world.run_until_idle();
        assert_eq!(client.answer().unwrap().choices, solo(&exact(turn(50, 40))).choices);
        rest(&mut world);
    }
}

fn words() -> RepeatPrompt {
    RepeatPrompt { prefix: turn(1, 3), ask: vec![7, 8, 9], ask_more: vec![8, 8], suffix: vec![5] }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Those that do not allow it get the same bytes whatever is kept; those that do get either these or what the part
    /// of a prefix gives, and their report says which.
    #[test]
    fn neighbours_are_not_changed(
        asks in prop::collection::vec((0..4_u64, 16..60_usize, any::<bool>(), 0..40_usize), 1..14),
        blocks in 90..200_usize,
    ) {
        let mut world = World::new(EngineConfig { repeat: words(), ..config() }, blocks);
        world.scheduler.set_retain_idle(Some("kvzip:0.25".parse().unwrap()));
        let mut clients = Vec::new();
        for (seed, blocks, allows, after) in asks {
            let tokens = turn(seed, 16 * blocks);
            let request = if allows { allowing(tokens) } else { exact(tokens) };
            clients.push((request.clone(), world.submit(request)));
            (0..after).for_each(|_| world.step());
        }
        world.run_until_idle();
        rest(&mut world);
        for (request, client) in clients {
            let answer = client.answer().unwrap();
            match answer.report.retained {
                None => prop_assert_eq!(answer.choices, solo(&exact(request.prompt)).choices),
                Some(_) => prop_assert!(request.kept_prefix.is_some()),
            }
        }
    }
}
