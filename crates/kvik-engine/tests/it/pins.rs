//! Pins: the blocks they cover, their limits, and their removal by prompt, also after public prompts and
//! restarts.

use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::fake::*;
use kvik_cache::tier::{Level, Tier};
use kvik_cache::{Lifetime, PinLimit, PinScope, TenantId, Token};
use kvik_engine::api::{Event, Evicted, FinishReason, Pace, PinnedPrompt, Request, RequestError, Unpin};
use kvik_engine::schedule::disk::{DiskSetup, DiskWrites};
use kvik_engine::schedule::{RequestLimits, Scheduler, TenantPart};
use kvik_engine::store::Waker;
use kvik_engine::store::{Opened, Store, StoreConfig};

fn pinning(prompt: &[Token], max_tokens: usize) -> Request {
    Request {
        lifetime: Lifetime { pin: true, ..Lifetime::default() },
        ..request(prompt.to_vec(), max_tokens)
    }
}

fn of(tenant: u32, request: Request) -> Request {
    Request { tenant: TenantId(tenant), salt: [tenant as u8; 16], ..request }
}

fn kept(tenant: u32, tokens: &[Token]) -> PinnedPrompt {
    PinnedPrompt {
        tokens: tokens.to_vec(),
        adapters: None,
        salt: [tenant as u8; 16],
        tenant: TenantId(tenant),
        retention: None,
    }
}

fn part(tenant: u32) -> TenantPart {
    let tenant = TenantId(tenant);
    TenantPart { salt: [tenant.0 as u8; 16], public: true, ..TenantPart::own(tenant) }
}

fn run(world: &mut World, request: Request) -> Client {
    let client = world.submit(request);
    world.run_until_idle();
    world.scheduler.cache().check().unwrap();
    client
}

/// Runs a request to its answer; returns the tokens from the cache.
fn ask(world: &mut World, request: Request) -> usize {
    let answer = run(world, request.clone()).answer().expect("it is answered");
    assert_eq!(answer.choices, solo(&Request { lifetime: Lifetime::default(), ..request }).choices);
    answer.report.cached_tokens
}

fn pinned(world: &World) -> usize {
    world.scheduler.cache().stats().pinned
}

#[test]
fn a_pin_covers_the_prompt_and_is_removed_by_the_prompt() {
    let mut world = World::new(config(), 100);
    let prompt = prompt(1, 100);
    ask(&mut world, pinning(&prompt, 60));
    assert_eq!(pinned(&world), 6, "the whole blocks of the prompt, and nothing of the answer");
    let evicted = world.scheduler.evict(&prompt, [0; 16]);
    assert_eq!(evicted, Evicted { blocks: 10, pins: 1 }, "the answer is evicted with it");
    assert_eq!((pinned(&world), world.scheduler.cache().stats().shared), (0, 0));
}

#[test]
fn evicting_a_prefix_removes_every_pin_below_it() {
    let mut world = World::new(config(), 100);
    let system = prompt(1, 70);
    for seed in 2..5 {
        ask(&mut world, pinning(&[system.clone(), prompt(seed, 40)].concat(), 3));
    }
    ask(&mut world, pinning(&prompt(9, 40), 3));
    assert_eq!(world.scheduler.evict(&system, [0; 16]).pins, 3);
    assert_eq!(pinned(&world), 2, "that of another prompt stays");
}

#[test]
fn a_pin_over_the_limit_is_refused_before_the_answer_begins() {
    let mut world = World::new(config(), 40);
    ask(&mut world, pinning(&prompt(1, 200), 2));
    let client = run(&mut world, pinning(&prompt(2, 200), 2));
    let limit = PinLimit { needed: 12, pinned: 12, limit: 20, scope: PinScope::Tenant };
    assert_eq!(client.error(), Some(RequestError::PinLimit(limit)));
    assert!(
        !client.events().iter().any(|event| matches!(event, Event::Text { .. } | Event::Finished { .. }))
    );
    for word in ["12 more", "12 of the 20", "kvik cache unpin", "--cache-pin"] {
        assert!(RequestError::PinLimit(limit).to_string().contains(word), "{word}");
    }
    let client = run(&mut world, pinning(&prompt(2, 200), 0));
    assert_eq!(client.error(), Some(RequestError::PinLimit(limit)), "nor without an answer");
    assert_eq!(pinned(&world), 12);
    ask(&mut world, request(prompt(3, 300), 3));
    assert_eq!(world.scheduler.prefixes.unpin(Unpin::All, None), 1);
    ask(&mut world, pinning(&prompt(2, 200), 2));
}

#[test]
fn the_pin_limit_is_divided_by_weight() {
    let mut world = World::new(config(), 80);
    let heavy = TenantPart { owner_weight: 3.0, ..part(1) };
    world.scheduler.set_tenants(&[heavy, part(2)]);
    ask(&mut world, of(1, pinning(&prompt(1, 30 * 16), 2)));
    let limit = |error: Option<RequestError>| match error {
        Some(RequestError::PinLimit(limit)) => (limit.limit, limit.scope),
        other => panic!("{other:?}"),
    };
    let refused = run(&mut world, of(1, pinning(&prompt(2, 16), 2))).error();
    assert_eq!(limit(refused), (30, PinScope::Tenant));
    let refused = run(&mut world, of(2, pinning(&prompt(1, 11 * 16), 2))).error();
    assert_eq!(limit(refused), (10, PinScope::Tenant));
    ask(&mut world, of(2, pinning(&prompt(1, 10 * 16), 2)));
    assert_eq!(world.scheduler.prefixes.unpin(Unpin::All, Some(TenantId(1))), 1, "the other's stays");
    let pin = world.scheduler.prefixes.pins(None, 9).remove(0);
    assert_eq!((pin.tenant, pin.blocks, pinned(&world)), (TenantId(2), 10, 10));
    assert_eq!(
        world.scheduler.prefixes.unpin(Unpin::One(pin.id), Some(TenantId(1))),
        0,
        "a tenant cannot unpin for another one"
    );
    assert_eq!(world.scheduler.prefixes.unpin(Unpin::One(pin.id), None), 1);
}

#[test]
fn a_request_that_fails_because_of_pins_says_so() {
    let mut world = World::new(config(), 20);
    ask(&mut world, pinning(&prompt(1, 160), 2));
    let error = run(&mut world, request(prompt(2, 200), 2)).error().unwrap();
    let (pinned_blocks, budget_blocks, scope) = (10, 20, PinScope::Tenant);
    let expected = RequestError::Pinned { needed_blocks: 13, pinned_blocks, budget_blocks, scope };
    assert_eq!(error, expected);
    for word in ["10 of the 20", "kvik cache unpin"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    world.scheduler.evict(&prompt(1, 160), [0; 16]);
    ask(&mut world, request(prompt(2, 200), 2));
}

#[test]
fn a_tenant_is_not_told_how_much_others_have_pinned() {
    let mut world = World::new(config(), 20);
    ask(&mut world, of(1, pinning(&prompt(1, 160), 2)));
    for (tenant, told) in [(1, true), (2, false)] {
        let error = run(&mut world, of(tenant, request(prompt(2, 200), 2))).error().unwrap().to_string();
        assert!(error.contains("13 KV blocks") && error.contains("are pinned"), "{error}");
        assert_eq!(error.contains("10"), told, "{error}");
    }
}

/// The answer to a request that pins cut short is that of a request for so many tokens; returns how many.
fn cut(client: &Client, asked: &Request) -> usize {
    let answer = client.answer().expect("what there is room for is an answer");
    let (_, tokens, end) = &answer.choices[0];
    assert_eq!(*end, Some(FinishReason::Length));
    assert!(tokens.len() < asked.max_tokens);
    assert_eq!(answer.choices, solo(&Request { max_tokens: tokens.len(), ..asked.clone() }).choices);
    tokens.len()
}

/// Ten blocks are left, of 160 tokens; the last token of an answer is not stored.
#[test]
fn an_answer_is_as_long_as_pins_leave_room_for() {
    let mut world = World::new(config(), 20);
    ask(&mut world, pinning(&prompt(1, 160), 2));
    let endless = |seed, tokens| Request { ignore_eos: true, ..request(prompt(seed, tokens), 120) };
    let client = run(&mut world, endless(2, 100));
    assert_eq!(cut(&client, &endless(2, 100)), 61);
    // Of two, the younger one waits without blocks until the older one has ended.
    let both = [3, 4].map(|seed| endless(seed, 60));
    let clients = both.clone().map(|asked| world.submit(asked));
    world.run_until_idle();
    let said = [0, 1].map(|index| cut(&clients[index], &both[index]));
    assert_eq!(said, [101, 101]);
    world.scheduler.cache().check().unwrap();
}

/// It waits without blocks, and with what is pinned meanwhile it has no room again for what it has said.
#[test]
fn an_answer_that_is_preempted_and_finds_no_room_again_ends() {
    let mut world = World::new(config(), 20);
    let endless = Request { ignore_eos: true, ..request(prompt(2, 100), 150) };
    let behind = Request { background: Some(Pace::default()), ..endless.clone() };
    let client = world.submit(behind);
    while client.events().len() < 75 {
        world.step();
    }
    assert!(!client.has_ended());
    ask(&mut world, pinning(&prompt(1, 160), 2));
    assert!((61..150).contains(&cut(&client, &endless)));
}

/// Of what the first tenant has cached a tail was evicted; the rest goes all the same.
#[test]
fn a_prompt_is_evicted_though_its_end_has_left_memory() {
    let mut world = World::new(config(), 24);
    let tokens = prompt(1, 160);
    ask(&mut world, request(tokens.clone(), 1));
    ask(&mut world, request(prompt(2, 260), 1));
    let cached = |world: &World| world.scheduler.prefixes.cached(&kept(0, &tokens)).ram;
    let left = cached(&world);
    assert!((16..160).contains(&left), "{left} tokens are left");
    assert_eq!(world.scheduler.evict(&tokens, [0; 16]).blocks, left / 16);
    assert_eq!(cached(&world), 0);
}

/// A world of so many blocks in which tenant 1 has pinned a public prompt of 100 tokens.
fn with_public(blocks: usize) -> (World, Vec<Token>) {
    let mut world = World::new(config(), blocks);
    let system = prompt(1, 100);
    world.scheduler.set_tenants(&[part(1), part(2), part(3)]);
    run(&mut world, kept(1, &system).request());
    world.scheduler.set_public(&[kept(1, &system)]);
    (world, system)
}

#[test]
fn a_continuation_of_a_public_prompt_is_pinned_reported_and_removed() {
    let (mut world, system) = with_public(200);
    let own = [system.clone(), prompt(2, 130)].concat();
    let prompt = kept(2, &own);
    for drop_prompt in [Scheduler::release, |scheduler: &mut Scheduler, tokens: &[Token], salt: [u8; 16]| {
        scheduler.evict(tokens, salt).blocks
    }] {
        run(&mut world, prompt.request());
        let cached = world.scheduler.prefixes.cached(&prompt);
        assert_eq!((cached.ram, cached.is_whole()), (230, true));
        assert_eq!(pinned(&world), 6 + 8, "the public blocks are there and are pinned once");
        drop_prompt(&mut world.scheduler, &own, [2; 16]);
        assert_eq!((pinned(&world), world.scheduler.prefixes.cached(&prompt).ram), (6, 96));
    }
    world.scheduler.set_public(&[]);
    assert_eq!(
        world.scheduler.release(&system, [1; 16]),
        7,
        "the public prompt itself is dropped completely"
    );
    assert_eq!(world.scheduler.cache().stats().shared, 0);
}

#[test]
fn no_pin_holds_a_prompt_that_is_no_longer_public() {
    let (mut world, system) = with_public(200);
    run(&mut world, kept(2, &[system.clone(), prompt(2, 130)].concat()).request());
    world.scheduler.set_public(&[]);
    world.scheduler.release(&system, [1; 16]);
    assert_eq!((pinned(&world), world.scheduler.cache().stats().shared), (0, 0));
}

#[test]
fn a_prompt_that_is_no_longer_public_makes_room_in_the_step_in_which_its_last_request_leaves() {
    let (mut world, system) = with_public(14);
    let waiting = world.submit(of(2, request([system.clone(), prompt(2, 20)].concat(), 2)));
    world.scheduler.set_public(&[]);
    world.scheduler.release(&system, [1; 16]);
    waiting.close();
    assert_eq!(ask(&mut world, request(prompt(3, 14 * 16 - 2), 2)), 0, "it needs all blocks");
}

#[test]
fn blocks_cached_before_a_prompt_became_public_are_still_found() {
    let mut world = World::new(config(), 200);
    let system = prompt(1, 100);
    let own = kept(2, &[system.clone(), prompt(2, 130)].concat());
    world.scheduler.set_tenants(&[part(1), part(2)]);
    run(&mut world, own.request());
    run(&mut world, kept(1, &system).request());
    world.scheduler.set_public(&[kept(1, &system)]);
    assert!(world.scheduler.prefixes.cached(&own).is_whole());
    assert_eq!(ask(&mut world, of(2, request(own.tokens.clone(), 2))), 229);
    world.scheduler.release(&own.tokens, own.salt);
    assert_eq!(
        (pinned(&world), world.scheduler.prefixes.cached(&own).ram),
        (6, 96),
        "now it shares the public one"
    );
}

#[test]
fn releasing_a_prompt_keeps_a_longer_one() {
    let mut world = World::new(config(), 100);
    let (short, long) = (prompt(1, 64), [prompt(1, 64), prompt(2, 50)].concat());
    for tokens in [&short, &long] {
        run(&mut world, kept(0, tokens).request());
    }
    assert_eq!(world.scheduler.release(&short, [0; 16]), 0);
    assert!(world.scheduler.prefixes.cached(&kept(0, &long)).is_whole());
    assert_eq!(world.scheduler.release(&long, [0; 16]), 8);
}

/// A prompt of less than a block has no pin, and no pin covers the end of a longer one.
#[test]
fn releasing_a_prompt_drops_its_last_block() {
    let mut world = World::new(config(), 100);
    let prompts = [prompt(3, 10), prompt(1, 70), [prompt(1, 64), prompt(2, 50)].concat()];
    prompts.iter().for_each(|tokens| drop(run(&mut world, kept(0, tokens).request())));
    let cached = |world: &World| {
        prompts.each_ref().map(|tokens| world.scheduler.prefixes.cached(&kept(0, tokens)).ram)
    };
    assert_eq!(cached(&world), [10, 70, 114]);
    assert_eq!(world.scheduler.release(&prompts[0], [0; 16]), 1);
    assert_eq!(world.scheduler.release(&prompts[1], [0; 16]), 1, "the rest begins the third");
    assert_eq!(cached(&world), [0, 64, 114]);
    assert_eq!(world.scheduler.release(&prompts[2], [0; 16]), 8);
    assert_eq!(world.scheduler.cache().stats().shared, 0);
}

/// The tokens that a policy observes or drops may be those of the public prompt.
#[test]
fn explain_knows_that_retention_shares_no_public_prompt() {
    let (mut world, system) = with_public(200);
    let continued = request([system, prompt(2, 20)].concat(), 2);
    for (retention, expect) in [(None, 96), (Some("sinks:0.5,every=20".parse().unwrap()), 0)] {
        let asked = of(2, Request { retention, ..continued.clone() });
        let probe = world.scheduler.probe(&asked);
        let report = run(&mut world, asked).answer().unwrap().report;
        assert_eq!((report.cached_tokens, report.cache), (probe.known_tokens, Some(probe.stop)));
        assert_eq!(report.cached_tokens, expect);
    }
}

/// The reports to tenant 2 when it guesses the continuation of a public prompt, token by token.
fn guesses(others: &[Vec<Token>]) -> Vec<(usize, String)> {
    let (mut world, system) = with_public(200);
    for (tenant, tail) in [1, 3].into_iter().flat_map(|tenant| others.iter().map(move |tail| (tenant, tail)))
    {
        ask(&mut world, of(tenant, pinning(&[system.clone(), tail.clone()].concat(), 3)));
    }
    let secret = prompt(7, 60);
    let lengths = (0..=60).rev().step_by(7).chain([1, 16, 17, 60]);
    let reports = lengths.map(|length| {
        let guess = [&system[..], &secret[..length], &prompt(8, 5)].concat();
        let report = run(&mut world, of(2, request(guess, 2))).answer().unwrap().report;
        (report.cached_tokens, format!("{:?} {:?}", report.cache, report.evicted))
    });
    reports.collect()
}

#[test]
fn guesses_after_a_public_prompt_reveal_nothing_of_other_tenants() {
    let secret = prompt(7, 60);
    let without_others = guesses(&[]);
    assert!(without_others.iter().any(|(cached, _)| *cached > 96), "a guesser finds its own guesses");
    for others in [vec![secret.clone()], vec![secret[..20].to_vec(), secret[..33].to_vec(), secret]] {
        assert_eq!(guesses(&others), without_others);
    }
}

/// A scheduler on a directory, one run of a server, with a limit on pinned blocks.
fn life(dir: &Path, warm_blocks: usize, pinned_max: usize) -> World {
    let (config, blocks) = (config(), 400);
    let started = Instant::now();
    let limits = RequestLimits::new(&config, blocks, VOCAB);
    let runner = FakeRunner::new(blocks, config.batch_rows_max());
    let store = StoreConfig {
        dir: dir.to_owned(),
        bytes_max: 16 << 20,
        model: config.model_digest,
        kv_format: config.kv_format.clone(),
        payload_bytes: BLOCK_BYTES,
        buffers: 256,
    };
    let cache = kvik_cache::CacheConfig { pinned_max, ..cache_config(blocks) };
    let clock = Box::new(move || started.elapsed());
    let mut scheduler = Scheduler::new(config, cache, Arc::new(vocabulary()), clock).unwrap();
    let Opened { store, slots, records, related, .. } = Store::open(&store, || {}).unwrap();
    let setup = DiskSetup {
        tier: Tier::with(slots, records).0,
        store: Box::new(store),
        related,
        warm_blocks,
        writes_max: 192,
        writes: DiskWrites::default(),
        epoch_s: 1_800_000_000,
        wall: None,
        waker: Waker::default(),
        remote: None,
    };
    scheduler.attach(setup);
    World { scheduler, runner, limits }
}

/// Steps until all requests have ended and the disk is idle.
fn settle(world: &mut World) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        world.step();
        let disk = world.scheduler.prefixes.disk_stats().unwrap();
        if world.scheduler.is_idle() && disk.loads + disk.prefetch_candidates + disk.writing == 0 {
            return world.scheduler.cache().check().unwrap();
        }
        assert!(Instant::now() < deadline, "the disk never comes to rest: {disk:?}");
        sleep(Duration::from_micros(50));
    }
}

fn submit_and_settle(world: &mut World, request: Request) -> Client {
    let client = world.submit(request);
    settle(world);
    client
}

/// Blocks pinned after a restart.
fn pinned_after_restart(dir: &Path, pinned_max: usize) -> usize {
    let mut world = life(dir, 400, pinned_max);
    settle(&mut world);
    pinned(&world)
}

#[test]
fn a_pin_outlives_the_process_until_it_is_removed() {
    let (tokens, other) = (prompt(1, 100), prompt(5, 50));
    let remove: [fn(&mut Scheduler, &[Token]); 4] = [
        |scheduler, tokens| assert_eq!(scheduler.evict(tokens, [0; 16]).pins, 1),
        |scheduler, tokens| assert_eq!(scheduler.evict(&tokens[..40], [0; 16]).pins, 1),
        |scheduler, tokens| assert!(scheduler.release(tokens, [0; 16]) >= 6),
        |scheduler, _| {
            let pin = scheduler.prefixes.pins(None, 9).into_iter().find(|pin| pin.blocks == 6).unwrap();
            assert_eq!(scheduler.prefixes.unpin(Unpin::One(pin.id), None), 1);
        },
    ];
    for remove in remove {
        let dir = tempfile::tempdir().unwrap();
        let mut world = life(dir.path(), 0, 100);
        submit_and_settle(&mut world, pinning(&tokens, 30));
        submit_and_settle(&mut world, pinning(&other, 3));
        drop(world);
        assert_eq!(pinned_after_restart(dir.path(), 100), 6 + 3);
        let mut world = life(dir.path(), 400, 100);
        settle(&mut world);
        remove(&mut world.scheduler, &tokens);
        settle(&mut world);
        drop(world);
        assert_eq!(pinned_after_restart(dir.path(), 100), 3, "only the other one is pinned again");
    }
}

#[test]
fn restored_pins_keep_to_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = life(dir.path(), 0, 100);
    for seed in 0..5 {
        submit_and_settle(&mut world, pinning(&prompt(seed, 64), 1));
    }
    drop(world);
    assert_eq!(pinned_after_restart(dir.path(), 10), 8, "two of four blocks each");
    let mut world = life(dir.path(), 400, 10);
    settle(&mut world);
    world.scheduler.prefixes.unpin(Unpin::All, None);
    settle(&mut world);
    drop(world);
    assert_eq!(pinned_after_restart(dir.path(), 100), 0, "also those that did not fit into memory");
}

#[test]
fn a_pinned_prompt_is_pinned_again_whichever_request_loads_it() {
    let dir = tempfile::tempdir().unwrap();
    let system = prompt(1, 100);
    let mut world = life(dir.path(), 0, 100);
    submit_and_settle(&mut world, pinning(&system, 0));
    let conversation = request([system, prompt(2, 60)].concat(), 3);
    submit_and_settle(&mut world, conversation.clone());
    drop(world);
    let mut world = life(dir.path(), 0, 100);
    let client = submit_and_settle(&mut world, conversation);
    assert!(client.answer().unwrap().report.loaded[Level::Disk] > 100);
    assert_eq!(pinned(&world), 6, "the pinned prompt, and no block of its continuation");
}

#[test]
fn a_pin_removed_during_a_load_or_a_write_stays_removed() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = prompt(1, 800);
    let mut world = life(dir.path(), 0, 100);
    // Pinned with its first token, while the answer continues and the disk is busy.
    let client = world.submit(pinning(&tokens, 30));
    while pinned(&world) == 0 {
        world.step();
    }
    world.scheduler.evict(&tokens, [0; 16]);
    settle(&mut world);
    assert!(client.answer().is_some());
    drop(world);
    assert_eq!(pinned_after_restart(dir.path(), 100), 0);

    let mut world = life(dir.path(), 0, 100);
    submit_and_settle(&mut world, pinning(&tokens, 1));
    drop(world);
    let mut world = life(dir.path(), 400, 100);
    while world.scheduler.prefixes.disk_stats().unwrap().loads == 0 {
        world.step();
    }
    world.scheduler.evict(&tokens, [0; 16]);
    settle(&mut world);
    assert_eq!(pinned(&world), 0);
    drop(world);
    assert_eq!(pinned_after_restart(dir.path(), 100), 0);
}
