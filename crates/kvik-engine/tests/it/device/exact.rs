//! On one device an answer is the same to the bit, whoever else is in the batch and whatever was cached.

use std::path::Path;

use kvik_cache::{BLOCK_POSITIONS, BlockId, Token};
use kvik_engine::api::{GeneratedToken, Request, Sampling};
use kvik_kernels::KvFormat;
use kvik_model::batch::{Batch, Output, Runner, SequenceKv};
use kvik_model::device::DeviceRunner;
use kvik_testing::{effort, tiny_model};

use super::shapes::{tokens, within_reach};
use super::{World, greedy, has_device, ids, layout, logits, on_device, opened, prompts, rows};
use crate::peer::golden_model;

/// Blocks of one sequence.
const TABLE: usize = 8;

/// The blocks of sequence `seq`, not in order, so that nothing works by chance.
fn table(seq: usize) -> Vec<BlockId> {
    (0..TABLE).rev().map(|i| BlockId((i * 2 + seq) as u32)).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Fails unless logits of a prompt are the same in chunks, beside another one, and from blocks that were moved.
pub(crate) fn check(name: &str, runner: &mut DeviceRunner, [prompt, other]: [&[Token]; 2]) {
    let (first, second) = (table(0), table(1));
    let vocab = runner.vocab_len();
    let cold = bits(&logits(runner, &rows(0, prompt, 0, 0), &[&first, &second]));
    for &chunk in effort(&[7, 40][..], &[1, 7, 40]) {
        let mut found = Vec::new();
        let mut others = other.chunks(chunk + 1).enumerate();
        for (index, tokens) in prompt.chunks(chunk).enumerate() {
            let mut batch = rows(0, tokens, index * chunk, 0);
            if let Some((index, tokens)) = others.next() {
                batch.extend(rows(1, tokens, index * (chunk + 1), usize::MAX));
            }
            found.extend(bits(&logits(runner, &batch, &[&first, &second])));
        }
        assert!(found == cold, "{name} by {chunk}");
    }
    // Three blocks are copied out and in elsewhere, and the next one in part on the device.
    let mut moved = first.clone();
    for (i, block) in moved.iter_mut().take(4).enumerate() {
        let to = BlockId((2 * TABLE + i) as u32);
        if i == 3 {
            runner.copy_partial(*block, to, 5);
        } else {
            let mut bytes = vec![0; runner.layout().block_bytes()];
            runner.read_block(*block, &mut bytes);
            runner.write_block(to, &bytes);
        }
        *block = to;
    }
    let from = 3 * BLOCK_POSITIONS + 5;
    let cached = bits(&logits(runner, &rows(0, &prompt[from..], from, 0), &[&moved, &second]));
    assert!(cached == cold[from * vocab..], "{name} cached");
}

#[test]
fn logits_are_the_same_in_chunks_beside_others_and_from_blocks_that_were_moved() {
    if !has_device() {
        return;
    }
    let prompts = prompts(9, 40);
    for &format in effort(&[KvFormat::Q8][..], &[KvFormat::F16, KvFormat::Q8]) {
        let mut runner = on_device(opened(&tiny_model()), format, 3 * TABLE);
        check(&format.to_string(), &mut runner, [&prompts[7], &prompts[8]]);
    }
}

/// Windows, chunks, caps, sinks, temperatures, and mixtures of experts with all that these may have.
const FAMILIES: [&str; 7] = [
    "arch-gemma2",
    "arch-glm4moe",
    "arch-gpt-oss",
    "arch-llama4",
    "arch-mistral3",
    "arch-qwen2moe",
    "arch-qwen3moe",
];

/// A few of these, or all of them.
pub(crate) fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().step_by(effort(3, 1))
}

#[test]
fn logits_of_other_families_are_the_same_in_chunks_beside_others_and_from_blocks_that_were_moved() {
    if !has_device() {
        return;
    }
    for name in families() {
        let mut runner = on_device(within_reach(name), KvFormat::F16, 3 * TABLE);
        let [prompt, other] = [5, 11].map(|step| tokens(runner.vocab_len(), 83, step));
        check(name, &mut runner, [&prompt, &other]);
    }
}

#[test]
fn the_likeliest_token_is_that_of_the_logits() {
    if !has_device() {
        return;
    }
    let mut runner = on_device(opened(&tiny_model()), KvFormat::F16, TABLE);
    let table: Vec<BlockId> = (0..TABLE as u32).map(BlockId).collect();
    let prompt = &prompts(1, 30)[0];
    let mut rows = rows(0, prompt, 0, 0);
    let vocab = runner.vocab_len();
    let all = logits(&mut runner, &rows, &[&table]);
    // Every kind of output in one batch.
    for (index, row) in rows.iter_mut().enumerate() {
        row.output = [Output::Likeliest, Output::Logits, Output::None, Output::Hidden][index % 4];
    }
    let batch = Batch { rows: &rows, sequences: &[SequenceKv::in_blocks(&table)] };
    let computed = runner.compute(&batch, &mut []).unwrap();
    let of = |kind: usize| (kind..rows.len()).step_by(4);
    let likeliest: Vec<u32> = of(0).map(|row| crate::peer::argmax(&all[row * vocab..][..vocab])).collect();
    assert_eq!(computed.likeliest, likeliest);
    let wanted: Vec<f32> = of(1).flat_map(|row| all[row * vocab..][..vocab].to_vec()).collect();
    let (found, hidden) = computed.outputs.split_at(wanted.len());
    assert!(bits(found) == bits(&wanted));
    assert!(!hidden.is_empty() && hidden.len() % of(3).count() == 0 && hidden.iter().all(|x| x.is_finite()));
}

#[test]
fn a_chunk_without_outputs_takes_the_time_that_it_is_computed() {
    if !has_device() {
        return;
    }
    let mut runner = on_device(opened(&tiny_model()), KvFormat::F16, 2 * TABLE);
    let (table, tokens) = (table(0), tokens(runner.vocab_len(), 64, 7));
    let mut waited = |outputs_from: usize| {
        let rows = rows(0, &tokens, 0, outputs_from);
        let once = |_| {
            let before = runner.work().waiting;
            logits(&mut runner, &rows, &[&table]);
            runner.work().waiting - before
        };
        (0..3).map(once).min().unwrap()
    };
    let [with, without] = [63, usize::MAX].map(&mut waited);
    assert!(10 * without > with, "{without:?} without, {with:?} with one");
}

/// Sampled, and told with what else was likely: every bit of the logits counts.
fn sampled(requests: &[Request]) -> Vec<Request> {
    let sampled = |(seed, request): (u64, &Request)| Request {
        sampling: Sampling { temperature: 1.0, seed, ..Sampling::GREEDY },
        logprobs: Some(4),
        ..request.clone()
    };
    (0..).zip(requests).map(sampled).collect()
}

fn told(answers: Vec<(Vec<GeneratedToken>, usize)>) -> Vec<(Vec<u32>, Vec<u32>)> {
    let bits = |tokens: &[GeneratedToken]| -> Vec<u32> {
        let all = tokens.iter().flat_map(|token| token.logprob.iter());
        all.flat_map(|(chosen, others)| [chosen].into_iter().chain(others))
            .map(|said| said.logprob.to_bits())
            .collect()
    };
    answers.iter().map(|(tokens, _)| (ids(tokens), bits(tokens))).collect()
}

#[test]
fn answers_are_the_same_cold_cached_together_and_after_evictions() {
    if !has_device() {
        return;
    }
    let open = |blocks| on_device(opened(&tiny_model()), KvFormat::Q8, blocks);
    check_answers(&tiny_model(), prompts(effort(5, 8), 24), open);
}

/// The windows of the model end within a prompt.
#[test]
fn answers_of_a_model_with_windows_are_the_same_cold_cached_together_and_after_evictions() {
    if !has_device() {
        return;
    }
    let path = golden_model("arch-gemma3");
    let prompts = (0..effort(5, 8)).map(|prompt| tokens(90, 55 + prompt, prompt + 3)).collect();
    check_answers(&path, prompts, |blocks| on_device(opened(&path), KvFormat::Q8, blocks));
    // Windows are in the blocks, and nothing stands beside these.
    let layout = layout(&opened(&path).config, KvFormat::F16);
    assert!(!layout.windowed_part().is_empty());
    assert!(DeviceRunner::auxiliary(&layout).is_nothing());
    assert_eq!(DeviceRunner::auxiliary(&layout).block_bytes, layout.block_bytes());
    assert!(on_device(opened(&path), KvFormat::F16, 1).windowed_part().is_empty());
}

/// Fails unless answers of a model, which `open` runs with so many blocks, are the same whatever was cached.
pub(crate) fn check_answers(path: &Path, mut prompts: Vec<Vec<Token>>, open: impl Fn(usize) -> DeviceRunner) {
    // The others go on from the first one, in the middle of a block.
    for i in 1..4 {
        let tail = prompts[i][..20].to_vec();
        prompts[i] = [&prompts[0][..21 + i], &tail].concat();
    }
    let tokens = effort(4, 10);
    let requests = sampled(&prompts.iter().map(|prompt| greedy(prompt, tokens)).collect::<Vec<_>>());
    let alone: Vec<Request> =
        requests.iter().map(|request| Request { reuse: false, ..request.clone() }).collect();
    let world = |blocks| World::of(path, open(blocks), KvFormat::Q8, blocks);
    let mut roomy = world(200);
    let cold: Vec<_> =
        alone.iter().flat_map(|request| told(roomy.answers(std::slice::from_ref(request)))).collect();
    let together = roomy.answers(&requests);
    assert!(told(together) == cold, "together");
    let cached = roomy.answers(&requests);
    assert!(cached.iter().all(|(_, cached)| *cached > BLOCK_POSITIONS), "{:?}", cached.last());
    assert!(told(cached) == cold, "cached");
    let forks = Request { choices: 3, ..requests[0].clone() };
    let client = roomy.submit(&forks);
    roomy.run();
    assert_eq!(client.answer().unwrap().choices[0].1, cold[0].0, "forked");
    // Room for three of them: the others are evicted and preempted.
    let mut tight = world(16);
    for round in 0..2 {
        assert!(told(tight.answers(&requests)) == cold, "round {round}");
    }
    assert!(tight.scheduler.cache().stats().totals.evicted > 0);
}
