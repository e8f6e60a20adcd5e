//! Additional computations on the residual stream in some models: several streams of which a layer computes one
//! (AltUp), a low-rank path parallel to attention (LAuReL), an embedding of the token for every layer, a factor of a
//! layer's output.
//!
//! The forward pass calls [`Residual`] at the same points of every layer; a part that a layer lacks does nothing there.
//! The result for a row depends only on that row.

mod altup;
mod laurel;
mod per_layer;

use kvik_kernels::{Activations, Matrix, Pool, multiply};
use kvik_text::files::TensorView;

use super::ModelError;
use super::layer_tensor::{LayerTensor, Presence};
use super::loader::{LayerLoader, Loader};
use altup::{AltUp, Streams};
use laurel::Laurel;
use per_layer::{PerLayer, PerLayerInputs};

pub(crate) use altup::INPUTS_MAX;
pub(crate) use per_layer::TABLE;

/// The parts that a layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResidualShape {
    /// Number of streams of AltUp.
    pub(crate) altup: Option<usize>,
    /// Rank of LAuReL.
    pub(crate) laurel: Option<usize>,
    /// Width of the embedding of the layer.
    pub(crate) per_layer: Option<usize>,
    /// A factor of the layer's output.
    pub(crate) output_scale: Presence,
}

const OUTPUT_SCALE: &str = "layer_output_scale.weight";

impl ResidualShape {
    /// A layer that only adds to its stream.
    pub(crate) const PLAIN: ResidualShape =
        ResidualShape { altup: None, laurel: None, per_layer: None, output_scale: Presence::Absent };

    /// Their tensors in a layer.
    pub(crate) fn tensors(self, d_model: usize) -> Vec<LayerTensor> {
        let mut tensors = vec![(OUTPUT_SCALE, 1, 1, self.output_scale)];
        tensors.extend(self.altup.into_iter().flat_map(|inputs| altup::layer_tensors(inputs, d_model)));
        tensors.extend(self.laurel.into_iter().flat_map(|rank| laurel::tensors(rank, d_model)));
        tensors.extend(self.per_layer.into_iter().flat_map(|width| per_layer::layer_tensors(width, d_model)));
        tensors
    }

    /// Their tensors outside of the layers, for a model whose layers all have this shape.
    pub(crate) fn model_tensors(self, [vocab, layers, d_model]: [usize; 3]) -> Vec<LayerTensor> {
        let altup = self.altup.into_iter().flat_map(|inputs| altup::model_tensors(inputs, d_model));
        let per_layer = self
            .per_layer
            .into_iter()
            .flat_map(|width| per_layer::model_tensors([vocab, layers, d_model], width));
        altup.chain(per_layer).collect()
    }

    /// Number of matrices of a tensor outside of the layers, if it is a stack.
    pub(crate) fn stack_len(self, name: &str) -> Option<usize> {
        self.altup.filter(|_| altup::is_stack(name)).map(|inputs| inputs - 1)
    }

    /// Loads its tensors by their names in the layer.
    pub(crate) fn load(self, layer: &mut LayerLoader<'_, '_>) -> Result<Residual, ModelError> {
        Ok(Residual {
            altup: self.altup.map(|inputs| AltUp::load(inputs, layer)).transpose()?,
            laurel: self.laurel.map(|_| Laurel::load(layer)).transpose()?,
            per_layer: self.per_layer.map(|_| PerLayer::load(layer)).transpose()?,
            output_scale: layer.optional_vector(OUTPUT_SCALE)?.map(|scale| scale[0]),
        })
    }

    /// Loads the tensors outside of the layers.
    pub(crate) fn load_ends(self, loader: &mut Loader<'_>) -> Result<Ends, ModelError> {
        Ok(Ends {
            streams: self.altup.map(|inputs| Streams::load(inputs, loader)).transpose()?,
            per_layer: self.per_layer.map(|width| PerLayerInputs::load(width, loader)).transpose()?,
        })
    }
}

/// Whether a tensor, by its name in the layer or the model, belongs to these parts: adapters do not change them.
pub(crate) fn is_part(name: &str) -> bool {
    let all = ResidualShape { altup: Some(2), laurel: Some(1), per_layer: Some(1), ..ResidualShape::PLAIN };
    let parts = all.tensors(1).into_iter().chain(all.model_tensors([1; 3]));
    parts.map(|(part, ..)| part).any(|part| part == name)
}

/// The context that all parts need.
pub(crate) struct Workspace<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) norm_eps: f32,
    pub(crate) inputs: &'a mut Activations,
}

/// Buffers of one forward pass, of `n` rows.
#[derive(Default)]
pub(crate) struct Buffers {
    altup: altup::Buffers,
    laurel: laurel::Buffers,
    per_layer: per_layer::Buffers,
}

impl Buffers {
    /// The buffers that hold data of every row after attention.
    pub(crate) fn of_rows(&mut self) -> [&mut Vec<f32>; 3] {
        [&mut self.altup.predicted, &mut self.laurel.added, &mut self.per_layer.inputs]
    }
}

/// The parts of one layer.
pub(crate) struct Residual {
    altup: Option<AltUp>,
    laurel: Option<Laurel>,
    per_layer: Option<PerLayer>,
    output_scale: Option<f32>,
}

impl Residual {
    /// Their matrices.
    pub(crate) fn matrices(&self) -> Vec<&Matrix> {
        let altup = self.altup.iter().map(AltUp::router);
        let laurel = self.laurel.iter().flat_map(Laurel::matrices);
        altup.chain(laurel).chain(self.per_layer.iter().flat_map(PerLayer::matrices)).collect()
    }

    /// Before the layer: replaces `x`, `[n, d_model]`, by the stream that it computes.
    pub(crate) fn start(&self, work: &mut Workspace<'_>, x: &mut [f32], buffers: &mut Buffers) {
        if let Some(altup) = &self.altup {
            altup.predict(work, x, &mut buffers.altup);
        }
    }

    /// In parallel with attention: `h`, `[n, d_model]`, is the input of attention.
    pub(crate) fn branch(&self, work: &mut Workspace<'_>, h: &[f32], buffers: &mut Buffers) {
        if let Some(laurel) = &self.laurel {
            laurel.branch(work, h, &mut buffers.laurel);
        }
    }

    /// After attention, whose output has been added to `x`.
    pub(crate) fn join(&self, work: &Workspace<'_>, x: &mut [f32], buffers: &Buffers) {
        if self.laurel.is_some() {
            laurel::join(work, x, &buffers.laurel);
        }
    }

    /// After layer `index`, which has computed `x` from its stream.
    pub(crate) fn finish(
        &self,
        work: &mut Workspace<'_>,
        index: usize,
        x: &mut [f32],
        buffers: &mut Buffers,
    ) {
        if let Some(altup) = &self.altup {
            altup.correct(work, x, &mut buffers.altup);
        }
        if let Some(per_layer) = &self.per_layer {
            match &self.altup {
                Some(altup) => altup.add_to_others(work, (index, per_layer), x, buffers),
                None => {
                    per_layer.compute(work, index, x, &mut buffers.per_layer);
                    kvik_kernels::add(work.pool, x, &buffers.per_layer.output);
                }
            }
        }
        multiply(work.pool, x, self.output_scale.unwrap_or(1.0));
    }
}

/// The computations before the first layer and after the last.
pub(crate) struct Ends {
    streams: Option<Streams>,
    per_layer: Option<PerLayerInputs>,
}

impl Ends {
    /// Their matrices.
    pub(crate) fn matrices(&self) -> Vec<&Matrix> {
        let streams = self.streams.iter().flat_map(Streams::matrices);
        streams.chain(self.per_layer.iter().map(PerLayerInputs::matrix)).collect()
    }

    /// Before the first layer: `x` holds the embeddings of `tokens`, and `table` the per-layer embeddings.
    pub(crate) fn enter(
        &self,
        work: &mut Workspace<'_>,
        (tokens, table): (impl Iterator<Item = u32>, Option<TensorView<'_>>),
        x: &[f32],
        buffers: &mut Buffers,
    ) {
        if let (Some(inputs), Some(table)) = (&self.per_layer, table) {
            inputs.compute(work, (tokens, &table), x, &mut buffers.per_layer);
        }
        if let Some(streams) = &self.streams {
            streams.split(work, x, &mut buffers.altup);
        }
    }

    /// After the last layer: replaces `x` by the merged streams.
    pub(crate) fn leave(&self, work: &mut Workspace<'_>, x: &mut [f32], buffers: &mut Buffers) {
        if let Some(streams) = &self.streams {
            streams.merge(work, x, &mut buffers.altup);
        }
    }
}
