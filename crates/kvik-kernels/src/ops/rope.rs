//! Rotary position embedding.

use std::ops::Range;

use super::{OpsKernels, PARALLEL_MIN, kernels};
use crate::Pool;

/// The pairing of the elements of a head vector for rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(2 i, 2 i + 1)`: Llama in GGUF files.
    Interleaved,
    /// `(i, i + dims / 2)`: Qwen, and Hugging Face's Llama.
    HalfSplit,
}

/// The rotation angles of a model, with a table of cosines and sines for the common positions.
#[derive(Debug, Clone)]
pub struct RopeTable {
    /// `[dims / 2]` in radians per position.
    frequencies: Vec<f32>,
    attention_factor: f32,
    /// `[positions, dims / 2]`
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Angles `position * frequency`, computed in f64, for `frequencies` `[dims / 2]` and positions
    /// `0..positions_max`; those of later positions are computed on demand, to the same bits. Cosine and sine are
    /// multiplied by `attention_factor` (1 in most models).
    pub fn new(frequencies: &[f32], positions_max: usize, attention_factor: f32) -> RopeTable {
        let entries = positions_max * frequencies.len();
        let (cos, sin) = (Vec::with_capacity(entries), Vec::with_capacity(entries));
        let mut table = RopeTable { frequencies: frequencies.to_vec(), attention_factor, cos, sin };
        for position in 0..positions_max {
            for i in 0..frequencies.len() {
                let [cos, sin] = table.entry(position, i);
                table.cos.push(cos);
                table.sin.push(sin);
            }
        }
        table
    }

    /// Number of rotated elements of a head vector: twice the number of frequencies.
    pub fn dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The number of positions in the table.
    pub fn positions(&self) -> usize {
        self.cos.len().checked_div(self.frequencies.len()).unwrap_or(usize::MAX)
    }

    /// Mean cosine and sine of each pair over `positions`: `[dims / 2]`.
    ///
    /// # Panics
    /// If there are no positions.
    pub fn mean_rotation(&self, positions: Range<u32>) -> Vec<[f32; 2]> {
        assert!(!positions.is_empty(), "the mean over positions {positions:?}");
        let mut sums = vec![[0.0_f64; 2]; self.frequencies.len()];
        let mut beyond = Vec::new();
        for position in positions.clone() {
            let (cos, sin) = self.row(position, &mut beyond);
            for (sum, angle) in sums.iter_mut().zip(cos.iter().zip(sin)) {
                *sum = [sum[0] + f64::from(*angle.0), sum[1] + f64::from(*angle.1)];
            }
        }
        let count = positions.len() as f64;
        sums.into_iter().map(|sum| sum.map(|sum| (sum / count) as f32)).collect()
    }

    /// Cosines and sines of a position, computed in `beyond` if the table lacks it.
    fn row<'a>(&'a self, position: u32, beyond: &'a mut Vec<f32>) -> (&'a [f32], &'a [f32]) {
        let (position, half) = (position as usize, self.frequencies.len());
        if position < self.positions() {
            let start = position * half;
            return (&self.cos[start..start + half], &self.sin[start..start + half]);
        }
        beyond.clear();
        beyond.resize(2 * half, 0.0);
        let (cos, sin) = beyond.split_at_mut(half);
        for (i, (cos, sin)) in cos.iter_mut().zip(&mut *sin).enumerate() {
            [*cos, *sin] = self.entry(position, i);
        }
        (cos, sin)
    }

    /// Cosine and sine of the angle of a position and pair.
    fn entry(&self, position: usize, pair: usize) -> [f32; 2] {
        let angle = position as f64 * f64::from(self.frequencies[pair]);
        [angle.cos(), angle.sin()].map(|x| (x * f64::from(self.attention_factor)) as f32)
    }
}

/// Rotates the first `table.dims()` elements of every head vector by the angles of its row's position.
///
/// * `x`: `[n, heads, head_dim]`
/// * `positions`: `[n]`; positions outside the table are allowed, and each costs about as much as rotating 16
///   heads
///
/// # Panics
/// If a shape does not fit, or the table rotates more elements than a head has.
pub fn rope(
    pool: &Pool,
    x: &mut [f32],
    head_dim: usize,
    positions: &[u32],
    table: &RopeTable,
    style: RopeStyle,
) {
    Rotation { table, style, way: Way::Forth }.run(kernels(), pool, x, head_dim, positions);
}

/// Reverts [`rope`]: restores vectors that were rotated by `positions`, except for rounding.
///
/// # Panics
/// As [`rope`].
pub fn rope_back(
    pool: &Pool,
    x: &mut [f32],
    head_dim: usize,
    positions: &[u32],
    table: &RopeTable,
    style: RopeStyle,
) {
    Rotation { table, style, way: Way::Back }.run(kernels(), pool, x, head_dim, positions);
}

/// Direction of a rotation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    Forth,
    Back,
}

/// The parameters of a rotation, without the positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rotation<'a> {
    pub table: &'a RopeTable,
    pub style: RopeStyle,
    pub way: Way,
}

impl Rotation<'_> {
    pub(super) fn run(
        self,
        kernels: OpsKernels,
        pool: &Pool,
        x: &mut [f32],
        head_dim: usize,
        positions: &[u32],
    ) {
        let dims = self.table.dims();
        assert!(dims <= head_dim, "{dims} rotated elements of {head_dim}");
        assert!(x.len().is_multiple_of((positions.len() * head_dim).max(1)), "x is [n, heads, head_dim]");
        if x.is_empty() {
            return;
        }
        let row = x.len() / positions.len();
        let rotate_row = |i: usize, row: &mut [f32]| {
            let (mut beyond, mut back) = (Vec::new(), Vec::new());
            let (cos, sin) = self.angles(positions[i], &mut beyond, &mut back);
            for head in row.chunks_exact_mut(head_dim) {
                rotate(kernels, &mut head[..dims], cos, sin, self.style);
            }
        };
        if x.len() < PARALLEL_MIN {
            x.chunks_exact_mut(row).enumerate().for_each(|(i, row)| rotate_row(i, row));
        } else {
            pool.run_chunks(x, row, rotate_row);
        }
    }

    /// Cosines and sines for one row; values that the table does not hold are computed in the buffers.
    fn angles<'a>(
        &'a self,
        position: u32,
        beyond: &'a mut Vec<f32>,
        back: &'a mut Vec<f32>,
    ) -> (&'a [f32], &'a [f32]) {
        let (cos, sin) = self.table.row(position, beyond);
        match self.way {
            Way::Forth => (cos, sin),
            Way::Back => {
                // Both have the attention factor once, but the inverse rotation needs its reciprocal.
                let factor = self.table.attention_factor.powi(2);
                back.extend(cos.iter().map(|cos| cos / factor).chain(sin.iter().map(|sin| -sin / factor)));
                back.split_at(cos.len())
            }
        }
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
