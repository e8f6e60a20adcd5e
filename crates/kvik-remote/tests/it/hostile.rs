//! A store that does its worst: a node gets what was written, or nothing, and goes on.

use crate::common;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Node, Store, chain, check, config, random};
use kvik_engine::store::remote::{Chain, RemoteDone, RemoteStore};
use kvik_remote::backend::memory::Memory;
use kvik_remote::records::RecordError;
use kvik_remote::{DEADLINE_MIN, Fault, RemoteConfig};
use proptest::prelude::*;

/// What is done with one value that is read.
#[derive(Debug, Clone)]
enum Trick {
    Nothing,
    Flip(prop::sample::Index),
    Cut(prop::sample::Index),
    Extend,
    Other(prop::sample::Index),
    Hide,
    Invent,
}

fn tricks() -> impl Strategy<Value = Vec<Trick>> {
    let index = any::<prop::sample::Index>;
    let trick = prop_oneof![
        3 => Just(Trick::Nothing),
        1 => index().prop_map(Trick::Flip),
        1 => index().prop_map(Trick::Cut),
        1 => Just(Trick::Extend),
        2 => index().prop_map(Trick::Other),
        1 => Just(Trick::Hide),
        1 => Just(Trick::Invent),
    ];
    prop::collection::vec(trick, 1..20)
}

fn node(memory: &Arc<Memory>) -> Node {
    node_of(memory, config("file:///memory", 1))
}

fn node_of(memory: &Arc<Memory>, config: RemoteConfig) -> Node {
    let node = Node::over(Arc::clone(memory) as _, config);
    node.until_up();
    node
}

fn memory() -> Arc<Memory> {
    Arc::new(Memory::new(400_000, 4096))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn never_a_wrong_byte(tricks in tricks(), other_key in any::<bool>()) {
        let memory = memory();
        let mut node = node(&memory);
        let prompts = [chain(1, 1, 13), chain(2, 1, 13), chain(1, 2, 13)];
        prompts.iter().for_each(|prompt| node.write(prompt, 13, None));
        if other_key {
            // Values of another fleet that was given the same store.
            let mut stranger = Node::over(Arc::clone(&memory) as _, config("file:///memory", 2));
            stranger.until_up();
            stranger.write(&prompts[0], 13, None);
        }
        let stored = memory.values();
        let mut queue = tricks.clone().into_iter().cycle();
        memory.set_tamper(move |_, value| match (queue.next().unwrap(), value) {
            (Trick::Nothing, value) => value,
            (Trick::Flip(at), Some(mut value)) => {
                let bit = at.index(value.len() * 8);
                value[bit / 8] ^= 1 << (bit % 8);
                Some(value)
            }
            (Trick::Cut(at), Some(value)) => Some(value[..at.index(value.len())].to_vec()),
            (Trick::Extend, Some(value)) => Some([value, vec![0; 16]].concat()),
            (Trick::Other(which), _) => Some(stored[which.index(stored.len())].1.clone()),
            (Trick::Invent, _) => Some(vec![0; 100_056]),
            (_, None) | (Trick::Hide, _) => None,
        });
        for prompt in &prompts {
            node.look_up(prompt);
            let fetched = node.fetch(prompt, 0..13);
            check(prompt, &fetched);
            prop_assert!(fetched.failed || fetched.blocks.len() == 13);
        }
        let stats = node.remote.stats();
        prop_assert!(stats.is_up || stats.corrupt >= 3, "{:?}", stats);
    }
}

#[test]
fn three_corrupt_values_end_asking_and_a_probe_begins_it_again() {
    let memory = memory();
    let mut node = node(&memory);
    let prompt = chain(1, 1, 4);
    node.write(&prompt, 4, None);
    memory.set_tamper(|_, value| {
        value.map(|mut value| {
            *value.last_mut().unwrap() ^= 1;
            value
        })
    });
    for corrupt in 1..=3 {
        assert!(node.fetch(&prompt, 0..4).failed);
        assert_eq!(node.remote.stats().corrupt, corrupt);
    }
    assert_eq!(node.remote.expected(), None);
    let asked = memory.requests();
    assert_eq!(node.look_up(&prompt), 0);
    assert!(node.fetch(&prompt, 0..4).failed && !node.remote.wants(1, &prompt.blocks[0], 1, None));
    assert!(memory.requests() <= asked + 8, "only probes ask");
    memory.set_honest();
    node.until_up();
    assert!(!node.fetch(&prompt, 0..4).failed);
}

#[test]
fn a_store_that_hangs_costs_a_request_a_moment_and_the_next_nothing() {
    let memory = memory();
    let mut node =
        node_of(&memory, RemoteConfig { deadline_min: DEADLINE_MIN, ..config("file:///memory", 1) });
    let prompt = chain(1, 1, 4);
    node.write(&prompt, 4, None);
    memory.set_delay(Duration::from_secs(60));
    let start = std::time::Instant::now();
    assert_eq!(node.look_up(&prompt), 0);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!((node.remote.expected(), node.remote.stats().faults), (None, 1));
    assert!(node.fetch(&prompt, 0..4).failed);
    node.remote.offer(1, prompt.blocks[0], common::bytes_of(&prompt, 0..1), None);
    assert_eq!(node.remote.stats().dropped_blocks, 1);
    // Records have a health of their own: the store is asked once, and then rests.
    let records = node.remote.records();
    assert!(matches!(records.get("kind", "name"), Err(RecordError::Fault(_))));
    assert_eq!(records.get("kind", "name"), Err(RecordError::Down));
}

#[test]
fn requests_given_up_late_twice_end_asking() {
    let memory = memory();
    let mut node = node(&memory);
    let prompt = chain(1, 1, 4);
    memory.set_delay(Duration::from_secs(60));
    for ticket in [101, 102] {
        assert!(node.remote.expected().is_some());
        node.remote.look_up(ticket, prompt.clone());
        node.remote.cancel(ticket, true);
        node.remote.cancel(ticket, true);
    }
    assert_eq!(node.remote.expected(), None);
    assert_eq!(node.remote.stats().faults, 2, "a ticket is given up once");
    memory.set_delay(Duration::ZERO);
    node.until_up();
    assert!(node.remote.done().is_none(), "nobody waits for what was given up");
    assert_eq!(node.look_up(&prompt), 0);
}

#[test]
fn a_full_store_is_read_and_not_written() {
    let memory = memory();
    let mut node = node(&memory);
    let (here, there) = (chain(1, 1, 4), chain(1, 2, 4));
    node.write(&here, 4, None);
    memory.set_write_fault(Some(Fault::Full("no room".to_owned())));
    node.write(&there, 4, None);
    assert_eq!(node.remote.stats().dropped_blocks, 4);
    assert!(!node.remote.wants(1, &there.blocks[3], 4, None) && node.remote.expected().is_some());
    assert!(!node.fetch(&here, 0..4).failed);
}

#[test]
fn what_is_deleted_while_it_waits_to_be_written_is_not_there_behind_its_deletion() {
    let memory = memory();
    let mut node = node(&memory);
    let (gone, stays) = (chain(1, 1, 12), chain(1, 2, 4));
    let asked = memory.requests();
    memory.set_holds_writes(true);
    node.offer(&gone, 12, None);
    node.offer(&stays, 4, None);
    // Two of the three runs are asked for and then being sent, and the third one waits.
    node.until(|_| memory.requests() == asked + 2);
    node.remote.forget(gone.owner, &gone.blocks);
    node.until(|remote| memory.requests() == asked + 3 && remote.forgetting() <= 3);
    assert_eq!((node.remote.forgetting(), memory.values().len()), (3, 0), "those that may still be written");
    memory.set_holds_writes(false);
    node.until(|remote| remote.forgetting() == 0);
    node.until(|remote| remote.stats().writing_blocks == 0);
    assert_eq!(node.look_up(&gone), 0);
    assert_eq!(memory.values().len(), 1, "what was not deleted");
    assert_eq!(node.look_up(&stays), 4);
    assert_eq!((node.remote.stats().written_blocks, node.remote.stats().dropped_blocks), (12, 4));
    assert!(node.remote.wants(1, &gone.blocks[3], 4, None), "it may be written again");
}

#[test]
fn a_hole_ends_a_fetch_and_is_no_fault() {
    let memory = Arc::new(Memory::new(100_000, 4096));
    let mut node = node(&memory);
    let prompt = chain(1, 1, 9);
    node.write(&prompt, 9, None);
    let mut nth = 0;
    memory.set_tamper(move |_, value| {
        nth += 1;
        value.filter(|_| nth != 5)
    });
    let fetched = node.fetch(&prompt, 0..9);
    check(&prompt, &fetched);
    assert!(fetched.failed);
    assert_eq!(fetched.blocks.iter().map(|(nth, _)| *nth).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((node.remote.stats().faults, node.remote.stats().corrupt), (0, 0));
    assert!(node.remote.wants(1, &prompt.blocks[4], 1, None), "what is missing may be written again");
}

#[test]
fn what_the_engine_does_not_take_bounds_what_is_read() {
    let memory = memory();
    let mut node = node(&memory);
    // 100 MB, which is more than may wait.
    let written = chain(1, 3, 1000);
    (1..=10).for_each(|part| node.write(&written, 100 * part, None));
    node.remote.fetch(1, written.clone(), 0..1000);
    node.until(|remote| remote.stats().read_blocks * 100_000 > 60 << 20);
    std::thread::sleep(Duration::from_millis(200));
    assert!(node.remote.stats().read_blocks * 100_000 <= 64 << 20);
    let mut next = 0;
    loop {
        match node.next() {
            RemoteDone::Read { first, bytes, .. } => {
                assert_eq!(first, next);
                next += bytes.len() / 100_000;
            }
            RemoteDone::Ended { failed, .. } => break assert!(!failed),
            RemoteDone::Found { .. } => unreachable!(),
        }
    }
    assert_eq!(next, 1000);
}

#[test]
fn a_server_that_dies_is_left_alone_and_one_that_comes_is_used() {
    let Some(mut store) = Store::redis() else { return };
    let mut node = Node::open(config(&store.url, random()));
    node.until_up();
    let prompt = chain(1, 1, 8);
    node.write(&prompt, 8, None);
    assert_eq!(node.look_up(&prompt), 8);
    let port = store.url.rsplit(':').next().unwrap().to_owned();
    store.stop();
    assert_eq!(node.look_up(&prompt), 0);
    assert_eq!(node.remote.expected(), None);
    let again = Store::redis_at(&port);
    node.until_up();
    assert_eq!(node.look_up(&prompt), 0);
    node.write(&prompt, 8, None);
    assert_eq!(node.look_up(&prompt), 8);
    drop(again);
}

/// Another node that has seen in the store what `prompt` has, and has reported no use of it.
fn reader(memory: &Arc<Memory>, prompt: &Chain) -> Node {
    let mut node = node(memory);
    assert_eq!(node.look_up(prompt), prompt.blocks.len());
    node
}

#[test]
fn uses_of_many_runs_are_reported_a_few_at_a_time() {
    let memory = memory();
    let prompt = chain(1, 1, 160);
    node(&memory).write(&prompt, 160, None);
    let mut reader = reader(&memory, &prompt);
    memory.set_delay(Duration::from_millis(2));
    for run in prompt.blocks.chunks(4) {
        assert!(!reader.remote.wants(1, &run[3], 4, None), "it is there");
    }
    reader.until(|_| memory.renewals().ended == 40);
    assert!(memory.renewals().running_max <= 2, "{:?}", memory.renewals());
    assert_eq!((reader.remote.stats().is_up, reader.remote.stats().faults), (true, 0));
}

#[test]
fn what_the_store_has_lost_while_it_was_down_is_written_again() {
    let memory = memory();
    let mut node = node(&memory);
    let prompt = chain(1, 1, 4);
    node.write(&prompt, 4, None);
    assert!(!node.remote.wants(1, &prompt.blocks[3], 4, None));
    memory.set_fault(Some(Fault::Unreachable("it starts again".to_owned())));
    assert_eq!(node.look_up(&prompt), 0);
    memory.lose_values();
    memory.set_fault(None);
    node.until_up();
    node.write(&prompt, 4, None);
    assert_eq!(node.look_up(&prompt), 4);
}

#[test]
fn what_the_store_has_lost_is_written_again_by_the_next_that_uses_it() {
    let memory = memory();
    let prompt = chain(1, 1, 4);
    node(&memory).write(&prompt, 4, None);
    let mut reader = reader(&memory, &prompt);
    memory.lose_values();
    assert!(!reader.remote.wants(1, &prompt.blocks[3], 4, None), "it does not know yet");
    let start = std::time::Instant::now();
    while !reader.remote.wants(1, &prompt.blocks[3], 4, None) {
        assert!(start.elapsed() < Duration::from_secs(20), "the renewal found nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    reader.write(&prompt, 4, None);
    assert_eq!(reader.look_up(&prompt), 4);
}

#[test]
fn a_use_that_could_not_be_reported_is_reported_by_the_next() {
    let memory = memory();
    let prompt = chain(1, 1, 4);
    let mut writer = node(&memory);
    writer.write(&prompt, 4, None);
    let mut reader = reader(&memory, &prompt);
    memory.set_renewal_fault(Some(Fault::Full("no room".to_owned())));
    assert!(!reader.remote.wants(1, &prompt.blocks[3], 4, None));
    reader.until(|remote| memory.renewals().ended == 1 && remote.stats().faults == 1);
    memory.set_renewal_fault(None);
    // A full store takes no writes for a while, and is read.
    assert!(!reader.fetch(&prompt, 0..4).failed);
    reader.until(|_| memory.renewals().ended == 2);
}
