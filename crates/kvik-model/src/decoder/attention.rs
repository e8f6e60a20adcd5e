//! Attention of a layer: its queries, keys and values, what is stored of them, and what each row attends to.

use std::ops::Range;

use kvik_kernels::{Attention, KvArena, SeqKv, SeqRow, matmul_many, rms_norm_in_place, rope};

use super::{Context, Scratch, around, bias, norm_before};
use crate::adapter::{InLayer, Place};
use crate::arch::{LayerShape, QkNorm, Values};
use crate::observation::Watched;
use crate::weights::{AttentionWeights, HeadProjections, Layer, Projections};
use crate::{Temperature, fit, latent};

/// Norms the stream and projects it to rotated queries and keys, and values.
pub(super) fn project_qkv(
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
pub(super) fn store(
    context: &Context<'_>,
    arena: &mut KvArena,
    scratch: &Scratch,
    layer: usize,
    seqs: &[SeqKv<'_>],
) {
    arena.write(context.pool, layer, &scratch.rows.stored, seqs, [&scratch.k, &scratch.v]);
}

/// Attention of each row over the stored positions of its sequence up to its own; records the weights of watched rows.
pub(super) fn attend(
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
