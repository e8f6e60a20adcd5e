//! Blocks between the device and the disk, and who may read whose.

use std::sync::Arc;

use kvik_engine::api::Request;
use kvik_engine::load::LoadedModel;
use kvik_engine::model::Model;
use kvik_kernels::{KvFormat, Pool};
use kvik_testing::tiny_model;

use crate::fake::memory_disk::MemoryDisk;
use crate::{World, device_model, greedy, has_device, ids, layout, on_device, opened, prompts};

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
