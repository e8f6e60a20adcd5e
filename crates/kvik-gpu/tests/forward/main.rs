//! The embedded model on the first device of the machine: its answers beside those of the processor, and beside
//! themselves in other batches and with cached blocks.
//!
//! Weights stay in the file's 8 bits on the device. The processor has the same numbers as f32: with 8 bits it would
//! round what it multiplies them by too.

#![allow(clippy::unwrap_used)] // a test may fail where it stands

mod model;

use std::sync::Arc;

use kvik_cache::BlockId;
use kvik_engine::load::LoadedModel;
use kvik_engine::model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_engine::model::{Model, ModelRunner};
use kvik_gpu::{Choice, Device, devices};
use kvik_kernels::{KvFormat, KvLayout, Pool, WeightType};
use kvik_testing::{repository, tiny_model};

use model::{DeviceModel, Rows};

/// Prompts, and tokens of an answer.
const PROMPTS: usize = 12;
const ANSWER: usize = 24;
/// Blocks of one sequence: the longest prompt and its answer.
const TABLE: usize = 12;

fn device() -> Option<Device> {
    if devices().is_empty() {
        kvik_testing::skip("no GPU was found, nor a driver that computes on the processor");
        return None;
    }
    Some(Device::open(Choice::Index(0)).unwrap())
}

/// Turns of a conversation about pieces of text, from 30 to 140 tokens long.
fn prompts(model: &LoadedModel) -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(repository().join("models/tiny/eval-text.txt")).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let prompt = |i: usize| {
        let piece = words[i * 97..][..16 + 3 * i].join(" ");
        let turn = format!("<|im_start|>user\n{piece}<|im_end|>\n<|im_start|>assistant\n");
        let tokens = model.tokenizer.encode(&turn, true, true);
        assert!(tokens.len() + ANSWER <= 16 * TABLE, "{} tokens", tokens.len());
        tokens
    };
    (0..PROMPTS).map(prompt).collect()
}

/// The blocks of sequence `seq`.
fn table(seq: usize) -> Vec<u32> {
    // Not in order, so that nothing works by chance.
    (0..TABLE).rev().map(|i| (i * PROMPTS + seq) as u32).collect()
}

fn layout(model: &LoadedModel, format: KvFormat) -> KvLayout {
    ModelRunner::uniform_layout(&model.config, format)
}

/// The processor's greedy answer, token by token, with the logits that each was chosen from.
fn on_processor(runner: &mut ModelRunner, prompt: &[u32]) -> Vec<(u32, Vec<f32>)> {
    let blocks: Vec<BlockId> = table(0).into_iter().map(BlockId).collect();
    let sequences = [SequenceKv::in_blocks(&blocks)];
    let (mut tokens, mut answer) = (prompt.to_vec(), Vec::new());
    let mut done = 0;
    while answer.len() < ANSWER {
        let row = |position: usize| {
            let (position, cache_position) = (position as u32, position as u32);
            let output = Output::logits_if(position as usize + 1 == tokens.len());
            Row { sequence: 0, token: tokens[position as usize], position, cache_position, output }
        };
        let rows: Vec<_> = (done..tokens.len()).map(row).collect();
        done = tokens.len();
        let logits = runner.forward(&Batch { rows: &rows, sequences: &sequences }, &mut []).to_vec();
        let token =
            (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as u32;
        answer.push((token, logits));
        tokens.push(token);
    }
    answer
}

fn loaded() -> LoadedModel {
    LoadedModel::open(&tiny_model()).unwrap()
}

/// Computes the prompts one by one in chunks, then the answers all at once.
fn on_device(device: &mut Device, model: &mut DeviceModel, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let tables: Vec<Vec<u32>> = (0..prompts.len()).map(table).collect();
    let mut answers: Vec<Vec<u32>> = Vec::new();
    for (seq, prompt) in prompts.iter().enumerate() {
        let mut last = 0;
        for (chunk, tokens) in prompt.chunks(50).enumerate() {
            let rows: Vec<_> =
                (chunk * 50..).zip(tokens).map(|(position, &token)| (seq, token, position)).collect();
            last = *model
                .forward(device, &Rows { rows: &rows, tables: &tables })
                .unwrap()
                .tokens
                .last()
                .unwrap();
        }
        answers.push(vec![last]);
    }
    for index in 0..ANSWER - 1 {
        let rows = answers.iter().zip(prompts).enumerate();
        let rows: Vec<_> =
            rows.map(|(seq, (answer, prompt))| (seq, answer[index], prompt.len() + index)).collect();
        let tokens = model.forward(device, &Rows { rows: &rows, tables: &tables }).unwrap().tokens;
        answers.iter_mut().zip(tokens).for_each(|(answer, token)| answer.push(token));
    }
    answers
}

#[test]
fn answers_are_those_of_the_processor() {
    let Some(mut device) = device() else { return };
    for (format, tolerance) in [(KvFormat::F16, 2e-3), (KvFormat::Q8, 4e-2)] {
        let LoadedModel { config, tensors, .. } = loaded();
        let prompts = prompts(&loaded());
        let pool = Arc::new(Pool::new(1));
        let layout = layout(&loaded(), format);
        let processor = Model::load(config, tensors, Some(WeightType::F32), &pool, &|_, _| {}).unwrap();
        let blocks = TABLE * PROMPTS;
        let mut runner = ModelRunner::new(Arc::new(processor), pool, layout.clone(), blocks, 256).unwrap();
        let mut model = DeviceModel::new(&device, &loaded(), layout, blocks, 256).unwrap();
        let answers = on_device(&mut device, &mut model, &prompts);
        let mut equal = 0;
        for (prompt, answer) in prompts.iter().zip(&answers) {
            for ((expect, logits), token) in on_processor(&mut runner, prompt).iter().zip(answer) {
                // Where two tokens are as likely as rounding can tell, either answer is right, and they part.
                let apart = logits[*expect as usize] - logits[*token as usize];
                assert!(apart <= tolerance, "{format}: {token} is {apart} less likely than {expect}");
                if expect != token {
                    break;
                }
                equal += 1;
            }
        }
        println!("{format}: {equal} of {} tokens", PROMPTS * ANSWER);
        assert!(equal * 100 >= PROMPTS * ANSWER * 97, "{format}: {equal} tokens");
    }
}

#[test]
fn logits_are_the_same_to_the_bit_cached_in_chunks_and_beside_others() {
    let Some(mut device) = device() else { return };
    let loaded = loaded();
    let prompts = prompts(&loaded);
    for format in [KvFormat::F16, KvFormat::Q8] {
        let tables: Vec<Vec<u32>> = (0..2).map(table).collect();
        let mut model =
            DeviceModel::new(&device, &loaded, layout(&loaded, format), TABLE * PROMPTS, 256).unwrap();
        let rows = |seq: usize, prompt: &[u32]| -> Vec<_> {
            prompt.iter().enumerate().map(|(position, &token)| (seq, token, position)).collect()
        };
        let (first, second) = (rows(0, &prompts[7]), rows(1, &prompts[8]));
        let cold = model.forward(&mut device, &Rows { rows: &first, tables: &tables }).unwrap();
        // In chunks of 1, 7 and 40, each beside rows of the other sequence.
        for chunk in [1, 7, 40] {
            let mut logits = Vec::new();
            let mut others = second.chunks(chunk + 1);
            for chunk in first.chunks(chunk) {
                let beside = others.next().unwrap_or(&[]);
                let batch = [chunk, beside].concat();
                let step = model.forward(&mut device, &Rows { rows: &batch, tables: &tables }).unwrap();
                logits.extend_from_slice(&step.logits[..chunk.len() * model.vocab()]);
            }
            assert!(same_bits(&logits, &cold.logits), "{format} by {chunk}");
        }
        // The first 48 positions from blocks that were copied out, and in elsewhere.
        let mut moved = tables.clone();
        for (i, block) in moved[0].iter_mut().take(3).enumerate() {
            let bytes = model.arena.read_block(&device, *block).unwrap();
            *block = (TABLE * PROMPTS - 1 - i) as u32;
            model.arena.write_block(&device, *block, &bytes).unwrap();
        }
        let cached = model.forward(&mut device, &Rows { rows: &first[48..], tables: &moved }).unwrap();
        assert!(same_bits(&cached.logits, &cold.logits[48 * model.vocab()..]), "{format} cached");
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
