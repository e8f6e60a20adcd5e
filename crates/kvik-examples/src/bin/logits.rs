//! Writes the logits of a model at some positions of a prompt, for `bench/kinds/logits.py`.
//!
//! ```text
//! cargo run --release -p kvik-examples --bin logits -- MODEL KV_FORMAT TOKENS POSITIONS OUT
//! ```
//!
//! `KV_FORMAT` is one of kvik's, or `exact`: keys and values in f32, and all weights brought to f32, so that inputs are not
//! quantised. `TOKENS` is a file of token ids with spaces between, `POSITIONS` is like `0,99,999`, and `OUT` gets a row of
//! little-endian f32 for each position, `[positions, vocab]`.

use std::error::Error;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use kvik_cache::{BLOCK_POSITIONS, BlockId, StateId, Token};
use kvik_kernels::{KvFormat, KvFormats, Pool, WeightType, performance_cores};
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv, SequenceState};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};

/// Rows of a step.
const CHUNK: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, kv, tokens, positions, out] = &arguments[..] else {
        return Err("usage: logits MODEL KV_FORMAT TOKENS POSITIONS OUT".into());
    };
    let tokens: Vec<Token> =
        fs::read_to_string(tokens)?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let positions: Vec<usize> = positions.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let (kv, weights) = match kv.as_str() {
        "exact" => (KvFormat::F32.into(), Some(WeightType::F32)),
        kv => (kv.parse()?, None),
    };
    let mut runner = runner(model.as_ref(), kv, weights, tokens.len())?;
    let mut out = BufWriter::new(fs::File::create(out)?);
    let table: Vec<BlockId> = (0..tokens.len().div_ceil(BLOCK_POSITIONS) as u32).map(BlockId).collect();
    runner.set_state(StateId(0), None);
    let state = Some(SequenceState { live: StateId(0), saves: &[], tentative: None });
    let sequences = [SequenceKv { state, ..SequenceKv::in_blocks(&table) }];
    let row = |(position, &token): (usize, &Token)| Row {
        sequence: 0,
        token,
        position: position as u32,
        cache_position: position as u32,
        output: Output::logits_if(positions.contains(&position)),
    };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    for rows in rows.chunks(CHUNK) {
        for logit in runner.forward(&Batch { rows, sequences: &sequences }, &mut []) {
            out.write_all(&logit.to_le_bytes())?;
        }
    }
    Ok(out.flush()?)
}

fn runner(
    model: &Path,
    kv: KvFormats,
    weights: Option<WeightType>,
    positions: usize,
) -> Result<ModelRunner, Box<dyn Error>> {
    let LoadedModel { config, tensors, .. } = LoadedModel::open(model)?;
    let pool = Pool::new(performance_cores());
    let layout = ModelRunner::uniform_layout(&config, kv);
    let model = Model::load(config, tensors, weights, &pool, &|_, _| {})?;
    let blocks = positions.div_ceil(BLOCK_POSITIONS);
    Ok(ModelRunner::new(Arc::new(model), pool, layout, blocks, positions)?.with_states(1)?)
}
