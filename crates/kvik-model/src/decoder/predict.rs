//! The forward pass of the prediction head: its decoder layer, on rows that join a hidden state and an embedding.

use kvik_kernels::{KvArena, SeqKv, matmul, rms_norm};

use super::attention::{attend, project_qkv, store};
use super::outputs::{give_outputs, keep_wanted};
use super::{Context, Scratch, add_mixing, feed_forward, look_up, norm};
use crate::batch::{Output, Row};
use crate::weights::{Mixing, Prediction};

/// Stores the keys and values of `rows` in the blocks of `seqs`, and leaves logits of the rows that need them in
/// `scratch`, `[w, vocab]`; returns their hidden states after the head's norm, `[w, d_model]`.
///
/// A row has the token after its position; `states` are the hidden states of the positions, `[n, d_model]`.
pub(in super::super) fn predict<'s>(
    context: &Context<'_>,
    prediction: &Prediction,
    (arena, seqs): (&mut KvArena, &[SeqKv<'_>]),
    scratch: &'s mut Scratch,
    rows: &[Row],
    states: &[f32],
) -> &'s [f32] {
    let layer = &prediction.layer;
    let Mixing::Attention(weights) = &layer.mixing else { unreachable!("the layer of a head attends") };
    let index = context.model.config.layers;
    context.pulse.beat();
    scratch.rows.set(rows);
    join(context, prediction, scratch, rows, states);
    project_qkv(context, scratch, (index, layer, weights), &mut []);
    store(context, arena, scratch, weights.kv, seqs);
    if keep_wanted(scratch, rows, |row| row.output != Output::None) == 0 {
        scratch.outputs.clear();
        return &[];
    }
    attend(context, arena, scratch, (layer, weights), seqs, &mut []);
    add_mixing(context, scratch, (index, layer));
    feed_forward(context, scratch, (index, layer));
    let head =
        context.model.weights.head.as_ref().expect("a model with a prediction head has all its layers");
    let weight = prediction.norm.as_ref().unwrap_or(&head.norm);
    norm(context, &scratch.x, weight, &mut scratch.h);
    give_outputs(context, scratch, prediction.output.as_ref().unwrap_or(&head.output));
    &scratch.h
}

/// Joins the embeddings of the rows and the hidden states, each normed, to the input of the layer.
fn join(context: &Context<'_>, prediction: &Prediction, scratch: &mut Scratch, rows: &[Row], states: &[f32]) {
    let (pool, config) = (context.pool, &context.model.config);
    let d = config.d_model;
    let Scratch { x, h, attended: joined, inputs, .. } = scratch;
    look_up(context, &prediction.table, rows, x);
    joined.resize(rows.len() * 2 * d, 0.0);
    for (half, (from, weight)) in
        [(&x[..], &prediction.embedding_norm), (states, &prediction.hidden_norm)].into_iter().enumerate()
    {
        h.resize(from.len(), 0.0);
        rms_norm(pool, from, weight, config.norm_eps, h);
        for (joined, normed) in joined.chunks_exact_mut(2 * d).zip(h.chunks_exact(d)) {
            joined[half * d..(half + 1) * d].copy_from_slice(normed);
        }
    }
    inputs.set(pool, joined, 2 * d, &[&prediction.join]);
    matmul(pool, &prediction.join, inputs, x);
}
