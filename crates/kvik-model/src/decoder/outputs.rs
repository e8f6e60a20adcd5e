//! The end of a pass: which rows are computed to it, and their hidden states and logits.

use kvik_kernels::{Activations, Matrix, matmul, multiply, soft_cap};

use super::{Context, Scratch};
use crate::adapter::Place;
use crate::batch::{Batch, Output, Row};

/// In the last layer, continues only with the rows whose output is needed, once their keys and values are stored;
/// returns their number. Queries and attention outputs are compacted as far as they exist.
pub(super) fn keep_wanted(scratch: &mut Scratch, rows: &[Row], is_wanted: impl Fn(&Row) -> bool) -> usize {
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
pub(super) fn note_followed(
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
pub(super) fn give_outputs(context: &Context<'_>, scratch: &mut Scratch, output: &Matrix) {
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
