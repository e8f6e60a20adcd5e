//! The forward pass on a device, as a list of named steps: the pass of `decoder`, recorded into one submission.
//!
//! Shapes: `n` rows in the batch, `w` rows whose output is needed.

use std::mem::swap;

use kvik_gpu::{Buffer, DeviceArena, DeviceAttention, DeviceError, PartRoom, Step};

use super::rows::{BatchRows, Reading, Stored};
use super::scratch::Buffers;
use super::weights::{DeviceLayer, DeviceWeights};
use crate::ModelConfig;
use crate::arch::LayerShape;

/// The input of a pass.
pub(super) struct Pass<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) weights: &'a DeviceWeights,
    /// Cosine and sine of every position, `[positions, dims / 2]`, in the order of `ModelConfig::ropes`.
    pub(super) angles: &'a [Buffer<[f32; 2]>],
    pub(super) rows: &'a BatchRows,
}

/// The output of a pass.
pub(super) struct Room<'a> {
    pub(super) arena: &'a mut DeviceArena,
    /// Results of attention splits.
    pub(super) parts: &'a mut PartRoom,
    pub(super) buffers: &'a mut Buffers,
    /// `[w, vocab]`
    pub(super) logits: &'a mut Buffer<f32>,
}

impl Pass<'_> {
    /// Records the batch: stores its keys and values, leaves logits, the most likely tokens and hidden states in the
    /// buffers.
    pub(super) fn record(&self, step: &mut Step<'_>, room: &mut Room<'_>) -> Result<(), DeviceError> {
        self.embed(step, room.buffers)?;
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

    /// Looks up the rows of the embedding; if the processor does, the stream is there already.
    fn embed(&self, step: &mut Step<'_>, buffers: &mut Buffers) -> Result<(), DeviceError> {
        let Some(embedding) = &self.weights.embedding else { return Ok(()) };
        let Buffers { tokens, x, .. } = buffers;
        step.embed(embedding, tokens, self.rows.n, x)?;
        step.multiply(x, self.rows.n * self.config.d_model, self.config.extras.multipliers.embedding)
    }

    /// Norms the stream and projects it to rotated queries and keys, and values.
    fn project(
        &self,
        step: &mut Step<'_>,
        layer: &DeviceLayer,
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, q, k, v, .. } = buffers;
        let read = self.norm(step, layer.attention_norms.before.as_ref(), n, x, h)?;
        layer.q.multiply(step, (read, n), q)?;
        layer.k.multiply(step, (read, n), k)?;
        layer.v.multiply(step, (read, n), v)?;
        self.turn(step, layer, n, buffers)?;
        let Buffers { q, warmth, .. } = buffers;
        match self.config.extras.temperature {
            Some(_) if layer.shape.warmed => {
                step.scale_rows(q, [n, layer.shape.heads * layer.shape.head_dim], warmth)
            }
            _ => Ok(()),
        }
    }

    /// Norms queries and keys, rotates them, and norms them afterwards, where the layer does.
    fn turn(
        &self,
        step: &mut Step<'_>,
        layer: &DeviceLayer,
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { q, k, other, positions, .. } = buffers;
        let LayerShape { heads, kv_heads, head_dim, .. } = layer.shape;
        let of_queries = (q, layer.q_norm.as_ref(), [n, heads, head_dim]);
        let of_keys = (k, layer.k_norm.as_ref(), [n, kv_heads, head_dim]);
        for (vectors, norm, sizes) in [of_queries, of_keys] {
            let len = sizes.iter().product();
            self.norm_vectors(step, [vectors, other], len, norm)?;
            if let Some(rotation) = layer.shape.rotation {
                let angles = &self.angles[rotation];
                let pairs = self.config.ropes()[rotation].0.dims / 2;
                step.rope(vectors, sizes, positions, (angles, pairs), self.config.rope.style)?;
            }
            self.norm_vectors(step, [vectors, other], len, layer.rotated_norm.as_ref())?;
        }
        Ok(())
    }

    /// Norms the first `len` elements of vectors through another buffer, if they have a norm.
    fn norm_vectors(
        &self,
        step: &mut Step<'_>,
        [vectors, other]: [&mut Buffer<f32>; 2],
        len: usize,
        norm: Option<&Buffer<f32>>,
    ) -> Result<(), DeviceError> {
        let Some(norm) = norm else { return Ok(()) };
        step.rms_norm(vectors, norm, len / norm.len(), self.config.norm_eps, other)?;
        swap(vectors, other);
        Ok(())
    }

    /// In the last layer, continues only with the rows whose output is needed, once their keys and values are stored.
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

    /// Attention of each row over the stored positions of its sequence up to its own; adds the output to the stream.
    fn attend(
        &self,
        step: &mut Step<'_>,
        (index, layer): (usize, &DeviceLayer),
        (n, stored): (usize, &Stored),
        room: &mut Room<'_>,
    ) -> Result<(), DeviceError> {
        let Buffers { q, attended, h, .. } = room.buffers;
        let attention = DeviceAttention {
            arena: room.arena,
            layer: index,
            rows: &stored.rows,
            plan: stored.plan(Reading::from(&layer.shape)),
            q,
            scale: layer.shape.scale,
            softcap: self.config.extras.score_cap,
            sinks: layer.sinks.as_ref(),
        };
        attention.run(step, room.parts, attended)?;
        layer.output.multiply(step, (attended, n), h)?;
        self.add_to_stream(step, layer.attention_norms.after.as_ref(), n, room.buffers)
    }

    fn feed_forward(
        &self,
        step: &mut Step<'_>,
        layer: &DeviceLayer,
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, normed, feed_forward, .. } = buffers;
        let read = self.norm(step, layer.feed_forward_norms.before.as_ref(), n, x, h)?;
        layer.feed_forward.record(step, (read, n), feed_forward, normed)?;
        swap(h, normed);
        self.add_to_stream(step, layer.feed_forward_norms.after.as_ref(), n, buffers)
    }

    /// Norms the rows that have reached the end, and multiplies those that need more than that by the output matrix.
    fn finish(&self, step: &mut Step<'_>, room: &mut Room<'_>) -> Result<(), DeviceError> {
        let Buffers { x, h, likeliest, .. } = room.buffers;
        let wanted = &self.rows.wanted;
        step.rms_norm(x, &self.weights.output_norm, wanted.rows.len(), self.config.norm_eps, h)?;
        let unembedded = wanted.unembedded();
        if unembedded > 0 {
            step.matmul(self.weights.output(), h, unembedded, room.logits)?;
            self.bound_logits(step, unembedded, room.logits)?;
        }
        if wanted.likeliest > 0 {
            step.argmax(room.logits, [unembedded, self.config.vocab], likeliest)?;
        }
        Ok(())
    }

    /// Multiplies and caps `n` rows of logits, if the model does.
    fn bound_logits(
        &self,
        step: &mut Step<'_>,
        n: usize,
        logits: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let (len, extras) = (n * self.config.vocab, &self.config.extras);
        step.multiply(logits, len, extras.multipliers.logits)?;
        extras.logit_cap.map_or(Ok(()), |cap| step.soft_cap(logits, len, cap))
    }

    /// The input of one half of a layer for `n` rows: the stream, normed into `h` if the half has a norm before it.
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

    /// Adds the output of one half of a layer, which is in `h`, normed if the half has a norm after it.
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
        step.multiply(h, len, self.config.extras.multipliers.residual)?;
        step.add(x, len, (h, len))
    }
}
