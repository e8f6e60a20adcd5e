//! Layers that store different things: other formats, other shares of their positions outside the blocks,
//! positions that a head has dropped, and rows that are rotated by another position than they are stored at.

use crate::naive;
use std::path::Path;
use std::sync::Arc;

use kvik_cache::{BlockId, Token};
use kvik_kernels::{HeadTail, KvFormat, KvLayer, KvLayout, Pool};
use kvik_model::batch::{Batch, LayerTails, Output, Row, Runner, SequenceKv};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};

fn open(file: &str) -> LoadedModel {
    LoadedModel::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// A runner with 64 blocks and a context of 1024, whose layers store keys and values in `formats` in turns.
fn runner(file: &str, formats: &[[KvFormat; 2]]) -> (ModelRunner, KvLayout) {
    let (LoadedModel { config, tensors, .. }, pool) = (open(file), Pool::new(2));
    let formats = formats.iter().cycle().take(config.layers);
    let layer = |&[k, v]: &[KvFormat; 2]| KvLayer::full(config.kv_heads, config.head_dim, k, v);
    let layout = KvLayout::new(formats.map(layer).collect());
    let model = Model::load(config, tensors, None, &pool, &|_, _| {}).unwrap();
    (ModelRunner::new(Arc::new(model), pool, layout.clone(), 64, 1024).unwrap(), layout)
}

/// Rows of one sequence from cache position `first` on, with all their logits.
fn rows(tokens: &[(Token, u32)], first: usize) -> Vec<Row> {
    let rows = tokens.iter().zip(first as u32..);
    let row = |(&(token, position), cache_position)| Row {
        sequence: 0,
        token,
        position,
        cache_position,
        output: Output::Logits,
    };
    rows.map(row).collect()
}

fn blocks(numbers: std::ops::Range<u32>) -> Vec<BlockId> {
    numbers.map(BlockId).collect()
}

/// The tiles that follow the blocks of each head of each layer, `[layers][kv_heads]`.
type Tiles = Vec<Vec<Vec<u32>>>;

/// Computes `tokens` in batches that end at `ends`; returns the bits of all logits.
fn compute(
    runner: &mut ModelRunner,
    sequence: SequenceKv<'_>,
    tokens: &[(Token, u32)],
    ends: &[usize],
) -> Vec<u32> {
    let (mut bits, mut first) = (Vec::new(), 0);
    for &end in ends {
        let batch = rows(&tokens[first..end], first);
        let logits = runner.forward(&Batch { rows: &batch, sequences: &[sequence] }, &mut []);
        bits.extend(logits.iter().map(|logit| logit.to_bits()));
        first = end;
    }
    bits
}

/// Every layer leaves the blocks at another position, and goes on in tiles of other layers and heads.
#[test]
fn what_heads_store_in_tails_changes_no_bit() {
    const TOKENS: usize = 100;
    const TABLE: u32 = TOKENS.div_ceil(16) as u32;
    let formats = [[KvFormat::F16; 2], [KvFormat::Q8, KvFormat::Q4], [KvFormat::F32; 2]];
    for formats in [&formats[..1], &formats[1..2], &formats] {
        let (mut runner, layout) = runner("../../models/tiny/kvik-tiny-q8_0.gguf", formats);
        let (layers, kv_heads) = (layout.layers().len(), layout.layers()[0].kv_heads);
        let tokens: Vec<(Token, u32)> =
            (0..TOKENS as u32).map(|position| (position * 37 % 900, position)).collect();
        let ends = [70, 90, 91, 92, TOKENS];
        let in_blocks = blocks(0..TABLE);
        let expect = compute(&mut runner, SequenceKv::in_blocks(&in_blocks), &tokens, &ends);

        // Layers of the same formats are three apart, at most.
        let tile = |layer: usize, head: usize, i: u32| {
            layout.tile(32 + i, (layer + 3) % layers, kv_heads - 1 - head)
        };
        let tails_of =
            |layer: usize, head: usize| (layer as u32..TABLE).map(|i| tile(layer, head, i)).collect();
        let tiles: Tiles =
            (0..layers).map(|layer| (0..kv_heads).map(|head| tails_of(layer, head)).collect()).collect();
        let heads: Vec<Vec<HeadTail<'_>>> = tiles
            .iter()
            .map(|heads| heads.iter().map(|tiles| HeadTail { tiles, dropped: 0 }).collect())
            .collect();
        let tails: Vec<LayerTails<'_>> =
            heads.iter().enumerate().map(|(blocks, heads)| LayerTails { blocks, heads }).collect();
        let own_blocks = blocks(16..16 + layers as u32);
        let sequence = SequenceKv { tails: &tails, ..SequenceKv::in_blocks(&own_blocks) };
        assert!(compute(&mut runner, sequence, &tokens, &ends) == expect, "{}", layout.format_name());
    }
}

/// What a row sees is what its heads still store, rotated by the positions they were given.
#[test]
fn rotated_positions_and_dropped_ones_are_what_a_naive_model_says() {
    const FILE: &str = "tests/golden/arch-llama-gqa.gguf";
    const FIRST: usize = 64;
    let (mut runner, layout) = runner(FILE, &[[KvFormat::F32; 2]]);
    // The first rows leave a gap, and the last ones are counted anew after the gap.
    let position = |i: u32| {
        if i < 20 {
            i
        } else if i < 64 {
            i + 30
        } else {
            i - 20
        }
    };
    let tokens: Vec<(Token, u32)> = (0..80).map(|i| (i * 7 % 60, position(i))).collect();

    let table = blocks(0..5);
    let first = rows(&tokens[..FIRST], 0);
    let sequence = SequenceKv::in_blocks(&table);
    let mut found = runner.forward(&Batch { rows: &first, sequences: &[sequence] }, &mut []).to_vec();

    // In layer 0, head 0 drops positions 16..32 and head 1 none; layer 1 keeps all in blocks.
    let tiles = [[2, 3, 4].to_vec(), [1, 2, 3, 4].to_vec()];
    let tiles: Vec<Vec<u32>> = tiles
        .iter()
        .enumerate()
        .map(|(head, blocks)| blocks.iter().map(|&block| layout.tile(block, 0, head)).collect())
        .collect();
    let heads = [HeadTail { tiles: &tiles[0], dropped: 16 }, HeadTail { tiles: &tiles[1], dropped: 0 }];
    let tails = [LayerTails { blocks: 1, heads: &heads }, LayerTails { blocks: 5, heads: &[] }];
    let second = rows(&tokens[FIRST..], FIRST);
    let sequence = SequenceKv { tails: &tails, ..SequenceKv::in_blocks(&table) };
    found.extend_from_slice(runner.forward(&Batch { rows: &second, sequences: &[sequence] }, &mut []));

    let sees = |layer: usize, head: usize, row: usize, at: usize| {
        let dropped = row >= FIRST && (layer, head) == (0, 0) && (16..32).contains(&at);
        at <= row && !dropped
    };
    let close = |found: &[f32], expect: &[f64]| {
        let largest = expect.iter().fold(0.0_f64, |largest, logit| largest.max(logit.abs()));
        found.iter().zip(expect).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4 * largest)
    };
    let rows = |expect: &[Vec<f64>]| -> Vec<bool> {
        found.chunks_exact(expect[0].len()).zip(expect).map(|(found, expect)| close(found, expect)).collect()
    };
    let model = open(FILE);
    assert_eq!(rows(&naive::logits(&model, &tokens, &sees)), [true; 80]);

    // The comparison sees both differences.
    let in_order: Vec<(Token, u32)> = tokens.iter().zip(0..).map(|(&(token, _), i)| (token, i)).collect();
    assert!(rows(&naive::logits(&model, &in_order, &sees))[20..].contains(&false));
    let nothing_dropped = |_, _, row, at| at <= row;
    assert!(rows(&naive::logits(&model, &tokens, &nothing_dropped))[FIRST..].iter().all(|same| !same));
}
