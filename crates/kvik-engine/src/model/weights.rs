//! The weights of a decoder, packed for the kernels.
//!
//! `expected` has checked names and shapes against the configuration, so the forward pass can index
//! without checks of its own. Every tensor of the file is taken from its list exactly once.

use std::collections::BTreeSet;
use std::ops::Range;

use kvik_kernels::{Matrix, Pool, dequantize};

use super::arch::{LayerShape, MixingShape};
use super::convert::{Conversion, check_conversion, transposed};
use super::expected::{self, CLASSIFIER, FUSED_QKV, ROPE_FACTORS, UNREAD};
use super::feed_forward::{FeedForward, FeedForwardShape, part_of_stack, turned_stack};
use super::latent::Latent;
use super::recurrent::{Recurrent, SSM_NORM};
use super::residual::{Ends, Residual};
use super::rope::Rotation;
use super::{ModelConfig, ModelError, RopeConfig};
use crate::files::{TensorSource, TensorView};

/// Weights of one layer.
pub(crate) struct Layer {
    pub(crate) shape: LayerShape,
    pub(crate) mixing_norms: HalfNorms,
    pub(crate) mixing: Mixing,
    pub(crate) ffn_norms: HalfNorms,
    /// `None` where the layer has no such half.
    pub(crate) feed_forward: Option<FeedForward>,
    pub(crate) residual: Residual,
}

/// Weights of what mixes positions.
pub(crate) enum Mixing {
    Attention(Box<AttentionWeights>),
    Recurrent(Box<RecurrentWeights>),
    /// The layer is a feed-forward half alone.
    Absent,
}

/// Weights of attention.
pub(crate) struct AttentionWeights {
    /// The layer of the KV layout whose keys and values it reads. It also writes them if its projections
    /// [`store`](Projections::store); else another layer does.
    pub(crate) kv: usize,
    pub(crate) projections: Projections,
    /// `[heads]`
    pub(crate) sinks: Option<Vec<f32>>,
    /// `[d_model, heads * output_dim]`
    pub(crate) output: Linear,
}

/// Weights of a recurrent layer.
pub(crate) struct RecurrentWeights {
    /// Which of the recurrent layers it is.
    pub(crate) number: usize,
    pub(crate) recurrent: Recurrent,
    /// `[d_model, values]`
    pub(crate) output: Linear,
}

/// What makes queries, keys and values of the stream.
pub(crate) enum Projections {
    /// A projection each.
    Heads(Box<HeadProjections>),
    /// [`LayerShape::latent`]
    Latent(Box<Latent>),
}

impl Projections {
    /// Whether they make keys and values to store; else the layer reads those of another.
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
    /// `[heads * head_dim, d_model]`, with gates twice as many rows
    pub(crate) q: Linear,
    /// `[head_dim]`; or of all heads
    pub(crate) q_norm: Option<Vec<f32>>,
    /// `None` in a layer that reads the keys and values of another
    pub(crate) kv: Option<KeysAndValues>,
}

/// What a layer makes the keys and values of that it stores.
pub(crate) struct KeysAndValues {
    /// `[kv_heads * head_dim, d_model]`
    pub(crate) k: Linear,
    /// `[kv_heads * head_dim, d_model]`; `None` where keys and values are one projection
    pub(crate) v: Option<Linear>,
    /// `[head_dim]`; or of all heads
    pub(crate) k_norm: Option<Vec<f32>>,
}

/// Weights of the norms of one half of a layer, `[d_model]` each.
pub(crate) struct HalfNorms {
    /// Of what it reads.
    pub(crate) before: Option<Vec<f32>>,
    /// Of what it adds to the stream.
    pub(crate) after: Option<Vec<f32>>,
}

impl HalfNorms {
    /// Those of a half that a layer lacks.
    const NONE: HalfNorms = HalfNorms { before: None, after: None };
}

/// A projection with an optional bias.
pub(crate) struct Linear {
    /// `[rows, cols]`
    pub(crate) matrix: Matrix,
    /// `[rows]`
    pub(crate) bias: Option<Vec<f32>>,
}

/// All weights but the embedding, whose rows are read from the source.
pub(crate) struct Weights {
    /// All layers; or the first ones, where the others are computed elsewhere.
    pub(crate) layers: Vec<Layer>,
    /// What makes logits; `None` where the last layers are computed elsewhere.
    pub(crate) head: Option<Head>,
    /// What stands around the stream before the first layer and behind the last.
    pub(crate) ends: Ends,
    /// How positions are rotated, as [`ModelConfig::ropes`] lists it.
    pub(super) rotations: Vec<Rotation>,
    /// What a reranker multiplies its hidden state by, `[2, d_model]`: yes, no.
    pub(crate) classifier: Option<Vec<f32>>,
}

/// What makes logits of the stream behind the last layer.
pub(crate) struct Head {
    /// `[d_model]`
    pub(crate) norm: Vec<f32>,
    /// `[vocab, d_model]`; the embedding where the model ties them.
    pub(crate) output: Matrix,
}

impl Weights {
    /// Bytes of packed matrices.
    pub(crate) fn bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(Layer::matrices);
        let output = self.head.iter().map(|head| &head.output);
        layers.chain(output).chain(self.ends.matrices()).map(Matrix::bytes).sum()
    }
}

impl Layer {
    /// What takes rows into a state, if the layer has one.
    pub(super) fn recurrent(&self) -> Option<&Recurrent> {
        match &self.mixing {
            Mixing::Recurrent(weights) => Some(&weights.recurrent),
            _ => None,
        }
    }

    fn matrices(&self) -> Vec<&Matrix> {
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

/// Loads and packs weights, one tensor at a time, each in parallel on the pool.
pub(crate) struct Loader<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) tensors: &'a TensorSource,
    /// Names of the tensors that have not been taken yet.
    pub(crate) left: BTreeSet<String>,
    /// What matrices become.
    pub(crate) conversion: Conversion,
    pub(crate) pool: &'a Pool,
    /// Told `(bytes read, bytes in all)` after each tensor.
    pub(crate) progress: &'a dyn Fn(u64, u64),
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
}

/// What stands behind the layers beside matrices.
pub(super) struct Ending {
    /// How positions are rotated, as [`ModelConfig::ropes`] lists it.
    pub(super) rotations: Vec<Rotation>,
    /// `[2, d_model]`
    pub(super) classifier: Option<Vec<f32>>,
}

impl<'a> Loader<'a> {
    /// Checks that the tensors are those of the configuration, all of them and no others.
    pub(super) fn open(
        config: &'a ModelConfig,
        tensors: &'a TensorSource,
        conversion: Conversion,
        pool: &'a Pool,
        progress: &'a dyn Fn(u64, u64),
    ) -> Result<Loader<'a>, ModelError> {
        let left = expected::check(config, tensors)?;
        let total_bytes = tensors.total_bytes();
        Ok(Loader { config, tensors, left, conversion, pool, progress, done_bytes: 0, total_bytes })
    }

    pub(crate) fn load(mut self) -> Result<Weights, ModelError> {
        let layers = self.first_layers(self.config.layers)?;
        let ends = self.config.residual().load_ends(&mut self)?;
        let norm = self.vector(self.config.arch.output_norm())?;
        let Ending { rotations, classifier } = self.ending()?;
        let output = match self.left.contains("output.weight") {
            // Rows of the embedding are read from the source at every step, so it is not packed.
            true => {
                self.take("token_embd.weight")?;
                self.matrix("output.weight")?
            }
            false => self.matrix("token_embd.weight")?,
        };
        debug_assert!(self.left.is_empty(), "expected and never read: {:?}", self.left);
        Ok(Weights { layers, head: Some(Head { norm, output }), ends, rotations, classifier })
    }

    pub(super) fn first_layers(&mut self, count: usize) -> Result<Vec<Layer>, ModelError> {
        let stored: Vec<usize> = self.config.kv_layers().collect();
        (0..count).map(|index| self.layer(index, &stored)).collect()
    }

    pub(super) fn ending(&mut self) -> Result<Ending, ModelError> {
        let divisors = self.optional_vector("rope_freqs.weight")?;
        // They are in the configuration.
        self.left.retain(|name| !ROPE_FACTORS.contains(&name.as_str()));
        let rotation = |(rope, divided): (&RopeConfig, bool)| {
            Rotation::new(rope, divisors.as_deref().filter(|_| divided))
        };
        let rotations = self.config.ropes().into_iter().map(rotation).collect();
        Ok(Ending { rotations, classifier: self.optional_vector(CLASSIFIER)? })
    }

    /// `stored` are the layers of the KV layout.
    fn layer(&mut self, index: usize, stored: &[usize]) -> Result<Layer, ModelError> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let shape = self.config.layer(index);
        Ok(Layer {
            shape,
            mixing_norms: match shape.mixing {
                MixingShape::Absent => HalfNorms::NONE,
                _ => self.norms(&shape, MIXING, &name)?,
            },
            mixing: self.mixing(&shape, index, stored)?,
            ffn_norms: match shape.feed_forward {
                FeedForwardShape::Absent => HalfNorms::NONE,
                _ => self.norms(&shape, FEED_FORWARD, &name)?,
            },
            feed_forward: shape.feed_forward.load(&mut LayerLoader { loader: self, layer: index })?,
            residual: shape.residual.load(&mut LayerLoader { loader: self, layer: index })?,
        })
    }

    fn mixing(&mut self, shape: &LayerShape, index: usize, stored: &[usize]) -> Result<Mixing, ModelError> {
        match shape.mixing {
            MixingShape::Attention => {
                let read = shape.source.unwrap_or(index);
                let kv = stored.binary_search(&read).expect("a layer that stores keys and values");
                Ok(Mixing::Attention(Box::new(self.attention(shape, index, kv)?)))
            }
            MixingShape::Recurrent(recurrent) => {
                let keeps_state = |mixing| matches!(mixing, MixingShape::Recurrent(_));
                let number =
                    (0..index).filter(|&before| keeps_state(self.config.layer(before).mixing)).count();
                let mut layer = LayerLoader { loader: self, layer: index };
                let (output, _) = recurrent.output(layer.loader.config.d_model);
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
                let mut layer = LayerLoader { loader: self, layer: index };
                Projections::Latent(Box::new(Latent::load(latent, shape.heads, &mut layer)?))
            }
            None => Projections::Heads(Box::new(self.heads(shape, &name)?)),
        };
        Ok(AttentionWeights {
            kv,
            projections,
            sinks: self.optional_vector(&name("attn_sinks.weight"))?,
            output: self.linear(&name("attn_output"))?,
        })
    }

    fn norms(
        &mut self,
        shape: &LayerShape,
        half: usize,
        name: &dyn Fn(&str) -> String,
    ) -> Result<HalfNorms, ModelError> {
        let mut norm =
            |names: Option<[&str; 2]>| names.map(|names| self.vector(&name(names[half]))).transpose();
        Ok(HalfNorms { before: norm(shape.norms.before)?, after: norm(shape.norms.after)? })
    }

    /// The projections to queries, keys and values, which may be stored as one tensor. Those to keys and values may be
    /// in the file of a layer that reads the keys and values of another, and are not read.
    fn heads(
        &mut self,
        shape: &LayerShape,
        name: &dyn Fn(&str) -> String,
    ) -> Result<HeadProjections, ModelError> {
        let (q, k, v) = match self.left.contains(&format!("{}.weight", name(FUSED_QKV))) {
            true => self.fused_qkv(shape, &name(FUSED_QKV))?,
            false if shape.source.is_some() => (self.linear(&name("attn_q"))?, None, None),
            false => {
                let has_v = self.left.contains(&name("attn_v.weight"));
                let v = has_v.then(|| self.linear(&name("attn_v"))).transpose()?;
                (self.linear(&name("attn_q"))?, Some(self.linear(&name("attn_k"))?), v)
            }
        };
        if shape.source.is_some() {
            self.left.retain(|left| !UNREAD.iter().any(|part| *left == name(part)));
        }
        let q_norm = self.optional_vector(&name("attn_q_norm.weight"))?;
        let k_norm = self.optional_vector(&name("attn_k_norm.weight"))?;
        Ok(HeadProjections { q, q_norm, kv: k.map(|k| KeysAndValues { k, v, k_norm }) })
    }

    fn fused_qkv(
        &mut self,
        shape: &LayerShape,
        fused: &str,
    ) -> Result<(Linear, Option<Linear>, Option<Linear>), ModelError> {
        let (q, kv) = (shape.q_rows(), shape.kv_heads * shape.head_dim);
        let view = self.take(&format!("{fused}.weight"))?;
        let bias = self.optional_vector(&format!("{fused}.bias"))?;
        let mut part = |rows: Range<usize>| -> Result<Linear, ModelError> {
            let bias = bias.as_ref().map(|bias| bias[rows.clone()].to_vec());
            Ok(Linear { matrix: self.pack(fused, &rows_of(&view, rows), self.conversion)?, bias })
        };
        let queries = part(0..q)?;
        let (k, v) = match shape.source {
            Some(_) => (None, None),
            None => (Some(part(q..q + kv)?), Some(part(q + kv..q + 2 * kv)?)),
        };
        self.tensors.release(&format!("{fused}.weight"));
        Ok((queries, k, v))
    }

    fn linear(&mut self, name: &str) -> Result<Linear, ModelError> {
        Ok(Linear {
            matrix: self.matrix(&format!("{name}.weight"))?,
            bias: self.optional_vector(&format!("{name}.bias"))?,
        })
    }

    pub(super) fn matrix(&mut self, name: &str) -> Result<Matrix, ModelError> {
        let view = self.take(name)?;
        let packed = self.pack(name, &view, self.conversion);
        self.tensors.release(name);
        packed
    }

    /// Packs what a tensor, or a part of it, holds, converted.
    pub(crate) fn pack(
        &mut self,
        name: &str,
        view: &TensorView<'_>,
        conversion: Conversion,
    ) -> Result<Matrix, ModelError> {
        let packed = self.pack_silently(name, view, conversion);
        self.report(view.data.len());
        packed
    }

    /// [`Loader::pack`] of what is not counted as read.
    pub(crate) fn pack_silently(
        &self,
        name: &str,
        view: &TensorView<'_>,
        conversion: Conversion,
    ) -> Result<Matrix, ModelError> {
        let target = conversion.of_matrix(view);
        check_conversion(view, target)?;
        let packed = Matrix::pack_as(target, view.ty, view.rows, view.cols, view.data, self.pool);
        packed.map_err(|source| ModelError::Matrix { tensor: name.to_owned(), source })
    }

    pub(super) fn optional_vector(&mut self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        self.left.contains(name).then(|| self.vector(name)).transpose()
    }

    pub(super) fn vector(&mut self, name: &str) -> Result<Vec<f32>, ModelError> {
        let view = self.take(name)?;
        let mut values = vec![0.0; view.rows * view.cols];
        dequantize(view.ty, view.data, &mut values);
        // The norm behind a state has no offset in any file.
        if name.ends_with("norm.weight") && !name.ends_with(SSM_NORM) {
            values.iter_mut().for_each(|weight| *weight += self.config.extras.norm_offset);
        }
        self.report(view.data.len());
        Ok(values)
    }

    pub(crate) fn take(&mut self, name: &str) -> Result<TensorView<'a>, ModelError> {
        let listed = self.left.remove(name);
        debug_assert!(listed, "{name} is read and was not expected");
        self.tensors.get(name).ok_or_else(|| ModelError::MissingTensor { tensor: name.to_owned() })
    }

    /// Whether the file has a stack in one of its forms, and it is still to be taken.
    pub(super) fn has_stack(&self, name: &str) -> bool {
        [name, &part_of_stack(name, 0), &turned_stack(name)].into_iter().any(|form| self.left.contains(form))
    }

    /// `count` matrices of equal shape: in one tensor, one below the other, each as it is or the other way round; or
    /// each in a tensor of its own. The stack may be one of two that would do.
    pub(super) fn stack(&mut self, name: &str, count: usize) -> Result<Vec<Matrix>, ModelError> {
        self.each_of_stack(name, count, |loader, name, view| loader.pack(name, view, loader.conversion))
    }

    /// The upper and the lower half of each matrix of a stack.
    pub(super) fn halves(
        &mut self,
        name: &str,
        count: usize,
    ) -> Result<(Vec<Matrix>, Vec<Matrix>), ModelError> {
        let halves = self.each_of_stack(name, count, |loader, name, view| {
            let (half, conversion) = (view.rows / 2, loader.conversion);
            let upper = loader.pack(name, &rows_of(view, 0..half), conversion)?;
            Ok((upper, loader.pack(name, &rows_of(view, half..view.rows), conversion)?))
        });
        Ok(halves?.into_iter().unzip())
    }

    /// What `load` makes of each of `count` matrices of a stack, whatever its form.
    pub(super) fn each_of_stack<T>(
        &mut self,
        stack: &str,
        count: usize,
        mut load: impl FnMut(&mut Self, &str, &TensorView<'_>) -> Result<T, ModelError>,
    ) -> Result<Vec<T>, ModelError> {
        let turned = turned_stack(stack);
        if self.left.contains(stack) {
            self.each_part(stack, count, |loader, view| load(loader, stack, view))
        } else if self.left.contains(&part_of_stack(stack, 0)) {
            let in_its_own = |index| {
                self.each_part(&part_of_stack(stack, index), 1, |loader, view| load(loader, stack, view))
            };
            Ok((0..count).map(in_its_own).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        } else if self.left.contains(&turned) {
            self.each_part(&turned, count, |loader, view| {
                let (ty, data) = transposed(view);
                load(loader, &turned, &TensorView { ty, rows: view.cols, cols: view.rows, data: &data })
            })
        } else {
            Err(ModelError::MissingTensor { tensor: stack.to_owned() })
        }
    }

    /// What `load` makes of each of `count` equal parts of the rows of a tensor.
    fn each_part<T>(
        &mut self,
        name: &str,
        count: usize,
        mut load: impl FnMut(&mut Self, &TensorView<'_>) -> Result<T, ModelError>,
    ) -> Result<Vec<T>, ModelError> {
        let view = self.take(name)?;
        debug_assert!(view.rows.is_multiple_of(count), "checked with the shapes of all tensors");
        let rows = view.rows / count;
        let part = |index| load(self, &rows_of(&view, index * rows..(index + 1) * rows));
        let parts = (0..count).map(part).collect();
        self.tensors.release(name);
        parts
    }

    pub(crate) fn report(&mut self, bytes: usize) {
        self.done_bytes += bytes as u64;
        (self.progress)(self.done_bytes, self.total_bytes);
    }
}

/// Loads what a part of a layer is made of, by the names in the layer.
pub(crate) struct LayerLoader<'l, 'a> {
    pub(crate) loader: &'l mut Loader<'a>,
    pub(crate) layer: usize,
}

impl LayerLoader<'_, '_> {
    /// Whether the file has a tensor that is still to be taken.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.loader.left.contains(&self.name(name))
    }

    /// The file lacks a tensor that it might have had in another form.
    pub(crate) fn missing(&self, name: &str) -> ModelError {
        ModelError::MissingTensor { tensor: self.name(name) }
    }

    /// A matrix, converted where the model is.
    pub(crate) fn matrix(&mut self, name: &str) -> Result<Matrix, ModelError> {
        self.loader.matrix(&self.name(name))
    }

    /// A matrix in the type that the file has: what decides on other weights is not converted.
    pub(crate) fn stored_matrix(&mut self, name: &str) -> Result<Matrix, ModelError> {
        let name = self.name(name);
        let view = self.loader.take(&name)?;
        self.loader.pack(&name, &view, Conversion::Stored)
    }

    /// Whether the file has a stack in one of its forms, and it is still to be taken.
    pub(crate) fn has_stack(&self, name: &str) -> bool {
        self.loader.has_stack(&self.name(name))
    }

    /// `count` matrices of equal shape, in any form of [`Loader::stack`].
    pub(crate) fn stack(&mut self, name: &str, count: usize) -> Result<Vec<Matrix>, ModelError> {
        self.loader.stack(&self.name(name), count)
    }

    /// The upper and the lower half of each matrix of a stack.
    pub(crate) fn halves(
        &mut self,
        name: &str,
        count: usize,
    ) -> Result<(Vec<Matrix>, Vec<Matrix>), ModelError> {
        self.loader.halves(&self.name(name), count)
    }

    /// Matrices that stand in a tensor one below the other, of so many rows each.
    pub(crate) fn cut<const PARTS: usize>(
        &mut self,
        name: &str,
        rows: [usize; PARTS],
    ) -> Result<[Matrix; PARTS], ModelError> {
        let mut end = 0;
        let parts = rows.map(|rows| {
            end += rows;
            end - rows..end
        });
        self.split(name, std::array::from_fn(|part| std::slice::from_ref(&parts[part])))
    }

    /// Matrices of some rows of a tensor each, converted where the model is.
    pub(crate) fn split<const PARTS: usize>(
        &mut self,
        name: &str,
        parts: [&[Range<usize>]; PARTS],
    ) -> Result<[Matrix; PARTS], ModelError> {
        let name = self.name(name);
        let (view, conversion) = (self.loader.take(&name)?, self.loader.conversion);
        let row_bytes = view.data.len() / view.rows;
        let mut matrices = Vec::with_capacity(PARTS);
        for part in parts {
            let rows = part.iter().map(|rows| &view.data[rows.start * row_bytes..rows.end * row_bytes]);
            let data = rows.collect::<Vec<_>>().concat();
            let view = TensorView { rows: data.len() / row_bytes, data: &data, ..view };
            matrices.push(self.loader.pack(&name, &view, conversion)?);
        }
        self.loader.tensors.release(&name);
        Ok(matrices.try_into().unwrap_or_else(|_| unreachable!("one for each part")))
    }

    /// All values of a tensor.
    pub(crate) fn vector(&mut self, name: &str) -> Result<Vec<f32>, ModelError> {
        let name = self.name(name);
        self.loader.vector(&name)
    }

    /// All values of a tensor that may be absent.
    pub(crate) fn optional_vector(&mut self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        self.loader.optional_vector(&self.name(name))
    }

    /// A name in the layer as one of the model.
    pub(crate) fn name(&self, part: &str) -> String {
        format!("blk.{}.{part}", self.layer)
    }
}

/// The halves of a layer, as [`Norms`](super::arch::Norms) orders them.
const MIXING: usize = 0;
const FEED_FORWARD: usize = 1;

/// Some rows of a tensor.
pub(super) fn rows_of<'a>(view: &TensorView<'a>, rows: Range<usize>) -> TensorView<'a> {
    let row_bytes = view.data.len() / view.rows;
    let data = &view.data[rows.start * row_bytes..rows.end * row_bytes];
    TensorView { ty: view.ty, rows: rows.len(), cols: view.cols, data }
}
