//! A dense layer and a mixture of experts in parallel, each between norms of its own (Gemma 4): both read the stream,
//! and their outputs are added.
//!
//! The router reads the stream too, normed without weights and multiplied by a vector of its own.

use kvik_kernels::{Activations, Matrix, Pool, add, rms_norm, rms_norm_in_place};

use super::dense::{Dense, DenseShape, LAYER};
use super::experts::{Experts, ExpertsShape};
use crate::ModelError;
use crate::adapt::Adapt;
use crate::layer_tensor::{LayerTensor, Presence};
use crate::loader::LayerLoader;

/// The shapes of both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MixedShape {
    pub(crate) dense: DenseShape,
    pub(crate) experts: ExpertsShape,
    /// Epsilon of the norms in between.
    pub(crate) norm_eps: f32,
}

const AFTER_DENSE: &str = "post_ffw_norm_1.weight";
const BEFORE_EXPERTS: &str = "pre_ffw_norm_2.weight";
const AFTER_EXPERTS: &str = "post_ffw_norm_2.weight";
const ROUTER_SCALE: &str = "ffn_gate_inp.scale";

impl MixedShape {
    pub(super) fn tensors(self, d_model: usize) -> Vec<LayerTensor> {
        let mut tensors = self.dense.tensors(&LAYER, d_model);
        tensors.extend(self.experts.tensors(d_model));
        let vectors = [AFTER_DENSE, BEFORE_EXPERTS, AFTER_EXPERTS, ROUTER_SCALE];
        tensors.extend(vectors.map(|name| (name, 1, d_model, Presence::Required)));
        tensors
    }
}

/// The weights of both, and the norms between them, `[d_model]` each.
pub(crate) struct Mixed {
    dense: Dense,
    experts: Experts,
    after_dense: Vec<f32>,
    before_experts: Vec<f32>,
    after_experts: Vec<f32>,
    /// Factors of the router's normed rows.
    router_scale: Vec<f32>,
    norm_eps: f32,
}

/// Buffers of both.
#[derive(Default)]
pub(super) struct Buffers {
    /// The input of the router, then that of the experts, then their output: `[n, d_model]`.
    rows: Vec<f32>,
}

impl Mixed {
    pub(super) fn load(shape: MixedShape, layer: &mut LayerLoader<'_, '_>) -> Result<Mixed, ModelError> {
        let mut router_scale = layer.vector(ROUTER_SCALE)?;
        let root = (router_scale.len() as f32).sqrt();
        router_scale.iter_mut().for_each(|scale| *scale /= root);
        Ok(Mixed {
            dense: Dense::load(shape.dense, &LAYER, layer)?,
            experts: Experts::load(shape.experts, layer)?,
            after_dense: layer.vector(AFTER_DENSE)?,
            before_experts: layer.vector(BEFORE_EXPERTS)?,
            after_experts: layer.vector(AFTER_EXPERTS)?,
            router_scale,
            norm_eps: shape.norm_eps,
        })
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        let mut matrices = self.dense.matrices();
        matrices.extend(self.experts.matrices());
        matrices
    }

    /// Replaces `h`, the rows `x` normed for the dense layer, by the sum of both outputs: `[n, d_model]` each.
    pub(super) fn forward(
        &self,
        pool: &Pool,
        (x, h): (&[f32], &mut [f32]),
        inputs: &mut Activations,
        buffers: &mut super::Buffers,
        adapt: &mut dyn Adapt,
    ) {
        let d_model = self.dense.d_model();
        inputs.set(pool, h, d_model, &self.dense.takers());
        self.dense.project(pool, h, inputs, &mut buffers.dense, adapt);
        self.dense.finish(pool, h, &buffers.dense, adapt);
        rms_norm_in_place(pool, h, &self.after_dense, self.norm_eps);

        let super::Buffers { experts, mixed: Buffers { rows }, .. } = buffers;
        rows.resize(x.len(), 0.0);
        rms_norm(pool, x, &self.router_scale, self.norm_eps, rows);
        inputs.set(pool, rows, d_model, &[self.experts.router()]);
        self.experts.route(pool, rows, inputs, experts, adapt);
        rms_norm(pool, x, &self.before_experts, self.norm_eps, rows);
        inputs.set(pool, rows, d_model, &self.experts.sorted_takers());
        self.experts.run(pool, rows, inputs, experts);
        rms_norm_in_place(pool, rows, &self.after_experts, self.norm_eps);
        add(pool, h, rows);
    }
}
