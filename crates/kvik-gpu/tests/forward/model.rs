//! A forward pass of Qwen3 on a device, as a list of steps: what the engine's path will be made of.

use kvik_engine::load::LoadedModel;
use kvik_engine::model::ModelConfig;
use kvik_gpu::{
    AttentionPlan, Buffer, Device, DeviceArena, DeviceAttention, DeviceError, DeviceMatrix, DeviceRows,
    PartRoom, Step,
};
use kvik_kernels::{Activation, KvKind, KvLayout, RopeTable, SeqKv, SeqRow, dequantize};

/// The rows of a step: sequence, token, position; and the blocks of each sequence.
pub(crate) struct Rows<'a> {
    pub(crate) rows: &'a [(usize, u32, usize)],
    pub(crate) tables: &'a [Vec<u32>],
}

/// What a step makes of each row.
pub(crate) struct Outputs {
    /// `[n]`: the likeliest next token.
    pub(crate) tokens: Vec<u32>,
    /// `[n, vocab]`
    pub(crate) logits: Vec<f32>,
}

/// Weights and blocks on a device.
pub(crate) struct DeviceModel {
    config: ModelConfig,
    embedding: DeviceMatrix,
    output_norm: Buffer<f32>,
    layers: Vec<DeviceLayer>,
    angles: Buffer<[f32; 2]>,
    pub(crate) arena: DeviceArena,
    room: PartRoom,
}

struct DeviceLayer {
    norm: Buffer<f32>,
    q: DeviceMatrix,
    k: DeviceMatrix,
    v: DeviceMatrix,
    q_norm: Buffer<f32>,
    k_norm: Buffer<f32>,
    output: DeviceMatrix,
    ffn_norm: Buffer<f32>,
    gate: DeviceMatrix,
    up: DeviceMatrix,
    down: DeviceMatrix,
}

/// Reads tensors of a file.
struct Tensors<'a> {
    device: &'a Device,
    loaded: &'a LoadedModel,
}

impl Tensors<'_> {
    fn matrix(&self, name: &str) -> Result<DeviceMatrix, DeviceError> {
        let view = self.loaded.tensors.get(name).unwrap();
        DeviceMatrix::upload(self.device, name, view.ty, [view.rows, view.cols], view.data)
    }

    fn vector(&self, name: &str) -> Result<Buffer<f32>, DeviceError> {
        let view = self.loaded.tensors.get(name).unwrap();
        let mut values = vec![0.0; view.rows * view.cols];
        dequantize(view.ty, view.data, &mut values);
        self.device.upload(name, &values)
    }

    fn layer(&self, index: usize) -> Result<DeviceLayer, DeviceError> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let (matrix, vector) = (|part| self.matrix(&name(part)), |part| self.vector(&name(part)));
        Ok(DeviceLayer {
            norm: vector("attn_norm")?,
            q: matrix("attn_q")?,
            k: matrix("attn_k")?,
            v: matrix("attn_v")?,
            q_norm: vector("attn_q_norm")?,
            k_norm: vector("attn_k_norm")?,
            output: matrix("attn_output")?,
            ffn_norm: vector("ffn_norm")?,
            gate: matrix("ffn_gate")?,
            up: matrix("ffn_up")?,
            down: matrix("ffn_down")?,
        })
    }
}

/// Buffers of a step.
struct Scratch {
    x: Buffer<f32>,
    h: Buffer<f32>,
    q: Buffer<f32>,
    k: Buffer<f32>,
    v: Buffer<f32>,
    normed: Buffer<f32>,
    attended: Buffer<f32>,
    gate: Buffer<f32>,
    up: Buffer<f32>,
}

impl Scratch {
    fn new(device: &Device, config: &ModelConfig, n: usize) -> Result<Scratch, DeviceError> {
        let rows = |what, d: usize| device.zeros(what, n * d);
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        Ok(Scratch {
            x: rows("the residual stream", config.d_model)?,
            h: rows("normed rows", config.d_model)?,
            q: rows("queries", q)?,
            k: rows("keys", kv)?,
            v: rows("values", kv)?,
            normed: rows("normed heads", q)?,
            attended: rows("attended values", q)?,
            gate: rows("gates", config.d_ff)?,
            up: rows("inner rows", config.d_ff)?,
        })
    }
}

/// What all layers read of the rows of a step.
struct BatchRows {
    n: usize,
    positions: Buffer<u32>,
    stored: DeviceRows,
    plan: AttentionPlan,
}

impl DeviceModel {
    pub(crate) fn new(
        device: &Device,
        loaded: &LoadedModel,
        layout: KvLayout,
        blocks: usize,
        context: usize,
    ) -> Result<DeviceModel, DeviceError> {
        let (tensors, config) = (Tensors { device, loaded }, loaded.config.clone());
        let pairs = config.rope.dims / 2;
        let frequency =
            |pair| f64::from(config.rope.theta).powf(-2.0 * pair as f64 / config.rope.dims as f64);
        let frequencies: Vec<f32> = (0..pairs).map(|pair| frequency(pair) as f32).collect();
        let table = RopeTable::new(&frequencies, context, 1.0);
        let angles = (0..context as u32).flat_map(|position| table.mean_rotation(position..position + 1));
        Ok(DeviceModel {
            embedding: tensors.matrix("token_embd.weight")?,
            output_norm: tensors.vector("output_norm.weight")?,
            layers: (0..config.layers).map(|index| tensors.layer(index)).collect::<Result<_, _>>()?,
            angles: device.upload("angles of positions", &angles.collect::<Vec<_>>())?,
            arena: DeviceArena::new(device, layout, blocks)?,
            room: PartRoom::default(),
            config,
        })
    }

    pub(crate) fn vocab(&self) -> usize {
        self.config.vocab
    }

    /// Stores the keys and values of the rows, and computes what follows each.
    pub(crate) fn forward(&mut self, device: &mut Device, rows: &Rows<'_>) -> Result<Outputs, DeviceError> {
        let n = rows.rows.len();
        let tokens: Vec<u32> = rows.rows.iter().map(|row| row.1).collect();
        let tokens = device.upload("tokens", &tokens)?;
        let batch = self.batch(device, rows)?;
        let mut scratch = Scratch::new(device, &self.config, n)?;
        let mut logits = device.zeros("logits", n * self.vocab())?;
        let mut next = device.zeros("next tokens", n)?;
        let mut step = device.step();
        step.embed(&self.embedding, &tokens, n, &mut scratch.x)?;
        for index in 0..self.layers.len() {
            self.attend(&mut step, index, &batch, &mut scratch)?;
            self.feed_forward(&mut step, index, n, &mut scratch)?;
        }
        step.rms_norm(&scratch.x, &self.output_norm, n, self.config.norm_eps, &mut scratch.h)?;
        step.matmul(&self.embedding, &scratch.h, n, &mut logits)?;
        step.argmax(&logits, [n, self.config.vocab], &mut next)?;
        step.submit()?;
        Ok(Outputs { tokens: device.read(&next)?, logits: device.read(&logits)? })
    }

    fn batch(&self, device: &Device, rows: &Rows<'_>) -> Result<BatchRows, DeviceError> {
        let positions: Vec<u32> = rows.rows.iter().map(|row| row.2 as u32).collect();
        let seqs: Vec<_> = rows.tables.iter().map(|blocks| SeqKv { blocks, tails: &[] }).collect();
        let stored =
            |&(seq, _, position): &(usize, u32, usize)| SeqRow { seq: seq as u32, len: position as u32 + 1 };
        let stored: Vec<_> = rows.rows.iter().map(stored).collect();
        let stored = DeviceRows::new(device, &self.arena, &stored, &seqs)?;
        let group = self.config.heads / self.config.kv_heads;
        let plan = AttentionPlan::new(device, &stored, KvKind::Full, group)?;
        Ok(BatchRows { n: rows.rows.len(), positions: device.upload("positions", &positions)?, stored, plan })
    }

    fn attend(
        &mut self,
        step: &mut Step<'_>,
        index: usize,
        batch: &BatchRows,
        scratch: &mut Scratch,
    ) -> Result<(), DeviceError> {
        let ModelConfig { heads, kv_heads, head_dim, norm_eps, d_model, .. } = self.config;
        let (n, layer) = (batch.n, &self.layers[index]);
        let Scratch { x, h, q, k, v, normed, attended, .. } = scratch;
        step.rms_norm(x, &layer.norm, n, norm_eps, h)?;
        step.matmul(&layer.q, h, n, q)?;
        step.matmul(&layer.k, h, n, k)?;
        step.matmul(&layer.v, h, n, v)?;
        let (angles, style) = ((&self.angles, self.config.rope.dims / 2), self.config.rope.style);
        step.rms_norm(k, &layer.k_norm, n * kv_heads, norm_eps, normed)?;
        step.rope(normed, [n, kv_heads, head_dim], &batch.positions, angles, style)?;
        step.store(&mut self.arena, index, &batch.stored, [normed, v])?;
        step.rms_norm(q, &layer.q_norm, n * heads, norm_eps, normed)?;
        step.rope(normed, [n, heads, head_dim], &batch.positions, angles, style)?;
        let attention = DeviceAttention {
            arena: &self.arena,
            layer: index,
            rows: &batch.stored,
            plan: &batch.plan,
            q: normed,
            scale: 1.0 / (head_dim as f32).sqrt(),
        };
        attention.run(step, &mut self.room, attended)?;
        step.matmul(&layer.output, attended, n, h)?;
        step.add(x, n * d_model, (h, n * d_model))
    }

    fn feed_forward(
        &self,
        step: &mut Step<'_>,
        index: usize,
        n: usize,
        scratch: &mut Scratch,
    ) -> Result<(), DeviceError> {
        let ModelConfig { norm_eps, d_model, d_ff, .. } = self.config;
        let layer = &self.layers[index];
        let Scratch { x, h, gate, up, .. } = scratch;
        step.rms_norm(x, &layer.ffn_norm, n, norm_eps, h)?;
        step.matmul(&layer.gate, h, n, gate)?;
        step.matmul(&layer.up, h, n, up)?;
        step.activate(Activation::SwiGlu, gate, Some(up), n * d_ff)?;
        step.matmul(&layer.down, gate, n, h)?;
        step.add(x, n * d_model, (h, n * d_model))
    }
}
