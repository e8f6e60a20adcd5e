//! What fails on a device ends requests with an error, and nothing that is cached is wrong afterwards.

use kvik_cache::BlockId;
use kvik_cache::retain::RetentionError;
use kvik_engine::api::{Request, RequestError};
use kvik_engine::engine::{Engine, EngineConfig};
use kvik_kernels::{KvFormat, Pool};
use kvik_model::batch::{Batch, Row, Runner, SequenceKv, StepSize};
use kvik_model::device::{DeviceError, DeviceRunner};
use kvik_model::load::LoadedModel;
use kvik_testing::{effort, tiny_model};

use super::{
    STEP, World, answer, device_model, greedy, has_device, ids, layout, logits, on_device, opened, prompts,
    rows,
};
use crate::fake::memory_disk::MemoryDisk;

const BLOCKS: usize = 64;

fn world() -> World<DeviceRunner> {
    World::new(on_device(opened(&tiny_model()), KvFormat::F16, BLOCKS), KvFormat::F16, BLOCKS)
}

#[test]
fn a_lost_device_fails_what_runs_and_is_opened_again_with_nothing_cached() {
    if !has_device() {
        return;
    }
    let prompts = prompts(4, 30);
    let requests: Vec<_> = prompts.iter().map(|prompt| greedy(prompt, effort(3, 8))).collect();
    let block_bytes = layout(&opened(&tiny_model()).config, KvFormat::F16).block_bytes();
    let disk = MemoryDisk::of(block_bytes);
    let mut world = world();
    world.scheduler.attach(disk.setup(0, 64));
    let expected: Vec<_> = world.answers(&requests).iter().map(|(tokens, _)| ids(tokens)).collect();
    for &steps in effort(&[1][..], &[0, 1, 3]) {
        let clients: Vec<_> = requests.iter().map(|request| world.submit(request)).collect();
        (0..steps).for_each(|_| world.step());
        world.runner.device().destroy();
        world.run();
        for client in &clients {
            assert!(matches!(client.error(), Some(RequestError::Device(_))), "{:?}", client.events());
        }
        assert_eq!(world.scheduler.cache().stats().shared, 0, "nothing is cached");
        assert_eq!(world.runner.fault(), None, "it was opened again");
        let again: Vec<_> = world.answers(&requests).iter().map(|(tokens, _)| ids(tokens)).collect();
        assert_eq!(again, expected, "after {steps} steps");
    }
    // While nobody asks for anything, it is noticed by the next one who does.
    world.runner.device().destroy();
    let client = world.submit(&requests[0]);
    world.run();
    assert!(client.error().is_some() || ids(&answer(&client).0) == expected[0]);
    // What is on disk was read before the faults.
    let mut next = self::world();
    next.scheduler.attach(disk.setup(0, 64));
    let found = next.answers(&requests);
    assert!(found.iter().any(|(_, reused)| *reused > 0));
    assert_eq!(found.iter().map(|(tokens, _)| ids(tokens)).collect::<Vec<_>>(), expected);
}

/// What a policy judges by is not read on a device.
#[test]
fn sequences_on_a_device_do_not_forget() {
    if !has_device() {
        return;
    }
    let LoadedModel { tokenizer, .. } = opened(&tiny_model());
    let runner = on_device(opened(&tiny_model()), KvFormat::F16, BLOCKS);
    let kv_heads = runner.layout().layers().iter().map(|layer| layer.kv_heads).collect();
    let config = EngineConfig { kv_heads, ..crate::fake::config() };
    let cache = crate::fake::cache_config(BLOCKS);
    let engine = Engine::start(runner, &tokenizer, cache, config).unwrap();
    let asked = Request { retention: Some("snapkv:0.5".parse().unwrap()), ..greedy(&[1; 40], 2) };
    assert_eq!(engine.check(&asked), Err(RequestError::Retention(RetentionError::Device)));
    assert_eq!(engine.generate(greedy(&[1; 40], 2)).unwrap().choices[0].tokens.len(), 2);
}

#[test]
fn a_batch_that_is_too_large_fails_alone() {
    if !has_device() {
        return;
    }
    let mut runner = on_device(opened(&tiny_model()), KvFormat::F16, 1);
    let table = [BlockId(0)];
    let one = rows(0, &[5], 0, 0);
    let sequences = [SequenceKv::in_blocks(&table)];
    let before = runner.forward(&Batch { rows: &one, sequences: &sequences }, &mut []).to_vec();
    let many: Vec<Row> = std::iter::repeat_n(one[0], (160 << 20) / (4 * runner.vocab_len())).collect();
    let fault = runner.compute(&Batch { rows: &many, sequences: &sequences }, &mut []).unwrap_err();
    assert!(!fault.blocks_lost && fault.message.contains("bytes"), "{fault:?}");
    assert_eq!(runner.fault(), Some(fault));
    runner.restore();
    assert_eq!(runner.fault(), None);
    assert_eq!(runner.forward(&Batch { rows: &one, sequences: &sequences }, &mut []), before);
}

#[test]
fn the_start_makes_room_for_the_largest_step_at_any_position() {
    if !has_device() {
        return;
    }
    let (blocks, context, step) = (128, 2048, StepSize { rows: 160, outputs: 4 });
    let model = device_model(opened(&tiny_model())).unwrap();
    let layout = layout(model.config(), KvFormat::F16);
    let mut runner = DeviceRunner::new(model, Pool::new(1), layout, blocks, context, step).unwrap();
    let table: Vec<BlockId> = (0..blocks as u32).map(BlockId).collect();
    let mut allocated = |count: usize, from: usize| {
        let before = runner.work().allocations;
        logits(&mut runner, &rows(0, &vec![1; count], from, usize::MAX), &[&table]);
        runner.work().allocations - before
    };
    // Rows, tables, units and parts of a batch are small, and left to later ones.
    assert!(allocated(step.rows, 0) <= 4);
    allocated(22, context - 22);
    assert_eq!(allocated(30, context - 30), 0, "the same sizes, and more results of splits");
}

#[test]
fn more_blocks_than_a_device_allows_are_refused_with_the_numbers() {
    if !has_device() {
        return;
    }
    let refused = |format, blocks| {
        let model = device_model(opened(&tiny_model())).unwrap();
        let layout = layout(model.config(), format);
        DeviceRunner::new(model, Pool::new(1), layout, blocks, 64, STEP).err().unwrap()
    };
    let error = refused(KvFormat::F16, 1 << 24);
    assert!(matches!(error, DeviceError::Limit { .. } | DeviceError::Memory { .. }), "{error}");
    assert!(error.to_string().contains("fewer blocks"), "{error}");
    assert!(matches!(refused(KvFormat::Q4, 1), DeviceError::Unsupported { .. }));
}
