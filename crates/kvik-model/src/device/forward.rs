//! The forward pass on a device, as a list of named steps: the pass of `decoder`, recorded into one submission.
//!
//! Shapes: `n` rows in the batch, `w` rows whose output is needed.

use std::mem::swap;

use kvik_gpu::{Buffer, DeviceArena, DeviceAttention, DeviceError, HeadWork, PartRoom, Step};

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
        let layers = &self.weights.layers;
        self.norm_first(step, layers.first(), room.buffers)?;
        for (index, layer) in layers.iter().enumerate() {
            let (mut n, mut stored) = (self.rows.n, &self.rows.all);
            self.project(step, layer, n, room.buffers)?;
            let Buffers { k, v, .. } = room.buffers;
            step.store(room.arena, index, &stored.rows, [k, v])?;
            let next = layers.get(index + 1);
            if next.is_none() {
                n = self.rows.wanted.rows.len();
                if n == 0 {
                    return Ok(());
                }
                if let Some(last) = &self.rows.last {
                    stored = last;
                    self.keep_wanted(step, &layer.shape, room.buffers)?;
                }
            }
            self.attend(step, (index, layer), (n, stored), room)?;
            self.feed_forward(step, (layer, next), n, room.buffers)?;
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

    /// Norms the stream for the first layer; each half of a layer norms it for the next one.
    fn norm_first(
        &self,
        step: &mut Step<'_>,
        layer: Option<&DeviceLayer>,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, .. } = buffers;
        let weight = layer.and_then(|layer| layer.attention_norms.before.as_ref());
        weight.map_or(Ok(()), |weight| step.rms_norm(x, weight, self.rows.n, self.config.norm_eps, h))
    }

    /// Projects the normed stream to rotated queries and keys, and values.
    fn project(
        &self,
        step: &mut Step<'_>,
        layer: &DeviceLayer,
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, q, k, v, .. } = buffers;
        let read = if layer.attention_norms.before.is_some() { &*h } else { &*x };
        layer.q.multiply(step, (read, n), q)?;
        layer.k.multiply(step, (read, n), k)?;
        layer.v.multiply(step, (read, n), v)?;
        self.norm_and_rotate(step, layer, n, buffers)?;
        let Buffers { q, warmth, .. } = buffers;
        match self.config.extras.temperature {
            Some(_) if layer.shape.warmed => {
                step.scale_rows(q, [n, layer.shape.heads * layer.shape.head_dim], warmth)
            }
            _ => Ok(()),
        }
    }

    /// Norms queries and keys, rotates them, and norms them afterwards, where the layer does.
    fn norm_and_rotate(
        &self,
        step: &mut Step<'_>,
        layer: &DeviceLayer,
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let LayerShape { heads, kv_heads, head_dim, .. } = layer.shape;
        let both = layer.q_norm.as_ref().zip(layer.k_norm.as_ref());
        // The norm of each head can be computed with its rotation; that of all heads of a row is computed before it.
        let of_heads = both.filter(|(q, k)| q.len() == head_dim && k.len() == head_dim);
        let Buffers { q, k, other, positions, .. } = buffers;
        let sizes = [(q, layer.q_norm.as_ref(), heads), (k, layer.k_norm.as_ref(), kv_heads)];
        let Some(rotation) = layer.shape.rotation else {
            for (vectors, norm, heads) in sizes {
                let len = n * heads * head_dim;
                self.norm_vectors(step, [vectors, other], len, norm)?;
                self.norm_vectors(step, [vectors, other], len, layer.rotated_norm.as_ref())?;
            }
            return Ok(());
        };
        if of_heads.is_none() {
            for (vectors, norm, heads) in sizes {
                self.norm_vectors(step, [vectors, other], n * heads * head_dim, norm)?;
            }
        }
        let work = HeadWork {
            weights: of_heads.map(|(q, k)| [q, k]),
            normed_after: layer.rotated_norm.is_some(),
            eps: self.config.norm_eps,
            positions,
            angles: &self.angles[rotation],
            pairs: self.config.ropes()[rotation].0.dims / 2,
            style: self.config.rope.style,
        };
        let Buffers { q, k, .. } = buffers;
        step.norm_rope(&work, [q, k], [n, heads, kv_heads, head_dim])
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
        let norms = [&layer.attention_norms.after, &layer.feed_forward_norms.before];
        self.add_to_stream(step, norms.map(Option::as_ref), n, room.buffers)
    }

    /// The feed-forward half of a layer; norms the stream for the next layer, or for the output matrix.
    fn feed_forward(
        &self,
        step: &mut Step<'_>,
        (layer, next): (&DeviceLayer, Option<&DeviceLayer>),
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, normed, feed_forward, .. } = buffers;
        let read = if layer.feed_forward_norms.before.is_some() { &*h } else { &*x };
        layer.feed_forward.record(step, (read, n), feed_forward, normed)?;
        swap(h, normed);
        let next = next.map_or(Some(&self.weights.output_norm), |next| next.attention_norms.before.as_ref());
        self.add_to_stream(step, [layer.feed_forward_norms.after.as_ref(), next], n, buffers)
    }

    /// Multiplies the normed rows that need more than that by the output matrix.
    fn finish(&self, step: &mut Step<'_>, room: &mut Room<'_>) -> Result<(), DeviceError> {
        let Buffers { h, likeliest, .. } = room.buffers;
        let wanted = &self.rows.wanted;
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

    /// Adds the output of one half of a layer, which is in `h`, to the stream: normed first if the half has a norm after
    /// it. Then leaves the stream in `h`, normed for the next half, if that has a norm before it.
    fn add_to_stream(
        &self,
        step: &mut Step<'_>,
        [after, before]: [Option<&Buffer<f32>>; 2],
        n: usize,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let Buffers { x, h, normed, .. } = buffers;
        let len = n * self.config.d_model;
        if let Some(weight) = after {
            step.rms_norm(h, weight, n, self.config.norm_eps, normed)?;
            swap(h, normed);
        }
        step.multiply(h, len, self.config.extras.multipliers.residual)?;
        match before {
            Some(weight) => step.add_norm(x, h, weight, n, self.config.norm_eps),
            None => step.add(x, len, (h, len)),
        }
    }
}
