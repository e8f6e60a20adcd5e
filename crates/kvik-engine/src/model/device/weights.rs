//! Weights on the device, in the formats of the file or in the type that they are converted to.

use std::ops::Range;

use kvik_gpu::{Buffer, Device, DeviceMatrix};
use kvik_kernels::{Activation, WeightType};

use crate::files::TensorView;
use crate::model::ModelError;
use crate::model::arch::LayerShape;
use crate::model::expected::FUSED_QKV;
use crate::model::feed_forward::{DenseShape, FeedForwardShape};
use crate::model::rope::Rotation;
use crate::model::weights::{Ending, Loader, rows_of, type_as};

const EMBEDDING: &str = "token_embd.weight";

/// All weights of a model.
pub(super) struct DeviceWeights {
    pub(super) layers: Vec<DeviceLayer>,
    /// `[vocab, d_model]`
    pub(super) embedding: DeviceMatrix,
    /// `[vocab, d_model]`; `None` where the embedding is it.
    output: Option<DeviceMatrix>,
    /// `[d_model]`
    pub(super) output_norm: Buffer<f32>,
    /// How positions are rotated, as [`ModelConfig::ropes`](crate::model::ModelConfig::ropes) lists it.
    pub(super) rotations: Vec<Rotation>,
    /// What a reranker multiplies its hidden state by, `[2, d_model]`.
    pub(super) classifier: Option<Vec<f32>>,
}

/// Weights of one layer; shapes are those of [`Layer`](crate::model::weights::Layer).
pub(super) struct DeviceLayer {
    pub(super) shape: LayerShape,
    pub(super) attention_norms: DeviceNorms,
    pub(super) q: DeviceLinear,
    pub(super) k: DeviceLinear,
    pub(super) v: DeviceLinear,
    pub(super) q_norm: Option<Buffer<f32>>,
    pub(super) k_norm: Option<Buffer<f32>>,
    pub(super) output: DeviceLinear,
    pub(super) feed_forward_norms: DeviceNorms,
    pub(super) activation: Activation,
    /// Of a gated activation.
    pub(super) gate: Option<DeviceLinear>,
    pub(super) up: DeviceLinear,
    pub(super) down: DeviceLinear,
}

/// Weights of the norms of one half of a layer, `[d_model]` each.
pub(super) struct DeviceNorms {
    /// Of what it reads.
    pub(super) before: Option<Buffer<f32>>,
    /// Of what it adds to the stream.
    pub(super) after: Option<Buffer<f32>>,
}

/// A projection with an optional bias.
pub(super) struct DeviceLinear {
    /// `[rows, cols]`
    pub(super) matrix: DeviceMatrix,
    /// `[rows]`
    pub(super) bias: Option<Buffer<f32>>,
}

impl DeviceWeights {
    /// `[vocab, d_model]`
    pub(super) fn output(&self) -> &DeviceMatrix {
        self.output.as_ref().unwrap_or(&self.embedding)
    }

    /// Query heads that share a KV head, layer by layer; of equal numbers the last, so that the last is that of the last
    /// layer.
    pub(super) fn groups(&self) -> Vec<usize> {
        let mut groups = Vec::new();
        for LayerShape { heads, kv_heads, .. } in self.layers.iter().map(|layer| layer.shape) {
            groups.retain(|&group| group != heads / kv_heads);
            groups.push(heads / kv_heads);
        }
        groups
    }

    /// Bytes of matrices.
    pub(super) fn bytes(&self) -> usize {
        let of_layers = self.layers.iter().flat_map(DeviceLayer::linears).map(|linear| &linear.matrix);
        of_layers.chain([&self.embedding]).chain(&self.output).map(DeviceMatrix::bytes).sum()
    }
}

impl DeviceLayer {
    fn linears(&self) -> impl Iterator<Item = &DeviceLinear> {
        let DeviceLayer { q, k, v, output, gate, up, down, .. } = self;
        [q, k, v, output, up, down].into_iter().chain(gate)
    }
}

/// Uploads weights, one tensor at a time.
pub(super) struct DeviceLoader<'l, 'a> {
    pub(super) loader: Loader<'a>,
    pub(super) device: &'l Device,
}

impl DeviceLoader<'_, '_> {
    /// All weights of a model of which there are kernels for every part.
    pub(super) fn load(mut self) -> Result<DeviceWeights, ModelError> {
        let layers =
            (0..self.loader.config.layers).map(|index| self.layer(index)).collect::<Result<_, _>>()?;
        let output_norm = self.vector(self.loader.config.arch.output_norm())?;
        let Ending { rotations, classifier } = self.loader.ending()?;
        // Its rows are looked up in the type of the file, as on the processor.
        let view = self.loader.take(EMBEDDING)?;
        let embedding = self.upload(EMBEDDING, &view, None)?;
        let output = match self.loader.left.contains("output.weight") {
            true => Some(self.matrix("output.weight")?),
            false if type_as(&view, self.loader.target) == view.ty => None,
            false => Some(self.upload(EMBEDDING, &view, self.loader.target)?),
        };
        self.loader.tensors.release(EMBEDDING);
        Ok(DeviceWeights { layers, embedding, output, output_norm, rotations, classifier })
    }

    fn layer(&mut self, index: usize) -> Result<DeviceLayer, ModelError> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let shape = self.loader.config.layer(index);
        let FeedForwardShape::Dense(dense) = shape.feed_forward else {
            unreachable!("the shapes of all layers are checked")
        };
        let [q, k, v] = self.heads(&shape, &name)?;
        let (gate, up) = self.gate_and_up(&dense, &name)?;
        Ok(DeviceLayer {
            shape,
            attention_norms: self.norms(&shape, 0, &name)?,
            q,
            k,
            v,
            q_norm: self.optional_vector(&name("attn_q_norm.weight"))?,
            k_norm: self.optional_vector(&name("attn_k_norm.weight"))?,
            output: self.linear(&name("attn_output"))?,
            feed_forward_norms: self.norms(&shape, 1, &name)?,
            activation: dense.activation,
            gate,
            up,
            down: self.linear(&name("ffn_down"))?,
        })
    }

    fn norms(
        &mut self,
        shape: &LayerShape,
        half: usize,
        name: &dyn Fn(&str) -> String,
    ) -> Result<DeviceNorms, ModelError> {
        let mut norm =
            |names: Option<[&str; 2]>| names.map(|names| self.vector(&name(names[half]))).transpose();
        Ok(DeviceNorms { before: norm(shape.norms.before)?, after: norm(shape.norms.after)? })
    }

    /// The projections to queries, keys and values, which may be stored as one tensor.
    fn heads(
        &mut self,
        shape: &LayerShape,
        name: &dyn Fn(&str) -> String,
    ) -> Result<[DeviceLinear; 3], ModelError> {
        if !self.loader.left.contains(&name(&format!("{FUSED_QKV}.weight"))) {
            return Ok([
                self.linear(&name("attn_q"))?,
                self.linear(&name("attn_k"))?,
                self.linear(&name("attn_v"))?,
            ]);
        }
        let (q, kv) = (shape.q_rows(), shape.kv_heads * shape.head_dim);
        self.parts(&name(FUSED_QKV), [0..q, q..q + kv, q + kv..q + 2 * kv])
    }

    /// Gate and up, which may be stored as one tensor.
    fn gate_and_up(
        &mut self,
        dense: &DenseShape,
        name: &dyn Fn(&str) -> String,
    ) -> Result<(Option<DeviceLinear>, DeviceLinear), ModelError> {
        if dense.fused {
            let [gate, up] = self.parts(&name("ffn_up"), [0..dense.d_ff, dense.d_ff..2 * dense.d_ff])?;
            return Ok((Some(gate), up));
        }
        let gated = dense.activation.is_gated();
        let gate = gated.then(|| self.linear(&name("ffn_gate"))).transpose()?;
        Ok((gate, self.linear(&name("ffn_up"))?))
    }

    fn linear(&mut self, name: &str) -> Result<DeviceLinear, ModelError> {
        Ok(DeviceLinear {
            matrix: self.matrix(&format!("{name}.weight"))?,
            bias: self.optional_vector(&format!("{name}.bias"))?,
        })
    }

    /// Projections of which a tensor has some rows each.
    fn parts<const PARTS: usize>(
        &mut self,
        name: &str,
        rows: [Range<usize>; PARTS],
    ) -> Result<[DeviceLinear; PARTS], ModelError> {
        let tensor = format!("{name}.weight");
        let view = self.loader.take(&tensor)?;
        let bias = self.loader.optional_vector(&format!("{name}.bias"))?;
        let mut parts = Vec::with_capacity(PARTS);
        for rows in rows {
            let bias = bias.as_ref().map(|bias| self.device.upload(name, &bias[rows.clone()])).transpose()?;
            parts.push(DeviceLinear {
                matrix: self.upload(&tensor, &rows_of(&view, rows), self.loader.target)?,
                bias,
            });
        }
        self.loader.tensors.release(&tensor);
        Ok(parts.try_into().unwrap_or_else(|_| unreachable!("one for each part")))
    }

    fn matrix(&mut self, name: &str) -> Result<DeviceMatrix, ModelError> {
        let view = self.loader.take(name)?;
        let matrix = self.upload(name, &view, self.loader.target);
        self.loader.tensors.release(name);
        matrix
    }

    /// Uploads what a tensor, or a part of it, holds, as `target` if its rows are whole blocks of that.
    fn upload(
        &mut self,
        name: &str,
        view: &TensorView<'_>,
        target: Option<WeightType>,
    ) -> Result<DeviceMatrix, ModelError> {
        let (ty, bytes) = self.loader.converted(view, target)?;
        let matrix = DeviceMatrix::upload(self.device, name, ty, [view.rows, view.cols], &bytes)?;
        self.loader.report(view.data.len());
        Ok(matrix)
    }

    fn vector(&mut self, name: &str) -> Result<Buffer<f32>, ModelError> {
        Ok(self.device.upload(name, &self.loader.vector(name)?)?)
    }

    fn optional_vector(&mut self, name: &str) -> Result<Option<Buffer<f32>>, ModelError> {
        let vector = self.loader.optional_vector(name)?;
        Ok(vector.map(|vector| self.device.upload(name, &vector)).transpose()?)
    }
}
