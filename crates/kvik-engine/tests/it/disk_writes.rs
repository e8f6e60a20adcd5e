//! What reaches the disk under each write policy, when, and what the next start finds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvik_cache::Lifetime;
use kvik_cache::tier::{Level, WritePolicy};
use kvik_engine::api::Request;
use kvik_engine::schedule::disk::DiskWrites;

use crate::disk::{
    ask, life, life_at, life_that_writes, life_that_writes_beside, life_that_writes_by, machine_s, settle,
};
use crate::fake::*;

fn policy(policy: WritePolicy) -> DiskWrites {
    DiskWrites { policy, day_bytes_max: None }
}

/// Blocks on disk, and blocks that wait.
fn blocks(world: &World) -> (usize, usize) {
    let disk = world.scheduler.prefixes.disk_stats().unwrap();
    (disk.tier.used, disk.writes.waiting_blocks)
}

/// Answers a request and waits for the disk, where pinned blocks stay locked.
fn run(world: &mut World, request: &Request) {
    let client = world.submit(request.clone());
    while !world.scheduler.is_idle() || world.scheduler.unwritten_blocks() > 0 {
        world.step();
    }
    client.answer().expect("it is answered");
}

#[test]
fn ends_wait_in_ram_and_are_left_behind_for_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let conversation = request(prompt(1, 200), 1);
    let mut world = life_that_writes(dir.path(), policy(WritePolicy::Auto));
    ask(&mut world, &conversation);
    assert_eq!(blocks(&world), (0, 12), "the end waits");
    let longer = request([conversation.prompt.clone(), prompt(2, 40)].concat(), 1);
    ask(&mut world, &longer);
    assert_eq!(blocks(&world), (0, 15), "the later end replaces the one that it continues");
    world.scheduler.spill_for_next_start();
    settle(&mut world);
    assert_eq!(blocks(&world), (15, 0));
    drop(world);
    let report = ask(&mut life(dir.path(), 0), &longer).report;
    assert_eq!((report.cached_tokens, report.loaded[Level::Disk]), (239, 239), "{report:?}");
}

#[test]
fn a_kill_loses_only_what_has_not_been_written() {
    let dir = tempfile::tempdir().unwrap();
    let (system, asked) = (prompt(1, 96), |seed| request([prompt(1, 96), prompt(seed, 60)].concat(), 1));
    let mut world = life_that_writes(dir.path(), policy(WritePolicy::Auto));
    ask(&mut world, &asked(2));
    assert_eq!(blocks(&world).0, 0);
    ask(&mut world, &asked(3));
    assert_eq!(blocks(&world).0, 6, "two conversations begin with it");
    drop(world);
    let report = ask(&mut life(dir.path(), 0), &asked(2)).report;
    assert_eq!(
        (report.cached_tokens, report.loaded[Level::Disk]),
        (system.len(), system.len()),
        "{report:?}"
    );
}

#[test]
fn a_prompt_that_is_asked_again_is_written_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = life_that_writes(dir.path(), policy(WritePolicy::Auto));
    for written in [0, 12] {
        ask(&mut world, &request(prompt(1, 200), 1));
        assert_eq!(blocks(&world).0, written);
    }
}

#[test]
fn ends_are_written_before_they_leave_ram() {
    let dir = tempfile::tempdir().unwrap();
    // 400 blocks, of which 300 may wait.
    let requests: Vec<Request> = (0..3).map(|seed| request(prompt(seed, 1920), 1)).collect();
    let mut world = life_that_writes(dir.path(), policy(WritePolicy::Auto));
    for seed in 10..16 {
        ask(&mut world, &request(prompt(seed, 32), 1));
        ask(&mut world, &request([prompt(seed, 32), prompt(seed + 90, 32)].concat(), 1));
    }
    assert_eq!(blocks(&world), (0, 24), "first turns have gone on");
    for request in &requests {
        ask(&mut world, request);
        settle(&mut world);
    }
    assert_eq!(blocks(&world), (120, 240), "the oldest one is on disk");
}

#[test]
fn what_a_second_request_uses_is_written_under_reused() {
    let dir = tempfile::tempdir().unwrap();
    let twice = request(prompt(1, 200), 1);
    let mut world = life_that_writes(dir.path(), policy(WritePolicy::Reused));
    ask(&mut world, &twice);
    assert_eq!(blocks(&world), (0, 0));
    ask(&mut world, &twice);
    assert_eq!(blocks(&world), (12, 0));
    world.scheduler.spill_for_next_start();
    settle(&mut world);
    assert_eq!(blocks(&world), (12, 0), "nothing is left behind in addition");
}

#[test]
fn pinned_prompts_are_written_at_once_and_beyond_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let pinned = |seed| {
        let request = request(prompt(seed, 160), 1);
        let lifetime = Lifetime { pin: true, ..request.lifetime };
        Request { lifetime, ..request }
    };
    let mut world = life_that_writes(dir.path(), policy(WritePolicy::Auto));
    run(&mut world, &pinned(1));
    assert_eq!(blocks(&world).0, 10);
    drop(world);
    // What the first life has written uses up the budget of the day.
    let mut world =
        life_that_writes(dir.path(), DiskWrites { policy: WritePolicy::All, day_bytes_max: Some(1) });
    run(&mut world, &request(prompt(2, 160), 1));
    assert_eq!(blocks(&world).0, 10);
    run(&mut world, &pinned(3));
    assert_eq!(blocks(&world).0, 20);
}

/// As on a laptop that sleeps: the scheduler's clock stands still meanwhile.
#[test]
fn a_budget_begins_anew_on_another_day_of_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = life_that_writes(dir.path(), policy(WritePolicy::All));
    run(&mut world, &request(prompt(1, 160), 1));
    assert_eq!(blocks(&world).0, 10);
    drop(world);
    let (began_s, awake_s, asleep_s) =
        (machine_s(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (awake, asleep) = (awake_s.clone(), asleep_s.clone());
    let clock = Box::new(move || Duration::from_secs(awake.load(Ordering::Relaxed)));
    let wall = Box::new(move || began_s + asleep.load(Ordering::Relaxed));
    let writes = DiskWrites { policy: WritePolicy::All, day_bytes_max: Some(1) };
    let mut world = life_that_writes_beside(dir.path(), writes, (clock, wall));
    run(&mut world, &request(prompt(2, 160), 1));
    assert_eq!(blocks(&world).0, 10, "the budget of the day is spent");
    awake_s.store(2, Ordering::Relaxed);
    asleep_s.store(2 * 24 * 3600, Ordering::Relaxed);
    run(&mut world, &request(prompt(3, 160), 1));
    assert_eq!(blocks(&world).0, 20);
}

/// The time of day of the tier only goes forward: it would be another day for as long as the clock was ahead.
#[test]
fn a_clock_that_is_set_back_does_not_end_the_budget_of_the_day() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = life_that_writes(dir.path(), policy(WritePolicy::All));
    run(&mut world, &request(prompt(1, 160), 1));
    drop(world);
    let (began_s, ahead_s) = (machine_s(), Arc::new(AtomicU64::new(2 * 24 * 3600)));
    let ahead = ahead_s.clone();
    let wall = Box::new(move || began_s + ahead.load(Ordering::Relaxed));
    let writes = DiskWrites { policy: WritePolicy::All, day_bytes_max: Some(1) };
    let mut world = life_that_writes_beside(dir.path(), writes, (Box::new(|| Duration::ZERO), wall));
    world.step();
    ahead_s.store(0, Ordering::Relaxed);
    run(&mut world, &request(prompt(2, 160), 1));
    assert_eq!(blocks(&world).0, 10, "the budget of the day is spent");
    assert!(world.scheduler.prefixes.disk_stats().unwrap().writes.today_bytes > 0);
}

/// A copy to the disk is no use of what it copies, in RAM or on disk.
#[test]
fn what_is_written_late_lives_on_from_its_last_use() {
    let lasting = request(prompt(1, 200), 1);
    let lifetime = Lifetime { ttl: Some(Duration::from_secs(60)), ..lasting.lifetime };
    let first = Request { lifetime, ..lasting.clone() };
    for (asked_s, found) in [(50, 192), (70, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let (began_s, seconds) = (machine_s(), Arc::<AtomicU64>::default());
        let now = seconds.clone();
        let clock = Box::new(move || Duration::from_secs(now.load(Ordering::Relaxed)));
        let mut world = life_that_writes_by(dir.path(), policy(WritePolicy::Auto), clock);
        ask(&mut world, &first);
        seconds.store(40, Ordering::Relaxed);
        world.scheduler.spill_for_next_start();
        settle(&mut world);
        assert_eq!(blocks(&world), (12, 0));
        seconds.store(asked_s, Ordering::Relaxed);
        settle(&mut world);
        assert_eq!(world.scheduler.cache().stats().tokens > 0, found > 0, "in RAM after {asked_s} s");
        drop(world);
        let report = ask(&mut life_at(dir.path(), 0, began_s + asked_s), &lasting).report;
        assert_eq!(report.loaded[Level::Disk], found, "{report:?}");
    }
}

/// A block that is written by a later user lives on disk as long as its first user asked.
#[test]
fn what_a_passing_request_writes_lives_as_long_as_others_want_it() {
    let lasting = request(prompt(1, 200), 1);
    let lifetime = Lifetime { ttl: Some(Duration::from_secs(1)), ..lasting.lifetime };
    let passing = Request { lifetime, ..lasting.clone() };
    for (first, found) in [(&lasting, 192), (&passing, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let mut world = life_that_writes(dir.path(), policy(WritePolicy::Reused));
        ask(&mut world, first);
        ask(&mut world, &passing);
        assert_eq!(blocks(&world), (12, 0));
        drop(world);
        let report = ask(&mut life_at(dir.path(), 0, machine_s() + 60), &lasting).report;
        assert_eq!(report.loaded[Level::Disk], found, "{report:?}");
    }
}
