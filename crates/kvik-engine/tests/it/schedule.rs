//! The guarantees of the scheduler, one by one.

use std::sync::Arc;
use std::time::Duration;

use crate::fake::memory_disk::MemoryDisk;
use crate::fake::*;
use kvik_cache::{AuxiliaryState, PrefixOrder, Reach, StopReason, Token, Windows};
use kvik_engine::api::{
    Constraint, Event, FinishReason, LineLimits, Repetition, Request, RequestError, Sampling, TokenLogprob,
};
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::Submission;
use kvik_kernels::Pool;
use kvik_text::constraint::Compiler;
use kvik_text::stream::{TokenKind, Vocabulary};

/// A greedy request that generates up to its limit.
fn endless(prompt: Vec<Token>, max_tokens: usize) -> Request {
    Request { ignore_eos: true, ..request(prompt, max_tokens) }
}

/// A request that samples its tokens.
fn warm(request: Request, seed: u64) -> Request {
    let sampling = Sampling { temperature: 1.0, seed, ..request.sampling.clone() };
    Request { sampling, ..request }
}

/// Text events so far.
fn texts(client: &Client) -> usize {
    client.events().iter().filter(|event| matches!(event, Event::Text { .. })).count()
}

/// Tokens of a text event.
fn tokens_of(event: &Event) -> Vec<Token> {
    match event {
        Event::Text { tokens, .. } => tokens.iter().map(|token| token.token).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn a_second_request_computes_only_its_new_tokens() {
    let mut world = World::new(config(), 100);
    let system = prompt(1, 184);
    let first = world.submit(request([system.clone(), prompt(2, 35)].concat(), 20));
    world.settle();
    let second = request([system, prompt(3, 35)].concat(), 20);
    let client = world.submit(second.clone());
    world.settle();

    let report = first.answer().unwrap().report;
    assert_eq!((report.cached_tokens, report.computed_tokens), (0, 219));
    assert_eq!(report.cache, Some(StopReason::FirstSeen));
    let answer = client.answer().unwrap();
    assert_eq!((answer.report.cached_tokens, answer.report.computed_tokens), (184, 35));
    assert_eq!(answer.report.cache, Some(StopReason::Diverged));
    assert_eq!(answer.choices, solo(&second).choices);
}

#[test]
fn a_repeated_prompt_computes_one_row() {
    for len in [1, 15, 16, 17, 40, 48, 100] {
        let mut world = World::new(config(), 100);
        world.submit(request(prompt(1, len), 5));
        world.settle();
        let client = world.submit(request(prompt(1, len), 5));
        world.settle();
        let answer = client.answer().unwrap();
        assert_eq!((answer.report.cached_tokens, answer.report.computed_tokens), (len - 1, 1));
        assert_eq!(answer.choices, solo(&request(prompt(1, len), 5)).choices);
    }
}

/// Prompts that are computed together wait for each other: their prefills overlap, and their times do not.
#[test]
fn the_time_of_a_batch_is_divided_among_the_rows_of_prompts() {
    let mut world = MemoryDisk::default().life(EngineConfig { draft_rows_max: 0, ..config() }, 400, 0);
    let clients: Vec<Client> = (1..5).map(|seed| world.submit(request(prompt(seed, 100), 5))).collect();
    world.settle();
    let (mut wall, mut own) = (Duration::ZERO, Duration::ZERO);
    for client in &clients {
        let report = client.answer().unwrap().report;
        assert_eq!(report.prompt_time, Duration::from_millis(report.computed_tokens as u64), "{report:?}");
        (wall, own) = (wall + report.prefill, own + report.prompt_time);
    }
    assert!(wall > own * 2, "{wall:?} of the clock for {own:?} of the model");
}

#[test]
fn simultaneous_equal_requests_compute_their_prompt_once() {
    for len in [1, 2, 15, 16, 17, 47, 48, 49, 320, 333] {
        let mut world = World::new(config(), 400);
        let wanted = endless(prompt(1, len), 1);
        let clients: Vec<Client> = (0..8).map(|_| world.submit(wanted.clone())).collect();
        world.settle();
        // Each computes its last row, whose logits it needs.
        assert_eq!(world.rows(), len + 7);
        for client in &clients {
            let answer = client.answer().unwrap();
            assert_eq!(answer.choices, solo(&wanted).choices);
            let known =
                if answer.report.cached_tokens > 0 { StopReason::Complete } else { StopReason::FirstSeen };
            assert!(len == 1 || answer.report.cache == Some(known), "{:?}", answer.report);
        }
    }
}

#[test]
fn the_tail_of_a_running_sequence_is_reused() {
    let mut world = World::new(config(), 100);
    let first = world.submit(endless(prompt(1, 40), 60));
    for _ in 0..10 {
        world.step();
    }
    // It holds 49 tokens now, 40 of them the prompt's: one in a block that is not full.
    let tokens = [prompt(1, 40), first.events().iter().flat_map(tokens_of).collect()].concat();
    let wanted = endless([tokens[..46].to_vec(), prompt(2, 10)].concat(), 3);
    let second = world.submit(wanted.clone());
    let follow = endless([tokens, prompt(3, 5)].concat(), 3);
    let third = world.submit(follow.clone());
    world.settle();
    assert_eq!(second.answer().unwrap().report.cached_tokens, 46);
    assert_eq!(third.answer().unwrap().report.cached_tokens, 49);
    assert_eq!(third.answer().unwrap().report.cache, Some(StopReason::Diverged));
    assert_eq!(second.answer().unwrap().choices, solo(&wanted).choices);
    assert_eq!(third.answer().unwrap().choices, solo(&follow).choices);
    assert_eq!(first.answer().unwrap().choices, solo(&endless(prompt(1, 40), 60)).choices);
}

/// Tokens of a prefix of 100 that a short request reuses of a long one that is read since so many steps, and why no more.
fn shares_with_a_long_prompt(auxiliary: AuxiliaryState, since: usize) -> (usize, StopReason) {
    let mut world = World::new(EngineConfig { auxiliary, draft_rows_max: 0, ..config() }, 400);
    let (prefix, mut other) = (prompt(1, 100), prompt(2, 10));
    let long = world.submit(endless([prefix.clone(), prompt(3, 2000)].concat(), 1));
    (0..since).for_each(|_| world.step());
    other[0] = prompt(3, 1)[0] ^ 1;
    let short = world.submit(endless([prefix, other].concat(), 1));
    (0..8).for_each(|_| world.step());
    assert!(!long.has_ended(), "33 steps are needed for it");
    let report = short.answer().expect("it waits for what both share alone").report;
    world.settle();
    (report.cached_tokens, report.cache.unwrap())
}

#[test]
fn a_request_waits_for_a_shared_prefix_only() {
    let none = AuxiliaryState::default();
    let state = AuxiliaryState { block_bytes: BLOCK_BYTES, state_bytes: BLOCK_BYTES + 40, ..none };
    let windows = Some(Windows { reach: Reach::Last(32), part_bytes: 64, step_positions: 64 });
    let windows = AuxiliaryState { block_bytes: BLOCK_BYTES, windows, ..none };
    let (diverged, no_state) = (StopReason::Diverged, StopReason::NoStateKept);
    let early = [none, state, windows].map(|auxiliary| shares_with_a_long_prompt(auxiliary, 1));
    assert_eq!(early, [(100, diverged), (96, no_state), (100, diverged)], "a state is kept after a block");
    // The long one has passed; of its states, one is before that: the last of the doubling distances from its end.
    let late = [none, state, windows].map(|auxiliary| shares_with_a_long_prompt(auxiliary, 4));
    assert_eq!(late, [(100, diverged), (32, no_state), (0, StopReason::WindowDropped)]);
}

/// It waits for the prompt itself and for no place: fewer rows would delay it too.
#[test]
fn an_equal_request_does_not_slow_down_the_prompt_that_it_waits_for() {
    let steps = |equal: usize| {
        let mut world = World::new(config(), 400);
        let _stream = world.submit(endless(prompt(1, 10), 300));
        world.step();
        let clients: Vec<Client> = (0..equal).map(|_| world.submit(endless(prompt(2, 640), 1))).collect();
        let count = (1..300).find(|_| {
            world.step();
            clients[0].has_ended()
        });
        count.expect("the prompt is computed")
    };
    assert_eq!(steps(2), steps(1));
}

#[test]
fn an_equal_request_continues_when_the_other_is_cancelled() {
    let mut world = World::new(config(), 200);
    let first = world.submit(endless(prompt(1, 640), 5));
    let second = world.submit(endless(prompt(1, 640), 5));
    world.step();
    world.step();
    assert_eq!(world.scheduler.running(), 1);
    first.close();
    world.settle();
    let answer = second.answer().unwrap();
    assert_eq!((answer.report.cached_tokens, answer.report.computed_tokens), (128, 512));
    assert_eq!(answer.choices, solo(&endless(prompt(1, 640), 5)).choices);
}

#[test]
fn running_streams_never_stall_for_longer_than_a_step() {
    let mut world = World::new(config(), 400);
    let mut request = endless(prompt(1, 10), 200);
    // Excludes halves of characters, so that every token gives text immediately.
    request.sampling.logit_bias = vec![(2, f32::NEG_INFINITY), (3, f32::NEG_INFINITY)];
    let stream = world.submit(request);
    world.step();
    world.submit(endless(prompt(2, 3000), 5));
    world.submit(endless(prompt(3, 500), 5));
    let mut before = (texts(&stream), world.rows());
    for _ in 0..100 {
        world.step();
        let after = (texts(&stream), world.rows());
        assert_eq!(after.0, before.0 + 1);
        assert!(after.1 - before.1 <= config().prefill_rows_mixed_max + 3);
        before = after;
    }
}

#[test]
fn a_short_prompt_does_not_wait_behind_a_long_one() {
    let mut world = World::new(config(), 400);
    let long = world.submit(endless(prompt(1, 3000), 1));
    world.step();
    let short = world.submit(endless(prompt(2, 30), 1));
    world.step();
    assert!(short.has_ended() && !long.has_ended());
    world.settle();
}

#[test]
fn preemption_does_not_change_answers() {
    // The three need 3 x 10 blocks at the end and start with 3 x 3.
    let mut world = World::new(config(), 16);
    let requests: Vec<Request> = (0..3).map(|seed| warm(endless(prompt(seed, 30), 120), seed)).collect();
    let clients: Vec<Client> = requests.iter().map(|request| world.submit(request.clone())).collect();
    world.settle();
    assert!(world.scheduler.counters().preemptions > 0);
    for (client, request) in clients.iter().zip(&requests) {
        let answer = client.answer().unwrap();
        assert_eq!(answer.choices, solo(request).choices);
        assert_eq!((answer.report.cached_tokens, answer.report.computed_tokens), (0, 30));
    }
}

#[test]
fn the_same_seed_gives_the_same_text_under_load() {
    let wanted = warm(request(prompt(1, 50), 60), 42);
    let expect = solo(&wanted).choices;
    let mut world = World::new(config(), 60);
    for seed in 0..10 {
        world.submit(warm(request(prompt(seed, 40), 80), seed));
        world.step();
    }
    let client = world.submit(wanted);
    for seed in 10..20 {
        world.submit(warm(request(prompt(1, 10 + seed as usize), 80), seed));
        world.step();
    }
    world.settle();
    assert_eq!(client.answer().unwrap().choices, expect);
}

#[test]
fn choices_share_the_prompt_and_differ_in_seed() {
    let mut world = World::new(config(), 100);
    let request = Request { choices: 4, ..warm(endless(prompt(1, 100), 20), 5) };
    let client = world.submit(request.clone());
    world.settle();
    assert_eq!(world.rows(), 100 + 4 * 19);
    let answer = client.answer().unwrap();
    assert_eq!((answer.report.generated_tokens, answer.report.decoded_tokens), (80, 76));
    let of_each: Vec<_> =
        answer.report.choices.iter().map(|choice| (choice.generated, choice.decoded)).collect();
    assert_eq!(of_each, [(20, 19); 4]);
    for (index, choice) in answer.choices.iter().enumerate() {
        let single = warm(endless(prompt(1, 100), 20), 5 + index as u64);
        assert_eq!(choice, &solo(&single).choices[0]);
    }
    assert_ne!(answer.choices[0], answer.choices[1]);
}

/// The choices of an answer to a request in letters, if tokens are sampled on so many threads.
fn in_letters(request: &Request, threads: usize) -> Vec<(String, Vec<Token>, Option<FinishReason>)> {
    let letters = Constraint::Regex("[a-h]{4,40}".to_owned());
    let guide = Compiler::new(Arc::new(vocabulary()), VOCAB).compile(&letters).unwrap();
    let (mut world, client) = (World::new(config(), 200), Client::default());
    world.runner.pool = Some(Arc::new(Pool::new(threads)));
    let sink = Box::new(client.clone());
    let submission = Submission { request: request.clone(), guide: Some(guide), sink };
    world.scheduler.submit(submission, &world.limits);
    world.settle();
    client.answer().unwrap().choices
}

#[test]
fn choices_begin_the_same_on_one_thread_and_on_several_and_alone() {
    let asked = Request { choices: 8, ..warm(request(prompt(1, 40), 30), 5) };
    let choices = in_letters(&asked, 3);
    assert_eq!(choices, in_letters(&asked, 1));
    for (seed, choice) in (5..).zip(choices) {
        let alone = warm(Request { choices: 1, ..asked.clone() }, seed);
        assert_eq!(in_letters(&alone, 3), [choice]);
    }
}

#[test]
fn a_thousand_conversations_hold_their_prompt_once() {
    // The prompt's 125 blocks, four for each conversation, and one for each to grow into.
    let rows = 10_000;
    let config =
        EngineConfig { parallel_max: 1000, prefill_rows_max: rows, prefill_rows_mixed_max: rows, ..config() };
    let mut world = World::new(config, 125 + 1000 * 5);
    let system = prompt(1, 2000);
    world.submit(endless(system.clone(), 1));
    world.settle();
    for seed in 0..1000 {
        world.submit(endless([system.clone(), prompt(10 + seed, 10)].concat(), 40));
    }
    let mut running_max = 0;
    while !world.scheduler.is_idle() {
        world.step();
        running_max = running_max.max(world.scheduler.running());
    }
    world.check_idle();
    assert_eq!((running_max, world.scheduler.counters().preemptions), (1000, 0));
    // Fewer if two conversations happen to share their first tokens.
    assert!((2000 + 1000 * 39..=2000 + 1000 * (10 + 39)).contains(&world.rows()));
}

#[test]
fn the_blocks_of_a_cancelled_prefill_are_reused() {
    let mut world = World::new(config(), 100);
    let client = world.submit(endless(prompt(1, 500), 5));
    world.step();
    world.step();
    client.close();
    world.settle();
    assert_eq!(client.answer(), None);
    let again = world.submit(endless(prompt(1, 500), 5));
    world.settle();
    assert_eq!(again.answer().unwrap().report.cached_tokens, 2 * 64);
}

#[test]
fn the_next_turn_finds_the_generated_tokens() {
    let mut world = World::new(config(), 100);
    let first = world.submit(endless(prompt(1, 20), 50));
    world.settle();
    let generated = first.answer().unwrap().choices[0].1.clone();
    let next = [prompt(1, 20), generated, prompt(2, 10)].concat();
    let client = world.submit(endless(next, 1));
    world.settle();
    // All but the last generated token, which the model never computed.
    assert_eq!(client.answer().unwrap().report.cached_tokens, 20 + 49);
}

#[test]
fn zero_max_tokens_computes_the_prompt_only() {
    let mut world = World::new(config(), 100);
    for (cached, computed) in [(0, 40), (40, 0)] {
        let client = world.submit(Request { choices: 2, ..request(prompt(1, 40), 0) });
        world.settle();
        let answer = client.answer().unwrap();
        assert_eq!((answer.report.cached_tokens, answer.report.computed_tokens), (cached, computed));
        let nothing = (String::new(), Vec::new(), Some(FinishReason::Length));
        assert_eq!(answer.choices, [nothing.clone(), nothing]);
    }
    assert_eq!(world.rows(), 40);
}

#[test]
fn private_requests_publish_nothing_and_reuse_nothing() {
    let mut world = World::new(config(), 100);
    let private = Request { reuse: false, ..endless(prompt(1, 100), 20) };
    for _ in 0..2 {
        let client = world.submit(private.clone());
        world.settle();
        assert_eq!(client.answer().unwrap().report.computed_tokens, 100);
        assert_eq!(world.scheduler.cache().stats().shared, 0);
    }
    let open = world.submit(endless(prompt(1, 100), 20));
    world.settle();
    assert_eq!(open.answer().unwrap().report.cached_tokens, 0);
    let hidden = world.submit(private);
    world.settle();
    assert_eq!(hidden.answer().unwrap().report.cached_tokens, 0);
}

#[test]
fn tenants_do_not_share() {
    let mut world = World::new(config(), 100);
    for (salt, cached) in [(1, 0), (2, 0), (1, 49)] {
        let client = world.submit(Request { salt: [salt; 16], ..endless(prompt(1, 50), 2) });
        world.settle();
        assert_eq!(client.answer().unwrap().report.cached_tokens, cached);
    }
}

#[test]
fn no_request_is_overtaken_for_ever() {
    // One slot, a crowd that shares a cached prompt, and an outsider that does not.
    let mut world = World::new(EngineConfig { parallel_max: 1, ..config() }, 60);
    let crowd = prompt(1, 200);
    world.submit(endless(crowd.clone(), 1));
    world.settle();
    let mut fans: Vec<Client> = (0..5).map(|_| world.submit(endless(crowd.clone(), 4))).collect();
    let outsider = world.submit(endless(prompt(2, 50), 4));
    let mut served = 0;
    while !outsider.has_ended() {
        world.step();
        for fan in fans.iter_mut().filter(|fan| fan.has_ended()) {
            served += 1;
            *fan = world.submit(endless(crowd.clone(), 4));
        }
        assert!(served < 30, "the outsider starves");
    }
    assert!(served >= 8, "requests with a cached prompt are admitted first, for a while");
    world.settle();
}

#[test]
fn the_context_ends_an_answer() {
    let mut world = World::new(EngineConfig { context_tokens: 50, ..config() }, 100);
    let client = world.submit(endless(prompt(1, 45), 1000));
    world.settle();
    let (_, tokens, reason) = &client.answer().unwrap().choices[0];
    assert_eq!((tokens.len(), *reason), (6, Some(FinishReason::Length)));
}

#[test]
fn stop_strings_end_a_choice() {
    let text = solo(&endless(prompt(1, 30), 60)).choices[0].0.clone();
    let stop: String = text.chars().skip(20).take(3).collect();
    let end = text.find(&stop).unwrap();
    let mut world = World::new(config(), 100);
    let client = world.submit(Request { stop: vec![stop], ..endless(prompt(1, 30), 60) });
    world.settle();
    let (got, _, reason) = &client.answer().unwrap().choices[0];
    assert_eq!((got.as_str(), *reason), (&text[..end], Some(FinishReason::StopString(0))));
}

#[test]
fn tokens_say_whether_the_text_has_them() {
    for (show, text) in [(vec![], ""), (vec![1], "<control><control>")] {
        let shown = !show.is_empty();
        let mut world = World::new(config(), 100);
        let sampling = Sampling { logit_bias: vec![(1, 1000.0)], ..Sampling::GREEDY };
        let asked = Request { sampling, logprobs: Some(VOCAB), show, ..endless(prompt(1, 30), 2) };
        let client = world.submit(asked);
        world.settle();
        assert_eq!(client.answer().unwrap().choices[0].0, text);
        let events = client.events();
        let tokens = events.iter().flat_map(|event| match event {
            Event::Text { tokens, .. } => &tokens[..],
            _ => &[],
        });
        let told: Vec<_> = tokens.filter_map(|token| token.logprob.as_ref()).collect();
        assert_eq!(told.len(), 2);
        for (chosen, likeliest) in told {
            assert_eq!((chosen.shown, &*chosen.bytes), (shown, &b"<control>"[..]));
            let first = if shown { 1 } else { 2 };
            let is_right = |token: &TokenLogprob| token.shown == (token.token >= first);
            assert!(likeliest.len() > 2 && likeliest.iter().all(is_right), "{likeliest:?}");
        }
    }
}

#[test]
fn a_loop_ends_a_choice_that_asks_for_it() {
    let config = || EngineConfig { context_tokens: 3000, ..config() };
    let sampling = Sampling { logit_bias: vec![(7, 1000.0)], ..Sampling::GREEDY };
    let end = |stop_loops| {
        let mut world = World::new(config(), 200);
        let request = endless(prompt(1, 30), 2200);
        let client = world.submit(Request { stop_loops, sampling: sampling.clone(), ..request });
        world.settle();
        let (_, tokens, reason) = client.answer().unwrap().choices[0].clone();
        (tokens.len(), reason.unwrap())
    };
    assert_eq!(end(false), (2200, FinishReason::Length));
    // The token is a letter.
    let found = Repetition { period: 1, start: 0, surplus_bytes: 2078 };
    assert_eq!(end(true), (2080, FinishReason::Loop(found)));
}

/// The text of the answer to a request in which token 4 is a line break and likely, its end, and its time in milliseconds.
fn lines(line_limits: LineLimits) -> (String, FinishReason, u128) {
    let vocabulary = Vocabulary::new((0..VOCAB).map(|index| match index {
        4 => (b"\n".to_vec(), TokenKind::Text),
        _ => (vec![b'a' + (index % 26) as u8], TokenKind::Text),
    }));
    let mut world = World::speaking(vocabulary, config(), 100);
    let sampling = Sampling { logit_bias: vec![(4, 3.0)], ..Sampling::GREEDY };
    let client = world.submit(Request { line_limits, sampling, ..endless(prompt(1, 30), 400) });
    world.settle();
    let Answer { choices, report } = client.answer().unwrap();
    (choices[0].0.clone(), choices[0].2.unwrap(), report.decode.as_millis())
}

#[test]
fn a_line_that_is_indented_too_little_ends_a_choice() {
    let (all, ..) = lines(LineLimits::default());
    let first_line = all.find('\n').unwrap() + 1;
    let (text, reason, _) = lines(LineLimits { indent_min: 1, ..LineLimits::default() });
    assert_eq!((text.as_str(), reason), (&all[..first_line], FinishReason::Length));
}

#[test]
fn a_line_break_ends_a_choice_after_its_time() {
    let (all, ..) = lines(LineLimits::default());
    let time_max = Some(Duration::from_millis(50));
    let (text, reason, millis) = lines(LineLimits { time_max, ..LineLimits::default() });
    assert!(all.starts_with(&text) && text.len() < all.len() && text.ends_with('\n'), "{text:?}");
    assert!(reason == FinishReason::Length && millis > 50, "{millis} ms");
}

#[test]
fn an_answer_does_not_end_before_min_tokens() {
    let asking = |seed: u64, min_tokens: usize| {
        let request = warm(request(prompt(1, 30), 80), seed);
        let sampling = Sampling { min_tokens, ..request.sampling.clone() };
        let (_, tokens, reason) = solo(&Request { sampling, ..request }).choices[0].clone();
        (tokens.len(), reason.unwrap())
    };
    let ended = (0..100).map(|seed| (seed, asking(seed, 0)));
    let early: Vec<u64> = ended
        .filter(|(_, (n, reason))| *n < 40 && *reason == FinishReason::Eos)
        .map(|(seed, _)| seed)
        .collect();
    assert!(!early.is_empty(), "no answer of this model ends early");
    for seed in early {
        let (tokens, _) = asking(seed, 40);
        assert!(tokens >= 40, "seed {seed}: {tokens}");
    }
}

#[test]
fn refused_and_failed_requests_say_why() {
    let mut world = World::new(config(), 100);
    let running = world.submit(endless(prompt(1, 30), 50));
    world.step();
    let queued = world.submit(endless(prompt(2, 30), 50));
    world.scheduler.fail_queued(&RequestError::Stopping);
    assert_eq!((running.error(), queued.error()), (None, Some(RequestError::Stopping)));
    world.step();
    world.scheduler.fail_all(&RequestError::Stopping);
    assert_eq!(running.error(), Some(RequestError::Stopping));
    world.check_idle();
}

/// A private prompt is never in the prefix tree, with any number of choices, while it runs and afterwards: if
/// all choices start at once, if only some do, and if they preempt each other.
#[test]
fn private_choices_are_never_in_the_prefix_tree() {
    for (parallel_max, blocks) in [(32, 300), (3, 300), (32, 24)] {
        let mut world = World::new(EngineConfig { parallel_max, ..config() }, blocks);
        let asked: Vec<Request> = [0, 16, 17, 40, 64]
            .map(|extra| Request {
                choices: 4,
                reuse: false,
                ignore_eos: true,
                sampling: Sampling { temperature: 1.0, seed: 3, ..Sampling::GREEDY },
                ..request(prompt(1, 32 + extra), 30)
            })
            .to_vec();
        let clients: Vec<Client> = asked.iter().map(|request| world.submit(request.clone())).collect();
        while !world.scheduler.is_idle() {
            world.step();
            assert_eq!(world.scheduler.cache().stats().shared, 0);
            assert_eq!(world.scheduler.cache().prefixes(PrefixOrder::Blocks, None, 100), []);
        }
        for (client, request) in clients.iter().zip(&asked) {
            assert_eq!(client.answer().unwrap().choices, solo(request).choices);
        }
        world.check_idle();
    }
}

/// Choices of a private request copy their prompt instead of computing it again.
#[test]
fn private_choices_do_not_compute_their_prompt_again() {
    let mut world = World::new(config(), 300);
    let asked = Request { choices: 4, reuse: false, ..request(prompt(1, 100), 1) };
    world.submit(Request { max_tokens: 3, ignore_eos: true, ..asked });
    world.settle();
    assert_eq!(world.rows(), 100 + 4 * 2);
}

/// A world in which a stream runs and another request has eight private choices of so many tokens, after a prompt of
/// seven blocks, of which a step copies no more than those of one choice; and the clients of both.
fn world_with_private_choices(
    blocks: usize,
    state_bytes: usize,
    max_tokens: usize,
) -> (World, Client, Client, Request) {
    let auxiliary = AuxiliaryState { block_bytes: BLOCK_BYTES, state_bytes, ..AuxiliaryState::default() };
    let config = EngineConfig { block_bytes: 8 << 20, draft_rows_max: 0, auxiliary, ..config() };
    let mut world = World::new(config, blocks);
    let stream = world.submit(endless(prompt(2, 10), 60));
    world.step();
    let asked = Request { choices: 8, reuse: false, ..warm(endless(prompt(1, 100), max_tokens), 3) };
    let client = world.submit(asked.clone());
    (world, stream, client, asked)
}

/// No stream stands still for the copies of all choices. The choice that they are copied from waits for them: if it ended
/// before, they would have to compute the prompt again.
#[test]
fn private_choices_are_copied_one_by_one_while_others_run() {
    for state_bytes in [0, BLOCK_BYTES + 40] {
        let (mut world, stream, client, asked) = world_with_private_choices(400, state_bytes, 2);
        world.settle();
        assert_eq!(world.runner.copied_max, 7);
        assert_eq!(world.rows(), (10 + 59) + (100 + 8));
        assert_eq!(client.answer().unwrap().choices, solo(&asked).choices);
        assert_eq!(stream.answer().unwrap().choices, solo(&endless(prompt(2, 10), 60)).choices);
    }
}

/// The choices to come keep the places that they would have had in one step, and a full cache keeps none of them from
/// being answered.
#[test]
fn private_choices_that_wait_to_be_copied_lose_nothing_to_others() {
    let (mut world, _, client, _) = world_with_private_choices(400, 0, 9);
    while world.scheduler.running() < 3 {
        world.step();
    }
    let later = |seed| Request { reuse: false, ..endless(prompt(seed, 9), 40) };
    let later: Vec<Client> = (4..30).map(|seed| world.submit(later(seed))).collect();
    world.settle();
    assert!(later.iter().all(|later| later.answer().is_some()));
    assert_eq!(world.rows(), (10 + 59) + (100 + 8 * 8) + 26 * (9 + 39), "nothing is computed again");
    assert!(client.answer().is_some());

    let (mut world, stream, client, asked) = world_with_private_choices(24, 0, 9);
    world.settle();
    assert_eq!(client.answer().unwrap().choices, solo(&asked).choices);
    assert!(stream.answer().is_some());
}

#[test]
fn private_choices_that_wait_to_be_copied_end_with_their_request() {
    let (mut world, stream, client, _) = world_with_private_choices(400, 0, 9);
    while world.scheduler.running() < 3 {
        world.step();
    }
    client.close();
    world.settle();
    assert_eq!((client.answer(), world.scheduler.counters().cancelled), (None, 1));
    assert_eq!(world.rows(), (10 + 59) + 100 + 1, "one choice had been copied and computed");
    assert_eq!(stream.answer().unwrap().choices, solo(&endless(prompt(2, 10), 60)).choices);
}
