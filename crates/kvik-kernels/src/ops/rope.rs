//! Rotary position embedding.

use super::{OpsKernels, PARALLEL_MIN, kernels};
use crate::Pool;

/// Which elements of a head vector form the pairs that are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(2 i, 2 i + 1)`: Llama as GGUF stores it.
    Interleaved,
    /// `(i, i + dims / 2)`: Qwen, and Hugging Face's Llama.
    HalfSplit,
}

/// Cosine and sine of every angle that a model rotates by.
#[derive(Debug, Clone)]
pub struct RopeTable {
    /// Rotated elements of a head vector: twice the number of frequencies.
    dims: usize,
    /// `[positions, dims / 2]`
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Angles `position * frequency`, computed in f64, for `frequencies` `[dims / 2]` and positions
    /// `0..positions_max`. Cosine and sine are multiplied by `attention_factor` (1 in most models).
    pub fn new(frequencies: &[f32], positions_max: usize, attention_factor: f32) -> RopeTable {
        let entries = positions_max * frequencies.len();
        let (mut cos, mut sin) = (Vec::with_capacity(entries), Vec::with_capacity(entries));
        for position in 0..positions_max {
            for &frequency in frequencies {
                let angle = position as f64 * f64::from(frequency);
                cos.push((angle.cos() * f64::from(attention_factor)) as f32);
                sin.push((angle.sin() * f64::from(attention_factor)) as f32);
            }
        }
        RopeTable { dims: 2 * frequencies.len(), cos, sin }
    }

    /// Rotated elements of a head vector.
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// The number of positions in the table.
    pub fn positions(&self) -> usize {
        if self.dims == 0 { usize::MAX } else { self.cos.len() / (self.dims / 2) }
    }

    fn row(&self, position: u32) -> (&[f32], &[f32]) {
        let half = self.dims / 2;
        let start = position as usize * half;
        (&self.cos[start..start + half], &self.sin[start..start + half])
    }
}

/// Rotates the first `table.dims()` elements of every head vector by the angles of its row's position.
///
/// * `x`: `[n, heads, head_dim]`
/// * `positions`: `[n]`
///
/// # Panics
/// When a shape does not fit, the table rotates more elements than a head has, or lacks a position.
pub fn rope(
    pool: &Pool,
    x: &mut [f32],
    head_dim: usize,
    positions: &[u32],
    table: &RopeTable,
    style: RopeStyle,
) {
    rope_with(kernels(), pool, x, head_dim, positions, table, style);
}

pub(super) fn rope_with(
    kernels: OpsKernels,
    pool: &Pool,
    x: &mut [f32],
    head_dim: usize,
    positions: &[u32],
    table: &RopeTable,
    style: RopeStyle,
) {
    assert!(table.dims <= head_dim, "{} rotated elements of {head_dim}", table.dims);
    assert!(x.len().is_multiple_of((positions.len() * head_dim).max(1)), "x is [n, heads, head_dim]");
    if x.is_empty() {
        return;
    }
    let row = x.len() / positions.len();
    let rotate_row = |i: usize, row: &mut [f32]| {
        let (cos, sin) = table.row(positions[i]);
        for head in row.chunks_exact_mut(head_dim) {
            rotate(kernels, &mut head[..table.dims], cos, sin, style);
        }
    };
    if x.len() < PARALLEL_MIN {
        x.chunks_exact_mut(row).enumerate().for_each(|(i, row)| rotate_row(i, row));
    } else {
        pool.run_chunks(x, row, rotate_row);
    }
}

/// Rotates the pairs of one head vector.
fn rotate(kernels: OpsKernels, x: &mut [f32], cos: &[f32], sin: &[f32], style: RopeStyle) {
    match style {
        RopeStyle::HalfSplit => {
            let (low, high) = x.split_at_mut(x.len() / 2);
            // SAFETY: the kernels are those of the machine.
            unsafe { (kernels.rotate)(low, high, cos, sin) };
        }
        RopeStyle::Interleaved => {
            let (pairs, _) = x.as_chunks_mut::<2>();
            for ((pair, &cos), &sin) in pairs.iter_mut().zip(cos).zip(sin) {
                let [a, b] = *pair;
                *pair = [a.mul_add(cos, -(b * sin)), a.mul_add(sin, b * cos)];
            }
        }
    }
}
