//! The thinnest path from text to text: a file, a prompt, greedy tokens.

use crate::edited;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvik_cache::{BlockId, Token};
use kvik_kernels::{KvFormat, Pool};
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelError, ModelRunner, digest};
use kvik_testing::{golden, outside_data, tiny_model};
use kvik_text::files::TensorSource;
use kvik_text::tokenizer::Tokenizer;

use crate::edited::Edited;

/// Opens a model with `positions` of KV.
fn open(path: &Path, positions: usize) -> (ModelRunner, Tokenizer) {
    let pool = Pool::new(2);
    let LoadedModel { config, tensors, tokenizer, .. } = LoadedModel::open(path).unwrap();
    let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {}).unwrap());
    let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F16);
    (ModelRunner::new(model, pool, layout, positions.div_ceil(16), positions).unwrap(), tokenizer)
}

/// Continues `tokens` by `count` greedy tokens.
fn greedy(runner: &mut ModelRunner, tokens: &mut Vec<Token>, count: usize, stop: impl Fn(Token) -> bool) {
    let table: Vec<BlockId> = (0..(tokens.len() + count).div_ceil(16)).map(|b| BlockId(b as u32)).collect();
    let mut start = 0;
    for _ in 0..count {
        let end = tokens.len();
        let row = |position: usize| Row {
            sequence: 0,
            token: tokens[position],
            position: position as u32,
            cache_position: position as u32,
            output: Output::logits_if(position + 1 == end),
        };
        let rows: Vec<Row> = (start..end).map(row).collect();
        let logits =
            runner.forward(&Batch { rows: &rows, sequences: &[SequenceKv::in_blocks(&table)] }, &mut []);
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as Token;
        if stop(best) {
            break;
        }
        tokens.push(best);
        start = end;
    }
}

#[test]
fn the_first_tokens_of_stories_match_the_reference() {
    let Some(data) = outside_data() else { return };
    let (mut runner, tokenizer) = open(&data.join("stories260K.gguf"), 64);
    let mut tokens = vec![tokenizer.bos().unwrap()];
    greedy(&mut runner, &mut tokens, 19, |_| false);
    let expected =
        [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338, 401, 396, 267];
    assert_eq!(tokens, expected);
}

#[test]
fn the_embedded_model_triages_a_notification() {
    let path = tiny_model();
    let (mut runner, tokenizer) = open(&path, 1024);
    let prompt = "<|im_start|>system\nYou are a notification assistant. Choose one folder and one priority.\n\n\
        Folders:\n- parcels and couriers: Deliveries\n- chats with friends: Social\n\nPriority:\n\
        urgent, act now = 5\nnormal, this week = 3\nno action needed = 1\n\n\
        Reply with exactly one JSON object like {\"folder\": \"...\", \"priority\": 3}.<|im_end|>\n\
        <|im_start|>user\nApp: PostGo\nTitle: Parcel\nBody: Your parcel arrives on Tuesday. Urgent: act at once!<|im_end|>\n\
        <|im_start|>assistant\n";
    let mut tokens = tokenizer.encode(prompt, false, true);
    let start = tokens.len();
    greedy(&mut runner, &mut tokens, 60, |token| tokenizer.is_eog(token));
    assert_eq!(tokenizer.decode(&tokens[start..]), "{\"folder\": \"Deliveries\", \"priority\": 5}");
}

/// Writes a model in `count` files as llama.cpp splits it; returns their paths.
fn split(model: &Path, dir: &Path, count: usize) -> Vec<PathBuf> {
    let whole = Edited::read(model);
    let of_part = whole.tensors.len().div_ceil(count);
    let parts = whole.tensors.chunks(of_part).enumerate().map(|(number, tensors)| {
        // The metadata is in the first.
        let keys = if number == 0 { whole.keys.clone() } else { Vec::new() };
        let mut part = Edited { keys, tensors: tensors.to_vec() };
        part.set("split.no", Some(edited::u32(number as u32)));
        part.set("split.count", Some(edited::u32(count as u32)));
        part.set("split.tensors.count", Some(edited::i32(whole.tensors.len() as i32)));
        let path = dir.join(format!("tiny-{:05}-of-{count:05}.gguf", number + 1));
        std::fs::write(&path, part.bytes()).unwrap();
        path
    });
    parts.collect()
}

#[test]
fn a_split_model_is_the_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let parts = split(&tiny_model(), dir.path(), 3);
    assert_eq!(parts.len(), 3);
    let pool = Pool::new(2);
    let read = |path: &Path| {
        let LoadedModel { config, tensors, .. } = LoadedModel::open(path).unwrap();
        let views = tensors.names().map(|name| {
            let view = tensors.get(name).unwrap();
            (name.to_owned(), view.ty, view.rows, view.cols, view.data.to_vec())
        });
        (views.collect::<Vec<_>>(), tensors.total_bytes(), digest(&config, &tensors, None, &pool))
    };
    let whole = read(&tiny_model());
    for part in &parts {
        assert!(read(part) == whole, "tensors, bytes and identity by {}", part.display());
    }
    let answer = |path: &Path| {
        let (mut runner, tokenizer) = open(path, 128);
        let mut tokens =
            tokenizer.encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", false, true);
        greedy(&mut runner, &mut tokens, 30, |_| false);
        tokens
    };
    assert_eq!(answer(&parts[1]), answer(&tiny_model()));
}

/// The embedding is read at every step, so a model without one must be refused when it is loaded.
#[test]
fn a_model_without_an_embedding_is_refused() {
    let path = golden("arch-llama-gqa.gguf");
    let config = LoadedModel::open(&path).unwrap().config;
    let header = b"{}";
    let nothing = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    let tensors = TensorSource::from_safetensors(nothing).unwrap();
    let error = Model::load(config, tensors, None, &Pool::new(1), &|_, _| {}).err();
    assert!(matches!(error, Some(ModelError::MissingTensor { tensor }) if tensor == "token_embd.weight"));
}
