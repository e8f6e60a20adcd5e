//! The disk tier with the scheduler: a restart reuses computed blocks to the exact token, and whatever
//! happens to the files, answers equal those of an engine without them.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use crate::fake::*;
use kvik_cache::tier::{Level, Record, SlotId, Tier, Use};
use kvik_cache::{Identity, Lifetime, StopReason, Token};
use kvik_engine::api::Request;
use kvik_engine::schedule::disk::{DiskSetup, DiskWrites, WallClock};
use kvik_engine::schedule::{Clock, RequestLimits, Scheduler};
use kvik_engine::store::BlockStore;
use kvik_engine::store::Waker;
use kvik_engine::store::{Buffer, Completed, Opened, Store, StoreConfig};

/// The time of day in most tests.
const EPOCH_S: u64 = 1_800_000_000;

/// A scheduler on a directory at [`EPOCH_S`]: one run of a server.
pub(crate) fn life(dir: &Path, warm_blocks: usize) -> World {
    life_with(dir, warm_blocks, 192)
}

/// The same at another time.
pub(crate) fn life_at(dir: &Path, warm_blocks: usize, epoch_s: u64) -> World {
    life_on(dir, warm_blocks, 192, epoch_s, |store| Box::new(store))
}

/// The same with at most `writes_max` blocks queued for the disk.
fn life_with(dir: &Path, warm_blocks: usize, writes_max: usize) -> World {
    life_on(dir, warm_blocks, writes_max, EPOCH_S, |store| Box::new(store))
}

/// The same with `between` wrapping the store.
fn life_on(
    dir: &Path,
    warm_blocks: usize,
    writes_max: usize,
    epoch_s: u64,
    between: impl FnOnce(Store) -> Box<dyn BlockStore>,
) -> World {
    let started = Instant::now();
    let clock = Box::new(move || started.elapsed());
    life_of(dir, warm_blocks, writes_max, DiskWrites::default(), (epoch_s, None), between, clock)
}

/// A scheduler on a directory that writes what `writes` says, at this machine's time, by which written bytes are counted; in it
/// no time passes.
pub(crate) fn life_that_writes(dir: &Path, writes: DiskWrites) -> World {
    life_that_writes_by(dir, writes, Box::new(|| Duration::ZERO))
}

/// The same by a clock.
pub(crate) fn life_that_writes_by(dir: &Path, writes: DiskWrites, clock: Clock) -> World {
    life_of(dir, 0, 192, writes, (machine_s(), None), |store| Box::new(store), clock)
}

/// The same with a wall clock of its own.
pub(crate) fn life_that_writes_beside(
    dir: &Path,
    writes: DiskWrites,
    (clock, wall): (Clock, WallClock),
) -> World {
    life_of(dir, 0, 192, writes, (machine_s(), Some(wall)), |store| Box::new(store), clock)
}

/// This machine's time, in seconds since 1970.
pub(crate) fn machine_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn store_config(dir: &Path) -> StoreConfig {
    let config = config();
    StoreConfig {
        dir: dir.to_owned(),
        bytes_max: 16 << 20,
        model: config.model_digest,
        kv_format: config.kv_format,
        payload_bytes: BLOCK_BYTES,
        buffers: 256,
    }
}

fn life_of(
    dir: &Path,
    warm_blocks: usize,
    writes_max: usize,
    writes: DiskWrites,
    (epoch_s, wall): (u64, Option<WallClock>),
    between: impl FnOnce(Store) -> Box<dyn BlockStore>,
    clock: Clock,
) -> World {
    let (config, blocks) = (config(), 400);
    let limits = RequestLimits::new(&config, blocks, VOCAB);
    let runner = FakeRunner::new(blocks, config.batch_rows_max());
    let store = store_config(dir);
    let mut scheduler = Scheduler::new(config, cache_config(blocks), Arc::new(vocabulary()), clock).unwrap();
    let Opened { store, slots, records, related, .. } = Store::open(&store, || {}).unwrap();
    let (tier, surplus) = Tier::with(slots, records);
    assert!(surplus.is_empty());
    scheduler.attach(DiskSetup {
        tier,
        store: between(store),
        related,
        warm_blocks,
        writes_max,
        writes,
        epoch_s,
        wall,
        waker: Waker::default(),
        remote: None,
    });
    World { scheduler, runner, limits }
}

/// Steps until all requests have ended and all blocks on their way are on disk.
pub(crate) fn settle(world: &mut World) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        world.step();
        let disk = world.scheduler.prefixes.disk_stats().unwrap();
        let busy = disk.loads + disk.prefetch_candidates + disk.writing;
        if world.scheduler.is_idle() && busy == 0 {
            world.check_idle();
            return;
        }
        assert!(Instant::now() < deadline, "the disk never comes to rest: {disk:?}");
        sleep(Duration::from_micros(50));
    }
}

pub(crate) fn ask(world: &mut World, request: &Request) -> Answer {
    let client = world.submit(request.clone());
    settle(world);
    let answer = client.answer().expect("it is answered");
    assert_eq!(answer.choices, solo(request).choices, "an answer never depends on what is reused");
    answer
}

fn joined(parts: &[&[Token]]) -> Vec<Token> {
    parts.concat()
}

#[test]
fn a_prompt_outlives_the_process_to_the_exact_token() {
    let dir = tempfile::tempdir().unwrap();
    let (system, question) = (prompt(1, 184), prompt(2, 35));
    let first = request(joined(&[&system, &question]), 20);
    let first_answer = ask(&mut life(dir.path(), 0), &first);

    let mut second_life = life(dir.path(), 0);
    let again = ask(&mut second_life, &first).report;
    assert_eq!((again.cached_tokens, again.loaded[Level::Disk], again.computed_tokens), (218, 218, 1));
    assert_eq!(again.cache, Some(StopReason::Complete));
    let other = ask(&mut second_life, &request(joined(&[&system, &prompt(3, 35)]), 20)).report;
    assert_eq!((other.cached_tokens, other.loaded[Level::Disk]), (184, 0), "now it is in RAM");
    drop(second_life);

    // The conversation continues where the first run ended, including its answer.
    let answer: Vec<Token> = first_answer.choices[0].1.clone();
    let next = request(joined(&[&system, &question, &answer, &prompt(4, 9)]), 5);
    let report = ask(&mut life(dir.path(), 0), &next).report;
    assert_eq!(report.cached_tokens, 219 + answer.len() - 1, "all but the last generated token was stored");
    assert_eq!(report.loaded[Level::Disk], report.cached_tokens);
}

#[test]
fn a_prompt_that_diverges_inside_a_stored_block_reuses_it_up_to_there() {
    let dir = tempfile::tempdir().unwrap();
    let long = prompt(1, 100);
    ask(&mut life(dir.path(), 0), &request(long.clone(), 3));
    for kept in [1, 15, 16, 17, 50, 95] {
        let mut world = life(dir.path(), 0);
        let report = ask(&mut world, &request(joined(&[&long[..kept], &prompt(9, 40)]), 3)).report;
        assert_eq!(report.cached_tokens, kept, "{report:?}");
        assert_eq!(report.loaded[Level::Disk], kept);
    }
}

/// The simulator found this bug: a prefetch candidate had been dropped, and the load read as many blocks of
/// another prompt with the same beginning in its place.
#[test]
fn a_candidate_dropped_before_its_load_is_not_confused_with_a_prompt_of_the_same_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let stem = prompt(1, 5);
    let (dropped, alike) = (joined(&[&stem, &prompt(2, 4)]), joined(&[&stem, &prompt(3, 11)]));
    let mut world = life(dir.path(), 0);
    for tokens in [&dropped, &alike] {
        ask(&mut world, &request(tokens.clone(), 0));
    }
    drop(world);
    let mut world = life(dir.path(), 100);
    world.scheduler.release(&dropped, [0; 16]);
    settle(&mut world);
    let report = ask(&mut world, &request(joined(&[&dropped, &prompt(4, 3)]), 8)).report;
    assert_eq!(report.cached_tokens, stem.len());
}

#[test]
fn the_start_loads_hot_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let (hot, cold) = (prompt(1, 200), prompt(2, 200));
    let mut world = life(dir.path(), 0);
    for _ in 0..3 {
        ask(&mut world, &request(hot.clone(), 1));
    }
    ask(&mut world, &request(cold.clone(), 1));
    drop(world);

    let mut world = life(dir.path(), 20);
    settle(&mut world);
    let report = ask(&mut world, &request(hot, 1)).report;
    assert_eq!(
        (report.cached_tokens, report.loaded[Level::Disk]),
        (199, 0),
        "it was in RAM before the request"
    );
    let report = ask(&mut world, &request(cold, 1)).report;
    assert_eq!(
        (report.cached_tokens, report.loaded[Level::Disk]),
        (199, 199),
        "there was no budget for both"
    );
}

#[test]
fn the_start_does_not_load_prompts_that_are_not_worth_loading() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = request(prompt(1, 200), 1);
    ask(&mut life(dir.path(), 0), &prompt);
    let mut world = life_at(dir.path(), 100, EPOCH_S + 10 * 24 * 3600);
    settle(&mut world);
    let report = ask(&mut world, &prompt).report;
    assert_eq!(report.loaded[Level::Disk], 199, "one use ten days ago: it is loaded on request only");
}

/// A clock that was years ahead would have kept a prompt with a time to live for as long.
#[test]
fn what_a_clock_far_ahead_has_written_expires_after_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let lifetime = Lifetime { ttl: Some(Duration::from_secs(60)), ..Lifetime::default() };
    let brief = Request { lifetime, ..request(prompt(1, 100), 3) };
    ask(&mut life_at(dir.path(), 0, EPOCH_S + 400 * 24 * 3600), &brief);
    let ends = |start_s: u64| {
        let tier = DiskSetup::open(&store_config(dir.path()), 0, start_s).unwrap().setup.tier;
        tier.used().map(|(_, record)| record.use_.expires_s).collect::<Vec<u64>>()
    };
    let first = ends(EPOCH_S);
    assert!(first.len() >= 6, "{first:?}");
    assert!(first.iter().all(|end_s| (60..=62).contains(&end_s.abs_diff(EPOCH_S))), "{first:?}");
    assert_eq!(ends(EPOCH_S + 30), first, "it is corrected once");
}

#[test]
fn private_prompts_are_not_written_and_the_miss_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = life(dir.path(), 0);
    let private = Request { reuse: false, ..request(prompt(1, 100), 3) };
    ask(&mut world, &private);
    assert_eq!(world.scheduler.prefixes.disk_stats().unwrap().tier.used, 0);
    let report = ask(&mut world, &Request { reuse: true, ..private }).report;
    assert_eq!((report.cached_tokens, report.cache), (0, Some(StopReason::Private)));
}

#[test]
fn damaged_files_never_change_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let long = request(prompt(1, 300), 3);
    ask(&mut life(dir.path(), 0), &long);
    let files: Vec<_> = walk(dir.path());
    for round in 0..12_u64 {
        for file in &files {
            let mut bytes = std::fs::read(file).unwrap();
            for hit in 0..40 {
                if !bytes.is_empty() {
                    let at = (mix(round * 100 + hit) % bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << (hit % 8);
                }
            }
            std::fs::write(file, bytes).unwrap();
        }
        ask(&mut life(dir.path(), 0), &long);
    }
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn a_prompt_that_is_computed_faster_than_written_is_still_written() {
    let dir = tempfile::tempdir().unwrap();
    let long = request(prompt(1, 1500), 1);
    let mut world = life_with(dir.path(), 0, 3);
    ask(&mut world, &long);
    drop(world);
    let report = ask(&mut life(dir.path(), 0), &long).report;
    assert_eq!(report.loaded[Level::Disk], 1488, "all but the end, which is no whole block: {report:?}");
}

#[test]
fn blocks_being_written_yield_to_running_requests() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = life_with(dir.path(), 0, 1);
    // 400 blocks: two of these and a third of one.
    let requests: Vec<Request> = (0..6).map(|seed| request(prompt(seed, 2700), 2)).collect();
    for request in &requests {
        let client = world.submit(request.clone());
        while !world.scheduler.is_idle() {
            world.step();
        }
        assert_eq!(client.answer().unwrap().choices, solo(request).choices);
    }
    settle(&mut world);
}

#[test]
fn a_corrupt_block_is_reported_differently_from_a_missing_one() {
    let dir = tempfile::tempdir().unwrap();
    let long = request(prompt(1, 300), 3);
    ask(&mut life(dir.path(), 0), &long);
    let payloads: Vec<_> = walk(dir.path()).into_iter().filter(|path| path.ends_with("payloads")).collect();
    for path in &payloads {
        let bytes: Vec<u8> = std::fs::read(path).unwrap().iter().map(|byte| byte ^ 1).collect();
        std::fs::write(path, bytes).unwrap();
    }
    assert!(!payloads.is_empty());
    let report = ask(&mut life(dir.path(), 0), &long).report;
    assert_eq!((report.cached_tokens, report.cache), (0, Some(StopReason::LoadFailed)));
}

#[test]
fn a_disk_slower_than_computing_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let requests: Vec<Request> = (0..3).map(|seed| request(prompt(seed, 200), 2)).collect();
    let mut world = life(dir.path(), 0);
    requests.iter().for_each(|request| drop(ask(&mut world, request)));
    drop(world);

    let mut world =
        life_on(dir.path(), 0, 192, EPOCH_S, |store| Box::new(Slow { store, late: VecDeque::new() }));
    ask(&mut world, &request(prompt(9, 200), 2));
    let first = ask(&mut world, &requests[0]).report;
    let second = ask(&mut world, &requests[1]).report;
    let reasons = [first.cache, second.cache];
    assert!(reasons.contains(&Some(StopReason::RecomputeWasCheaper)), "{reasons:?}");
    assert_eq!(second.loaded[Level::Disk], 0, "{second:?}");
}

/// A disk that takes 30 ms for everything.
struct Slow {
    store: Store,
    late: VecDeque<(Instant, Completed)>,
}

impl BlockStore for Slow {
    fn payload_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    fn buffer(&mut self) -> Option<Buffer> {
        self.store.buffer()
    }
    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer) {
        self.store.write(slot, record, payload);
    }
    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer) {
        self.store.read(ticket, slot, identity, into);
    }
    fn touch(&mut self, slot: SlotId, use_: Use) {
        self.store.touch(slot, use_);
    }
    fn pin(&mut self, slot: SlotId, pinned: bool) {
        self.store.pin(slot, pinned);
    }
    fn erase(&mut self, slot: SlotId) {
        self.store.erase(slot);
    }
    fn evict(&mut self, slot: SlotId) {
        self.store.evict(slot);
    }
    fn completed(&mut self) -> Option<Completed> {
        let due = Instant::now() + Duration::from_millis(30);
        self.late.extend(std::iter::from_fn(|| self.store.completed()).map(|completed| (due, completed)));
        let is_due = self.late.front().is_some_and(|(due, _)| *due <= Instant::now());
        is_due.then(|| self.late.pop_front()).flatten().map(|(_, completed)| completed)
    }
}

/// A disk that takes what it is given and never answers.
struct Hung {
    store: Store,
    taken: Vec<Buffer>,
}

impl BlockStore for Hung {
    fn payload_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    fn buffer(&mut self) -> Option<Buffer> {
        self.store.buffer()
    }
    fn write(&mut self, _slot: SlotId, _record: &Record, payload: Buffer) {
        self.taken.push(payload);
    }
    fn read(&mut self, _ticket: u64, _slot: SlotId, _identity: Identity, into: Buffer) {
        self.taken.push(into);
    }
    fn touch(&mut self, _slot: SlotId, _use: Use) {}
    fn pin(&mut self, _slot: SlotId, _pinned: bool) {}
    fn erase(&mut self, _slot: SlotId) {}
    fn evict(&mut self, _slot: SlotId) {}
    fn completed(&mut self) -> Option<Completed> {
        None
    }
}

#[test]
fn answers_go_on_while_the_disk_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let requests: Vec<Request> = (0..40).map(|seed| request(prompt(seed, 120), 4)).collect();
    let mut world = life(dir.path(), 0);
    ask(&mut world, &requests[0]);
    ask(&mut world, &requests[1]);
    settle(&mut world);
    drop(world);
    let hung = |store: Store| Box::new(Hung { store, taken: Vec::new() }) as Box<dyn BlockStore>;
    let mut world = life_on(dir.path(), 0, 192, EPOCH_S, hung);
    // The first two are on disk and are to be read; the others are to be written.
    let mut loads = 0;
    for _ in 0..2 {
        let clients: Vec<Client> = requests.iter().map(|request| world.submit(request.clone())).collect();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !clients.iter().all(|client| client.answer().is_some()) {
            world.step();
            loads = loads.max(world.scheduler.prefixes.disk_stats().unwrap().loads);
            assert!(Instant::now() < deadline, "answers wait for the disk");
        }
        for (client, request) in clients.iter().zip(&requests) {
            assert_eq!(client.answer().unwrap().choices, solo(request).choices);
        }
    }
    assert!(loads > 0, "somebody waited for a read");
}

#[test]
fn many_prompts_load_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let requests: Vec<Request> = (0..24).map(|seed| request(prompt(seed, 120), 4)).collect();
    let mut world = life(dir.path(), 0);
    let clients: Vec<Client> = requests.iter().map(|request| world.submit(request.clone())).collect();
    settle(&mut world);
    assert!(clients.iter().all(|client| client.answer().is_some()));
    drop(world);
    let mut world = life(dir.path(), 0);
    let clients: Vec<Client> = requests.iter().map(|request| world.submit(request.clone())).collect();
    settle(&mut world);
    for (client, request) in clients.iter().zip(&requests) {
        let answer = client.answer().unwrap();
        assert_eq!(answer.choices, solo(request).choices);
        assert_eq!(answer.report.cached_tokens, 119, "{:?}", answer.report);
    }
}
