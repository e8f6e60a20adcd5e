//! Blocks between the device and the disk, and who may read whose.

use std::sync::Arc;

use kvik_cache::tier::{Level, Tier};
use kvik_cache::{StopReason, Token};
use kvik_engine::api::{GeneratedToken, Report, Request};
use kvik_engine::schedule::disk::DiskSetup;
use kvik_engine::store::{Buffers, HostStore, Waker};
use kvik_kernels::{KvFormat, Pool};
use kvik_model::Model;
use kvik_model::batch::Runner;
use kvik_model::load::LoadedModel;
use kvik_testing::tiny_model;

use super::{World, answer, device_model, greedy, has_device, ids, layout, on_device, opened, prompts};
use crate::fake::memory_disk::MemoryDisk;

const BLOCKS: usize = 64;

#[test]
fn a_restart_goes_on_with_what_is_on_disk() {
    if !has_device() {
        return;
    }
    let requests: Vec<Request> = prompts(3, 30).iter().map(|prompt| greedy(prompt, 6)).collect();
    let block_bytes = layout(&opened(&tiny_model()).config, KvFormat::F16).block_bytes();
    let disk = MemoryDisk::of(block_bytes);
    let mut answers = Vec::new();
    for life in 0..2 {
        let mut world =
            World::new(on_device(opened(&tiny_model()), KvFormat::F16, BLOCKS), KvFormat::F16, BLOCKS);
        world.scheduler.attach(disk.setup(0, 64));
        let found = world.answers(&requests);
        // What has just ended is still on its way.
        (0..20).for_each(|_| world.step());
        let reused: Vec<usize> = found.iter().map(|(_, cached)| *cached).collect();
        assert_eq!(reused.iter().all(|&reused| reused >= 32), life == 1, "{reused:?}");
        answers.push(found.iter().map(|(tokens, _)| ids(tokens)).collect::<Vec<_>>());
        assert!(!disk.state().blocks.is_empty());
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn blocks_of_a_device_and_of_the_processor_have_different_names() {
    if !has_device() {
        return;
    }
    let on_device = device_model(opened(&tiny_model())).unwrap();
    let LoadedModel { config, tensors, .. } = opened(&tiny_model());
    let model = Arc::new(Model::load(config, tensors, None, &Pool::new(1), &|_, _| {}).unwrap());
    assert_eq!(on_device.digest(), model.digest(), "it is the same model");
    assert_eq!(on_device.digest_within(100), model.digest_within(100));
    assert_ne!(on_device.digest_here(100), model.digest_within(100));
    assert_eq!(on_device.digest_here(100), device_model(opened(&tiny_model())).unwrap().digest_here(100));
}

/// The answer to one request, and its report, when it is on its way to the tiers below.
fn ask<R: Runner>(world: &mut World<R>, request: &Request) -> (Vec<GeneratedToken>, Report) {
    let client = world.submit(request);
    world.run();
    (0..20).for_each(|_| world.step());
    (answer(&client).0, client.answer().unwrap().report)
}

/// Three tiers: what the device has no room for is copied back from the host's memory, and from disk after a restart; without
/// a disk the host alone has it.
#[test]
fn what_the_device_has_no_room_for_is_in_the_hosts_memory() {
    if !has_device() {
        return;
    }
    let (count, tokens) = kvik_testing::effort((3, 2), (6, 6));
    let requests: Vec<Request> = prompts(count, 60).iter().map(|prompt| greedy(prompt, tokens)).collect();
    let block_bytes = layout(&LoadedModel::open(&tiny_model()).unwrap().config, KvFormat::F16).block_bytes();
    let disk = MemoryDisk::of(block_bytes);
    let alone = || {
        let (buffers, waker) = (Buffers::new(16, block_bytes), Waker::default());
        let store = Box::new(HostStore::alone(buffers, 64, waker.clone()));
        DiskSetup { tier: Tier::new(64), store, waker, writes_max: 12, ..DiskSetup::none() }
    };
    let above = || {
        let setup = disk.setup(0, 64);
        let store = Box::new(HostStore::above(setup.store, 8, setup.waker.clone()));
        DiskSetup { store, ..setup }
    };
    let life = |setup| {
        // Room for one of them and a little.
        let mut world = World::new(on_device(opened(&tiny_model()), KvFormat::F16, 8), KvFormat::F16, 8);
        world.scheduler.attach(setup);
        let mut rounds = Vec::new();
        for _ in 0..2 {
            rounds.push(requests.iter().map(|request| ask(&mut world, request)).collect::<Vec<_>>());
        }
        rounds
    };
    let [cold, from_host] = life(alone()).try_into().unwrap();
    let answers = |asked: &[(Vec<GeneratedToken>, Report)]| -> Vec<Vec<Token>> {
        asked.iter().map(|(tokens, _)| ids(tokens)).collect()
    };
    assert_eq!(answers(&cold), answers(&from_host));
    assert!(cold.iter().all(|(_, report)| report.cached_tokens < 32), "{cold:?}");
    // By the clock of the test computing may be the faster way, and then it is taken.
    let cheaper = |report: &Report| report.cache == Some(StopReason::RecomputeWasCheaper);
    let of_host =
        |(_, report): &(_, Report)| report.loaded[Level::Host] >= 32 && report.loaded[Level::Disk] == 0;
    assert!(from_host.iter().all(|asked| of_host(asked) || cheaper(&asked.1)), "{from_host:?}");
    assert!(from_host.iter().any(of_host), "{from_host:?}");
    for restarted in [false, true] {
        let [first, second] = life(above()).try_into().unwrap();
        assert_eq!((answers(&first), answers(&second)), (answers(&cold), answers(&cold)));
        let loaded =
            |(_, report): &(_, Report)| report.loaded[Level::Host] + report.loaded[Level::Disk] >= 32;
        assert_eq!(first.iter().any(loaded), restarted, "{first:?}");
        assert!(second.iter().any(loaded), "{second:?}");
        assert!(second.iter().all(|asked| loaded(asked) || cheaper(&asked.1)), "{second:?}");
    }
}
