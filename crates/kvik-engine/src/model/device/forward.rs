//! The forward pass on a device, as a list of named steps: that of `decoder`, recorded into one piece of work.
//!
//! Shapes: `n` rows in the batch, `w` rows of which something is wanted.

use std::mem::swap;

use kvik_gpu::{Buffer, DeviceArena, DeviceAttention, DeviceError, PartRoom, Step};

use super::rows::{BatchRows, Stored};
use super::scratch::Buffers;
use super::weights::{DeviceLayer, DeviceLinear, DeviceWeights};
use crate::model::ModelConfig;
use crate::model::arch::LayerShape;

/// What a pass reads.
pub(super) struct Pass<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) weights: &'a DeviceWeights,
    /// Cosine and sine of every position, `[positions, dims / 2]`, in the order of `ModelConfig::ropes`.
    pub(super) angles: &'a [Buffer<[f32; 2]>],
    pub(super) rows: &'a BatchRows,
}

/// What a pass writes.
pub(super) struct Room<'a> {
    pub(super) arena: &'a mut DeviceArena,
    /// Results of splits of attention.
    pub(super) parts: &'a mut PartRoom,
    pub(super) buffers: &'a mut Buffers,
    /// `[w, vocab]`
    pub(super) logits: &'a mut Buffer<f32>,
}

impl Pass<'_> {
    /// Records the batch: stores its keys and values, leaves logits, the likeliest tokens and hidden states in the
    /// buffers.
    pub(super) fn record(&self, step: &mut Step<'_>, room: &mut Room<'_>) -> Result<(), DeviceError> {
        let Buffers { tokens, x, .. } = room.buffers;
        step.embed(&self.weights.embedding, tokens, self.rows.n, x)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let is_last = index + 1 == self.weights.layers.len();
            let (mut n, mut stored) = (self.rows.n, &self.rows.all);
            self.project(step, layer, n, room.buffers)?;
            let Buffers { k, v, .. } = room.buffers;
            step.store(room.arena, index, &stored.rows, [k, v])?;
            if is_last {
                (n, stored) = (self.rows.wanted.rows.len(), &self.rows.last);
                if n == 0 {
                    return Ok(());
                }
                self.keep_wanted(step, &layer.shape, room.buffers)?;
            }
            self.attend(step, (index, layer), (n, stored), room)?;
            self.feed_forward(step, layer, n, room.buffers)?;
        }
        self.finish(step, room)
    }

    /// Norms the stream and projects it to rotated queries and keys, and values.
    fn project(
        &self,
        step: &mut Step<'_>,
        layer: &DeviceLayer,
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, q, k, v, other, positions, .. } = buffers;
        let read = self.norm(step, layer.attention_norms.before.as_ref(), n, x, h)?;
        multiply(step, &layer.q, read, n, q)?;
        multiply(step, &layer.k, read, n, k)?;
        multiply(step, &layer.v, read, n, v)?;
        let LayerShape { heads, kv_heads, head_dim, .. } = layer.shape;
        let of_queries = (q, layer.q_norm.as_ref(), [n, heads, head_dim]);
        let of_keys = (k, layer.k_norm.as_ref(), [n, kv_heads, head_dim]);
        for (vectors, norm, sizes) in [of_queries, of_keys] {
            if let Some(norm) = norm {
                let rows = sizes.iter().product::<usize>() / norm.len();
                step.rms_norm(vectors, norm, rows, self.config.norm_eps, other)?;
                swap(vectors, other);
            }
            if let Some(rotation) = layer.shape.rotation {
                let angles = &self.angles[rotation];
                let pairs = self.config.ropes()[rotation].0.dims / 2;
                step.rope(vectors, sizes, positions, (angles, pairs), self.config.rope.style)?;
            }
        }
        Ok(())
    }

    /// In the last layer only rows of which more is wanted go on, once their keys and values are stored.
    fn keep_wanted(
        &self,
        step: &mut Step<'_>,
        shape: &LayerShape,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, q, other, wanted, .. } = buffers;
        let count = self.rows.wanted.rows.len();
        step.gather(x, wanted, [count, self.config.d_model], h)?;
        swap(x, h);
        step.gather(q, wanted, [count, shape.heads * shape.head_dim], other)?;
        swap(q, other);
        Ok(())
    }

    /// Each row attends to the stored positions of its sequence up to its own; what comes out joins the stream.
    fn attend(
        &self,
        step: &mut Step<'_>,
        (index, layer): (usize, &DeviceLayer),
        (n, stored): (usize, &Stored),
        room: &mut Room<'_>,
    ) -> Result<(), DeviceError> {
        let LayerShape { heads, kv_heads, scale, .. } = layer.shape;
        let Buffers { q, attended, h, .. } = room.buffers;
        let attention = DeviceAttention {
            arena: room.arena,
            layer: index,
            rows: &stored.rows,
            plan: stored.plan(heads / kv_heads),
            q,
            scale,
        };
        attention.run(step, room.parts, attended)?;
        multiply(step, &layer.output, attended, n, h)?;
        self.add_to_stream(step, layer.attention_norms.after.as_ref(), n, room.buffers)
    }

    fn feed_forward(
        &self,
        step: &mut Step<'_>,
        layer: &DeviceLayer,
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, gate, up, .. } = buffers;
        let read = self.norm(step, layer.feed_forward_norms.before.as_ref(), n, x, h)?;
        multiply(step, &layer.up, read, n, up)?;
        let len = n * layer.up.matrix.rows();
        let inner = match &layer.gate {
            Some(linear) => {
                multiply(step, linear, read, n, gate)?;
                step.activate(layer.activation, gate, Some(up), len)?;
                gate
            }
            None => {
                step.activate(layer.activation, up, None, len)?;
                up
            }
        };
        multiply(step, &layer.down, inner, n, h)?;
        self.add_to_stream(step, layer.feed_forward_norms.after.as_ref(), n, buffers)
    }

    /// Norms the rows that have come to the end, and multiplies those that want more than that by the output matrix.
    fn finish(&self, step: &mut Step<'_>, room: &mut Room<'_>) -> Result<(), DeviceError> {
        let Buffers { x, h, likeliest, .. } = room.buffers;
        let wanted = &self.rows.wanted;
        step.rms_norm(x, &self.weights.output_norm, wanted.rows.len(), self.config.norm_eps, h)?;
        let unembedded = wanted.unembedded();
        if unembedded > 0 {
            step.matmul(self.weights.output(), h, unembedded, room.logits)?;
        }
        if wanted.likeliest > 0 {
            step.argmax(room.logits, [unembedded, self.config.vocab], likeliest)?;
        }
        Ok(())
    }

    /// What one half of a layer reads of `n` rows: the stream, normed into `h` if the half has a norm before it.
    fn norm<'b>(
        &self,
        step: &mut Step<'_>,
        weight: Option<&Buffer<f32>>,
        n: usize,
        x: &'b Buffer<f32>,
        h: &'b mut Buffer<f32>,
    ) -> Result<&'b Buffer<f32>, DeviceError> {
        let Some(weight) = weight else { return Ok(x) };
        step.rms_norm(x, weight, n, self.config.norm_eps, h)?;
        Ok(h)
    }

    /// Adds what one half of a layer has left in `h`, normed if the half has a norm behind it.
    fn add_to_stream(
        &self,
        step: &mut Step<'_>,
        weight: Option<&Buffer<f32>>,
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, normed, .. } = buffers;
        let len = n * self.config.d_model;
        if let Some(weight) = weight {
            step.rms_norm(h, weight, n, self.config.norm_eps, normed)?;
            swap(h, normed);
        }
        step.add(x, len, (h, len))
    }
}

/// Projects `n` rows.
fn multiply(
    step: &mut Step<'_>,
    linear: &DeviceLinear,
    x: &Buffer<f32>,
    n: usize,
    out: &mut Buffer<f32>,
) -> Result<(), DeviceError> {
    step.matmul(&linear.matrix, x, n, out)?;
    if let Some(bias) = &linear.bias {
        let rows = linear.matrix.rows();
        step.add(out, n * rows, (bias, rows))?;
    }
    Ok(())
}
