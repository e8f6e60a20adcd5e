//! The forward pass of a decoder-only transformer, as a list of named steps.
//!
//! Shapes: `n` rows in the batch, `w` rows whose logits or hidden states are needed. All buffers are in [`Scratch`] and
//! are reused from step to step. Attention reads keys and values as they are stored, including those of this batch, so
//! a prompt gives the same bytes however it is divided into batches.

mod attention;
mod outputs;
mod predict;

use std::sync::Arc;

use kvik_cache::SeqId;
use kvik_kernels::{
    Activations, AttnScratch, AttnWeights, KvArena, Pool, RopeTable, SeqKv, SeqRow, StateArena, add,
    add_bias, dequantize, matmul, multiply, product, rms_norm, rms_norm_in_place, sigmoid,
};

use self::attention::{attend, project_qkv, store};
use self::outputs::{give_outputs, keep_wanted, note_followed};
use super::adapter::{self, AdaptedRows, Adapters, Adapting, InLayer, Place};
use super::batch::{Batch, Output, Row, SequenceKv};
use super::loader::Linear;
use super::observation::Watched;
use super::recurrent::{BatchStates, LayerStates, Means, Tried};
use super::residual::{self, Workspace};
use super::state_layout::StateLayout;
use super::weights::{Head, Layer, Mixing, Projections, RecurrentWeights, Weights};
use super::{Model, feed_forward, latent, recurrent};
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
    let Weights { layers, head, .. } = &context.model.weights;
    let stored = StoredKv::new(batch.sequences, stores.kv.layout().layers().len());
    let states = if stores.layout.floats > 0 { BatchStates::of(batch) } else { BatchStates::default() };
    states.begin(stores.tried);
    begin(context, scratch, batch);
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
        finish(context, scratch, batch, head, is_wanted);
    }
}

/// Sets the buffers to the rows of a batch, and the stream to their embeddings.
fn begin(context: &Context<'_>, scratch: &mut Scratch, batch: &Batch<'_>) {
    scratch.rows.set(batch.rows);
    scratch.adapted.set(context.adapters, batch);
    embed(context, scratch, batch.rows);
    scratch.followed.clear();
    scratch.followed_states.clear();
}

/// Gives the hidden states and logits of the rows that have reached the end.
fn finish(
    context: &Context<'_>,
    scratch: &mut Scratch,
    batch: &Batch<'_>,
    head: &Head,
    is_wanted: impl Fn(&Row) -> bool,
) {
    let ends = &context.model.weights.ends;
    around(context, scratch, |work, x, _, buffers| ends.leave(work, x, buffers));
    norm(context, &scratch.x, &head.norm, &mut scratch.h);
    note_followed(context, scratch, batch, is_wanted);
    give_outputs(context, scratch, &head.output);
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

fn norm(context: &Context<'_>, x: &[f32], weight: &[f32], out: &mut Vec<f32>) {
    out.resize(x.len(), 0.0);
    rms_norm(context.pool, x, weight, context.model.config.norm_eps, out);
}

fn bias(context: &Context<'_>, projected: &mut [f32], linear: &Linear) {
    if let Some(bias) = &linear.bias {
        add_bias(context.pool, projected, bias);
    }
}
