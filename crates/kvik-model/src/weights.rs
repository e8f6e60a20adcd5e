//! The weights of a decoder, packed for the kernels.
//!
//! `expected` has checked names and shapes against the configuration, so the forward pass can index
//! without checks of its own.

mod prediction;

use std::ops::Range;

use kvik_kernels::{Matrix, Pool};
use kvik_text::files::TensorSource;

use super::arch::{LayerShape, MixingShape};
use super::convert::Conversion;
use super::expected::{self, CLASSIFIER, FUSED_QKV, ROPE_FACTORS, UNREAD};
use super::feed_forward::{FeedForward, FeedForwardShape};
use super::latent::Latent;
use super::loader::{LayerLoader, Linear, Loader, rows_of};
use super::recurrent::Recurrent;
use super::residual::{Ends, Residual};
use super::rope::Rotation;
use super::{ModelConfig, ModelError, RopeConfig};

pub(crate) use prediction::Prediction;

/// Weights of a layer.
pub(crate) struct Layer {
    pub(crate) shape: LayerShape,
    pub(crate) mixing_norms: HalfNorms,
    pub(crate) mixing: Mixing,
    pub(crate) ffn_norms: HalfNorms,
    /// `None` if the layer has no feed-forward half.
    pub(crate) feed_forward: Option<FeedForward>,
    pub(crate) residual: Residual,
}

/// Weights of the sequence mixing.
pub(crate) enum Mixing {
    Attention(Box<AttentionWeights>),
    Recurrent(Box<RecurrentWeights>),
    /// The layer is only a feed-forward layer.
    Absent,
}

impl Mixing {
    /// [`Model::key_biases`](crate::Model::key_biases)
    pub(crate) fn largest_key_bias(&self) -> f32 {
        let Mixing::Attention(attention) = self else { return 0.0 };
        let Projections::Heads(heads) = &attention.projections else { return 0.0 };
        let bias = heads.kv.as_ref().and_then(|stored| stored.k.bias.as_ref());
        bias.map_or(0.0, |bias| bias.iter().fold(0.0, |largest, number| number.abs().max(largest)))
    }
}

/// Weights of attention.
pub(crate) struct AttentionWeights {
    /// The layer of the KV layout whose keys and values it reads. It also writes them if its projections
    /// [`store`](Projections::store); otherwise another layer does.
    pub(crate) kv: usize,
    pub(crate) projections: Projections,
    /// `[heads]`
    pub(crate) sinks: Option<Vec<f32>>,
    /// `[d_model, heads * output_dim]`
    pub(crate) output: Linear,
}

/// Weights of a recurrent layer.
pub(crate) struct RecurrentWeights {
    /// Its index among the recurrent layers.
    pub(crate) number: usize,
    pub(crate) recurrent: Recurrent,
    /// `[d_model, values]`
    pub(crate) output: Linear,
}

/// The projections from the stream to queries, keys and values.
pub(crate) enum Projections {
    /// A projection each.
    Heads(Box<HeadProjections>),
    /// [`LayerShape::latent`]
    Latent(Box<Latent>),
}

impl Projections {
    /// Whether they compute keys and values to store; otherwise the layer reads those of another.
    pub(crate) fn store(&self) -> bool {
        match self {
            Projections::Heads(heads) => heads.kv.is_some(),
            Projections::Latent(_) => true,
        }
    }

    fn matrices(&self) -> Vec<&Matrix> {
        match self {
            Projections::Heads(heads) => {
                let kv = heads.kv.iter().flat_map(|kv| [&kv.k].into_iter().chain(&kv.v));
                [&heads.q].into_iter().chain(kv).map(|linear| &linear.matrix).collect()
            }
            Projections::Latent(latent) => latent.matrices(),
        }
    }
}

/// Projections to queries, keys and values of heads.
pub(crate) struct HeadProjections {
    /// `[heads * head_dim, d_model]`; with gates, twice as many rows
    pub(crate) q: Linear,
    /// `[head_dim]`; or of all heads
    pub(crate) q_norm: Option<Vec<f32>>,
    /// `None` in a layer that reads the keys and values of another
    pub(crate) kv: Option<KeysAndValues>,
}

/// The projections to the keys and values that a layer stores.
pub(crate) struct KeysAndValues {
    /// `[kv_heads * head_dim, d_model]`
    pub(crate) k: Linear,
    /// `[kv_heads * head_dim, d_model]`; `None` if keys and values share a projection
    pub(crate) v: Option<Linear>,
    /// `[head_dim]`; or of all heads
    pub(crate) k_norm: Option<Vec<f32>>,
}

/// Weights of the norms of one half of a layer, `[d_model]` each.
pub(crate) struct HalfNorms {
    /// Norm of its input.
    pub(crate) before: Option<Vec<f32>>,
    /// Norm of what it adds to the stream.
    pub(crate) after: Option<Vec<f32>>,
}

impl HalfNorms {
    /// The norms of a half that a layer lacks.
    const NONE: HalfNorms = HalfNorms { before: None, after: None };
}

/// All weights except the embedding, whose rows are read from the source.
pub(crate) struct Weights {
    /// All layers; or the first ones, if the others are computed elsewhere.
    pub(crate) layers: Vec<Layer>,
    /// The output head; `None` if the last layers are computed elsewhere.
    pub(crate) head: Option<Head>,
    /// The computations on the stream before the first layer and after the last.
    pub(crate) ends: Ends,
    /// The rotations, in the order of [`ModelConfig::ropes`].
    pub(super) rotations: Vec<Rotation>,
    /// The matrix of a reranker for its hidden state, `[2, d_model]`: yes, no.
    pub(crate) classifier: Option<Vec<f32>>,
    /// The prediction head, if there is one to draft with.
    pub(crate) prediction: Option<Prediction>,
}

/// The output head: computes logits from the stream after the last layer.
pub(crate) struct Head {
    /// `[d_model]`
    pub(crate) norm: Vec<f32>,
    /// `[vocab, d_model]`; the embedding if the model ties them.
    pub(crate) output: Matrix,
}

impl Weights {
    /// Bytes of packed matrices.
    pub(crate) fn bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(Layer::matrices);
        let output = self.head.iter().map(|head| &head.output);
        let prediction = self.prediction.iter().flat_map(Prediction::matrices);
        layers.chain(output).chain(self.ends.matrices()).chain(prediction).map(Matrix::bytes).sum()
    }
}

impl Layer {
    /// The recurrent part of the layer, if it has one.
    /// Its attention sinks, if it has any.
    pub(super) fn sinks(&self) -> Option<&[f32]> {
        match &self.mixing {
            Mixing::Attention(weights) => weights.sinks.as_deref(),
            _ => None,
        }
    }

    pub(super) fn recurrent(&self) -> Option<&Recurrent> {
        match &self.mixing {
            Mixing::Recurrent(weights) => Some(&weights.recurrent),
            _ => None,
        }
    }

    pub(crate) fn matrices(&self) -> Vec<&Matrix> {
        let mut matrices = self.feed_forward.as_ref().map(FeedForward::matrices).unwrap_or_default();
        match &self.mixing {
            Mixing::Attention(weights) => {
                matrices.extend(weights.projections.matrices());
                matrices.push(&weights.output.matrix);
            }
            Mixing::Recurrent(weights) => {
                matrices.extend(weights.recurrent.matrices());
                matrices.push(&weights.output.matrix);
            }
            Mixing::Absent => {}
        }
        matrices.extend(self.residual.matrices());
        matrices
    }
}

/// Weights outside the layers other than matrices.
pub(super) struct Ending {
    /// The rotations, in the order of [`ModelConfig::ropes`].
    pub(super) rotations: Vec<Rotation>,
    /// `[2, d_model]`
    pub(super) classifier: Option<Vec<f32>>,
}

impl Ending {
    pub(super) fn load(config: &ModelConfig, loader: &mut Loader<'_>) -> Result<Ending, ModelError> {
        let divisors = loader.optional_vector("rope_freqs.weight")?;
        // These are in the configuration.
        loader.left.retain(|name| !ROPE_FACTORS.contains(&name.as_str()));
        let rotation = |(rope, divided): (&RopeConfig, bool)| {
            Rotation::new(rope, divisors.as_deref().filter(|_| divided))
        };
        let rotations = config.ropes().into_iter().map(rotation).collect();
        Ok(Ending { rotations, classifier: loader.optional_vector(CLASSIFIER)? })
    }
}

/// Loads the weights of a model, layer by layer.
pub(crate) struct ModelLoader<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) loader: Loader<'a>,
}

impl<'a> ModelLoader<'a> {
    /// Checks that the tensors are exactly those of the configuration.
    pub(super) fn open(
        config: &'a ModelConfig,
        tensors: &'a TensorSource,
        conversion: Conversion,
        pool: &'a Pool,
        progress: &'a dyn Fn(u64, u64),
    ) -> Result<ModelLoader<'a>, ModelError> {
        let left = expected::check(config, tensors)?;
        let total_bytes = tensors.total_bytes();
        let norm_offset = config.extras.norm_offset;
        let loader =
            Loader { tensors, left, norm_offset, conversion, pool, progress, done_bytes: 0, total_bytes };
        Ok(ModelLoader { config, loader })
    }

    pub(crate) fn load(mut self) -> Result<Weights, ModelError> {
        let layers = self.first_layers(self.config.layers)?;
        let ends = self.config.residual().load_ends(&mut self.loader)?;
        let norm = self.loader.vector(self.config.arch.output_norm())?;
        let Ending { rotations, classifier } = Ending::load(self.config, &mut self.loader)?;
        let output = match self.loader.left.contains("output.weight") {
            // Rows of the embedding are read from the source at every step, so it is not packed.
            true => {
                self.loader.take("token_embd.weight")?;
                self.loader.matrix("output.weight")?
            }
            false => self.loader.matrix("token_embd.weight")?,
        };
        let prediction = Prediction::load(&mut self);
        debug_assert!(self.loader.left.is_empty(), "expected and never read: {:?}", self.loader.left);
        Ok(Weights { layers, head: Some(Head { norm, output }), ends, rotations, classifier, prediction })
    }

    pub(super) fn first_layers(&mut self, count: usize) -> Result<Vec<Layer>, ModelError> {
        let stored: Vec<usize> = self.config.kv_layers().collect();
        let layer = |index: usize| {
            let shape = self.config.layer(index);
            let kv = stored.binary_search(&shape.source.unwrap_or(index)).ok();
            self.layer(index, shape, kv)
        };
        (0..count).map(layer).collect()
    }

    /// The layer whose tensors have this index, of this shape; `kv` is the layer of the KV layout that it reads.
    pub(super) fn layer(
        &mut self,
        index: usize,
        shape: LayerShape,
        kv: Option<usize>,
    ) -> Result<Layer, ModelError> {
        let name = |part: &str| format!("blk.{index}.{part}");
        Ok(Layer {
            shape,
            mixing_norms: match shape.mixing {
                MixingShape::Absent => HalfNorms::NONE,
                _ => self.norms(&shape, MIXING, &name)?,
            },
            mixing: self.mixing(&shape, index, kv)?,
            ffn_norms: match shape.feed_forward {
                FeedForwardShape::Absent => HalfNorms::NONE,
                _ => self.norms(&shape, FEED_FORWARD, &name)?,
            },
            feed_forward: shape
                .feed_forward
                .load(&mut LayerLoader { loader: &mut self.loader, layer: index })?,
            residual: shape.residual.load(&mut LayerLoader { loader: &mut self.loader, layer: index })?,
        })
    }

    fn mixing(&mut self, shape: &LayerShape, index: usize, kv: Option<usize>) -> Result<Mixing, ModelError> {
        match shape.mixing {
            MixingShape::Attention => {
                let kv = kv.expect("a layer that stores keys and values");
                Ok(Mixing::Attention(Box::new(self.attention(shape, index, kv)?)))
            }
            MixingShape::Recurrent(recurrent) => {
                let keeps_state = |mixing| matches!(mixing, MixingShape::Recurrent(_));
                let number =
                    (0..index).filter(|&before| keeps_state(self.config.layer(before).mixing)).count();
                let mut layer = LayerLoader { loader: &mut self.loader, layer: index };
                let (output, _) = recurrent.output(self.config.d_model);
                Ok(Mixing::Recurrent(Box::new(RecurrentWeights {
                    number,
                    recurrent: recurrent.load(&mut layer)?,
                    output: Linear { matrix: layer.matrix(output)?, bias: None },
                })))
            }
            MixingShape::Absent => Ok(Mixing::Absent),
        }
    }

    fn attention(
        &mut self,
        shape: &LayerShape,
        index: usize,
        kv: usize,
    ) -> Result<AttentionWeights, ModelError> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let projections = match shape.latent {
            Some(latent) => {
                let mut layer = LayerLoader { loader: &mut self.loader, layer: index };
                Projections::Latent(Box::new(Latent::load(latent, shape.heads, &mut layer)?))
            }
            None => Projections::Heads(Box::new(self.heads(shape, &name)?)),
        };
        Ok(AttentionWeights {
            kv,
            projections,
            sinks: self.loader.optional_vector(&name("attn_sinks.weight"))?,
            output: self.loader.linear(&name("attn_output"))?,
        })
    }

    fn norms(
        &mut self,
        shape: &LayerShape,
        half: usize,
        name: &dyn Fn(&str) -> String,
    ) -> Result<HalfNorms, ModelError> {
        let mut norm =
            |names: Option<[&str; 2]>| names.map(|names| self.loader.vector(&name(names[half]))).transpose();
        Ok(HalfNorms { before: norm(shape.norms.before)?, after: norm(shape.norms.after)? })
    }

    /// The projections to queries, keys and values, which may be stored as one tensor. Projections to keys and values
    /// that a file has for a layer that reads those of another are not read.
    fn heads(
        &mut self,
        shape: &LayerShape,
        name: &dyn Fn(&str) -> String,
    ) -> Result<HeadProjections, ModelError> {
        let (q, k, v) = match self.loader.left.contains(&format!("{}.weight", name(FUSED_QKV))) {
            true => self.fused_qkv(shape, &name(FUSED_QKV))?,
            false if shape.source.is_some() => (self.loader.linear(&name("attn_q"))?, None, None),
            false => {
                let has_v = self.loader.left.contains(&name("attn_v.weight"));
                let v = has_v.then(|| self.loader.linear(&name("attn_v"))).transpose()?;
                (self.loader.linear(&name("attn_q"))?, Some(self.loader.linear(&name("attn_k"))?), v)
            }
        };
        if shape.source.is_some() {
            self.loader.left.retain(|left| !UNREAD.iter().any(|part| *left == name(part)));
        }
        let q_norm = self.loader.optional_vector(&name("attn_q_norm.weight"))?;
        let k_norm = self.loader.optional_vector(&name("attn_k_norm.weight"))?;
        Ok(HeadProjections { q, q_norm, kv: k.map(|k| KeysAndValues { k, v, k_norm }) })
    }

    fn fused_qkv(
        &mut self,
        shape: &LayerShape,
        fused: &str,
    ) -> Result<(Linear, Option<Linear>, Option<Linear>), ModelError> {
        let (q, kv) = (shape.q_rows(), shape.kv_heads * shape.head_dim);
        let view = self.loader.take(&format!("{fused}.weight"))?;
        let bias = self.loader.optional_vector(&format!("{fused}.bias"))?;
        let mut part = |rows: Range<usize>| -> Result<Linear, ModelError> {
            let bias = bias.as_ref().map(|bias| bias[rows.clone()].to_vec());
            Ok(Linear {
                matrix: self.loader.pack(fused, &rows_of(&view, rows), self.loader.conversion)?,
                bias,
            })
        };
        let queries = part(0..q)?;
        let (k, v) = match shape.source {
            Some(_) => (None, None),
            None => (Some(part(q..q + kv)?), Some(part(q + kv..q + 2 * kv)?)),
        };
        self.loader.tensors.release(&format!("{fused}.weight"));
        Ok((queries, k, v))
    }
}

/// The halves of a layer, as [`Norms`](super::arch::Norms) orders them.
const MIXING: usize = 0;
const FEED_FORWARD: usize = 1;
