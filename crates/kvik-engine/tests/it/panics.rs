//! A panic fails only the request that causes it: the streams of other requests continue unchanged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::fake::*;
use kvik_cache::Token;
use kvik_engine::api::{Event, EventSink, Request, RequestError, Sampling};
use kvik_engine::schedule::{RequestLimits, Scheduler, Submission};

/// A token that makes the model panic; only requests that select it meet it.
const POISON: Token = 39;

/// A request that never meets the poison.
fn healthy(seed: u64, max_tokens: usize) -> Request {
    let mut prompt = prompt(seed, 40);
    prompt.iter_mut().filter(|token| **token == POISON).for_each(|token| *token = 5);
    let sampling = Sampling { logit_bias: vec![(POISON, f32::NEG_INFINITY)], ..Sampling::GREEDY };
    Request { sampling, ignore_eos: true, choices: 1 + (seed % 2) as u32, ..request(prompt, max_tokens) }
}

/// A request that meets the poison in its answer, or in its prompt.
fn poisoned(in_prompt: bool) -> Request {
    let mut poisoned = healthy(50, 30);
    match in_prompt {
        true => poisoned.prompt[30] = POISON,
        false => poisoned.sampling.logit_bias = vec![(POISON, 1000.0)],
    }
    poisoned
}

fn check_neighbours(neighbours: &[(Request, Client)]) {
    for (request, client) in neighbours {
        assert_eq!(client.answer().expect("it continues").choices, solo(request).choices);
    }
}

#[test]
fn a_panic_of_the_model_fails_one_request_and_the_others_continue() {
    for in_prompt in [true, false] {
        let mut world = World::new(config(), 300);
        world.runner.poison = Some(POISON);
        let neighbours: Vec<(Request, Client)> = (0..4)
            .map(|seed| healthy(seed, 60))
            .map(|request| (request.clone(), world.submit(request)))
            .collect();
        (0..10).for_each(|_| world.step());
        let poisoned = world.submit(poisoned(in_prompt));
        let late = healthy(7, 20);
        let late = (late.clone(), world.submit(late));
        world.settle();
        let Some(RequestError::Internal(message)) = poisoned.error() else {
            panic!("{:?}", poisoned.events())
        };
        assert!(message.contains("the model broke"), "{message}");
        check_neighbours(&neighbours);
        check_neighbours(&[late]);
        assert_eq!(world.scheduler.counters().failed, 1);
    }
}

/// A panic that does not recur fails no request.
#[test]
fn a_panic_that_does_not_recur_fails_no_request() {
    let mut world = World::new(config(), 300);
    let neighbours: Vec<(Request, Client)> = (0..3)
        .map(|seed| healthy(seed, 30))
        .map(|request| (request.clone(), world.submit(request)))
        .collect();
    for _ in 0..5 {
        (0..3).for_each(|_| world.step());
        world.runner.panic_in.store(1, Ordering::Relaxed);
    }
    world.runner.panic_in.store(0, Ordering::Relaxed);
    world.settle();
    check_neighbours(&neighbours);
}

/// A sink that panics at its third event, or in `is_closed`.
struct Broken {
    events: usize,
    at_closed: bool,
}

impl EventSink for Broken {
    fn send(&mut self, _: Event) -> bool {
        self.events += 1;
        assert!(self.events < 3, "the listener broke");
        true
    }

    fn is_closed(&self) -> bool {
        assert!(!self.at_closed, "the listener broke");
        false
    }

    fn given_up(&mut self, _: &kvik_engine::api::Report) {
        panic!("the listener broke again");
    }
}

#[test]
fn a_sink_that_panics_ends_its_own_request() {
    let mut world = World::new(config(), 300);
    let neighbours: Vec<(Request, Client)> = (0..3)
        .map(|seed| healthy(seed, 30))
        .map(|request| (request.clone(), world.submit(request)))
        .collect();
    for at_closed in [true, false] {
        let sink = Box::new(Broken { events: 0, at_closed });
        let submission = Submission { request: healthy(8, 30), guide: None, sink };
        world.scheduler.submit(submission, &world.limits);
    }
    world.settle();
    check_neighbours(&neighbours);
    assert_eq!(world.scheduler.counters().cancelled, 2);
}

/// Builds with overflow checks panic on a prompt that is longer than the context.
#[cfg(debug_assertions)]
#[test]
fn a_panic_on_submission_fails_one_request() {
    let mut world = World::new(config(), 300);
    let neighbour = (healthy(1, 30), world.submit(healthy(1, 30)));
    (0..5).for_each(|_| world.step());
    let client = Client::default();
    let submission = Submission { request: healthy(2, 30), guide: None, sink: Box::new(client.clone()) };
    let narrow =
        RequestLimits::new(&kvik_engine::config::EngineConfig { context_tokens: 10, ..config() }, 300, VOCAB);
    world.scheduler.submit(submission, &narrow);
    assert!(matches!(client.error(), Some(RequestError::Internal(_))), "{:?}", client.events());
    world.settle();
    check_neighbours(&[neighbour]);
}

/// A panic of the clock cannot be attributed to a request, and recovery needs the clock too.
#[test]
fn a_panic_that_cannot_be_attributed_fails_all_requests_and_resets_the_scheduler() {
    let mut world = World::new(config(), 300);
    let broken = Arc::new(AtomicBool::new(false));
    let is_broken = broken.clone();
    let clock = move || {
        assert!(!is_broken.load(Ordering::Relaxed), "the clock broke");
        Duration::ZERO
    };
    let vocabulary = Arc::new(vocabulary());
    world.scheduler = Scheduler::new(config(), cache_config(300), vocabulary, Box::new(clock)).unwrap();
    let clients: Vec<Client> = (0..3).map(|seed| world.submit(healthy(seed, 30))).collect();
    (0..5).for_each(|_| world.step());
    broken.store(true, Ordering::Relaxed);
    let World { scheduler, runner, .. } = &mut world;
    assert!(catch_unwind(AssertUnwindSafe(|| scheduler.step(runner))).is_err());
    let error = RequestError::Internal("the clock broke".to_owned());
    world.scheduler.recover(&error, &mut world.runner);
    broken.store(false, Ordering::Relaxed);
    for client in &clients {
        let Some(RequestError::Internal(told)) = client.error() else { panic!("{:?}", client.events()) };
        assert!(told.contains("send it again") && !told.contains("clock"), "{told}");
    }
    world.settle();
    let again = (healthy(1, 30), world.submit(healthy(1, 30)));
    world.settle();
    check_neighbours(&[again]);
}
