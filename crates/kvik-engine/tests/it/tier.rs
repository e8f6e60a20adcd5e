//! The scheduler with its disk tier: times to live, waiting for loads, pins, and held blocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::fake::memory_disk::{EPOCH_S, MemoryDisk};
use crate::fake::*;
use kvik_cache::tier::{Level, Record};
use kvik_cache::{
    AuxiliaryState, DeletedPrompts, Identity, Lifetime, StopReason, TenantId, TenantStats, Token,
};
use kvik_engine::api::PinnedPrompt;
use kvik_engine::api::Request;
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::disk::{DiskSetup, DiskWrites};
use kvik_engine::schedule::{Pause, Scheduler, TenantPart};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A request whose prompt has a time to live of `ttl_s` seconds.
fn brief(prompt: Vec<Token>, ttl_s: u64) -> Request {
    Request { lifetime: Lifetime { ttl: Some(secs(ttl_s)), ..Lifetime::default() }, ..request(prompt, 2) }
}

/// The answer, after the scheduler has become idle.
fn ask(world: &mut World, request: &Request) -> Answer {
    let client = world.submit(request.clone());
    world.settle();
    let answer = client.answer().unwrap();
    assert_eq!(answer.choices, solo(request).choices, "an answer never depends on what is reused");
    answer
}

fn steps(world: &mut World, count: usize) {
    (0..count).for_each(|_| world.step());
}

fn kept(prompt: &[Token]) -> PinnedPrompt {
    PinnedPrompt {
        tokens: prompt.to_vec(),
        adapters: None,
        salt: [0; 16],
        tenant: Default::default(),
        retention: None,
    }
}

/// A model with states of two pieces.
fn with_states() -> EngineConfig {
    let auxiliary = AuxiliaryState { block_bytes: BLOCK_BYTES, windows: None, state_bytes: BLOCK_BYTES + 40 };
    EngineConfig { auxiliary, draft_rows_max: 0, ..config() }
}

/// Tokens of a prompt that a new process with such a model finds on disk.
fn found_with_state(disk: &MemoryDisk, prompt: &[Token]) -> usize {
    disk.life(with_states(), 400, 0).scheduler.prefixes.cached(&kept(prompt)).disk
}

/// Answers a request and waits for the disk.
fn ask_and_write(world: &mut World, request: &Request) {
    ask(world, request);
    steps(world, 20);
    assert_eq!(world.scheduler.unwritten_blocks(), 0);
}

/// Tokens of a prompt that a new process finds on disk.
fn found(disk: &MemoryDisk, prompt: &[Token]) -> usize {
    disk.life(config(), 100, 0).scheduler.prefixes.cached(&kept(prompt)).disk
}

/// Without a disk and without requests: nobody asks, and then the machine sleeps.
#[test]
fn what_has_outlived_its_time_leaves_memory_by_itself() {
    let (awake_s, asleep_s) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (clock_s, wall_s) = (awake_s.clone(), [awake_s.clone(), asleep_s.clone()]);
    let clock = Box::new(move || secs(clock_s.load(Ordering::Relaxed)));
    let mut scheduler = Scheduler::new(config(), cache_config(100), Arc::new(vocabulary()), clock).unwrap();
    let shown_s = move || wall_s.iter().map(|part_s| part_s.load(Ordering::Relaxed)).sum::<u64>();
    scheduler.follow_wall_clock(Box::new(move || EPOCH_S + shown_s()));
    let mut world = World { scheduler, ..World::new(config(), 100) };
    let long = prompt(1, 100);
    for (ttl_s, passes_s, sleeps_s) in [(60, 60, 0), (60, 2, 3600), (60, 60, 0), (7200, 60, 7200)] {
        ask(&mut world, &brief(long.clone(), ttl_s));
        assert_eq!(world.scheduler.next_pause(), Pause::For(secs(60)), "a wait may stand still");
        assert!(world.scheduler.prefixes.cached(&kept(&long)).ram >= 96);
        awake_s.fetch_add(passes_s, Ordering::Relaxed);
        asleep_s.fetch_add(sleeps_s, Ordering::Relaxed);
        assert!(sleeps_s > 0 || world.scheduler.next_pause() == Pause::For(Duration::ZERO));
        world.step();
        assert_eq!(world.scheduler.prefixes.cached(&kept(&long)).ram, 0, "after {passes_s} and {sleeps_s} s");
        assert_eq!(world.scheduler.next_pause(), Pause::Forever);
    }
    assert_eq!(ask(&mut world, &brief(long, 60)).report.cache, Some(StopReason::Expired));
}

#[test]
fn a_use_restarts_the_time_to_live_on_disk_too() {
    let disk = MemoryDisk::default();
    let long = prompt(1, 100);
    let mut world = disk.life(config(), 100, 0);
    ask(&mut world, &brief(long.clone(), 60));
    disk.pass(secs(50));
    ask(&mut world, &brief(long.clone(), 5));
    disk.pass(secs(50));
    assert_eq!(found(&disk, &long), 100, "the last use was 50 s ago, and one request set 60 s");
    disk.pass(secs(11));
    assert_eq!(found(&disk, &long), 0);
}

#[test]
fn a_use_without_a_time_to_live_removes_the_expiry() {
    let disk = MemoryDisk::default();
    let long = prompt(1, 100);
    let mut world = disk.life(config(), 100, 0);
    ask(&mut world, &brief(long.clone(), 60));
    ask(&mut world, &request(long.clone(), 2));
    disk.pass(secs(1_000_000));
    assert_eq!(found(&disk, &long), 100);
}

/// As in RAM, where blocks in use do not expire.
#[test]
fn the_blocks_of_a_long_answer_do_not_expire_while_it_runs() {
    let disk = MemoryDisk::default();
    let mut world = disk.life(config(), 100, 0);
    let request = Request { max_tokens: 200, ignore_eos: true, ..brief(prompt(1, 100), 10) };
    let client = world.submit(request.clone());
    while !world.scheduler.is_idle() {
        world.step();
        disk.pass(secs(1));
    }
    let answer = client.answer().unwrap().choices[0].1.clone();
    let whole = [request.prompt, answer].concat();
    assert_eq!(found(&disk, &whole), 299, "all but the last generated token");
}

/// A client that goes away has used what it asked for, as in RAM.
#[test]
fn a_request_that_is_cut_short_restarts_the_time_to_live_too() {
    let disk = MemoryDisk::default();
    let mut world = disk.life(config(), 100, 0);
    let long = prompt(1, 600);
    let client = world.submit(brief(long.clone(), 60));
    steps(&mut world, 3);
    disk.pass(secs(29));
    client.close();
    steps(&mut world, 2);
    disk.pass(secs(45));
    steps(&mut world, 1);
    let in_ram = world.scheduler.prefixes.cached(&kept(&long)).ram;
    assert!(in_ram > 0 && in_ram < 600, "{in_ram}");
    assert_eq!(found(&disk, &long), in_ram);
}

/// The disk has four blocks for the tenant, and those of a sequence are not evicted for the ones behind them.
#[test]
fn the_first_blocks_of_a_long_answer_do_not_expire_where_the_others_have_no_room() {
    let disk = MemoryDisk::default();
    let mut world = disk.life(config(), 100, 0);
    let owner_disk_bytes = Some(4 * config().block_bytes as u64);
    world.scheduler.set_tenants(&[TenantPart { owner_disk_bytes, ..TenantPart::own(TenantId(0)) }]);
    let request = Request { max_tokens: 200, ignore_eos: true, ..brief(prompt(1, 100), 10) };
    let client = world.submit(request.clone());
    while !world.scheduler.is_idle() {
        world.step();
        disk.pass(secs(1));
    }
    assert!(client.answer().is_some());
    assert_eq!(found(&disk, &request.prompt), 64);
}

#[test]
fn expired_blocks_and_their_continuations_are_written_again() {
    let disk = MemoryDisk::default();
    let (system, whole) = (prompt(1, 96), [prompt(1, 96), prompt(2, 50)].concat());
    let mut world = disk.life(config(), 100, 0);
    ask(&mut world, &brief(system.clone(), 60));
    disk.pass(secs(61));
    let report = ask(&mut world, &request(whole.clone(), 2)).report;
    assert_eq!((report.cached_tokens, report.cache), (0, Some(StopReason::Expired)));
    drop(world);
    disk.pass(secs(1000));
    assert_eq!(found(&disk, &whole), 146, "nothing is unreachable");
}

/// A beginning that others share is there for ever, and what continued it is not.
#[test]
fn what_has_expired_behind_a_stored_beginning_is_said_to_be_expired() {
    let (system, whole) = (prompt(1, 96), [prompt(1, 96), prompt(2, 50)].concat());
    for is_in_memory in [false, true] {
        let disk = MemoryDisk::default();
        let mut world = disk.life(config(), 100, 0);
        ask(&mut world, &request(system.clone(), 1));
        ask_and_write(&mut world, &brief(whole.clone(), 60));
        disk.pass(secs(61));
        let mut world = disk.life(config(), 100, 0);
        if is_in_memory {
            ask(&mut world, &request(system.clone(), 1));
        }
        let foretold = world.scheduler.probe(&request(whole.clone(), 2));
        assert_eq!((foretold.known_tokens, foretold.stop), (96, StopReason::Expired));
        let report = ask(&mut world, &request(whole.clone(), 2)).report;
        assert_eq!((report.cached_tokens, report.cache), (96, Some(StopReason::Expired)), "{is_in_memory}");
    }
}

/// As after another configuration: also without requests, a few blocks in every step, and none while the disk is at it.
#[test]
fn a_lowered_quota_is_kept_on_disk() {
    let disk = MemoryDisk::default();
    let mut world = disk.life(config(), 400, 0);
    ask_and_write(&mut world, &request(prompt(1, 1600), 1));
    assert_eq!((disk.state().blocks.len(), world.scheduler.next_pause()), (100, Pause::Forever));
    let owner_disk_bytes = Some(20 * config().block_bytes as u64);
    world.scheduler.set_tenants(&[TenantPart { owner_disk_bytes, ..TenantPart::own(TenantId(0)) }]);
    disk.state().evictions_stop = true;
    for (evicts, left) in [(64, 36), (16, 20)] {
        assert_eq!(world.scheduler.next_pause(), Pause::None);
        for _ in 0..2 {
            world.step();
            assert_eq!(disk.state().evicting.len(), evicts);
            assert_eq!(world.scheduler.next_pause(), Pause::Forever);
        }
        disk.end_evictions();
        assert_eq!(disk.state().blocks.len(), left);
    }
    assert_eq!(world.scheduler.next_pause(), Pause::Forever);
    assert_eq!(found(&disk, &prompt(1, 1600)), 320, "its beginning");
}

/// The disk has 1,000 blocks and memory 600.
#[test]
fn what_a_removed_tenant_has_cached_makes_way_first() {
    let disk = MemoryDisk::default();
    let mut world = disk.life(config(), 600, 0);
    let salt = |tenant: u32| [tenant as u8; 16];
    let part = |tenant| TenantPart { salt: salt(tenant), ..TenantPart::own(TenantId(tenant)) };
    let ask = |world: &mut World, tenant, seed| {
        let asked = request(prompt(seed, 240 * 16), 1);
        let client = world.submit(Request { tenant: TenantId(tenant), salt: salt(tenant), ..asked });
        world.settle();
        steps(world, 20);
        assert!(client.answer().is_some() && world.scheduler.unwritten_blocks() == 0);
    };
    world.scheduler.set_tenants(&[part(1), part(2)]);
    for (tenant, seed) in [(1, 1), (2, 2), (1, 3), (2, 4)] {
        ask(&mut world, tenant, seed);
    }
    let in_ram = |world: &World| {
        let of_other = |stats: &&TenantStats| stats.share.tenant == TenantId(2);
        world.scheduler.cache().tenants().iter().find(of_other).map_or(0, |stats| stats.blocks)
    };
    let before = in_ram(&world);
    world.scheduler.set_tenants(&[part(1)]);
    ask(&mut world, 1, 5);
    let mut stored: BTreeMap<u64, usize> = BTreeMap::new();
    disk.state().blocks.values().for_each(|(record, _)| *stored.entry(record.owner).or_default() += 1);
    let mut stored: Vec<usize> = stored.into_values().collect();
    stored.sort_unstable();
    assert_eq!(stored, [280, 720], "all three prompts of the other");
    assert_eq!(in_ram(&world), before - 240, "all that the new prompt takes");
}

/// Two loads read the same block. It is found damaged by one, and the other never comes to it.
#[test]
fn a_damaged_block_is_erased_whoever_reads_it_last() {
    let disk = MemoryDisk::default().with_buffers(4);
    let prompts = [prompt(1, 97), [&prompt(1, 16)[..], &prompt(2, 81)].concat()];
    let mut world = disk.life(config(), 100, 0);
    prompts.iter().for_each(|prompt| ask_and_write(&mut world, &request(prompt.clone(), 1)));
    let mut world = disk.life(config(), 100, 0);
    let is_first = |(record, _): &(Record, Vec<u8>)| record.tokens.as_slice() == &prompts[0][..16];
    let shared = *disk.state().blocks.iter().find(|&(_, block)| is_first(block)).unwrap().0;
    disk.state().blocks.get_mut(&shared).unwrap().0.identity = Identity([0; 32]);
    disk.state().reads_stop = true;
    let clients = prompts.map(|prompt| {
        let client = world.submit(request(prompt, 1));
        world.step();
        client
    });
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().loads, 2);
    disk.state().reads_more = 1;
    world.step();
    assert!(disk.state().blocks.contains_key(&shared), "somebody may still read it");
    clients[1].close();
    world.step();
    assert!(!disk.state().blocks.contains_key(&shared));
    disk.state().reads_stop = false;
    world.settle();
    assert!(clients[0].answer().is_some());
}

#[test]
fn expired_blocks_are_erased_from_disk_in_small_batches() {
    let disk = MemoryDisk::default();
    let mut world = disk.life(config(), 400, 0);
    ask(&mut world, &request(prompt(2, 48), 1));
    let clients: Vec<Client> = (10..30).map(|seed| world.submit(brief(prompt(seed, 160), 60))).collect();
    world.settle();
    assert!(clients.iter().all(|client| client.answer().is_some()));
    let kept = disk.state().blocks.len();
    assert!(kept > 200, "{kept}");
    let Pause::For(rest) = world.scheduler.next_pause() else { panic!("there is something to wake up for") };
    assert!(rest <= secs(61), "{rest:?}");
    // The requests were made one after the other.
    disk.pass(rest + secs(20));
    let mut before = kept;
    for _ in 0..50 {
        assert!(
            before == 3 || world.scheduler.next_pause() == Pause::For(Duration::ZERO),
            "{before} are left"
        );
        world.step();
        let now = disk.state().blocks.len();
        assert!(before - now <= 64, "{before} to {now} in one step");
        before = now;
    }
    assert_eq!((before, world.scheduler.next_pause()), (3, Pause::Forever));
    let report = ask(&mut world, &brief(prompt(10, 160), 60)).report;
    assert_eq!(report.cache, Some(StopReason::Expired), "the report says so");
}

/// Loaded blocks have the same time to live in RAM as on disk, also if the load is incomplete.
#[test]
fn a_time_to_live_survives_a_load() {
    let disk = MemoryDisk::default();
    let long = prompt(1, 200);
    ask(&mut disk.life(config(), 100, 0), &brief(long.clone(), 60));
    for whole in [true, false] {
        let mut world = disk.life(config(), 100, 0);
        disk.state().reads_stop = !whole;
        let client = world.submit(brief(long.clone(), 60));
        steps(&mut world, 2);
        client.close();
        disk.state().reads_stop = false;
        steps(&mut world, 20);
        disk.pass(secs(30));
        world.step();
        disk.pass(secs(31));
        world.step();
        assert_eq!(world.scheduler.prefixes.cached(&kept(&long)).ram, 0, "whole: {whole}");
    }
}

/// A long prompt on disk that is being loaded for a request, with a measured rate of computing.
fn long_load(disk: &MemoryDisk, long: &[Token]) -> (World, Client) {
    ask(&mut disk.life(config(), 100, 0), &request(long.to_vec(), 2));
    let mut world = disk.life(config(), 100, 0);
    ask(&mut world, &request(prompt(9, 64), 2));
    disk.state().reads_stop = true;
    let client = world.submit(request(long.to_vec(), 2));
    steps(&mut world, 3);
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().loads, 1);
    (world, client)
}

#[test]
fn a_new_request_does_not_end_the_load_of_another() {
    let disk = MemoryDisk::default();
    let long = prompt(1, 320);
    let (mut world, client) = long_load(&disk, &long);
    let short = world.submit(request([&long[..32], &prompt(2, 20)].concat(), 2));
    steps(&mut world, 3);
    // Computing 32 tokens takes 32 ms, and 320 take ten times as long.
    disk.pass(Duration::from_millis(100));
    steps(&mut world, 10);
    let report = short.answer().expect("its own waiting time has ended").report;
    assert_eq!(report.cache, Some(StopReason::RecomputeWasCheaper));
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().loads, 1, "the other one still waits");
    disk.state().reads_stop = false;
    world.settle();
    let report = client.answer().unwrap().report;
    assert_eq!(report.cached_tokens, 319, "{report:?}");
    // Blocks that the new request computed meanwhile are neither loaded in vain nor counted as loaded.
    assert!(report.loaded[Level::Disk] >= 280, "{report:?}");
}

#[test]
fn a_request_that_joins_a_load_continues_when_its_part_is_loaded() {
    let disk = MemoryDisk::default();
    let long = prompt(1, 320);
    let (mut world, _client) = long_load(&disk, &long);
    let joined = world.submit(request([&long[..32], &prompt(2, 20)].concat(), 2));
    steps(&mut world, 2);
    disk.state().reads_stop = false;
    world.settle();
    assert_eq!(joined.answer().unwrap().report.loaded[Level::Disk], 32);
}

#[test]
fn a_load_without_waiting_requests_ends() {
    let disk = MemoryDisk::default();
    let (mut world, client) = long_load(&disk, &prompt(1, 320));
    client.close();
    world.step();
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().loads, 0);
    disk.state().reads_stop = false;
    world.settle();
}

#[test]
fn a_request_with_nothing_on_disk_does_not_wait_for_loads() {
    let disk = MemoryDisk::default();
    let stored: Vec<Request> = (100..150).map(|seed| request(prompt(seed, 40), 2)).collect();
    let mut world = disk.life(config(), 400, 0);
    stored.iter().for_each(|request| drop(ask(&mut world, request)));
    let mut world = disk.life(config(), 400, 0);
    disk.state().reads_stop = true;
    let clients: Vec<Client> = stored.iter().map(|request| world.submit(request.clone())).collect();
    steps(&mut world, 5);
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().loads, 16);
    let new = world.submit(request(prompt(1, 40), 2));
    steps(&mut world, 5);
    assert!(new.answer().is_some(), "it has nothing to wait for");
    assert!(clients.iter().all(|client| !client.has_ended()));
    disk.state().reads_stop = false;
    world.settle();
    for client in &clients {
        let report = client.answer().unwrap().report;
        assert!(
            report.cached_tokens >= 32 && report.loaded[Level::Disk] > 16,
            "each has had its turn: {report:?}"
        );
    }
}

#[test]
fn no_request_waits_for_a_load_longer_than_computing_takes() {
    let disk = MemoryDisk::default();
    let stored: Vec<Request> = (100..140).map(|seed| request(prompt(seed, 40), 2)).collect();
    let mut world = disk.life(config(), 400, 0);
    stored.iter().for_each(|request| drop(ask(&mut world, request)));
    let mut world = disk.life(config(), 400, 0);
    ask(&mut world, &request(prompt(9, 64), 2));
    disk.state().reads_stop = true;
    let clients: Vec<Client> = stored.iter().map(|request| world.submit(request.clone())).collect();
    while !world.scheduler.is_idle() {
        match world.scheduler.next_pause() {
            Pause::None => world.step(),
            Pause::For(rest) => {
                assert!(rest <= Duration::from_millis(100), "{rest:?}");
                disk.pass(rest);
                world.step();
            }
            Pause::Forever => panic!("the requests wait for ever"),
        }
    }
    for client in &clients {
        assert_eq!(client.answer().unwrap().report.cache, Some(StopReason::RecomputeWasCheaper));
    }
}

/// The block behind the match was evicted from memory, which is not why it is computed: it is on disk.
#[test]
fn what_is_computed_because_the_disk_is_slow_is_not_said_to_be_evicted() {
    let disk = MemoryDisk::default();
    let (long, other) = (prompt(1, 320), prompt(2, 320));
    ask_and_write(&mut disk.life(config(), 100, 0), &request(other.clone(), 1));
    let mut world = disk.life(config(), 40, 0);
    ask_and_write(&mut world, &request(long.clone(), 1));
    // It is read in two seconds, and takes the room of the end of the long one.
    let client = world.submit(request([other, prompt(3, 100)].concat(), 1));
    world.step();
    disk.pass(secs(2));
    world.settle();
    assert!(client.answer().is_some());
    let asked = request(long, 1);
    let probe = world.scheduler.probe(&asked);
    let report = ask(&mut world, &asked).report;
    assert!((16..319).contains(&report.cached_tokens), "{report:?}");
    assert_eq!((report.cache, report.evicted), (Some(StopReason::RecomputeWasCheaper), None));
    assert_eq!((probe.known_tokens, Some(probe.stop)), (report.cached_tokens, report.cache));
    assert_eq!(probe.evicted, None);
}

/// The disk has the first four blocks of a prompt, and memory only two of them: where it remembers the eviction of those
/// behind until the request comes, the prediction says so too.
#[test]
fn what_was_evicted_behind_a_stored_beginning_is_said_to_be_evicted() {
    let explains = |seed: u64| {
        let (disk, long) = (MemoryDisk::default(), prompt(seed, 320));
        let mut world = disk.life(config(), 40, 0);
        let owner_disk_bytes = Some(4 * config().block_bytes as u64);
        let small = TenantPart { owner_disk_bytes, ..TenantPart::own(TenantId(0)) };
        let other = TenantPart { salt: [1; 16], ..TenantPart::own(TenantId(1)) };
        world.scheduler.set_tenants(&[small, other]);
        ask(&mut world, &request(long.clone(), 1));
        steps(&mut world, 20);
        let large = request(prompt(seed + 100, 608), 1);
        let client = world.submit(Request { tenant: TenantId(1), salt: [1; 16], ..large });
        world.settle();
        steps(&mut world, 20);
        assert!(client.answer().is_some());
        world.scheduler.prefixes.clear(Some([1; 16]));
        let asked = request(long, 1);
        let probe = world.scheduler.probe(&asked);
        let report = ask(&mut world, &asked).report;
        assert_eq!((probe.known_tokens, report.cached_tokens), (64, 64), "{report:?}");
        assert!(probe.loaded[Level::Disk] > 0 && probe.loaded == report.loaded, "{report:?}");
        let is_told = (Some(probe.stop), probe.evicted) == (report.cache, report.evicted);
        is_told && probe.stop == StopReason::Evicted && probe.evicted.is_some()
    };
    let told = (0..6).filter(|&seed| explains(seed)).count();
    assert!(told > 3, "{told} of 6");
}

/// Twenty blocks: eight are held until they are written, seven are being loaded, and a request needs nineteen.
#[test]
fn the_disk_releases_all_held_blocks_before_a_request_fails() {
    let disk = MemoryDisk::default();
    let stored = request(prompt(1, 100), 1);
    ask(&mut disk.life(config(), 20, 0), &stored);
    let mut world = disk.life_with(config(), 20, 0, 1);
    disk.state().writes_stop = true;
    let written = world.submit(request(prompt(2, 130), 1));
    world.run_until_idle();
    assert!(written.answer().is_some());
    disk.state().reads_stop = true;
    let read = world.submit(stored.clone());
    world.step();
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().loads, 1);
    let large = world.submit(request(prompt(3, 300), 1));
    (0..30).for_each(|_| world.step());
    assert!(large.answer().is_some(), "{:?}", large.error());
    assert_eq!(read.answer().unwrap().choices, solo(&stored).choices);
}

/// Blocks that are held for a slow disk make way for a request, and those that it has taken were used all the same.
#[test]
fn a_copy_that_is_given_up_restarts_the_time_to_live_of_what_was_copied() {
    let (disk, long) = (MemoryDisk::default(), prompt(1, 130));
    let mut world = disk.life_with(config(), 20, 0, 2);
    disk.state().writes_stop = true;
    let client = world.submit(brief(long.clone(), 60));
    world.step();
    disk.pass(secs(29));
    world.run_until_idle();
    let large = world.submit(request(prompt(2, 300), 1));
    world.run_until_idle();
    assert!(client.answer().is_some() && large.answer().is_some());
    disk.pass(secs(45));
    assert_eq!(found(&disk, &long), 32);
}

#[test]
fn a_pin_removed_during_its_load_does_not_return() {
    let disk = MemoryDisk::default();
    let system = prompt(1, 96);
    let pinned =
        Request { lifetime: Lifetime { pin: true, ..Lifetime::default() }, ..request(system.clone(), 0) };
    let mut world = disk.life(config(), 100, 0);
    world.submit(pinned);
    world.run_until_idle();
    assert!(disk.state().blocks.values().any(|(record, _)| record.pinned));
    let mut world = disk.life(config(), 100, 50);
    disk.state().reads_stop = true;
    steps(&mut world, 2);
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().loads, 1);
    world.scheduler.release(&system, [0; 16]);
    disk.state().reads_stop = false;
    steps(&mut world, 5);
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().loads, 0);
    world.check_idle();
    assert!(disk.state().blocks.values().all(|(record, _)| !record.pinned));
}

/// The same while the blocks of the ended request are still being written.
#[test]
fn a_pin_removed_during_its_write_does_not_return() {
    let disk = MemoryDisk::default();
    let system = prompt(1, 160);
    let pinned =
        Request { lifetime: Lifetime { pin: true, ..Lifetime::default() }, ..request(system.clone(), 0) };
    let mut world = disk.life_with(config(), 100, 0, 2);
    disk.state().writes_stop = true;
    world.submit(pinned);
    world.run_until_idle();
    world.scheduler.release(&system, [0; 16]);
    disk.state().writes_stop = false;
    steps(&mut world, 20);
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().writing, 0);
    assert!(disk.state().blocks.values().all(|(record, _)| !record.pinned));
    world.check_idle();
}

/// A pin covers a whole prompt: a load of its prefix restores no pin, which nothing would ever remove.
#[test]
fn loading_a_prefix_of_a_pinned_prompt_restores_no_pin() {
    let disk = MemoryDisk::default();
    let system = prompt(1, 96);
    let pinned =
        Request { lifetime: Lifetime { pin: true, ..Lifetime::default() }, ..request(system.clone(), 0) };
    let mut world = disk.life(config(), 100, 0);
    world.submit(pinned);
    world.run_until_idle();
    let mut world = disk.life(config(), 100, 0);
    let report = ask(&mut world, &request([&system[..48], &prompt(2, 20)].concat(), 2)).report;
    assert_eq!(report.loaded[Level::Disk], 48);
    world.submit(request(system.clone(), 2));
    world.run_until_idle();
    let stats = world.scheduler.cache().stats();
    assert_eq!(stats.shared - stats.evictable, 6, "the whole prompt is pinned");
    world.scheduler.release(&system, [0; 16]);
    world.check_idle();
}

/// A state in the middle of a prompt is for forks that may never come; it is written when somebody has gone on from it.
#[test]
fn a_fork_in_the_middle_is_gone_on_from_after_a_restart_once_it_was_used() {
    let config = with_states();
    let system = prompt(1, 200);
    // What a request reuses that shares the first 200 tokens, of which 192 are whole blocks.
    let fork = |world: &mut World, seed: u64| {
        let tokens = [&system[..], &prompt(seed, 150)].concat();
        let report = ask(world, &request(tokens, 3)).report;
        steps(world, 20);
        (report.cached_tokens, report.loaded[Level::Disk])
    };
    let disk = MemoryDisk::default();
    let mut world = disk.life(config.clone(), 400, 0);
    let seeds = [2, 3, 4];
    // The second finds the state at the second of the doubling distances, and leaves one where both part.
    assert_eq!(seeds.map(|seed| fork(&mut world, seed)), [(0, 0), (80, 0), (192, 0)]);
    let mut world = disk.life(config.clone(), 400, 0);
    assert_eq!([5, 6].map(|seed| fork(&mut world, seed)), [(192, 192), (192, 0)]);

    let disk = MemoryDisk::default();
    let mut world = disk.life(config.clone(), 400, 0);
    fork(&mut world, 2);
    let mut world = disk.life(config, 400, 0);
    assert_eq!(fork(&mut world, 3), (0, 0), "nobody had gone on from it");
}

#[test]
fn a_use_restarts_the_time_to_live_of_a_state_too() {
    let config = with_states();
    let (disk, request) = (MemoryDisk::default(), brief(prompt(1, 200), 60));
    let mut world = disk.life(config.clone(), 400, 0);
    for _ in 0..2 {
        ask(&mut world, &request);
        steps(&mut world, 20);
        disk.pass(secs(50));
    }
    let report = ask(&mut disk.life(config, 400, 0), &request).report;
    assert_eq!((report.cached_tokens, report.loaded[Level::Disk]), (192, 192), "{report:?}");
}

/// As after a kill in the middle, a failed write or a damaged block.
#[test]
fn a_state_that_lacks_a_piece_is_completed_when_it_is_computed_again() {
    let (disk, asked) = (MemoryDisk::default(), request(prompt(1, 200), 2));
    ask_and_write(&mut disk.life(with_states(), 400, 0), &asked);
    assert_eq!(found_with_state(&disk, &asked.prompt), 192);
    let second = [Token::MAX, 1];
    let whole = disk.state().blocks.len();
    disk.state().blocks.retain(|_, (record, _)| record.tokens.as_slice() != second);
    assert!(disk.state().blocks.len() < whole);
    assert_eq!(found_with_state(&disk, &asked.prompt), 0);
    ask_and_write(&mut disk.life(with_states(), 400, 0), &asked);
    assert_eq!(disk.state().blocks.len(), whole);
    assert_eq!(found_with_state(&disk, &asked.prompt), 192);
}

/// The tier has room for two prompts with their states and for a little more.
#[test]
fn a_state_that_is_used_outlives_those_that_are_not() {
    let (disk, used) = (MemoryDisk::default(), request(prompt(1, 40), 2));
    let mut world = disk.life(with_states(), 400, 0);
    ask_and_write(&mut world, &used);
    let slots = 2 * disk.state().blocks.len() + 2;
    let owner_disk_bytes = Some((slots * config().block_bytes) as u64);
    world.scheduler.set_tenants(&[TenantPart { owner_disk_bytes, ..TenantPart::own(TenantId(0)) }]);
    for asked in [request(prompt(2, 40), 2), used.clone(), request(prompt(3, 40), 2)] {
        ask_and_write(&mut world, &asked);
    }
    assert_eq!([1, 2, 3].map(|seed| found_with_state(&disk, &prompt(seed, 40))), [32, 0, 32]);
}

/// With room for all blocks at once but not for all states, for some blocks, and for one block at a time.
#[test]
fn states_that_end_together_reach_the_disk_one_after_the_other() {
    for writes_max in [20, 10, 1] {
        let disk = MemoryDisk::default();
        let config = EngineConfig { prefill_rows_max: 400, ..with_states() };
        let mut world = disk.life_with(config, 400, 0, writes_max);
        let prompts: Vec<Vec<Token>> = (1..9).map(|seed| prompt(seed, 40)).collect();
        let clients: Vec<Client> =
            prompts.iter().map(|prompt| world.submit(request(prompt.clone(), 2))).collect();
        world.run_until_idle();
        steps(&mut world, 200);
        assert!(clients.iter().all(|client| client.answer().is_some()));
        assert_eq!(world.scheduler.unwritten_blocks(), 0);
        let found: Vec<usize> = prompts.iter().map(|prompt| found_with_state(&disk, prompt)).collect();
        assert_eq!(found, [32; 8], "{writes_max} blocks at a time");
    }
}

/// Where nothing may be written today. A state after less than a block follows no block that would have to be stored.
#[test]
fn only_the_states_of_pinned_prompts_are_written_beyond_the_budget() {
    for (len, pin, written) in [(10, false, 0), (40, false, 0), (40, true, 4)] {
        let disk = MemoryDisk::default();
        let mut world = disk.life(with_states(), 400, 0);
        let writes = DiskWrites { day_bytes_max: Some(0), ..DiskWrites::default() };
        world.scheduler.attach(DiskSetup { writes, ..disk.setup(0, 64) });
        let lifetime = Lifetime { pin, ..Lifetime::default() };
        world.submit(Request { lifetime, ..request(prompt(1, len), 2) });
        world.run_until_idle();
        steps(&mut world, 20);
        assert_eq!(disk.state().blocks.len(), written, "{len} tokens, pinned: {pin}");
    }
}

#[test]
fn a_state_is_deleted_with_its_prompt() {
    let (disk, asked) = (MemoryDisk::default(), request(prompt(1, 100), 2));
    let mut world = disk.life(with_states(), 400, 0);
    ask_and_write(&mut world, &asked);
    let is_piece = |(record, _): &&(Record, Vec<u8>)| record.tokens.as_slice()[0] > VOCAB as Token;
    let pieces = disk.state().blocks.values().filter(is_piece).count();
    assert_eq!(pieces, 4, "of the states at the ends of the prompt and of the answer");
    let deleted = DeletedPrompts::new(vec![asked.prompt.clone()], Vec::new());
    assert_eq!(world.scheduler.forget_deleted([0; 16], &deleted, false), 0);
    assert_eq!(disk.state().blocks.len(), 0);
}

/// Its prompt is shorter than a block, so the state continues nothing that would have to be stored first.
#[test]
fn a_state_that_waits_for_a_buffer_is_deleted_with_its_prompt() {
    let (disk, asked) = (MemoryDisk::default(), request(prompt(1, 10), 2));
    let mut world = disk.life_with(with_states(), 400, 0, 0);
    ask(&mut world, &asked);
    assert_eq!(world.scheduler.unwritten_blocks(), 1);
    let deleted = DeletedPrompts::new(vec![asked.prompt.clone()], Vec::new());
    assert_eq!(world.scheduler.forget_deleted([0; 16], &deleted, false), 0);
    assert_eq!(world.scheduler.unwritten_blocks(), 0);
}
