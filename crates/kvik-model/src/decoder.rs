//! The forward pass of a decoder-only transformer, as a list of named steps.
//!
//! Shapes: `n` rows in the batch, `w` rows whose logits or hidden states are needed. All buffers are in [`Scratch`] and
//! are reused from step to step. Attention reads keys and values as they are stored, including those of this batch, so
//! a prompt gives the same bytes however it is divided into batches.

mod predict;

use std::ops::Range;
use std::sync::Arc;

use kvik_cache::SeqId;
use kvik_kernels::{
    Activations, Attention, AttnScratch, AttnWeights, KvArena, Matrix, Pool, RopeTable, SeqKv, SeqRow,
    StateArena, add, add_bias, dequantize, matmul, matmul_many, multiply, product, rms_norm,
    rms_norm_in_place, rope, sigmoid, soft_cap,
};

use super::adapter::{self, AdaptedRows, Adapters, Adapting, InLayer, Place};
use super::arch::{LayerShape, QkNorm, Values};
use super::batch::{Batch, Output, Row, SequenceKv};
use super::loader::Linear;
use super::observation::Watched;
use super::recurrent::{BatchStates, LayerStates, Means, Tried};
use super::residual::{self, Workspace};
use super::state_layout::StateLayout;
use super::weights::{
    AttentionWeights, HeadProjections, Layer, Mixing, Projections, RecurrentWeights, Weights,
};
use super::{Model, Temperature, feed_forward, fit, latent, recurrent};
use crate::pulse::Pulse;

pub(super) use predict::predict;

/// Everything a forward pass reads in addition to the batch.
pub(super) struct Context<'a> {
    pub(super) model: &'a Model,
    pub(super) pool: &'a Pool,
    /// As [`ModelConfig::ropes`](super::ModelConfig::ropes) lists them.
    pub(super) ropes: &'a [Arc<RopeTable>],
    pub(super) adapters: &'a Adapters,
    /// Updated twice per layer.
    pub(super) pulse: &'a Pulse,
}

impl<'a> Context<'a> {
    fn adapting(&self, rows: &'a AdaptedRows, buffers: &'a mut adapter::Buffers) -> Adapting<'a> {
        Adapting { pool: self.pool, adapters: self.adapters, rows, buffers }
    }
}

/// The stored data of sequences.
pub(super) struct Stores<'a> {
    pub(super) kv: &'a mut KvArena,
    pub(super) states: &'a mut StateArena,
    pub(super) layout: &'a StateLayout,
    /// Tentative rows.
    pub(super) tried: &'a mut Tried,
}

/// Buffers of one forward pass, grown to the largest batch seen.
#[derive(Default)]
pub(super) struct Scratch {
    /// Residual stream, `[n, d_model]`.
    pub(super) x: Vec<f32>,
    /// Normed rows, and outputs of projections back to the stream, `[n, d_model]`.
    h: Vec<f32>,
    /// Queries `[n, heads, head_dim]`, keys and values `[n, kv_heads, head_dim]`; no values if keys hold them.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Queries and gates as projected by one matrix, `[n, heads, 2, head_dim]`, and gates, `[n, heads, head_dim]`.
    q_and_gate: Vec<f32>,
    gate: Vec<f32>,
    /// Output of attention, `[n, heads, value_dim]`, then `[n, heads, output_dim]`; or of a recurrent layer, `[n, values]`.
    attended: Vec<f32>,
    recurrent: recurrent::Buffers,
    latent: latent::Buffers,
    feed_forward: feed_forward::Buffers,
    residual: residual::Buffers,
    /// Logits `[rows, vocab]`, then hidden states `[rows, d_model]`, of those of the `w` rows that need them.
    pub(super) outputs: Vec<f32>,
    /// Quantised forms of the input of a matrix product.
    inputs: Activations,
    attention: AttnScratch,
    /// Attention weights of watched rows.
    weights: AttnWeights,
    rows: RowPositions,
    /// The rows that the prediction head needs, by sequence and position, and their hidden states, `[rows, d_model]`.
    followed: Vec<(SeqId, u32)>,
    followed_states: Vec<f32>,
    /// The rows with adapters, and their buffers.
    adapted: AdaptedRows,
    adapter: adapter::Buffers,
}

/// Positions of the rows in the forms that the kernels take, `[n]` each.
#[derive(Default)]
struct RowPositions {
    /// Positions for the rotation of queries and keys.
    rotated: Vec<u32>,
    /// The sequence of the stored keys and values, and up to which position the row attends.
    stored: Vec<SeqRow>,
    /// The outputs needed of the rows that are computed to the end, `[w]`.
    outputs: Vec<Output>,
}

/// Computes the batch: stores its keys and values, continues its states, leaves the needed logits and hidden states in
/// `scratch`, and the observations in `watched`. For a model whose last layers are computed elsewhere, leaves the
/// residual stream of all rows.
pub(super) fn forward(
    context: &Context<'_>,
    mut stores: Stores<'_>,
    scratch: &mut Scratch,
    batch: &Batch<'_>,
    watched: &mut [Watched<'_>],
) {
    let Weights { layers, head, ends, .. } = &context.model.weights;
    let stored = StoredKv::new(batch.sequences, stores.kv.layout().layers().len());
    let states = if stores.layout.floats > 0 { BatchStates::of(batch) } else { BatchStates::default() };
    states.begin(stores.tried);
    scratch.rows.set(batch.rows);
    scratch.adapted.set(context.adapters, batch);
    embed(context, scratch, batch.rows);
    scratch.followed.clear();
    scratch.followed_states.clear();
    let weighs = watched.iter().any(Watched::weighs);
    let is_wanted = |row: &Row| row.output != Output::None || batch.followed(row).is_some();
    for (index, layer) in layers.iter().enumerate() {
        context.pulse.beat();
        around(context, scratch, |work, x, _, buffers| layer.residual.start(work, x, buffers));
        let is_last = head.is_some() && index + 1 == layers.len();
        match &layer.mixing {
            Mixing::Attention(weights) => {
                let seqs = stored.of_layer(weights.kv);
                project_qkv(context, scratch, (index, layer, weights), watched);
                if weights.projections.store() {
                    store(context, stores.kv, scratch, weights.kv, &seqs);
                }
                if is_last && !weighs && keep_wanted(scratch, batch.rows, is_wanted) == 0 {
                    return scratch.outputs.clear();
                }
                attend(context, stores.kv, scratch, (layer, weights), &seqs, watched);
            }
            Mixing::Recurrent(weights) => recur(context, &mut stores, scratch, (layer, weights), &states),
            Mixing::Absent => {}
        }
        let kept = matches!(layer.mixing, Mixing::Attention(_)) && !weighs;
        if is_last && !kept && keep_wanted(scratch, batch.rows, is_wanted) == 0 {
            return scratch.outputs.clear();
        }
        context.pulse.beat();
        add_mixing(context, scratch, (index, layer));
        feed_forward(context, scratch, (index, layer));
        around(context, scratch, |work, x, _, buffers| layer.residual.finish(work, index, x, buffers));
    }
    context.pulse.beat();
    if let Some(head) = head {
        around(context, scratch, |work, x, _, buffers| ends.leave(work, x, buffers));
        norm(context, &scratch.x, &head.norm, &mut scratch.h);
        note_followed(context, scratch, batch, is_wanted);
        give_outputs(context, scratch, &head.output);
    }
}

/// Runs a step on the residual stream, which receives the stream and the input rows of attention.
fn around(
    context: &Context<'_>,
    scratch: &mut Scratch,
    step: impl FnOnce(&mut Workspace<'_>, &mut [f32], &[f32], &mut residual::Buffers),
) {
    let Scratch { x, h, inputs, residual, .. } = scratch;
    let norm_eps = context.model.config.norm_eps;
    step(&mut Workspace { pool: context.pool, norm_eps, inputs }, x, h, residual);
}

/// The stored positions of the sequences of a batch, in the form that the kernels take.
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

impl Scratch {
    /// The rows of the last batch that the prediction head needs, by sequence and position, and their hidden states.
    pub(super) fn followed(&self, d_model: usize) -> impl Iterator<Item = (SeqId, u32, &[f32])> {
        let rows = self.followed.iter().zip(self.followed_states.chunks_exact(d_model));
        rows.map(|(&(id, position), state)| (id, position, state))
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

/// Looks up the embeddings of the rows.
fn embed(context: &Context<'_>, scratch: &mut Scratch, rows: &[Row]) {
    look_up(context, "token_embd.weight", rows, &mut scratch.x);
    multiply(context.pool, &mut scratch.x, context.model.config.extras.multipliers.embedding);
    let by_layer = (rows.iter().map(|row| row.token), context.model.tensors.get(residual::TABLE));
    around(context, scratch, |work, x, _, buffers| {
        context.model.weights.ends.enter(work, by_layer, x, buffers)
    });
}

/// Looks up the rows of an embedding, `[n, d_model]`, directly in the file: only the rows in use are ever read.
fn look_up(context: &Context<'_>, table: &str, rows: &[Row], x: &mut Vec<f32>) {
    let d = context.model.config.d_model;
    let table = context.model.tensors.get(table).expect("checked when the model was loaded");
    let row_bytes = table.data.len() / table.rows;
    x.resize(rows.len() * d, 0.0);
    for (row, x) in rows.iter().zip(x.chunks_exact_mut(d)) {
        let start = row.token as usize * row_bytes;
        dequantize(table.ty, &table.data[start..start + row_bytes], x);
    }
}

/// Norms the stream and projects it to rotated queries and keys, and values.
fn project_qkv(
    context: &Context<'_>,
    scratch: &mut Scratch,
    (index, layer, weights): (usize, &Layer, &AttentionWeights),
    watched: &mut [Watched<'_>],
) {
    norm_before(context, &scratch.x, layer.mixing_norms.before.as_deref(), &mut scratch.h);
    match &weights.projections {
        Projections::Heads(heads) => {
            project_heads(context, scratch, (index, layer, weights.kv), heads, watched);
        }
        Projections::Latent(latent) => project_latent(context, scratch, (index, layer), latent),
    }
    around(context, scratch, |work, _, h, buffers| layer.residual.branch(work, h, buffers));
    let Scratch { q, rows, .. } = scratch;
    if let Some(temperature) = context.model.config.extras.temperature.as_ref().filter(|_| layer.shape.warmed)
    {
        warm(q, &rows.rotated, temperature);
    }
    if fit::fits(&layer.shape) && watched.iter().any(|watched| watched.repeated.is_some()) {
        let (width, most) = (layer.shape.heads * layer.shape.head_dim, fit::rows_max(&context.model.config));
        watched.iter_mut().for_each(|watched| watched.keep_queries(weights.kv, q, width, most));
    }
}

/// Queries and keys of latent attention, whose keys hold the values.
fn project_latent(
    context: &Context<'_>,
    scratch: &mut Scratch,
    (index, layer): (usize, &Layer),
    latent: &latent::Latent,
) {
    let config = &context.model.config;
    let Scratch { h, q, k, v, inputs, rows, latent: buffers, adapted, adapter, .. } = scratch;
    let rows = latent::Rows {
        pool: context.pool,
        norm_eps: config.norm_eps,
        table: &context.ropes[layer.shape.rotation.expect("keys of latent attention have a rotated part")],
        style: config.rope.style,
        positions: &rows.rotated,
    };
    let mut adapt = InLayer(context.adapting(adapted, adapter), index);
    latent.project(&rows, h, inputs, buffers, [q, k], &mut adapt);
    v.clear();
}

/// Queries, keys and values by a projection each; only queries if the layer reads the keys and values of another.
fn project_heads(
    context: &Context<'_>,
    scratch: &mut Scratch,
    (index, layer, kv): (usize, &Layer, usize),
    heads: &HeadProjections,
    watched: &mut [Watched<'_>],
) {
    let shape = &layer.shape;
    multiply_heads(context, scratch, (index, shape), heads);
    norm_heads(context, scratch, shape, heads);
    for watched in watched {
        watched.note_queries(context.pool, kv, &scratch.rows.rotated, &scratch.q, shape.head_dim);
    }
    rotate_heads(context, scratch, shape, heads.kv.is_some());
}

/// The matrix products of the input rows of attention.
fn multiply_heads(
    context: &Context<'_>,
    scratch: &mut Scratch,
    (index, shape): (usize, &LayerShape),
    HeadProjections { q: of_queries, kv, .. }: &HeadProjections,
) {
    let (pool, n) = (context.pool, scratch.rows.rotated.len());
    let Scratch { h, q, q_and_gate, gate, k, v, inputs, adapted, adapter, .. } = scratch;
    let queries = if shape.gated { &mut *q_and_gate } else { &mut *q };
    let kv = kv.iter().flat_map(|kv| [("attn_k.weight", Some(&kv.k)), ("attn_v.weight", kv.v.as_ref())]);
    let parts = [("attn_q.weight", Some(of_queries))].into_iter().chain(kv).zip([queries, k, v]);
    let mut parts: Vec<_> = parts.filter_map(|((name, linear), out)| Some((name, linear?, out))).collect();
    let matrices: Vec<_> = parts.iter().map(|(_, linear, _)| &linear.matrix).collect();
    inputs.set(pool, h, context.model.config.d_model, &matrices);
    parts.iter_mut().for_each(|(_, linear, out)| out.resize(n * linear.matrix.rows(), 0.0));
    let mut jobs: Vec<_> = parts.iter_mut().map(|(_, linear, out)| (&linear.matrix, &mut out[..])).collect();
    matmul_many(pool, &mut jobs, inputs);
    let mut adapting = context.adapting(adapted, adapter);
    for (name, linear, projected) in parts {
        adapting.add(Place::Layer(index, name), h, projected);
        bias(context, projected, linear);
    }
    if shape.gated {
        split_gates(q_and_gate, shape.head_dim, q, gate);
    }
}

/// Splits the query of each head from its gate, which are adjacent in `projected`.
fn split_gates(projected: &[f32], head_dim: usize, q: &mut Vec<f32>, gate: &mut Vec<f32>) {
    [&mut *q, &mut *gate].into_iter().for_each(Vec::clear);
    for head in projected.chunks_exact(2 * head_dim) {
        let (query, of_query) = head.split_at(head_dim);
        q.extend_from_slice(query);
        gate.extend_from_slice(of_query);
    }
}

/// Norms queries, keys and values before rotation, if the layer does.
fn norm_heads(
    context: &Context<'_>,
    scratch: &mut Scratch,
    shape: &LayerShape,
    HeadProjections { q_norm, kv, .. }: &HeadProjections,
) {
    let Scratch { q, k, v, .. } = scratch;
    if let Some(kv) = kv.as_ref().filter(|_| shape.values != Values::Projected) {
        norm_values(context, shape.head_dim, kv.v.is_none().then_some(&k[..]), v);
    }
    let k_norm = kv.as_ref().and_then(|kv| kv.k_norm.as_ref());
    for (heads, weight) in [(q, q_norm.as_ref()), (k, k_norm)] {
        if let Some(weight) = weight {
            rms_norm_in_place(context.pool, heads, weight, context.model.config.norm_eps);
        }
    }
}

/// Rotates queries and keys, and norms them afterwards if the layer does; a layer without keys of its own has only
/// queries.
fn rotate_heads(context: &Context<'_>, scratch: &mut Scratch, shape: &LayerShape, has_keys: bool) {
    let Context { model, pool, .. } = context;
    let Scratch { q, k, rows, .. } = scratch;
    for heads in [Some(q), has_keys.then_some(k)].into_iter().flatten() {
        if let Some(rotation) = shape.rotation {
            let (table, style) = (&context.ropes[rotation], model.config.rope.style);
            rope(pool, heads, shape.head_dim, &rows.rotated, table, style);
        }
        if shape.qk_norm == QkNorm::Rotated {
            rms_norm_in_place(pool, heads, &vec![1.0; shape.head_dim], model.config.norm_eps);
        }
    }
}

/// Norms each head of values without weights; values without a projection are copied from `keys`, before those are
/// normed.
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

/// Stores keys and values in the blocks of their sequences.
fn store(context: &Context<'_>, arena: &mut KvArena, scratch: &Scratch, layer: usize, seqs: &[SeqKv<'_>]) {
    arena.write(context.pool, layer, &scratch.rows.stored, seqs, [&scratch.k, &scratch.v]);
}

/// Attention of each row over the stored positions of its sequence up to its own; records the weights of watched rows.
fn attend(
    context: &Context<'_>,
    arena: &KvArena,
    scratch: &mut Scratch,
    (layer, weights): (&Layer, &AttentionWeights),
    seqs: &[SeqKv<'_>],
    watched: &mut [Watched<'_>],
) {
    let LayerShape { heads, kv_heads, head_dim, scale, .. } = layer.shape;
    let (kv, sinks) = (weights.kv, weights.sinks.as_deref());
    let Scratch { q, attended, attention, weights, rows, .. } = scratch;
    let (q_width, width) = (heads * head_dim, heads * layer.shape.value_dim());
    attended.resize(rows.stored.len() * width, 0.0);
    for piece in pieces(&rows.stored, heads, watched) {
        let q = &q[piece.start * q_width..piece.end * q_width];
        let out = &mut attended[piece.start * width..piece.end * width];
        let rows = &rows.stored[piece.clone()];
        let softcap = context.model.config.extras.score_cap;
        let operands = Attention { arena, layer: kv, q, heads, rows, seqs, scale, softcap, sinks };
        let weighed = piece.clone().filter(|&row| is_weighed(row, watched)).map(|row| row - piece.start);
        operands.run_watched(context.pool, attention, out, weighed, weights);
        for watched in watched.iter_mut().filter(|watched| watched.weighs()) {
            let (start, end) = (watched.rows.start.max(piece.start), watched.rows.end.min(piece.end));
            if start < end {
                let rows = start - piece.start..end - piece.start;
                watched.weigh(context.pool, (kv, kv_heads), weights, rows);
            }
        }
    }
}

fn is_weighed(row: usize, watched: &[Watched<'_>]) -> bool {
    watched.iter().any(|watched| watched.weighs() && watched.rows.contains(&row))
}

/// Maximum number of attention weights held at a time: 64 MiB.
const WEIGHTS_MAX: usize = 16 << 20;

/// Divides the rows of a batch so that the weights of the watched ones fit [`WEIGHTS_MAX`]: not at all if no row is
/// watched. The division does not affect the result.
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

/// Norms the stream and updates the states of the batch's sequences with it, row by row.
fn recur(
    context: &Context<'_>,
    stores: &mut Stores<'_>,
    scratch: &mut Scratch,
    (layer, weights): (&Layer, &RecurrentWeights),
    states: &BatchStates,
) {
    let Scratch { x, h, attended, inputs, recurrent, .. } = scratch;
    norm_before(context, x, layer.mixing_norms.before.as_deref(), h);
    let offset = stores.layout.offsets[weights.number];
    let mut layer_states = LayerStates { arena: &mut *stores.states, offset, rows: &states.rows() };
    let means = Means { pool: context.pool, norm_eps: context.model.config.norm_eps };
    let buffers = (inputs, recurrent);
    weights.recurrent.forward(means, &mut layer_states, h, buffers, stores.tried, attended);
}

/// Projects the output of sequence mixing back to the stream.
fn add_mixing(context: &Context<'_>, scratch: &mut Scratch, (index, layer): (usize, &Layer)) {
    let Scratch { x, h, attended, gate, latent: buffers, inputs, adapted, adapter, .. } = scratch;
    let linear = match &layer.mixing {
        Mixing::Attention(weights) => &weights.output,
        Mixing::Recurrent(weights) => &weights.output,
        Mixing::Absent => return,
    };
    if let Mixing::Attention(weights) = &layer.mixing
        && let Projections::Latent(latent) = &weights.projections
    {
        latent.expand(context.pool, buffers, attended);
    }
    if layer.shape.gated && matches!(layer.mixing, Mixing::Attention(_)) {
        sigmoid(context.pool, gate);
        product(context.pool, attended, gate);
    }
    inputs.set(context.pool, attended, linear.matrix.cols(), &[&linear.matrix]);
    h.resize(x.len(), 0.0);
    matmul(context.pool, &linear.matrix, inputs, h);
    context.adapting(adapted, adapter).add(Place::Layer(index, "attn_output.weight"), attended, h);
    bias(context, h, linear);
    add_to_stream(context, x, h, layer.mixing_norms.after.as_deref());
    around(context, scratch, |work, x, _, buffers| layer.residual.join(work, x, buffers));
}

fn feed_forward(context: &Context<'_>, scratch: &mut Scratch, (index, layer): (usize, &Layer)) {
    let Some(weights) = &layer.feed_forward else { return };
    let Scratch { x, h, inputs, feed_forward, adapted, adapter, .. } = scratch;
    norm_before(context, x, layer.ffn_norms.before.as_deref(), h);
    let mut adapt = InLayer(context.adapting(adapted, adapter), index);
    weights.forward(context.pool, (x, h), inputs, feed_forward, &mut adapt);
    add_to_stream(context, x, h, layer.ffn_norms.after.as_deref());
}

/// The input of one half of a layer: the stream, normed if the half has a norm before it.
fn norm_before(context: &Context<'_>, x: &[f32], weight: Option<&[f32]>, h: &mut Vec<f32>) {
    match weight {
        Some(weight) => norm(context, x, weight, h),
        None => {
            h.clear();
            h.extend_from_slice(x);
        }
    }
}

/// Adds the output of one half of a layer, normed if the half has a norm after it.
fn add_to_stream(context: &Context<'_>, x: &mut [f32], h: &mut [f32], weight: Option<&[f32]>) {
    let config = &context.model.config;
    if let Some(weight) = weight {
        rms_norm_in_place(context.pool, h, weight, config.norm_eps);
    }
    multiply(context.pool, h, config.extras.multipliers.residual);
    add(context.pool, x, h);
}

/// In the last layer, continues only with the rows whose output is needed, once their keys and values are stored;
/// returns their number. Queries and attention outputs are compacted as far as they exist.
fn keep_wanted(scratch: &mut Scratch, rows: &[Row], is_wanted: impl Fn(&Row) -> bool) -> usize {
    let Scratch { x, q, gate, attended, rows: positions, adapted, residual, .. } = scratch;
    let wanted = rows.iter().enumerate().filter(|(_, row)| is_wanted(row));
    let wanted: Vec<usize> = wanted.map(|(index, _)| index).collect();
    for buffer in [x, q, gate, attended].into_iter().chain(residual.of_rows()) {
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

/// Notes the hidden states that the prediction head needs, of the rows that have reached the end.
fn note_followed(
    context: &Context<'_>,
    scratch: &mut Scratch,
    batch: &Batch<'_>,
    is_wanted: impl Fn(&Row) -> bool,
) {
    let Scratch { h, followed, followed_states, .. } = scratch;
    let wanted = batch.rows.iter().filter(|row| is_wanted(row));
    for (row, state) in wanted.zip(h.chunks_exact(context.model.config.d_model)) {
        if let Some(id) = batch.followed(row) {
            followed.push((id, row.position));
            followed_states.extend_from_slice(state);
        }
    }
}

/// Gives the hidden states of rows that have reached the end and been normed. Multiplies those whose logits are needed
/// by the output matrix.
fn give_outputs(context: &Context<'_>, scratch: &mut Scratch, output: &Matrix) {
    let d_model = context.model.config.d_model;
    let Scratch { h, outputs, rows, adapted, adapter, inputs, .. } = scratch;
    let logits = rows.outputs.iter().filter(|&&output| output == Output::Logits).count();
    let vocab = context.model.config.vocab;
    // Contents left from the last batch are overwritten: filling megabytes with zeros takes milliseconds.
    outputs.truncate(logits * vocab);
    outputs.resize(logits * vocab, 0.0);
    let mut unembedded = Vec::new();
    for (row, &needed) in rows.outputs.iter().enumerate() {
        let state = row * d_model..(row + 1) * d_model;
        match needed {
            Output::Hidden => outputs.extend_from_slice(&h[state]),
            // Only the prediction head needs it.
            Output::None => {}
            Output::Logits | Output::Likeliest => {
                h.copy_within(state, unembedded.len() * d_model);
                unembedded.push(row);
            }
        }
    }
    h.truncate(unembedded.len() * d_model);
    if !unembedded.is_empty() {
        let logits = &mut outputs[..logits * vocab];
        unembed(context, h, inputs, output, logits);
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
fn unembed(
    context: &Context<'_>,
    hidden: &[f32],
    inputs: &mut Activations,
    output: &Matrix,
    logits: &mut [f32],
) {
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
