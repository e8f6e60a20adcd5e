//! The scheduler with a store that nodes share: what one has computed, the others reuse to the exact token, and whatever
//! becomes of the store, answers equal those of an engine without it and nobody waits long for it.

use std::time::Duration;

use crate::fake::memory_disk::{EPOCH_S, MemoryDisk};
use crate::fake::memory_remote::{MemoryRemote, Node, RemoteState};
use crate::fake::*;
use kvik_cache::tier::Level;
use kvik_cache::{Lifetime, StopReason, Token};
use kvik_engine::api::{Report, Request};
use kvik_engine::engine::{Attached, Engine};
use kvik_engine::schedule::disk::{DiskSetup, RemoteWrites};

/// A fleet of nodes, each with a clock and a disk of its own.
#[derive(Default)]
struct Fleet {
    remote: MemoryRemote,
    has_disk: bool,
    writes: RemoteWrites,
}

struct FleetNode {
    world: World,
    disk: MemoryDisk,
}

impl Fleet {
    fn node(&self) -> FleetNode {
        self.node_with(400)
    }

    fn node_with(&self, blocks: usize) -> FleetNode {
        let disk = MemoryDisk::default();
        let node = Node { disk: &disk, has_disk: self.has_disk, writes: self.writes };
        FleetNode { world: self.remote.node(&node, config(), blocks), disk }
    }
}

impl FleetNode {
    /// Asks, and lets time pass until all that can be shared is.
    fn ask(&mut self, request: &Request) -> Report {
        let client = self.world.submit(request.clone());
        self.settle();
        let answer = client.answer().expect("it is answered");
        assert_eq!(answer.choices, solo(request).choices, "an answer never depends on what is reused");
        answer.report
    }

    /// Asks the same prompt twice: what is used again is worth sharing.
    fn use_twice(&mut self, prompt: &[Token]) {
        for _ in 0..2 {
            self.ask(&request(prompt.to_vec(), 2));
        }
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.world.step();
            let writing = self.world.scheduler.prefixes.remote_stats().unwrap().writing_blocks;
            if self.world.scheduler.is_idle() && writing == 0 {
                return self.world.check_idle();
            }
            self.disk.pass(Duration::from_millis(1));
        }
        panic!("it never comes to rest");
    }
}

fn joined(parts: &[&[Token]]) -> Vec<Token> {
    parts.concat()
}

#[test]
fn what_one_node_has_used_twice_another_reuses_to_the_exact_token() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 209);
    a.ask(&request(long.clone(), 4));
    assert!(fleet.remote.state().values.is_empty(), "nobody has come back to it");
    a.ask(&request(long.clone(), 4));
    let report = b.ask(&request(long.clone(), 4));
    assert_eq!((report.cached_tokens, report.loaded[Level::Remote], report.computed_tokens), (208, 208, 1));
    let again = b.ask(&request(long, 4));
    assert_eq!((again.cached_tokens, again.loaded[Level::Remote]), (208, 0), "now it is in RAM");
}

#[test]
fn the_beginning_that_two_prompts_share_is_what_others_find() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let system = prompt(1, 13 * 16 + 5);
    for user in 0..2 {
        a.ask(&request(joined(&[&system, &prompt(10 + user, 40)]), 4));
    }
    let report = b.ask(&request(joined(&[&system, &prompt(20, 40)]), 4));
    assert_eq!((report.cached_tokens, report.loaded[Level::Remote]), (13 * 16, 13 * 16), "whole blocks");
    assert_eq!(report.cache, Some(StopReason::FirstSeen));
}

#[test]
fn a_node_that_shares_all_offers_what_nobody_has_come_back_to() {
    let fleet = Fleet { writes: RemoteWrites::All, ..Fleet::default() };
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 100);
    a.ask(&request(long.clone(), 30));
    let report = b.ask(&request(long, 2));
    assert_eq!((report.cached_tokens, report.loaded[Level::Remote]), (96, 96));
}

#[test]
fn what_is_on_disk_is_not_fetched_and_what_comes_after_it_is() {
    let fleet = Fleet { has_disk: true, ..Fleet::default() };
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let (begin, long) = (prompt(1, 96), prompt(1, 400));
    b.ask(&request(begin.clone(), 2));
    a.use_twice(&long);
    let node = Node { disk: &b.disk, has_disk: true, writes: RemoteWrites::Reused };
    let mut again = FleetNode { world: fleet.remote.node(&node, config(), 400), disk: b.disk.clone() };
    let report = again.ask(&request(long, 2));
    assert_eq!(
        (report.cached_tokens, report.loaded[Level::Disk], report.loaded[Level::Remote]),
        (399 - 399 % 16, 96, 288)
    );
}

#[test]
fn a_store_that_is_down_is_not_waited_for_and_the_miss_says_so() {
    let fleet = Fleet::default();
    let mut a = fleet.node();
    fleet.remote.state().down = true;
    let report = a.ask(&request(prompt(1, 100), 2));
    assert_eq!((report.cached_tokens, report.cache), (0, Some(StopReason::RemoteDown)));
    assert_eq!((report.queued, fleet.remote.state().lookups), (Duration::ZERO, 0));
}

/// The beginning is on disk for ever, and what continued it was until a minute ago. Other nodes may still have that.
#[test]
fn what_has_expired_on_disk_says_less_than_the_store() {
    type Store = (bool, fn(&mut RemoteState));
    let stores: [(Store, StopReason); 3] = [
        ((false, |_| {}), StopReason::Expired),
        ((false, |state| state.down = true), StopReason::RemoteDown),
        ((true, |state| state.block = Duration::from_millis(17)), StopReason::RemoteSlower),
    ];
    for ((has_it, change), expected) in stores {
        let fleet = Fleet { has_disk: true, ..Fleet::default() };
        let (mut a, mut b) = (fleet.node(), fleet.node());
        let (begin, long) = (prompt(1, 96), prompt(1, 209));
        let lifetime = Lifetime { ttl: Some(Duration::from_secs(60)), ..Lifetime::default() };
        b.ask(&request(begin, 2));
        b.ask(&Request { lifetime, ..request(long.clone(), 2) });
        (0..20).for_each(|_| b.world.step());
        b.disk.pass(Duration::from_secs(61));
        if has_it {
            a.use_twice(&long);
        }
        let node = Node { disk: &b.disk, has_disk: true, writes: RemoteWrites::Reused };
        let mut again = FleetNode { world: fleet.remote.node(&node, config(), 400), disk: b.disk.clone() };
        // What computing takes is known.
        again.ask(&request(prompt(2, 400), 2));
        change(&mut fleet.remote.state());
        let report = again.ask(&request(long, 2));
        assert_eq!((report.cached_tokens, report.cache), (96, Some(expected)));
    }
}

#[test]
fn a_lookup_that_does_not_return_costs_a_few_round_trips() {
    let fleet = Fleet::default();
    let mut a = fleet.node();
    fleet.remote.state().stops = true;
    let report = a.ask(&request(prompt(1, 100), 2));
    assert_eq!((report.cached_tokens, report.cache), (0, Some(StopReason::RemoteDown)));
    assert!(report.queued <= Duration::from_millis(14), "{report:?}");
    assert_eq!(fleet.remote.state().late, 1, "the store is told");
}

#[test]
fn a_fetch_that_does_not_return_costs_a_small_part_of_computing() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 400);
    // What computing takes is known.
    b.ask(&request(prompt(2, 400), 2));
    a.use_twice(&long);
    fleet.remote.state().fetches_stop = true;
    let report = b.ask(&request(long, 2));
    assert_eq!((report.cached_tokens, report.cache), (0, Some(StopReason::RemoteFailed)));
    assert!(report.queued <= Duration::from_millis(30), "{:?} for 400 ms of computing", report.queued);
    assert_eq!(fleet.remote.state().late, 1, "the store is told");
}

#[test]
fn what_comes_before_a_hole_is_used() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 209);
    a.use_twice(&long);
    let chain: Vec<_> = {
        let state = fleet.remote.state();
        assert_eq!(state.values.len(), 4, "12 blocks and one");
        state.values.keys().copied().collect()
    };
    let longest = |bytes: usize| bytes == 4 * BLOCK_BYTES;
    let hole = chain.iter().rev().find(|key| longest(fleet.remote.state().values[key].len())).unwrap();
    fleet.remote.state().values.remove(hole);
    let report = b.ask(&request(long, 2));
    assert!([0, 64, 128].contains(&report.cached_tokens), "{report:?}");
    assert_eq!(
        (report.loaded[Level::Remote], report.cache),
        (report.cached_tokens, Some(StopReason::RemoteFailed))
    );
}

#[test]
fn computing_what_is_faster_to_compute_is_said_to_be_why() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 209);
    b.ask(&request(prompt(2, 400), 2));
    a.use_twice(&long);
    fleet.remote.state().block = Duration::from_millis(17);
    let report = b.ask(&request(long.clone(), 2));
    assert_eq!((report.cached_tokens, report.cache), (0, Some(StopReason::RemoteSlower)));
    let mut c = fleet.node();
    c.ask(&request(prompt(2, 400), 2));
    fleet.remote.state().block = Duration::from_millis(1);
    assert_eq!(c.ask(&request(long, 2)).loaded[Level::Remote], 208);
}

/// Otherwise one that was slow for an hour would say so for ever: who reads nothing measures nothing.
#[test]
fn a_store_that_is_too_slow_to_be_asked_or_to_be_read_hears_of_it() {
    let fleet = Fleet::default();
    let long = prompt(1, 209);
    fleet.node().use_twice(&long);
    for (block, expect) in [
        (Duration::from_millis(1), (208, 1, 0)),
        (Duration::from_millis(17), (0, 1, 1)),
        (Duration::from_secs(1), (0, 0, 1)),
    ] {
        let mut node = fleet.node();
        // What computing takes is known.
        node.ask(&request(prompt(2, 400), 2));
        let before = {
            let mut state = fleet.remote.state();
            state.block = block;
            (state.lookups, state.too_slow)
        };
        let report = node.ask(&request(long.clone(), 2));
        fleet.remote.state().block = Duration::ZERO;
        let state = fleet.remote.state();
        let (lookups, told) = (state.lookups - before.0, state.too_slow - before.1);
        assert_eq!((report.cached_tokens, lookups, told), expect, "{block:?}");
    }
}

#[test]
fn who_shares_with_nobody_shares_with_no_node() {
    let fleet = Fleet { writes: RemoteWrites::All, ..Fleet::default() };
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 100);
    let private = Request { reuse: false, ..request(long.clone(), 2) };
    let salted = Request { salt: [7; 16], ..request(long.clone(), 2) };
    a.ask(&private);
    assert!(fleet.remote.state().values.is_empty());
    a.ask(&salted);
    assert_eq!(b.ask(&request(long.clone(), 2)).cached_tokens, 0, "another tenant");
    assert_eq!(b.ask(&private).cached_tokens, 0);
    assert_eq!(fleet.node().ask(&salted).loaded[Level::Remote], 96, "the same tenant elsewhere");
}

#[test]
fn a_prompt_that_is_dropped_before_it_was_offered_is_not() {
    let fleet = Fleet { writes: RemoteWrites::All, ..Fleet::default() };
    let mut a = fleet.node();
    let long = prompt(1, 4096 - 200);
    let client = a.world.submit(request(long.clone(), 1));
    while !a.world.scheduler.is_idle() {
        a.world.step();
    }
    assert!(client.has_ended());
    let before = fleet.remote.state().values.len();
    a.world.scheduler.evict(&long, [0; 16]);
    a.settle();
    assert_eq!(fleet.remote.state().values.len(), before);
}

#[test]
fn blocks_that_are_held_to_be_offered_give_way_to_those_who_need_room() {
    let fleet = Fleet { writes: RemoteWrites::All, ..Fleet::default() };
    let mut a = fleet.node_with(40);
    for seed in 0..6 {
        a.ask(&request(prompt(seed, 500), 2));
    }
    assert!(a.world.scheduler.prefixes.remote_stats().unwrap().written_blocks > 0);
}

#[test]
fn a_prefix_that_is_longer_than_what_may_wait_is_written_whole() {
    let fleet = Fleet { writes: RemoteWrites::All, ..Fleet::default() };
    let (mut a, mut b) = (fleet.node(), fleet.node());
    fleet.remote.state().room = Some(0);
    let long = prompt(1, 800);
    let client = a.world.submit(request(long.clone(), 1));
    for _ in 0..2000 {
        // The store takes a run every now and then.
        let room = fleet.remote.state().room;
        fleet.remote.state().room = room.map(|room| if room < 4 { room + 1 } else { room });
        a.disk.pass(Duration::from_millis(500));
        a.world.step();
    }
    a.world.check_idle();
    assert!(client.has_ended());
    // The run of the last two blocks is named by one that the question does not have as a whole.
    assert_eq!(b.ask(&request(long, 1)).loaded[Level::Remote], 768);
}

#[test]
fn what_was_fetched_and_is_not_used_does_not_stay_for_ever() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let brief = |ttl_s| Request {
        lifetime: Lifetime { ttl: Some(Duration::from_secs(ttl_s)), ..Lifetime::default() },
        ..request(prompt(1, 209), 2)
    };
    for _ in 0..2 {
        a.ask(&brief(60));
    }
    assert_eq!(b.ask(&brief(60)).loaded[Level::Remote], 208);
    b.disk.pass(Duration::from_secs(61));
    b.world.step();
    assert_eq!(b.world.scheduler.cache().stats().shared, 0, "as long as its request wants");
}

/// The simulator found it: the copy for other nodes asked for no time to live, so the blocks that the disk took after it
/// were there for ever, and the first ones expired under them.
#[test]
fn what_is_offered_while_the_disk_is_slow_lives_as_long_as_was_asked() {
    let fleet = Fleet { has_disk: true, writes: RemoteWrites::All, ..Fleet::default() };
    let mut node = fleet.node();
    node.disk.state().writes_stop = true;
    let client = node.world.submit(Request {
        lifetime: Lifetime { ttl: Some(Duration::from_secs(60)), ..Lifetime::default() },
        ..request(prompt(1, 70 * 16), 2)
    });
    (0..3).for_each(|_| node.world.step());
    node.disk.pass(Duration::from_secs(5));
    (0..60).for_each(|_| node.world.step());
    assert!(client.answer().is_some() && node.world.scheduler.unwritten_blocks() > 0);
    node.disk.state().writes_stop = false;
    let mut steps = 0..1000;
    while node.world.scheduler.unwritten_blocks() > 0 {
        steps.next().expect("the disk takes them");
        node.world.step();
    }
    let ends_s: Vec<u64> =
        node.disk.state().blocks.values().map(|(record, _)| record.use_.expires_s).collect();
    assert!(ends_s.len() >= 70 && ends_s.iter().all(|&end_s| end_s >= EPOCH_S + 65), "{ends_s:?}");
    node.disk.pass(Duration::from_secs(120));
    (0..5).for_each(|_| node.world.step());
    let in_ram = node.world.scheduler.cache().stats().shared;
    assert_eq!((in_ram, node.disk.state().blocks.len()), (0, 0));
}

#[test]
fn many_who_want_the_same_fetch_it_once() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 209);
    a.use_twice(&long);
    let clients: Vec<Client> = (0..8).map(|_| b.world.submit(request(long.clone(), 2))).collect();
    b.settle();
    for client in clients {
        let answer = client.answer().unwrap();
        assert_eq!(answer.choices, solo(&request(long.clone(), 2)).choices);
        assert_eq!(answer.report.cached_tokens, 208);
    }
    assert_eq!(
        b.world.rows(),
        8 * 2 - 8 + 8,
        "one row for the end of each prompt and one for each token after"
    );
}

/// A node with a thread of its own.
fn engine(fleet: &Fleet) -> Engine {
    let remote = Some(fleet.remote.setup(RemoteWrites::Reused));
    let disk = Some(DiskSetup { remote, ..DiskSetup::none() });
    let runner = FakeRunner::new(400, config().batch_rows_max());
    let attached = Attached { disk, ..Attached::default() };
    Engine::start_with(Box::new(runner), vocabulary(), cache_config(400), config(), attached).unwrap()
}

#[test]
fn what_a_node_leaves_behind_another_begins_with() {
    let fleet = Fleet::default();
    let (a, b) = (engine(&fleet), engine(&fleet));
    let prompts: Vec<Vec<Token>> = (0..20).map(|seed| prompt(seed, 209)).collect();
    for long in &prompts {
        a.generate(request(long.clone(), 2)).unwrap();
    }
    assert!(fleet.remote.state().values.is_empty());
    let hot = a.hottest(100).unwrap();
    assert!(a.share(&hot, Duration::from_secs(20)).unwrap());
    a.shutdown(Duration::ZERO);
    assert!(b.warm(hot, Duration::from_secs(20)).unwrap());
    let lookups = fleet.remote.state().lookups;
    for long in &prompts {
        let report = b.generate(request(long.clone(), 2)).unwrap().report;
        assert_eq!(
            (report.cached_tokens, report.loaded[Level::Remote]),
            (208, 0),
            "it was there before it was asked for"
        );
    }
    assert_eq!(fleet.remote.state().lookups, lookups);
    b.shutdown(Duration::ZERO);
}

#[test]
fn a_list_of_what_is_used_has_nothing_with_a_time_to_live() {
    let node = engine(&Fleet::default());
    let mut passing = request(prompt(1, 209), 2);
    passing.lifetime.ttl = Some(Duration::from_secs(3600));
    node.generate(passing).unwrap();
    node.generate(request(prompt(2, 209), 2)).unwrap();
    let hot = node.hottest(100).unwrap();
    assert_eq!(hot.len(), 1, "{hot:?}");
    assert_eq!(hot[0].tokens[..208], prompt(2, 209)[..208]);
    node.shutdown(Duration::ZERO);
}

#[test]
fn a_node_that_is_to_go_or_to_begin_waits_no_longer_than_it_may() {
    let fleet = Fleet::default();
    let (a, b) = (engine(&fleet), engine(&fleet));
    a.generate(request(prompt(1, 209), 2)).unwrap();
    let hot = a.hottest(100).unwrap();
    fleet.remote.state().stops = true;
    fleet.remote.state().block = Duration::from_millis(10);
    assert!(!b.warm(hot.clone(), Duration::from_millis(30)).unwrap());
    let report = b.generate(request(prompt(1, 209), 2)).unwrap().report;
    assert_eq!(report.cached_tokens, 0);
    fleet.remote.state().down = true;
    assert!(a.share(&hot, Duration::from_millis(30)).unwrap(), "nothing is wanted by one that is down");
    assert!(b.warm(hot, Duration::from_secs(20)).unwrap(), "there is nothing to wait for");
    a.shutdown(Duration::ZERO);
    b.shutdown(Duration::ZERO);
}

/// The store had been asked about the prompt, and its answer was taken for one about what a policy keeps of the prompt.
#[test]
fn what_a_policy_keeps_of_a_prefix_is_not_fetched() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 240);
    a.use_twice(&long);
    let forgetful = Request {
        retention: Some("keydiff:0.5".parse().unwrap()),
        kept_prefix: Some(208),
        ..request(long, 2)
    };
    let report = b.ask(&forgetful);
    assert_eq!((report.loaded[Level::Remote], fleet.remote.state().fetches), (192, 1), "{report:?}");
}

#[test]
fn a_fetch_that_makes_way_is_not_said_to_have_failed() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node_with(20));
    let long = prompt(1, 209);
    a.use_twice(&long);
    fleet.remote.state().fetches_stop = true;
    let waits = b.world.submit(request(long, 2));
    (0..3).for_each(|_| b.world.step());
    assert_eq!(fleet.remote.state().fetches, 1);
    fleet.remote.state().down = true;
    let other = b.world.submit(request(prompt(2, 250), 2));
    b.settle();
    assert!(other.has_ended());
    assert_eq!(waits.answer().unwrap().report.cache, Some(StopReason::RecomputeWasCheaper));
    assert_eq!(fleet.remote.state().late, 0, "and nobody has waited too long");
}

#[test]
fn a_disk_that_is_late_is_not_taken_for_a_store_that_failed() {
    let fleet = Fleet { has_disk: true, ..Fleet::default() };
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let (begin, long) = (prompt(1, 96), prompt(1, 209));
    b.ask(&request(begin, 2));
    a.use_twice(&long);
    let node = Node { disk: &b.disk, has_disk: true, writes: RemoteWrites::Reused };
    let mut again = FleetNode { world: fleet.remote.node(&node, config(), 400), disk: b.disk.clone() };
    b.disk.state().reads_stop = true;
    let client = again.world.submit(request(long, 2));
    for _ in 0..5_000 {
        again.world.step();
        b.disk.pass(Duration::from_millis(1));
    }
    assert_eq!(fleet.remote.state().fetches, 1);
    let report = client.answer().unwrap().report;
    assert_eq!((report.cached_tokens, report.cache), (0, Some(StopReason::RecomputeWasCheaper)));
    b.disk.state().reads_stop = false;
    again.settle();
}

/// It had to be read still when the store had failed, and was then left on disk.
#[test]
fn what_is_on_disk_is_read_though_the_store_fails() {
    let fleet = Fleet { has_disk: true, ..Fleet::default() };
    let (mut a, mut b) = (fleet.node(), fleet.node());
    // As many blocks as there are buffers to read into, but one.
    let (begin, long, other) = (prompt(1, 96), prompt(1, 209), prompt(2, 4090));
    b.ask(&request(begin, 2));
    b.ask(&request(other.clone(), 2));
    a.use_twice(&long);
    fleet.remote.state().values.retain(|_, bytes| bytes.len() == BLOCK_BYTES);
    let node = Node { disk: &b.disk, has_disk: true, writes: RemoteWrites::Reused };
    let mut again = FleetNode { world: fleet.remote.node(&node, config(), 400), disk: b.disk.clone() };
    b.disk.state().reads_stop = true;
    let first = again.world.submit(request(other, 2));
    (0..3).for_each(|_| again.world.step());
    let client = again.world.submit(request(long, 2));
    (0..3).for_each(|_| again.world.step());
    assert_eq!(fleet.remote.state().fetches, 1);
    b.disk.state().reads_stop = false;
    again.settle();
    assert!(first.has_ended());
    let report = client.answer().unwrap().report;
    assert_eq!((report.cached_tokens, report.loaded[Level::Disk], report.loaded[Level::Remote]), (96, 96, 0));
    assert_eq!(report.cache, Some(StopReason::RemoteFailed));
}

#[test]
fn what_another_request_computed_meanwhile_is_not_said_to_be_from_other_nodes() {
    let fleet = Fleet::default();
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 209);
    a.use_twice(&long);
    fleet.remote.state().fetches_stop = true;
    let waits = b.world.submit(request(long.clone(), 2));
    (0..3).for_each(|_| b.world.step());
    fleet.remote.state().down = true;
    let other = b.world.submit(request(long, 2));
    b.settle();
    assert!(other.has_ended());
    let report = waits.answer().unwrap().report;
    assert!(report.cached_tokens > 0, "{report:?}");
    assert_eq!((report.loaded[Level::Remote], report.cache), (0, Some(StopReason::RemoteFailed)));
}

#[test]
fn who_waits_for_less_gives_up_earlier_and_blames_nobody() {
    let fleet = Fleet::default();
    fleet.remote.state().run_max = 1;
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let long = prompt(1, 400);
    // What computing takes is known.
    b.ask(&request(prompt(2, 400), 2));
    a.use_twice(&long);
    fleet.remote.state().fetches_stop = true;
    let first = b.world.submit(request(long.clone(), 2));
    b.world.step();
    let second = b.world.submit(request(long[..17].to_vec(), 2));
    b.settle();
    let [first, second] = [first, second].map(|client| client.answer().unwrap().report);
    assert_eq!((first.cache, fleet.remote.state().fetches), (Some(StopReason::RemoteFailed), 1));
    assert!(second.queued < first.queued, "{second:?}");
    assert_eq!(second.cache, Some(StopReason::RecomputeWasCheaper), "the store is not late yet");
}

#[test]
fn what_another_request_reads_from_disk_is_not_said_to_be_from_other_nodes() {
    let fleet = Fleet { has_disk: true, ..Fleet::default() };
    let (mut a, mut b) = (fleet.node(), fleet.node());
    let (long, other) = (prompt(1, 209), prompt(2, 97));
    b.ask(&request(long.clone(), 2));
    b.ask(&request(other.clone(), 2));
    a.use_twice(&long);
    let node = Node { disk: &b.disk, has_disk: true, writes: RemoteWrites::Reused };
    let mut again = FleetNode { world: fleet.remote.node(&node, config(), 400), disk: b.disk.clone() };
    // What computing takes is known, and then that the disk is slow: the shorter one is given up.
    again.ask(&request(prompt(3, 100), 2));
    b.disk.state().reads_stop = true;
    let first = again.world.submit(request(long, 2));
    let slow = again.world.submit(request(other, 2));
    while again.world.scheduler.running() == 0 {
        b.disk.pass(Duration::from_millis(1));
        again.world.step();
    }
    // The store is asked, as there might be more of it.
    let second = again.world.submit(request(prompt(1, 230), 2));
    (0..3).for_each(|_| again.world.step());
    b.disk.state().reads_stop = false;
    again.settle();
    let [first, slow, second] = [first, slow, second].map(|client| client.answer().unwrap().report);
    assert_eq!((slow.cache, first.loaded[Level::Disk]), (Some(StopReason::RecomputeWasCheaper), 208));
    assert_eq!(
        (second.loaded[Level::Disk], second.loaded[Level::Remote], fleet.remote.state().fetches),
        (208, 0, 0)
    );
}
