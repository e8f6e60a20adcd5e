//! The engine with its thread: submit, refuse, cancel, panic, stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kvik_model::load::LoadedModel;
use kvik_model::pulse::Phase;
use kvik_model::{Model, ModelRunner};

use crate::fake::*;
use kvik_engine::api::{
    ArgumentsForm, CallForm, CallStart, Calls, Constraint, ConstraintError, Event, Request, RequestError,
};
use kvik_engine::config::EngineConfig;
use kvik_engine::config::usual::PARALLEL_MAX;
use kvik_engine::engine::{Attached, Engine, StartError};
use kvik_kernels::{KvFormat, Pool};
use kvik_testing::golden;

fn engine(config: EngineConfig, blocks: usize) -> Engine {
    let runner = FakeRunner::new(blocks, config.batch_rows_max());
    Engine::start(runner, vocabulary(), cache_config(blocks), config).unwrap()
}

fn endless(seed: u64, max_tokens: usize) -> Request {
    Request { ignore_eos: true, ..request(prompt(seed, 30), max_tokens) }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(20), "waited too long for {what}");
        std::thread::yield_now();
    }
}

#[test]
fn generates_from_many_threads() {
    let engine = engine(config(), 200);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let engine = engine.clone();
            scope.spawn(move || {
                for round in 0..10 {
                    let request = Request { choices: 2, ..request(prompt((thread + round) % 5, 50), 30) };
                    let generated = engine.generate(request.clone()).unwrap();
                    for (choice, solo) in generated.choices.iter().zip(solo(&request).choices) {
                        assert_eq!((&choice.text, Some(choice.reason)), (&solo.0, solo.2));
                    }
                }
            });
        }
    });
    let stats = engine.stats();
    assert_eq!(stats.counters.completed, 80);
    assert_eq!(stats.counters.prompt_tokens, 80 * 50);
    assert_eq!(stats.counters.prompt_tokens, stats.counters.reused_tokens + stats.counters.computed_tokens);
    assert_eq!((stats.waiting, stats.kv_owned_bytes), (0, 0));
    engine.shutdown(Duration::ZERO);
}

/// States that the settings do not know of would not be counted.
#[test]
fn a_model_whose_state_the_settings_do_not_know_is_refused() {
    let LoadedModel { config: shape, tensors, .. } = LoadedModel::open(&golden("arch-lfm2.gguf")).unwrap();
    let pool = Pool::new(1);
    let layout = ModelRunner::uniform_layout(&shape, KvFormat::F16);
    let model = Model::load(shape, tensors, None, &pool, &|_, _| {}).unwrap();
    let runner = ModelRunner::new(Arc::new(model), pool, layout, 4, 64).unwrap();
    let refused = Engine::start(runner, vocabulary(), cache_config(4), config());
    assert!(matches!(refused.err(), Some(StartError::StateBytes { settings: 0, .. })));
}

/// The largest number wrapped in the size of a step, and made an engine that computes nothing.
#[test]
fn settings_of_no_step_are_refused() {
    let parallel = |parallel_max| Engine::check_config(&EngineConfig { parallel_max, ..config() });
    assert!(parallel(1).is_ok() && parallel(PARALLEL_MAX).is_ok());
    assert!(matches!(parallel(0), Err(StartError::Zero { .. })));
    for many in [PARALLEL_MAX + 1, usize::MAX] {
        assert!(matches!(parallel(many), Err(StartError::Parallel { parallel }) if parallel == many));
    }
}

#[test]
fn requests_that_can_never_be_served_are_refused() {
    let engine = engine(EngineConfig { context_tokens: 100, ..config() }, 4);
    let refused = |request: Request| engine.generate(request).unwrap_err();
    assert_eq!(refused(request(vec![], 1)), RequestError::EmptyPrompt);
    assert_eq!(
        refused(request(prompt(1, 101), 1)),
        RequestError::PromptTooLong { prompt_tokens: 101, context_tokens: 100 }
    );
    assert_eq!(
        refused(request(prompt(1, 65), 1)),
        RequestError::OverBudget { needed_blocks: 5, budget_blocks: 4 }
    );
    assert_eq!(refused(request(vec![4, 40], 1)), RequestError::UnknownToken { token: 40, vocab: 40 });
    let none = Request { choices: 0, ..request(vec![4], 1) };
    assert_eq!(refused(none), RequestError::BadChoices { choices: 0, choices_max: 8 });
    let bad = Request { constraint: Some(Constraint::Regex("(".into())), ..request(vec![4], 1) };
    assert!(matches!(refused(bad), RequestError::Constraint(ConstraintError::Unusable(_))));
    // A request that just fits is served: the last token is never stored.
    let generated = engine.generate(endless(1, 1000)).unwrap();
    assert_eq!(generated.choices[0].tokens.len(), 64 + 1 - 30);
}

/// If the answer need not be a call, a tool schema that cannot be enforced does not fail the request, and its events say
/// so before its text.
#[test]
fn calls_that_cannot_be_enforced_are_unconstrained_unless_they_are_forced() {
    let engine = engine(config(), 200);
    let calls = |start: CallStart| {
        let schema = serde_json::json!({"type": "nonsense"});
        let tools = vec![CallForm {
            begin: "<c>".into(),
            arguments: ArgumentsForm::Json,
            schema,
            end: String::new(),
        }];
        let (opening, separator, closing) = Default::default();
        let calls = Calls { start, tools, opening, separator, closing, calls_max: 1, reasoning: None };
        Request { constraint: Some(Constraint::Calls(calls)), ..request(prompt(1, 9), 20) }
    };
    let free = solo(&request(prompt(1, 9), 20));
    let generated = engine.generate(calls(CallStart::Lazy { trigger: "<c>".into() })).unwrap();
    assert_eq!(generated.choices[0].text, free.choices[0].0);
    let client = Client::default();
    let guided = calls(CallStart::Lazy { trigger: "<c>".into() });
    engine.submit(guided, Box::new(client.clone())).unwrap();
    wait_for("the answer", || client.has_ended());
    let told = |event: &Event| matches!(event, Event::Unconstrained(ConstraintError::Unusable(_)));
    let places: Vec<usize> =
        client.events().iter().enumerate().filter(|(_, event)| told(event)).map(|(at, _)| at).collect();
    assert_eq!(places, [0], "{:?}", client.events());
    let forced = engine.generate(calls(CallStart::Forced { after: None, instead: None }));
    assert!(matches!(forced, Err(RequestError::Constraint(ConstraintError::Unusable(_)))));
    engine.shutdown(Duration::ZERO);
}

#[test]
fn requested_control_tokens_are_part_of_the_text() {
    let engine = engine(config(), 200);
    let only = |token, show| {
        let mut request = Request { ignore_eos: true, show, ..request(prompt(1, 9), 3) };
        request.sampling.logit_bias = vec![(token, 1e9)];
        engine.generate(request).unwrap().choices[0].text.clone()
    };
    let vocabulary = vocabulary();
    let is_control = |&token: &u32| vocabulary.kind(token) == kvik_text::stream::TokenKind::Control;
    let control = (0..VOCAB as u32).find(is_control).unwrap();
    let name = String::from_utf8_lossy(vocabulary.bytes(control)).repeat(3);
    assert_eq!(only(control, Vec::new()), "");
    assert_eq!(only(control, vec![control]), name);
    engine.shutdown(Duration::ZERO);
}

#[test]
fn constraints_shape_the_answer() {
    let engine = engine(config(), 100);
    let regex = Constraint::Regex("(abc|cba)z{3}".into());
    for seed in 0..20 {
        let mut request =
            Request { constraint: Some(regex.clone()), choices: 2, ..request(prompt(seed, 9), 50) };
        request.sampling.temperature = 1.0;
        request.sampling.seed = seed;
        for choice in engine.generate(request).unwrap().choices {
            assert!(["abczzz", "cbazzz"].contains(&choice.text.as_str()), "{choice:?}");
        }
    }
}

/// A grammar that needs an automaton of millions of states; no two are equal.
fn hostile(index: usize) -> Request {
    let lark = format!("start: %json {{\"type\": \"integer\", \"multipleOf\": {}}}", 10_000_019 + index);
    Request { constraint: Some(Constraint::Lark(lark)), ..request(vec![4], 5) }
}

#[test]
fn hostile_constraints_end_and_block_no_other_request() {
    let engine = engine(EngineConfig { waiting_max: 50, ..config() }, 200);
    let clients: Vec<Client> = (0..20).map(|_| Client::default()).collect();
    let started = Instant::now();
    for (index, client) in clients.iter().enumerate() {
        engine.submit(hostile(index), Box::new(client.clone())).unwrap();
        if index % 2 == 0 {
            client.close();
        }
    }
    engine.generate(request(prompt(1, 30), 5)).unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "a neighbour waited {:?}", started.elapsed());
    for client in clients.iter().filter(|client| !client.is_closed()) {
        wait_for("a refusal", || client.has_ended());
        assert!(
            matches!(client.error(), Some(RequestError::Constraint(ConstraintError::Unusable(_)))),
            "{:?}",
            client.error()
        );
    }
    wait_for("slots in the queue", || engine.stats().waiting == 0);
}

#[test]
fn a_stop_does_not_wait_for_constraints() {
    let engine = engine(EngineConfig { waiting_max: 50, ..config() }, 200);
    let clients: Vec<Client> = (0..30).map(|_| Client::default()).collect();
    for (index, client) in clients.iter().enumerate() {
        engine.submit(hostile(index), Box::new(client.clone())).unwrap();
    }
    let started = Instant::now();
    engine.shutdown(Duration::ZERO);
    assert!(started.elapsed() < Duration::from_secs(5), "stopping took {:?}", started.elapsed());
    // Waiting clients still receive an end event.
    clients.iter().for_each(|client| wait_for("an end", || client.has_ended()));
}

#[test]
fn a_full_queue_refuses() {
    let engine = engine(EngineConfig { parallel_max: 1, waiting_max: 3, ..config() }, 300);
    let clients: Vec<Client> = (0..50).map(|_| Client::default()).collect();
    let submit = |client: &Client| engine.submit(endless(1, 4000), Box::new(client.clone()));
    let refused = clients.iter().filter_map(|client| submit(client).err()).collect::<Vec<_>>();
    assert!(!refused.is_empty());
    for error in &refused {
        let RequestError::QueueFull { waiting, retry_after_s } = error else { panic!("{error:?}") };
        assert!(*waiting <= 3 && (1..=600).contains(retry_after_s), "{error:?}");
    }
    clients.iter().for_each(Client::close);
    wait_for("slots in the queue", || engine.stats().waiting == 0);
    engine.generate(request(prompt(2, 10), 3)).unwrap();
}

#[test]
fn a_client_that_disconnects_frees_its_blocks() {
    let engine = engine(config(), 300);
    let client = Client::default();
    engine.submit(endless(1, 4000), Box::new(client.clone())).unwrap();
    wait_for("the first text", || client.events().iter().any(|event| matches!(event, Event::Text { .. })));
    // Numbers are brought up to date after the step that sent the text.
    wait_for("blocks in use", || engine.stats().kv_owned_bytes > 0);
    client.close();
    wait_for("the blocks", || engine.stats().kv_owned_bytes == 0);
    wait_for("the count", || engine.stats().counters.cancelled == 1);
}

#[test]
fn a_panic_costs_one_request_and_not_the_engine() {
    let runner = FakeRunner::new(100, config().batch_rows_max());
    let panic_in = runner.panic_in.clone();
    let engine = Engine::start(runner, vocabulary(), cache_config(100), config()).unwrap();
    engine.generate(endless(1, 20)).unwrap();
    panic_in.store(5, Ordering::Relaxed);
    let error = engine.generate(endless(2, 20)).unwrap_err();
    assert_eq!(error, RequestError::Internal("the model broke".to_owned()));
    let generated = engine.generate(endless(2, 20)).unwrap();
    assert_eq!(generated.choices[0].text, solo(&endless(2, 20)).choices[0].0);
    // The cache keeps what it held before.
    assert_eq!(engine.generate(endless(1, 20)).unwrap().report.cached_tokens, 29);
}

#[test]
fn shutdown_lets_running_requests_end() {
    let engine = engine(EngineConfig { parallel_max: 1, ..config() }, 300);
    let (running, queued) = (Client::default(), Client::default());
    engine.submit(endless(1, 200), Box::new(running.clone())).unwrap();
    wait_for("the first text", || running.events().iter().any(|event| matches!(event, Event::Text { .. })));
    engine.submit(endless(2, 10), Box::new(queued.clone())).unwrap();
    engine.shutdown(Duration::from_secs(20));
    assert_eq!(running.answer().unwrap().choices, solo(&endless(1, 200)).choices);
    assert!(queued.error() == Some(RequestError::Stopping) || queued.answer().is_some());
    assert_eq!(engine.generate(endless(1, 1)), Err(RequestError::Stopping));
}

#[test]
fn shutdown_without_grace_fails_running_requests() {
    let engine = engine(config(), 300);
    let client = Client::default();
    engine.submit(endless(1, 4000), Box::new(client.clone())).unwrap();
    wait_for("the first text", || client.events().iter().any(|event| matches!(event, Event::Text { .. })));
    engine.shutdown(Duration::ZERO);
    assert_eq!(client.error(), Some(RequestError::Stopping));
}

/// Wakes of the disk take no slots from requests.
#[test]
fn wakes_of_the_disk_take_no_slot_in_the_queue() {
    let config = EngineConfig { parallel_max: 1, waiting_max: 3, ..config() };
    let (permits, gate) = std::sync::mpsc::channel();
    let mut runner = FakeRunner::new(300, config.batch_rows_max());
    runner.permits = Some(gate);
    let disk = memory_disk::MemoryDisk::default().setup(0, 4);
    let waker = disk.waker.clone();
    let engine = Engine::start_with(
        Box::new(runner),
        vocabulary(),
        cache_config(300),
        config,
        Attached { disk: Some(disk), ..Attached::default() },
    )
    .unwrap();
    let running = Client::default();
    engine.submit(endless(1, 20), Box::new(running.clone())).unwrap();
    permits.send(()).unwrap();
    wait_for("the first step", || engine.stats().running == 1 && engine.stats().waiting == 0);
    (0..1000).for_each(|_| waker.wake());
    let clients: Vec<Client> = (0..3).map(|_| Client::default()).collect();
    for client in &clients {
        engine.submit(endless(2, 5), Box::new(client.clone())).unwrap();
    }
    drop(permits);
    wait_for("all answers", || clients.iter().all(|client| client.answer().is_some()));
}

/// The age of the engine's last word grows while it is held up, in whatever phase, and is zero when nobody asks.
#[test]
fn a_thread_that_is_held_up_says_where_it_stands_and_since_when() {
    let ((permits, gate), (go, hold)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let mut runner = FakeRunner::new(300, config().batch_rows_max());
    runner.permits = Some(gate);
    let before_step = Box::new(move || {
        // The sender is gone once the test lets it go.
        let _ = hold.recv();
    });
    let attached = Attached { before_step: Some(before_step), ..Attached::default() };
    let engine =
        Engine::start_with(Box::new(runner), vocabulary(), cache_config(300), config(), attached).unwrap();
    let held_up = Duration::from_millis(60);
    let stands = |phase: Phase| engine.life().phase == phase && engine.life().age >= held_up;
    std::thread::sleep(held_up);
    assert_eq!((engine.life().phase, engine.life().age), (Phase::Idle, Duration::ZERO), "idle is not stuck");
    let client = Client::default();
    engine.submit(endless(1, 20), Box::new(client.clone())).unwrap();
    wait_for("the hold before a step", || stands(Phase::Call));
    drop(go);
    wait_for("the hold in the model", || stands(Phase::Compute));
    drop(permits);
    wait_for("the answer", || client.answer().is_some());
    wait_for("idleness", || engine.life().phase == Phase::Idle && engine.life().age == Duration::ZERO);
    engine.shutdown(Duration::ZERO);
    assert_eq!(engine.life().phase, Phase::Ended);
}

#[test]
fn calls_during_a_shutdown_return() {
    let (permits, gate) = std::sync::mpsc::channel();
    let mut runner = FakeRunner::new(300, config().batch_rows_max());
    runner.permits = Some(gate);
    let engine = Engine::start(runner, vocabulary(), cache_config(300), config()).unwrap();
    let running = Client::default();
    engine.submit(endless(1, 4000), Box::new(running.clone())).unwrap();
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| engine.shutdown(Duration::ZERO));
        let asks: Vec<_> = (0..4).map(|_| scope.spawn(|| engine.explain(endless(2, 5)))).collect();
        let clients: Vec<Client> = (0..20).map(|_| Client::default()).collect();
        for client in &clients {
            if engine.submit(endless(3, 5), Box::new(client.clone())).is_err() {
                client.clone().close();
            }
        }
        drop(permits);
        stop.join().unwrap();
        asks.into_iter().for_each(|ask| drop(ask.join().unwrap()));
        assert!(clients.iter().all(|client| client.is_closed() || client.has_ended()));
    });
}
