//! The forward pass of a decoder-only transformer, as a list of named steps.
//!
//! Shapes: `n` rows in the batch, `w` rows of which logits or hidden states are wanted. All buffers live in [`Scratch`] and are
//! reused from step to step. Attention reads keys and values as they are stored, also those of this batch,
//! so a prompt gives the same bytes however it is cut into batches.

use std::ops::Range;
use std::sync::Arc;

use kvik_kernels::{
    Activations, Attention, AttnScratch, AttnWeights, KvArena, Pool, RopeTable, SeqKv, SeqRow, add, add_bias,
    dequantize, matmul, matmul_many, multiply, rms_norm, rms_norm_in_place, rope, soft_cap,
};

use super::adapter::{self, AdaptedRows, Adapters, Adapting, Place};
use super::arch::{LayerShape, QkNorm, Values};
use super::batch::{Batch, Output, Row, SequenceKv};
use super::observation::Watched;
use super::residual::{self, Workspace};
use super::weights::{Layer, Linear};
use super::{Model, Temperature, feed_forward};
use crate::pulse::Pulse;

/// Everything a forward pass reads besides the batch.
pub(super) struct Context<'a> {
    pub(super) model: &'a Model,
    pub(super) pool: &'a Pool,
    /// As [`ModelConfig::ropes`](super::ModelConfig::ropes) lists them.
    pub(super) ropes: &'a [Arc<RopeTable>],
    pub(super) adapters: &'a Adapters,
    /// Told twice a layer that the pass goes on.
    pub(super) pulse: &'a Pulse,
}

impl<'a> Context<'a> {
    fn adapting(&self, rows: &'a AdaptedRows, buffers: &'a mut adapter::Buffers) -> Adapting<'a> {
        Adapting { pool: self.pool, adapters: self.adapters, rows, buffers }
    }
}

/// Buffers of one forward pass, grown to the largest batch seen.
#[derive(Default)]
pub(super) struct Scratch {
    /// Residual stream, `[n, d_model]`.
    x: Vec<f32>,
    /// Normed rows, and outputs of projections back to the stream, `[n, d_model]`.
    h: Vec<f32>,
    /// Queries `[n, heads, head_dim]`, keys and values `[n, kv_heads, head_dim]`.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Output of attention, `[n, heads, head_dim]`.
    attended: Vec<f32>,
    feed_forward: feed_forward::Buffers,
    residual: residual::Buffers,
    /// Logits `[rows, vocab]`, then hidden states `[rows, d_model]`, of those of the `w` rows that want them.
    pub(super) outputs: Vec<f32>,
    /// Quantised forms of the input of a matrix product.
    inputs: Activations,
    attention: AttnScratch,
    /// What watched rows attend to.
    weights: AttnWeights,
    rows: RowPositions,
    /// Which rows have adapters, and what those need.
    adapted: AdaptedRows,
    adapter: adapter::Buffers,
}

/// Where each row is, in the forms the kernels want, `[n]` each.
#[derive(Default)]
struct RowPositions {
    /// By which queries and keys are rotated.
    rotated: Vec<u32>,
    /// In which sequence keys and values are stored, and up to where the row attends.
    stored: Vec<SeqRow>,
    /// What is wanted of those that go on to the end, `[w]`.
    outputs: Vec<Output>,
}

/// Computes the batch: stores its keys and values in `arena`, leaves the wanted logits and hidden states in
/// `scratch`, and what is watched with those who watch.
pub(super) fn forward(
    context: &Context<'_>,
    arena: &mut KvArena,
    scratch: &mut Scratch,
    batch: &Batch<'_>,
    watched: &mut [Watched<'_>],
) {
    let layers = &context.model.weights.layers;
    let stored = StoredKv::new(batch.sequences, arena.layout().layers().len());
    scratch.rows.set(batch.rows);
    scratch.adapted.set(context.adapters, batch);
    embed(context, scratch, batch.rows);
    let weighs = watched.iter().any(Watched::weighs);
    for (index, layer) in layers.iter().enumerate() {
        context.pulse.beat();
        let seqs = stored.of_layer(layer.stored);
        around(context, scratch, |work, x, _, buffers| layer.residual.start(work, x, buffers));
        project_qkv(context, scratch, (index, layer), watched);
        around(context, scratch, |work, _, h, buffers| layer.residual.branch(work, h, buffers));
        if layer.kv.is_some() {
            store(context, arena, scratch, layer.stored, &seqs);
        }
        let is_last = index + 1 == layers.len();
        if is_last && !weighs && keep_wanted(scratch, batch.rows) == 0 {
            return scratch.outputs.clear();
        }
        attend(context, arena, scratch, layer, &seqs, watched);
        if is_last && weighs && keep_wanted(scratch, batch.rows) == 0 {
            return scratch.outputs.clear();
        }
        context.pulse.beat();
        add_attention(context, scratch, (index, layer));
        feed_forward(context, scratch, (index, layer));
        around(context, scratch, |work, x, _, buffers| layer.residual.finish(work, index, x, buffers));
    }
    context.pulse.beat();
    around(context, scratch, |work, x, _, buffers| context.model.weights.ends.leave(work, x, buffers));
    give_outputs(context, scratch);
}

/// A step around the residual stream, which is told the stream and the rows that attention reads.
fn around(
    context: &Context<'_>,
    scratch: &mut Scratch,
    step: impl FnOnce(&mut Workspace<'_>, &mut [f32], &[f32], &mut residual::Buffers),
) {
    let Scratch { x, h, inputs, residual, .. } = scratch;
    let norm_eps = context.model.config.norm_eps;
    step(&mut Workspace { pool: context.pool, norm_eps, inputs }, x, h, residual);
}

/// What the sequences of a batch store, in the form the kernels want.
struct StoredKv<'a> {
    sequences: &'a [SequenceKv<'a>],
    /// The blocks of each sequence.
    blocks: Vec<Vec<u32>>,
}

impl<'a> StoredKv<'a> {
    fn new(sequences: &'a [SequenceKv<'a>], layers: usize) -> StoredKv<'a> {
        for SequenceKv { tails, .. } in sequences {
            assert!(
                tails.is_empty() || tails.len() == layers,
                "tails of {} layers, not {layers}",
                tails.len()
            );
        }
        let blocks = sequences.iter().map(|sequence| sequence.blocks.iter().map(|block| block.0).collect());
        StoredKv { sequences, blocks: blocks.collect() }
    }

    fn of_layer(&self, layer: usize) -> Vec<SeqKv<'_>> {
        let sequences = self.sequences.iter().zip(&self.blocks);
        sequences.map(|(sequence, blocks)| sequence.layer(layer, blocks)).collect()
    }
}

impl RowPositions {
    fn set(&mut self, rows: &[Row]) {
        self.rotated.clear();
        self.rotated.extend(rows.iter().map(|row| row.position));
        self.stored.clear();
        self.stored.extend(rows.iter().map(|row| SeqRow { seq: row.sequence, len: row.cache_position + 1 }));
    }
}

/// Looks up the rows of the embedding, straight from the file: only the rows in use are ever read.
fn embed(context: &Context<'_>, scratch: &mut Scratch, rows: &[Row]) {
    let d = context.model.config.d_model;
    let table = context.model.tensors.get("token_embd.weight").expect("checked when the model was loaded");
    let row_bytes = table.data.len() / table.rows;
    scratch.x.resize(rows.len() * d, 0.0);
    for (row, x) in rows.iter().zip(scratch.x.chunks_exact_mut(d)) {
        let start = row.token as usize * row_bytes;
        dequantize(table.ty, &table.data[start..start + row_bytes], x);
    }
    multiply(context.pool, &mut scratch.x, context.model.config.extras.multipliers.embedding);
    let by_layer = (rows.iter().map(|row| row.token), context.model.tensors.get(residual::TABLE));
    around(context, scratch, |work, x, _, buffers| {
        context.model.weights.ends.enter(work, by_layer, x, buffers)
    });
}

/// Norms the stream and projects it to rotated queries and keys, and values.
fn project_qkv(
    context: &Context<'_>,
    scratch: &mut Scratch,
    (index, layer): (usize, &Layer),
    watched: &mut [Watched<'_>],
) {
    let Context { model, pool, .. } = context;
    let (config, shape, n) = (&model.config, &layer.shape, scratch.rows.rotated.len());
    let Scratch { x, h, q, k, v, inputs, rows, adapted, adapter, .. } = scratch;
    norm_before(context, x, layer.attn_norms.before.as_deref(), h);
    let kv =
        layer.kv.iter().flat_map(|kv| [("attn_k.weight", Some(&kv.k)), ("attn_v.weight", kv.v.as_ref())]);
    let parts = [("attn_q.weight", Some(&layer.q))].into_iter().chain(kv).zip([&mut *q, &mut *k, &mut *v]);
    let mut parts: Vec<_> = parts.filter_map(|((name, linear), out)| Some((name, linear?, out))).collect();
    let matrices: Vec<_> = parts.iter().map(|(_, linear, _)| &linear.matrix).collect();
    inputs.set(pool, h, config.d_model, &matrices);
    parts.iter_mut().for_each(|(_, linear, out)| out.resize(n * linear.matrix.rows(), 0.0));
    let mut jobs: Vec<_> = parts.iter_mut().map(|(_, linear, out)| (&linear.matrix, &mut out[..])).collect();
    matmul_many(pool, &mut jobs, inputs);
    let mut adapting = context.adapting(adapted, adapter);
    for (name, linear, projected) in parts {
        adapting.add(Place::Layer(index, name), h, projected);
        bias(context, projected, linear);
    }
    if let Some(kv) = layer.kv.as_ref().filter(|_| shape.values != Values::Projected) {
        norm_values(context, shape.head_dim, kv.v.is_none().then_some(&k[..]), v);
    }
    let k_norm = layer.kv.as_ref().and_then(|kv| kv.k_norm.as_ref());
    for (heads, weight) in [(&mut *q, layer.q_norm.as_ref()), (&mut *k, k_norm)] {
        weight.inspect(|weight| rms_norm_in_place(pool, heads, weight, config.norm_eps));
    }
    for watched in watched {
        watched.note_queries(pool, index, &rows.rotated, q, shape.head_dim);
    }
    // A layer that reads the keys of another has queries alone.
    let turned = if layer.kv.is_some() { vec![&mut *q, k] } else { vec![&mut *q] };
    for heads in turned {
        if let Some(rotation) = shape.rotation {
            rope(pool, heads, shape.head_dim, &rows.rotated, &context.ropes[rotation], config.rope.style);
        }
        if shape.qk_norm == QkNorm::Rotated {
            rms_norm_in_place(pool, heads, &vec![1.0; shape.head_dim], config.norm_eps);
        }
    }
    if let Some(temperature) = config.extras.temperature.as_ref().filter(|_| shape.warmed) {
        warm(q, &rows.rotated, temperature);
    }
}

/// Norms each head of values without weights; they are `keys`, before these are normed, where they have no projection.
fn norm_values(context: &Context<'_>, head_dim: usize, keys: Option<&[f32]>, v: &mut Vec<f32>) {
    if let Some(keys) = keys {
        v.clear();
        v.extend_from_slice(keys);
    }
    rms_norm_in_place(context.pool, v, &vec![1.0; head_dim], context.model.config.norm_eps);
}

/// Multiplies the queries of each row, `[n, heads, head_dim]`, by the factor of its position.
fn warm(q: &mut [f32], positions: &[u32], temperature: &Temperature) {
    let width = q.len() / positions.len().max(1);
    for (row, &position) in q.chunks_exact_mut(width.max(1)).zip(positions) {
        let factor = temperature.factor(position);
        row.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Stores keys and values where their sequences keep them.
fn store(context: &Context<'_>, arena: &mut KvArena, scratch: &Scratch, layer: usize, seqs: &[SeqKv<'_>]) {
    arena.write(context.pool, layer, &scratch.rows.stored, seqs, [&scratch.k, &scratch.v]);
}

/// Each row attends to the stored positions of its sequence up to its own; watched rows are weighed.
fn attend(
    context: &Context<'_>,
    arena: &KvArena,
    scratch: &mut Scratch,
    layer: &Layer,
    seqs: &[SeqKv<'_>],
    watched: &mut [Watched<'_>],
) {
    let LayerShape { heads, kv_heads, head_dim, scale, .. } = layer.shape;
    let Scratch { q, attended, attention, weights, rows, .. } = scratch;
    let width = heads * head_dim;
    attended.resize(q.len(), 0.0);
    for piece in pieces(&rows.stored, heads, watched) {
        let values = piece.start * width..piece.end * width;
        let (q, out) = (&q[values.clone()], &mut attended[values]);
        let rows = &rows.stored[piece.clone()];
        let (softcap, sinks) = (context.model.config.extras.score_cap, layer.sinks.as_deref());
        let operands = Attention { arena, layer: layer.stored, q, heads, rows, seqs, scale, softcap, sinks };
        let weighed = piece.clone().filter(|&row| is_weighed(row, watched)).map(|row| row - piece.start);
        operands.run_watched(context.pool, attention, out, weighed, weights);
        for watched in watched.iter_mut().filter(|watched| watched.weighs()) {
            let (start, end) = (watched.rows.start.max(piece.start), watched.rows.end.min(piece.end));
            if start < end {
                let rows = start - piece.start..end - piece.start;
                watched.weigh(context.pool, (layer.stored, kv_heads), weights, rows);
            }
        }
    }
}

fn is_weighed(row: usize, watched: &[Watched<'_>]) -> bool {
    watched.iter().any(|watched| watched.weighs() && watched.rows.contains(&row))
}

/// Attention weights that are held at a time: 64 MiB.
const WEIGHTS_MAX: usize = 16 << 20;

/// Cuts the rows of a batch so that the weights of the watched ones fit [`WEIGHTS_MAX`]: not at all where nobody
/// watches. How rows are cut changes no result.
fn pieces(rows: &[SeqRow], heads: usize, watched: &[Watched<'_>]) -> Vec<Range<usize>> {
    let (mut pieces, mut start, mut weights) = (Vec::new(), 0, 0);
    for (index, row) in rows.iter().enumerate() {
        let more = if is_weighed(index, watched) { heads * row.len as usize } else { 0 };
        if start < index && weights + more > WEIGHTS_MAX {
            pieces.push(start..index);
            (start, weights) = (index, 0);
        }
        weights += more;
    }
    pieces.push(start..rows.len());
    pieces
}

fn add_attention(context: &Context<'_>, scratch: &mut Scratch, (index, layer): (usize, &Layer)) {
    let Scratch { x, h, attended, inputs, adapted, adapter, .. } = scratch;
    let linear = &layer.output;
    inputs.set(context.pool, attended, linear.matrix.cols(), &[&linear.matrix]);
    h.resize(x.len(), 0.0);
    matmul(context.pool, &linear.matrix, inputs, h);
    context.adapting(adapted, adapter).add(Place::Layer(index, "attn_output.weight"), attended, h);
    bias(context, h, linear);
    add_to_stream(context, x, h, layer.attn_norms.after.as_deref());
    around(context, scratch, |work, x, _, buffers| layer.residual.join(work, x, buffers));
}

fn feed_forward(context: &Context<'_>, scratch: &mut Scratch, (index, layer): (usize, &Layer)) {
    let Scratch { x, h, inputs, feed_forward, adapted, adapter, .. } = scratch;
    norm_before(context, x, layer.ffn_norms.before.as_deref(), h);
    let mut adapting = context.adapting(adapted, adapter);
    let adapt = &mut |name, x: &[f32], out: &mut [f32]| adapting.add(Place::Layer(index, name), x, out);
    layer.feed_forward.forward(context.pool, (x, h), inputs, feed_forward, adapt);
    add_to_stream(context, x, h, layer.ffn_norms.after.as_deref());
}

/// What one half of a layer reads: the stream, normed if the half has a norm before it.
fn norm_before(context: &Context<'_>, x: &[f32], weight: Option<&[f32]>, h: &mut Vec<f32>) {
    match weight {
        Some(weight) => norm(context, x, weight, h),
        None => {
            h.clear();
            h.extend_from_slice(x);
        }
    }
}

/// Adds what one half of a layer computed, normed if the half has a norm behind it.
fn add_to_stream(context: &Context<'_>, x: &mut [f32], h: &mut [f32], weight: Option<&[f32]>) {
    let config = &context.model.config;
    if let Some(weight) = weight {
        rms_norm_in_place(context.pool, h, weight, config.norm_eps);
    }
    multiply(context.pool, h, config.extras.multipliers.residual);
    add(context.pool, x, h);
}

/// In the last layer only rows of which more is wanted go on, once their keys and values are stored: how many.
/// Queries and what was attended to have the same shape, and each is kept as far as it is there.
fn keep_wanted(scratch: &mut Scratch, rows: &[Row]) -> usize {
    let Scratch { x, q, attended, rows: positions, adapted, residual, .. } = scratch;
    let wanted: Vec<usize> = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.output != Output::None)
        .map(|(index, _)| index)
        .collect();
    for buffer in [x, q, attended].into_iter().chain(residual.of_rows()) {
        let width = buffer.len() / rows.len().max(1);
        for (to, &from) in wanted.iter().enumerate() {
            buffer.copy_within(from * width..(from + 1) * width, to * width);
        }
        buffer.truncate(wanted.len() * width);
    }
    for (to, &from) in wanted.iter().enumerate() {
        positions.stored[to] = positions.stored[from];
    }
    positions.stored.truncate(wanted.len());
    positions.outputs.clear();
    positions.outputs.extend(wanted.iter().map(|&row| rows[row].output));
    adapted.keep(&wanted);
    wanted.len()
}

/// Norms the rows that have come to the end: hidden states. Those whose logits are wanted meet the output matrix.
fn give_outputs(context: &Context<'_>, scratch: &mut Scratch) {
    let d_model = context.model.config.d_model;
    let Scratch { x, h, outputs, rows, adapted, adapter, inputs, .. } = scratch;
    norm(context, x, &context.model.weights.output_norm, h);
    let logits = rows.outputs.iter().filter(|&&output| output == Output::Logits).count();
    let vocab = context.model.config.vocab;
    // What is left of the last batch is overwritten: filling megabytes with zeros takes milliseconds.
    outputs.truncate(logits * vocab);
    outputs.resize(logits * vocab, 0.0);
    let mut unembedded = Vec::new();
    for (row, &output) in rows.outputs.iter().enumerate() {
        let state = row * d_model..(row + 1) * d_model;
        if output == Output::Hidden {
            outputs.extend_from_slice(&h[state]);
        } else {
            h.copy_within(state, unembedded.len() * d_model);
            unembedded.push(row);
        }
    }
    h.truncate(unembedded.len() * d_model);
    if !unembedded.is_empty() {
        let logits = &mut outputs[..logits * vocab];
        unembed(context, h, inputs, logits);
        adapted.keep(&unembedded);
        context.adapting(adapted, adapter).add(Place::Output, h, logits);
        let extras = &context.model.config.extras;
        multiply(context.pool, logits, extras.multipliers.logits);
        if let Some(cap) = extras.logit_cap {
            soft_cap(context.pool, logits, cap);
        }
    }
}

/// Multiplies hidden states by the output matrix.
fn unembed(context: &Context<'_>, hidden: &[f32], inputs: &mut Activations, logits: &mut [f32]) {
    let output = &context.model.weights.output;
    inputs.set(context.pool, hidden, context.model.config.d_model, &[output]);
    matmul(context.pool, output, inputs, logits);
}

fn norm(context: &Context<'_>, x: &[f32], weight: &[f32], out: &mut Vec<f32>) {
    out.resize(x.len(), 0.0);
    rms_norm(context.pool, x, weight, context.model.config.norm_eps, out);
}

fn bias(context: &Context<'_>, projected: &mut [f32], linear: &Linear) {
    if let Some(bias) = &linear.bias {
        add_bias(context.pool, projected, bias);
    }
}
