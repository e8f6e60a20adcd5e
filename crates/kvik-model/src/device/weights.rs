//! Weights on the device: those of a model, and of its layers.

use kvik_gpu::{Buffer, DeviceMatrix};

use super::feed_forward::DeviceFeedForward;
use super::loader::{DeviceLinear, DeviceLoader};
use super::rows::Reading;
use crate::arch::{LayerShape, QkNorm};
use crate::expected::FUSED_QKV;
use crate::rope::Rotation;
use crate::weights::Ending;
use crate::{Conversion, ModelError};

const EMBEDDING: &str = "token_embd.weight";

/// All weights of a model.
pub(super) struct DeviceWeights {
    /// All layers; or the last ones, if the processor computes the first.
    pub(super) layers: Vec<DeviceLayer>,
    /// `[vocab, d_model]`; `None` if the processor looks up its rows.
    pub(super) embedding: Option<DeviceMatrix>,
    /// `[vocab, d_model]`; `None` if it is the embedding.
    output: Option<DeviceMatrix>,
    /// `[d_model]`
    pub(super) output_norm: Buffer<f32>,
    /// The rotations, in the order of [`ModelConfig::ropes`](crate::ModelConfig::ropes).
    pub(super) rotations: Vec<Rotation>,
    /// The matrix of a reranker for its hidden state, `[2, d_model]`.
    pub(super) classifier: Option<Vec<f32>>,
}

/// Weights of one layer; shapes are those of [`Layer`](crate::weights::Layer).
pub(super) struct DeviceLayer {
    pub(super) shape: LayerShape,
    pub(super) attention_norms: DeviceNorms,
    pub(super) q: DeviceLinear,
    pub(super) k: DeviceLinear,
    pub(super) v: DeviceLinear,
    pub(super) q_norm: Option<Buffer<f32>>,
    pub(super) k_norm: Option<Buffer<f32>>,
    /// Ones, `[head_dim]`, if queries and keys are normed after rotation.
    pub(super) rotated_norm: Option<Buffer<f32>>,
    /// `[heads]`
    pub(super) sinks: Option<Buffer<f32>>,
    pub(super) output: DeviceLinear,
    pub(super) feed_forward_norms: DeviceNorms,
    pub(super) feed_forward: DeviceFeedForward,
}

/// Weights of the norms of one half of a layer, `[d_model]` each.
pub(super) struct DeviceNorms {
    /// Norm of its input.
    pub(super) before: Option<Buffer<f32>>,
    /// Norm of what it adds to the stream.
    pub(super) after: Option<Buffer<f32>>,
}

impl DeviceWeights {
    /// `[vocab, d_model]`
    pub(super) fn output(&self) -> &DeviceMatrix {
        self.output.as_ref().or(self.embedding.as_ref()).expect("one of them is always there")
    }

    /// The readings of layers without duplicates; of equal ones the last stays, so that the last is that of the last
    /// layer.
    pub(super) fn readings(&self) -> Vec<Reading> {
        let mut readings = Vec::new();
        for reading in self.layers.iter().map(|layer| Reading::from(&layer.shape)) {
            readings.retain(|&other| other != reading);
            readings.push(reading);
        }
        readings
    }

    /// Bytes of matrices.
    pub(super) fn bytes(&self) -> usize {
        let of_ends = self.embedding.iter().chain(&self.output).map(DeviceMatrix::bytes);
        self.layers.iter().map(DeviceLayer::bytes).chain(of_ends).sum()
    }
}

impl DeviceLayer {
    fn bytes(&self) -> usize {
        let DeviceLayer { q, k, v, output, feed_forward, .. } = self;
        let of_attention: usize = [q, k, v, output].into_iter().map(|linear| linear.matrix.bytes()).sum();
        of_attention + feed_forward.bytes()
    }
}

impl DeviceLoader<'_, '_> {
    /// The weights of a model from layer `first` on; the kernels must support every part.
    pub(super) fn load(mut self, first: usize) -> Result<DeviceWeights, ModelError> {
        let layers = (first..self.config.layers).map(|index| self.layer(index)).collect::<Result<_, _>>()?;
        let output_norm = self.vector(self.config.arch.output_norm())?;
        let Ending { rotations, classifier } = Ending::load(self.config, &mut self.loader)?;
        // Its rows are looked up in the type of the file, as on the processor.
        let view = self.loader.take(EMBEDDING)?;
        let embedding =
            (first == 0).then(|| self.upload(EMBEDDING, &view, Conversion::Stored)).transpose()?;
        let is_output = embedding.is_some() && self.loader.conversion.of_matrix(&view) == view.ty;
        let output = match self.loader.left.contains("output.weight") {
            true => Some(self.matrix("output.weight")?),
            false if is_output => None,
            false => Some(self.upload(EMBEDDING, &view, self.loader.conversion)?),
        };
        self.loader.tensors.release(EMBEDDING);
        Ok(DeviceWeights { layers, embedding, output, output_norm, rotations, classifier })
    }

    fn layer(&mut self, index: usize) -> Result<DeviceLayer, ModelError> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let shape = self.config.layer(index);
        let [q, k, v] = self.heads(&shape, &name)?;
        Ok(DeviceLayer {
            shape,
            attention_norms: self.norms(&shape, 0, &name)?,
            q,
            k,
            v,
            q_norm: self.optional_vector(&name("attn_q_norm.weight"))?,
            k_norm: self.optional_vector(&name("attn_k_norm.weight"))?,
            rotated_norm: self.rotated_norm(&shape)?,
            sinks: self.optional_vector(&name("attn_sinks.weight"))?,
            output: self.linear(parts_of("attn_output", &name))?,
            feed_forward_norms: self.norms(&shape, 1, &name)?,
            feed_forward: self.feed_forward(shape.feed_forward, index)?,
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
        let fused = parts_of(FUSED_QKV, name);
        if self.loader.left.contains(&fused[0]) {
            let (q, kv) = (shape.q_rows(), shape.kv_heads * shape.head_dim);
            return self.parts(fused, [0..q, q..q + kv, q + kv..q + 2 * kv]);
        }
        let mut linear = |part| self.linear(parts_of(part, name));
        Ok([linear("attn_q")?, linear("attn_k")?, linear("attn_v")?])
    }

    fn rotated_norm(&self, shape: &LayerShape) -> Result<Option<Buffer<f32>>, ModelError> {
        let ones = vec![1.0; shape.head_dim];
        let is_normed = shape.qk_norm == QkNorm::Rotated;
        Ok(is_normed.then(|| self.device.upload("a norm without weights", &ones)).transpose()?)
    }
}

/// The names of weight and bias of a projection.
fn parts_of(part: &str, name: &dyn Fn(&str) -> String) -> [String; 2] {
    ["weight", "bias"].map(|kind| name(&format!("{part}.{kind}")))
}
