//! Norm and rotation of the heads of queries and keys.

use bytemuck::{Pod, Zeroable};
use kvik_kernels::RopeStyle;

use crate::kernel::Access::{self, Read, Write};
use crate::kernel::{Constant, Kernel, piece};
use crate::{Buffer, DeviceError, Step};

/// What happens to the heads of a layer.
#[derive(Debug, Clone, Copy)]
pub struct HeadWork<'a> {
    /// `[head_dim]` of queries and of keys: a norm before the rotation.
    pub weights: Option<[&'a Buffer<f32>; 2]>,
    /// Whether heads are normed without weights after the rotation.
    pub normed_after: bool,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Positions of the rows, `[n]`, each below the number of rows of `angles`.
    pub positions: &'a Buffer<u32>,
    /// Cosine and sine, `[positions, pairs]`.
    pub angles: &'a Buffer<[f32; 2]>,
    /// Number of rotated pairs of a vector.
    pub pairs: usize,
    /// Which elements are a pair.
    pub style: RopeStyle,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HeadParams {
    heads: u32,
    kv_heads: u32,
    eps: f32,
}

/// Buffers of the kernel; the last two hold the weights of the norm, if there is one.
const BUFFERS: [Access; 6] = [Read, Read, Write, Write, Read, Read];

impl Step<'_> {
    /// Norms and rotates the heads of queries and keys: [`Step::rms_norm`] and [`Step::rope`] of both in one, to the bit.
    ///
    /// * `q`: `[n, heads, head_dim]`
    /// * `k`: `[n, kv_heads, head_dim]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn norm_rope(
        &mut self,
        work: &HeadWork<'_>,
        [q, k]: [&mut Buffer<f32>; 2],
        [n, heads, kv_heads, head_dim]: [usize; 4],
    ) -> Result<(), DeviceError> {
        let HeadWork { weights, normed_after, eps, positions, angles, pairs, style } = *work;
        assert!(q.len() >= n * heads * head_dim, "q is [{n}, {heads}, {head_dim}]");
        assert!(k.len() >= n * kv_heads * head_dim, "k is [{n}, {kv_heads}, {head_dim}]");
        assert!(positions.len() >= n, "positions are [{n}]");
        assert!(
            2 * pairs <= head_dim && angles.len().is_multiple_of(pairs),
            "angles are [positions, {pairs}]"
        );
        let weight_len = |weight: &Buffer<f32>| weight.len() == head_dim;
        assert!(weights.is_none_or(|both| both.into_iter().all(weight_len)), "weights are [{head_dim}]");
        let of_weights = if weights.is_some() { piece!("heads/weights") } else { piece!("heads/no_weights") };
        let kernel = Kernel {
            pieces: vec![of_weights, piece!("heads/norm_rope")],
            constants: vec![
                ("HEAD_DIM", Constant::U32(head_dim as u32)),
                ("PAIRS", Constant::U32(pairs as u32)),
                ("INTERLEAVED", Constant::Bool(style == RopeStyle::Interleaved)),
                ("NORMED", Constant::Bool(weights.is_some())),
                ("NORMED_AFTER", Constant::Bool(normed_after)),
            ],
            buffers: if weights.is_some() { &BUFFERS } else { &BUFFERS[..4] },
            params: size_of::<HeadParams>(),
        };
        let mut buffers = vec![positions.raw(), angles.raw(), q.raw(), k.raw()];
        buffers.extend(weights.into_iter().flatten().map(Buffer::raw));
        let params = HeadParams { heads: heads as u32, kv_heads: kv_heads as u32, eps };
        self.dispatch(&kernel, &buffers, &params, [n as u32, (heads + kv_heads) as u32, 1])
    }
}
