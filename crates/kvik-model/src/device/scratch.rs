//! Buffers of a step on the device, made for the largest step, and grown to larger batches.

use kvik_gpu::{Buffer, Device, DeviceError};

use super::feed_forward::FeedForwardBuffers;
use crate::ModelConfig;
use crate::batch::StepSize;

/// The buffers of a step, with room for `rows` rows.
#[derive(Default)]
pub(super) struct Scratch {
    rows: usize,
    buffers: Option<Buffers>,
    logits: Option<Buffer<f32>>,
}

/// The buffers of a step; shapes are for the `n` rows of a batch.
pub(super) struct Buffers {
    /// Tokens, positions for the rotation, and indices of the rows that are computed to the end, `[n]` each.
    pub(super) tokens: Buffer<u32>,
    pub(super) positions: Buffer<u32>,
    pub(super) wanted: Buffer<u32>,
    /// Factors of queries that depend on their positions, `[n]`.
    pub(super) warmth: Buffer<f32>,
    /// The residual stream, `[n, d_model]`.
    pub(super) x: Buffer<f32>,
    /// Normed rows, and what is added to the stream, `[n, d_model]`.
    pub(super) h: Buffer<f32>,
    /// A second buffer of this kind, `[n, d_model]`.
    pub(super) normed: Buffer<f32>,
    /// Queries `[n, heads, head_dim]`, keys and values `[n, kv_heads, head_dim]`, and a buffer for normed ones.
    pub(super) q: Buffer<f32>,
    pub(super) k: Buffer<f32>,
    pub(super) v: Buffer<f32>,
    pub(super) other: Buffer<f32>,
    /// Outputs of attention, `[n, heads, head_dim]`.
    pub(super) attended: Buffer<f32>,
    pub(super) feed_forward: FeedForwardBuffers,
    /// The most likely next token of each row, `[n]`.
    pub(super) likeliest: Buffer<u32>,
}

impl Scratch {
    /// Makes the buffers of steps of up to `step`, whose logits are as many as the device allows in one buffer.
    pub(super) fn reserve(
        &mut self,
        device: &Device,
        config: &ModelConfig,
        StepSize { rows, outputs }: StepSize,
    ) -> Result<(), DeviceError> {
        let allowed = device.info().binding_bytes_max as usize / (config.vocab * size_of::<f32>()).max(1);
        self.grown(device, config, [rows, outputs.min(allowed)]).map(|_| ())
    }

    /// The buffers for `n` rows, and a buffer for `logits` rows of logits.
    pub(super) fn grown(
        &mut self,
        device: &Device,
        config: &ModelConfig,
        [n, logits]: [usize; 2],
    ) -> Result<(&mut Buffers, &mut Buffer<f32>), DeviceError> {
        if self.buffers.is_none() || self.rows < n {
            // The smaller buffers are freed first.
            self.buffers = None;
            self.buffers = Some(Buffers::new(device, config, n)?);
            self.rows = n;
        }
        let len = logits.max(1) * config.vocab;
        if self.logits.as_ref().is_none_or(|logits| logits.len() < len) {
            self.logits = None;
            self.logits = Some(device.zeros("logits", len)?);
        }
        let made = self.buffers.as_mut().zip(self.logits.as_mut());
        Ok(made.expect("made if they were not there"))
    }
}

impl Buffers {
    fn new(device: &Device, config: &ModelConfig, n: usize) -> Result<Buffers, DeviceError> {
        let floats = |what: &str, width: usize| device.zeros::<f32>(what, n * width);
        let words = |what: &str| device.zeros::<u32>(what, n);
        // All have one width, so that a buffer can be normed into another and swapped with it.
        let heads = config.heads * config.head_dim;
        Ok(Buffers {
            tokens: words("the tokens of a batch")?,
            positions: words("the positions of a batch")?,
            wanted: words("the rows that go on to the end")?,
            warmth: floats("the factors of queries", 1)?,
            x: floats("the residual stream", config.d_model)?,
            h: floats("rows between the stream and a matrix", config.d_model)?,
            normed: floats("normed rows", config.d_model)?,
            q: floats("queries", heads)?,
            k: floats("keys", heads)?,
            v: floats("values", heads)?,
            other: floats("normed heads", heads)?,
            attended: floats("what was attended to", heads)?,
            feed_forward: FeedForwardBuffers::new(device, config, n)?,
            likeliest: words("the likeliest tokens")?,
        })
    }
}
