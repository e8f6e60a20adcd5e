//! The last layers on the device and the first on the processor: the same logits as of either alone, within what rounding
//! leaves, and the same to the bit whatever was cached.

use kvik_cache::{BlockId, Token};
use kvik_engine::api::Request;
use kvik_kernels::{KvFormat, Pool, WeightType};
use kvik_model::batch::Runner;
use kvik_model::device::{Choice, Device, DeviceKind, DeviceModel, DeviceRunner};
use kvik_model::load::LoadedModel;
use kvik_testing::{effort, tiny_model};

use super::exact::{self, families};
use super::shapes::{formats, tokens, within_reach};
use super::{
    CONTEXT, STEP, World, greedy, has_device, ids, layout, logits, on_processor, opened, prompts, rows,
};
use crate::fake::memory_disk::MemoryDisk;
use crate::peer::golden_model;

const BLOCKS: usize = 64;
const TABLE: [BlockId; 5] = [BlockId(2), BlockId(4), BlockId(0), BlockId(1), BlockId(3)];
/// Rows of a prompt: more than windows have.
const ROWS: usize = 75;

/// A model with its last `layers` layers on the device, whose weights are the processor's.
fn model(loaded: LoadedModel, layers: usize) -> DeviceModel {
    let device = Device::open(Choice::Index(0)).unwrap();
    let LoadedModel { config, tensors, .. } = loaded;
    let f32s = Some(WeightType::F32);
    DeviceModel::load_last(device, layers, config, tensors, f32s, &Pool::new(2), &|_, _| {}).unwrap()
}

fn split(loaded: LoadedModel, format: KvFormat, layers: usize, blocks: usize) -> DeviceRunner {
    let model = model(loaded, layers);
    let layout = layout(model.config(), format);
    DeviceRunner::new(model, Pool::new(2), layout, blocks, CONTEXT, STEP).unwrap()
}

fn largest_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1.0_f32, |largest, logit| largest.max(logit.abs()));
    kvik_testing::largest(found.iter().zip(expected).map(|(a, b)| (a - b).abs() / largest))
}

/// Fails unless a model computes the same wherever it is cut.
fn check_every_boundary(name: &str, open: impl Fn() -> LoadedModel) {
    let LoadedModel { config, .. } = open();
    let rows = rows(0, &tokens(config.vocab, ROWS, 7), 0, ROWS - 5);
    for (format, tolerance) in formats() {
        let expected = logits(&mut on_processor(open(), format, TABLE.len()), &rows, &[&TABLE]);
        for layers in (1..=config.layers).rev().step_by(effort(2, 1)) {
            let mut runner = split(open(), format, layers, TABLE.len());
            assert_eq!(runner.model().front_layers(), config.layers - layers);
            let apart = largest_difference(&logits(&mut runner, &rows, &[&TABLE]), &expected);
            assert!(apart <= tolerance, "{name} {format}, {layers} on the device: {apart}");
        }
    }
}

#[test]
fn a_model_computes_the_same_wherever_it_is_cut() {
    if !has_device() {
        return;
    }
    check_every_boundary("the embedded model", || opened(&tiny_model()));
    for name in families().chain(["arch-granite", "arch-phi3"]) {
        check_every_boundary(name, || within_reach(name));
    }
}

#[test]
fn logits_are_the_same_in_chunks_beside_others_and_from_blocks_that_were_moved() {
    if !has_device() {
        return;
    }
    let layers = opened(&tiny_model()).config.layers;
    let prompts = prompts(9, 40);
    for on_device in (1..layers).take(effort(1, layers)) {
        for (format, _) in formats() {
            let mut runner = split(opened(&tiny_model()), format, on_device, 24);
            let name = format!("{format}, {on_device} of {layers}");
            exact::check(&name, &mut runner, [&prompts[7], &prompts[8]]);
        }
    }
    for name in families() {
        let mut runner = split(within_reach(name), KvFormat::F16, 1, 24);
        let [prompt, other] = [5, 11].map(|step| tokens(runner.vocab_len(), 83, step));
        exact::check(name, &mut runner, [&prompt, &other]);
    }
}

#[test]
fn answers_are_the_same_cold_cached_together_and_after_evictions() {
    if !has_device() {
        return;
    }
    let open = |blocks| split(opened(&tiny_model()), KvFormat::Q8, 2, blocks);
    exact::check_answers(&tiny_model(), prompts(effort(5, 8), 24), open);
    // A layer with a window on either side.
    let path = golden_model("arch-gemma3");
    let layers = opened(&path).config.layers;
    let prompts: Vec<Vec<Token>> =
        (0..effort(5, 8)).map(|prompt| tokens(90, 55 + prompt, prompt + 3)).collect();
    let open = |blocks| split(opened(&path), KvFormat::Q8, layers / 2, blocks);
    exact::check_answers(&path, prompts, open);
}

/// A disk that has seen one life has whole blocks for the next.
#[test]
fn a_restart_and_a_lost_device_go_on_with_what_is_on_disk() {
    if !has_device() {
        return;
    }
    let requests: Vec<Request> = prompts(3, 30).iter().map(|prompt| greedy(prompt, 6)).collect();
    let disk = MemoryDisk::of(layout(&opened(&tiny_model()).config, KvFormat::F16).block_bytes());
    let world = || {
        let runner = split(opened(&tiny_model()), KvFormat::F16, 2, BLOCKS);
        let mut world = World::new(runner, KvFormat::F16, BLOCKS);
        world.scheduler.attach(disk.setup(0, 64));
        world
    };
    let answers = |world: &mut World<DeviceRunner>| {
        let found = world.answers(&requests);
        // What has just ended is still on its way.
        (0..20).for_each(|_| world.step());
        let reused = found.iter().all(|(_, reused)| *reused >= 32);
        (found.iter().map(|(tokens, _)| ids(tokens)).collect::<Vec<_>>(), reused)
    };
    let (cold, reused) = answers(&mut world());
    assert!(!reused);
    let mut second = world();
    assert_eq!(answers(&mut second), (cold.clone(), true));
    second.runner.device().destroy();
    let client = second.submit(&requests[0]);
    second.run();
    assert!(client.error().is_some(), "{:?}", client.events());
    assert_eq!(second.runner.fault(), None, "it was opened again");
    assert_eq!(answers(&mut second).0, cold);
}

#[test]
fn every_split_has_names_of_its_own() {
    if !has_device() {
        return;
    }
    let layers = opened(&tiny_model()).config.layers;
    let models: Vec<DeviceModel> = (1..=layers).map(|count| model(opened(&tiny_model()), count)).collect();
    for (index, model) in models.iter().enumerate() {
        assert_eq!(model.digest(), models[0].digest(), "it is the same model");
        for other in &models[index + 1..] {
            assert_ne!(model.digest_here(100), other.digest_here(100));
            assert_ne!(model.place(), other.place());
        }
    }
    assert!(models[0].blocks_in_host_memory(), "those of the first layers are");
    let has_memory = !matches!(models[0].info().kind, DeviceKind::Integrated | DeviceKind::Software);
    assert_eq!(models[layers - 1].blocks_in_host_memory(), !has_memory);
    assert_eq!(models[0].digest_here(100), model(opened(&tiny_model()), 1).digest_here(100));
    // More than there are is all, fewer than one is one.
    assert_eq!(model(opened(&tiny_model()), 1000).front_layers(), 0);
    assert_eq!(model(opened(&tiny_model()), 0).front_layers(), layers - 1);
}
