//! LAuReL (arXiv 2411.07501): a low-rank path parallel to attention, normed, with the input added.

use std::f32::consts::FRAC_1_SQRT_2;

use kvik_kernels::{Matrix, add, matmul, multiply, rms_norm_in_place};

use super::Workspace;
use crate::ModelError;
use crate::layer_tensor::{LayerTensor, Presence};
use crate::loader::LayerLoader;

const DOWN: &str = "laurel_l.weight";
const UP: &str = "laurel_r.weight";
const NORM: &str = "laurel_post_norm.weight";

pub(super) fn tensors(rank: usize, d_model: usize) -> [LayerTensor; 3] {
    let required = Presence::Required;
    [(DOWN, rank, d_model, required), (UP, d_model, rank, required), (NORM, 1, d_model, required)]
}

pub(super) struct Laurel {
    /// `[rank, d_model]`
    down: Matrix,
    /// `[d_model, rank]`
    up: Matrix,
    /// `[d_model]`
    norm: Vec<f32>,
}

#[derive(Default)]
pub(super) struct Buffers {
    /// `[n, rank]`
    low: Vec<f32>,
    /// The contribution to the stream, `[n, d_model]`.
    pub(super) added: Vec<f32>,
}

impl Laurel {
    pub(super) fn load(layer: &mut LayerLoader<'_, '_>) -> Result<Laurel, ModelError> {
        Ok(Laurel { down: layer.matrix(DOWN)?, up: layer.matrix(UP)?, norm: layer.vector(NORM)? })
    }

    pub(super) fn matrices(&self) -> [&Matrix; 2] {
        [&self.down, &self.up]
    }

    /// `h`: `[n, d_model]`
    pub(super) fn branch(&self, work: &mut Workspace<'_>, h: &[f32], buffers: &mut Buffers) {
        let Buffers { low, added } = buffers;
        work.inputs.set(work.pool, h, self.down.cols(), &[&self.down]);
        low.resize(work.inputs.rows() * self.down.rows(), 0.0);
        matmul(work.pool, &self.down, work.inputs, low);
        work.inputs.set(work.pool, low, self.up.cols(), &[&self.up]);
        added.resize(h.len(), 0.0);
        matmul(work.pool, &self.up, work.inputs, added);
        rms_norm_in_place(work.pool, added, &self.norm, work.norm_eps);
        add(work.pool, added, h);
    }
}

/// Adds it to the stream, to which the output of attention has been added.
pub(super) fn join(work: &Workspace<'_>, x: &mut [f32], buffers: &Buffers) {
    add(work.pool, x, &buffers.added);
    multiply(work.pool, x, FRAC_1_SQRT_2);
}
