//! What tests that compare kvik with llama.cpp share: the files it has answered on, and one sequence of one model.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "test support; every binary uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvik_cache::{BLOCK_POSITIONS, BlockId, StateId, Token};
use kvik_kernels::{KvFormat, Pool};
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv, SequenceState};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelError, ModelRunner};
use kvik_testing::golden;
use kvik_text::tokenizer::Tokenizer;

/// The names of the small random models, one or more of every architecture.
pub fn architectures() -> Vec<String> {
    let files =
        fs::read_dir(golden("")).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = files
        .filter(|name| name.starts_with("arch-"))
        .filter_map(|name| name.strip_suffix(".gguf").map(str::to_owned))
        .collect();
    names.sort_unstable();
    assert!(names.len() >= 55, "some of the golden files are gone: {names:?}");
    names
}

pub fn golden_model(name: &str) -> PathBuf {
    golden(&format!("{name}.gguf"))
}

/// One sequence of one model, with its own blocks.
pub struct Sequence {
    pub tokenizer: Tokenizer,
    runner: ModelRunner,
    table: Vec<BlockId>,
    len: usize,
}

impl Sequence {
    /// A sequence of as many positions as the model says.
    pub fn open(path: &Path, kv: KvFormat) -> Sequence {
        let loaded = LoadedModel::open(path).unwrap();
        let context = loaded.config.context;
        Sequence::of(loaded, kv, context)
    }

    /// A sequence of up to `context` positions.
    pub fn of(loaded: LoadedModel, kv: KvFormat, context: usize) -> Sequence {
        Sequence::load(loaded, kv, context).unwrap()
    }

    /// The same of a model that may be refused.
    pub fn load(loaded: LoadedModel, kv: KvFormat, context: usize) -> Result<Sequence, ModelError> {
        let pool = Pool::new(1);
        let blocks = context.div_ceil(BLOCK_POSITIONS);
        let layout = ModelRunner::uniform_layout(&loaded.config, kv);
        let model = Model::load(loaded.config, loaded.tensors, None, &pool, &|_, _| {})?;
        let runner = ModelRunner::new(Arc::new(model), pool, layout, blocks, context).unwrap();
        let runner = runner.with_states(1).unwrap();
        let table = (0..blocks as u32).map(BlockId).collect();
        Ok(Sequence { runner, tokenizer: loaded.tokenizer, table, len: 0 })
    }

    pub fn vocab_len(&self) -> usize {
        self.runner.vocab_len()
    }

    /// Forgets the tokens.
    pub fn restart(&mut self) {
        self.len = 0;
    }

    /// Appends tokens and returns the logits after the last, `[vocab]`.
    pub fn feed(&mut self, tokens: &[Token]) -> &[f32] {
        self.append(tokens, |index| index + 1 == tokens.len())
    }

    /// Appends tokens and returns the logits after each, `[tokens, vocab]`.
    pub fn feed_all(&mut self, tokens: &[Token]) -> &[f32] {
        self.append(tokens, |_| true)
    }

    fn append(&mut self, tokens: &[Token], is_wanted: impl Fn(usize) -> bool) -> &[f32] {
        let row = |(i, &token): (usize, &Token)| Row {
            sequence: 0,
            token,
            position: (self.len + i) as u32,
            cache_position: (self.len + i) as u32,
            output: Output::logits_if(is_wanted(i)),
        };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        let live = StateId(0);
        if self.len == 0 {
            self.runner.set_state(live, None);
        }
        self.len += tokens.len();
        let state = Some(SequenceState { live, saves: &[], tentative: None });
        let sequence = SequenceKv { state, ..SequenceKv::in_blocks(&self.table) };
        self.runner.forward(&Batch { rows: &rows, sequences: &[sequence] }, &mut [])
    }
}

/// The likeliest token; the first of equals.
pub fn argmax(logits: &[f32]) -> Token {
    let best = (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    best.unwrap() as Token
}

/// The logarithm of the sum of the exponentials of all logits.
pub fn log_sum(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
}
