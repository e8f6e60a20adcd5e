//! Requests of the background take what others leave: nobody waits a step for them, and they end.

use std::time::Duration;

use crate::fake::*;
use kvik_cache::StopReason;
use kvik_engine::api::{Event, Pace, Request, RequestError};
use kvik_engine::config::EngineConfig;
use kvik_engine::engine::Engine;
use kvik_engine::stats::Counters;
use proptest::prelude::*;

fn exact(seed: u64, tokens: usize, answer: usize) -> Request {
    Request { ignore_eos: true, ..request(prompt(seed, tokens), answer) }
}

fn background(seed: u64, tokens: usize, answer: usize) -> Request {
    Request { background: Some(Pace::default()), ..exact(seed, tokens, answer) }
}

fn tokens_of(client: &Client) -> usize {
    let tokens = |event: &Event| if let Event::Text { tokens, .. } = event { tokens.len() } else { 0 };
    client.events().iter().map(tokens).sum()
}

/// A request and the step at which it comes.
type Arrival = (usize, Request);

/// Steps until all have ended; of each request the steps at which its tokens came, and its answer.
fn run(world: &mut World, arrivals: &[Arrival]) -> Vec<(Vec<usize>, Answer)> {
    let mut clients: Vec<(Client, Vec<usize>)> = Vec::new();
    let mut arrivals = arrivals.iter().peekable();
    for step in 0..20_000 {
        while let Some((_, request)) = arrivals.next_if(|(at, _)| *at <= step) {
            clients.push((world.submit(request.clone()), Vec::new()));
        }
        if arrivals.peek().is_none() && world.scheduler.is_idle() {
            break;
        }
        world.step();
        for (client, steps) in &mut clients {
            steps.resize(tokens_of(client), step);
        }
    }
    world.check_idle();
    clients.into_iter().map(|(client, steps)| (steps, client.answer().unwrap())).collect()
}

/// The same without and with requests of the background among them; both of those that somebody waits for.
fn compare(config: &EngineConfig, blocks: usize, own: &[Arrival], others: &[Arrival]) -> u64 {
    let without = run(&mut World::new(config.clone(), blocks), own);
    let mut all: Vec<Arrival> = own.iter().chain(others).cloned().collect();
    all.sort_by_key(|(at, _)| *at);
    let mut world = World::new(config.clone(), blocks);
    let with = run(&mut world, &all);
    let (low, high): (Vec<_>, Vec<_>) =
        all.iter().zip(with).partition(|((_, request), _)| request.background.is_some());
    for ((expect_steps, expect), (_, (steps, answer))) in without.into_iter().zip(high) {
        assert_eq!((answer.choices, steps), (expect.choices, expect_steps));
    }
    for ((_, request), (_, answer)) in low {
        assert_eq!(answer.choices, solo(request).choices);
    }
    world.scheduler.counters().preemptions
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Every token of others comes at the step at which it comes without the background, also where places or blocks
    /// are short. Without drafts: how many are computed depends on what steps have taken. Without prefixes in common: what
    /// of these is cached depends on what was evicted.
    #[test]
    fn others_get_the_same_tokens_at_the_same_steps(
        own in prop::collection::vec((0..60_usize, 1..120_usize, 1..30_usize, 1..3_u32), 1..8),
        others in prop::collection::vec((0..60_usize, 1..200_usize, 1..30_usize, 1..3_u32), 1..5),
        parallel_max in prop::sample::select(vec![1, 2, 3, 16]),
        blocks in prop::sample::select(vec![24, 40, 1000]),
    ) {
        let config = EngineConfig { parallel_max, draft_rows_max: 0, ..config() };
        compare(&config, blocks, &unlike(own, false), &unlike(others, true));
    }
}

/// When it comes, tokens of its prompt and its answer, and choices.
type Ask = (usize, usize, usize, u32);

/// Requests in their order that differ from their first token on.
fn unlike(asks: Vec<Ask>, in_background: bool) -> Vec<Arrival> {
    let mut arrivals = alike(asks, in_background);
    let firsts = if in_background { 20.. } else { 4.. };
    arrivals.iter_mut().zip(firsts).for_each(|((_, request), first)| request.prompt[0] = first);
    arrivals
}

/// Requests in their order, some of which begin with the same token.
fn alike(asks: Vec<Ask>, in_background: bool) -> Vec<Arrival> {
    let seeds = if in_background { 100.. } else { 0.. };
    let arrival = |((at, tokens, answer, choices), seed)| {
        let request = exact(seed, tokens, answer);
        (at, Request { choices, background: in_background.then(Pace::default), ..request })
    };
    let mut arrivals: Vec<Arrival> = asks.into_iter().zip(seeds).map(arrival).collect();
    arrivals.sort_by_key(|(at, _)| *at);
    arrivals
}

/// Who shares the longest known prefix is admitted first, and what the background evicts is known no more: then others
/// are admitted in another order. Here two requests begin with the same token, the first of them long before: while that
/// is cached, the second overtakes the one that waits.
#[test]
fn what_the_background_evicts_changes_who_is_next_and_nothing_else() {
    let own = vec![(38, 65, 17, 1), (40, 80, 2, 1), (57, 80, 2, 1), (38, 1, 1, 1), (0, 1, 1, 1)];
    let others = vec![(0, 260, 13, 1)];
    let config = EngineConfig { parallel_max: 1, draft_rows_max: 0, ..config() };
    compare(&config, 24, &unlike(own.clone(), false), &unlike(others.clone(), true));

    let (own, others) = (alike(own, false), alike(others, true));
    let without = run(&mut World::new(config.clone(), 24), &own);
    let with = run(&mut World::new(config.clone(), 24), &[&others[..], &own].concat());
    let last = |answers: &[(Vec<usize>, Answer)]| -> Vec<(usize, usize)> {
        let of = |(steps, answer): &(Vec<usize>, Answer)| (steps[0], answer.report.cached_tokens);
        answers[answers.len() - 2..].iter().map(of).collect()
    };
    assert_eq!((last(&without), last(&with)), (vec![(62, 0), (58, 1)], vec![(59, 0), (61, 0)]));
    for (without, with) in without.iter().zip(&with[1..]) {
        assert_eq!(without.1.choices, with.1.choices);
    }
    // Where nothing need be evicted, nothing differs.
    compare(&config, 1000, &own, &others);
}

/// An answer that is known from before is drafted as fast while the background reads a long prompt.
#[test]
fn drafts_go_on_beside_the_background() {
    let again = [(0, exact(1, 40, 100)), (200, exact(1, 40, 100))];
    let (asked, read) = (&again[1..], [(200, background(9, 2000, 1))]);
    let mut world = World::new(config(), 1000);
    let without = run(&mut world, &again);
    let mut world = World::new(config(), 1000);
    let with = run(&mut world, &[&again[..1], asked, &read].concat());
    let steps = |answers: &[(Vec<usize>, Answer)]| answers[1].0[99] - answers[1].0[0];
    assert!(steps(&without) < 40, "it is drafted: {} steps", steps(&without));
    assert!(steps(&with) <= steps(&without) + 3, "{} steps instead of {}", steps(&with), steps(&without));
}

#[test]
fn a_newcomer_takes_the_place_of_the_background_at_once() {
    let own = [(5, exact(1, 40, 10)), (6, exact(2, 40, 10)), (30, exact(3, 40, 10))];
    let others = [(0, background(100, 300, 40)), (0, background(101, 40, 40)), (0, background(102, 9, 9))];
    let config = EngineConfig { parallel_max: 2, ..config() };
    assert!(compare(&config, 1000, &own, &others) >= 1, "places were short");
}

/// Where all places are taken and nobody waits, it runs in one of its own; who waits for a place has what it held.
#[test]
fn where_all_places_are_taken_the_background_has_one_of_its_own() {
    let config = EngineConfig { parallel_max: 2, ..config() };
    let mut world = World::new(config.clone(), 1000);
    let own: Vec<Client> = (1..3).map(|seed| world.submit(exact(seed, 20, 400))).collect();
    world.step();
    let others: Vec<Client> = (0..2).map(|seed| world.submit(background(100 + seed, 40, 10))).collect();
    (0..100).for_each(|_| world.step());
    assert!(others.iter().all(Client::has_ended) && !own.iter().any(Client::has_ended), "beside both");
    let long = world.submit(background(102, 3000, 1));
    world.step();
    assert_eq!(world.scheduler.running(), 3);
    let waits = world.submit(exact(3, 20, 5));
    world.step();
    assert_eq!((world.scheduler.running(), waits.has_ended(), long.has_ended()), (2, false, false));
    world.settle();
    assert!(long.answer().is_some());
    let arrivals = |seeds: std::ops::Range<u64>, in_background: bool| -> Vec<Arrival> {
        let of = |seed| Request { background: in_background.then(Pace::default), ..exact(seed, 30, 40) };
        seeds.map(|seed| (3 * (seed % 100) as usize, of(seed))).collect()
    };
    assert!(compare(&config, 1000, &arrivals(0..6, false), &arrivals(100..104, true)) >= 1, "some waited");
}

#[test]
fn a_newcomer_takes_the_blocks_of_the_background_at_once() {
    let own = [(9, exact(1, 200, 30)), (12, exact(2, 60, 30))];
    let others = [(0, background(100, 200, 60)), (0, background(101, 60, 20))];
    assert!(compare(&config(), 24, &own, &others) >= 1, "blocks were short");
}

/// A step in which only the background is preempted admits as any other.
#[test]
fn a_newcomer_is_admitted_in_the_step_in_which_the_background_is_preempted() {
    for at in 40..110 {
        let own = [(0, exact(1, 100, 110)), (at, exact(2, 4, 1))];
        assert!(compare(&config(), 16, &own, &[(0, background(100, 60, 100))]) >= 1, "blocks were short");
    }
}

/// AuxiliaryState a stream the background computes few rows a step: who asks the same computes it rather than wait for that.
#[test]
fn nobody_waits_for_a_prompt_that_the_background_computes() {
    let own = [(0, exact(1, 10, 60)), (20, exact(2, 200, 5))];
    let all = [own[0].clone(), (0, background(2, 200, 5)), own[1].clone()];
    let without = run(&mut World::new(config(), 1000), &own);
    let with = run(&mut World::new(config(), 1000), &all);
    assert_eq!((&with[2].1.choices, &with[1].1.choices), (&without[1].1.choices, &without[1].1.choices));
    assert!(with[2].0.iter().zip(&without[1].0).all(|(with, without)| with <= without), "{with:?}");
    let report = &with[2].1.report;
    assert_eq!(report.cache, Some(StopReason::StillComputing), "{report:?}");
    assert!((1..200).contains(&report.cached_tokens), "{report:?}");
}

/// However many others keep coming, it gets a row a step at least.
#[test]
fn the_background_ends_under_constant_load() {
    let mut world = World::new(config(), 1000);
    let request = background(100, 150, 20);
    let client = world.submit(request.clone());
    let mut steps = 0;
    while !client.has_ended() {
        let newcomer = exact(steps % 7, 30 + steps as usize % 50, 12);
        world.submit(newcomer);
        world.step();
        steps += 1;
        assert!(steps < 200, "it has {} of 20 tokens", tokens_of(&client));
    }
    assert_eq!(client.answer().unwrap().choices, solo(&request).choices);
    world.settle();
}

/// AuxiliaryState a stream what is behind its pace has steps of its own, the more the further it is behind.
#[test]
fn what_is_behind_its_pace_takes_time_of_others() {
    let ends = |due: f64| {
        let mut world = World::new(EngineConfig { draft_rows_max: 0, ..config() }, 1000);
        let stream = world.submit(exact(1, 20, 2000));
        let work = background(100, 150, 60);
        work.background.as_ref().unwrap().set(due);
        let client = world.submit(work.clone());
        while !client.has_ended() {
            world.step();
        }
        assert_eq!(client.answer().unwrap().choices, solo(&work).choices);
        tokens_of(&stream)
    };
    let said = [0.0, 0.9, 1.0].map(ends);
    assert!(
        said.windows(2).all(|pair| 8 * pair[1] < 7 * pair[0]),
        "tokens of the stream meanwhile: {said:?}"
    );
}

#[test]
fn two_of_the_background_run_and_only_others_count_as_waiting() {
    let mut world = World::new(config(), 1000);
    let clients: Vec<Client> = (0..5).map(|seed| world.submit(background(seed, 40, 30))).collect();
    world.step();
    let counted = (world.scheduler.running(), world.scheduler.queued(), world.scheduler.submitted());
    assert_eq!((counted, world.scheduler.is_idle()), ((2, 0, 0), false));
    assert_eq!(world.scheduler.running_behind(), 2);
    clients[3].close();
    world.settle();
    assert_eq!(clients.iter().filter(|client| client.answer().is_some()).count(), 4);
    assert_eq!(world.scheduler.mean_service(), None, "nobody waited for it");
}

/// The share of reused tokens and how requests ended are what clients saw: what is computed ahead is in neither.
#[test]
fn what_the_background_does_is_not_counted_as_clients() {
    let mut world = World::new(config(), 1000);
    let counted = |world: &World| {
        let counters: Counters = *world.scheduler.counters();
        let Counters { prompt_tokens, reused_tokens, computed_tokens, .. } = counters;
        let ended = [counters.completed, counters.cancelled, counters.failed];
        ([prompt_tokens, reused_tokens, computed_tokens], ended)
    };
    world.submit(exact(1, 40, 5));
    world.settle();
    assert_eq!(counted(&world), ([40, 0, 40], [1, 0, 0]));
    world.submit(background(1, 40, 5));
    world.settle();
    let given_up = world.submit(background(2, 3000, 5));
    world.step();
    assert_eq!((world.scheduler.running(), world.scheduler.running_behind()), (1, 1));
    given_up.close();
    world.settle();
    assert_eq!(counted(&world), ([40, 0, 40], [1, 0, 0]));
    world.submit(exact(1, 40, 5));
    world.settle();
    assert_eq!(counted(&world), ([80, 39, 41], [2, 0, 0]));
    assert_eq!(world.scheduler.counters().hit_rate(), 39.0 / 80.0);
}

/// The limit on those that wait ignores the background, in both directions.
#[test]
fn the_limit_on_the_queue_ignores_the_background() {
    let config = EngineConfig { parallel_max: 1, waiting_max: 1, ..config() };
    let runner = FakeRunner::new(1000, config.batch_rows_max());
    let engine = Engine::start(runner, vocabulary(), cache_config(1000), config).unwrap();
    let submit = |request: Request| {
        let client = Client::default();
        engine.submit(request, Box::new(client.clone())).map(|()| client)
    };
    let low: Vec<Client> = (0..9).map(|seed| submit(background(seed, 30, 4000)).unwrap()).collect();
    assert_eq!(engine.stats().waiting, 0);
    engine.generate(exact(50, 10, 3)).unwrap();
    let high: Vec<Result<Client, RequestError>> =
        (0..20).map(|seed| submit(exact(60 + seed, 30, 4000))).collect();
    assert!(high.iter().any(Result::is_err), "the queue is full");
    let late = submit(background(99, 30, 1)).unwrap();
    assert_eq!(late.error(), None);
    low.iter().chain(high.iter().flatten()).for_each(Client::close);
    engine.shutdown(Duration::ZERO);
}
