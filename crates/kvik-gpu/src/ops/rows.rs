//! Operations on whole rows: norms, rotation, the maximum.

use bytemuck::{Pod, Zeroable};
use kvik_kernels::RopeStyle;

use crate::kernel::Access::{Read, Write};
use crate::kernel::{Constant, Kernel, grid, grid_of_elements, piece};
use crate::{Buffer, DeviceError, Step};

/// The result of [`Step::argmax`] for a row without a maximum.
pub const NO_PLACE: u32 = u32::MAX;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct NormParams {
    rows: u32,
    d: u32,
    eps: f32,
}

/// Rows of `d` numbers.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RowsParams {
    n: u32,
    d: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RopeParams {
    n: u32,
    heads: u32,
    head_dim: u32,
    pairs: u32,
}

impl Step<'_> {
    /// `out = x / sqrt(mean(x^2) + eps) * weight` for each of `rows` rows. For norms of heads, rows are of
    /// `head_dim`.
    ///
    /// * `x`, `out`: `[rows, d]`
    /// * `weight`: `[d]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn rms_norm(
        &mut self,
        x: &Buffer<f32>,
        weight: &Buffer<f32>,
        rows: usize,
        eps: f32,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let d = weight.len();
        assert!(x.len() >= rows * d && out.len() >= rows * d, "x and out are [{rows}, {d}]");
        let kernel = Kernel {
            pieces: vec![piece!("rms_norm")],
            constants: vec![],
            buffers: &[Read, Read, Write],
            params: size_of::<NormParams>(),
        };
        let params = NormParams { rows: rows as u32, d: d as u32, eps };
        self.dispatch(&kernel, &[x.raw(), weight.raw(), out.raw()], &params, grid(rows))
    }

    /// `x = x + y`, then `y = x / sqrt(mean(x^2) + eps) * weight`, for each of `rows` rows: [`Step::add`] and
    /// [`Step::rms_norm`] in one, to the bit.
    ///
    /// * `x`, `y`: `[rows, d]`
    /// * `weight`: `[d]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn add_norm(
        &mut self,
        x: &mut Buffer<f32>,
        y: &mut Buffer<f32>,
        weight: &Buffer<f32>,
        rows: usize,
        eps: f32,
    ) -> Result<(), DeviceError> {
        let d = weight.len();
        assert!(x.len() >= rows * d && y.len() >= rows * d, "x and y are [{rows}, {d}]");
        let kernel = Kernel {
            pieces: vec![piece!("add_norm")],
            constants: vec![],
            buffers: &[Read, Write, Write],
            params: size_of::<NormParams>(),
        };
        let params = NormParams { rows: rows as u32, d: d as u32, eps };
        self.dispatch(&kernel, &[weight.raw(), x.raw(), y.raw()], &params, grid(rows))
    }

    /// Rotates the first `2 * pairs` elements of every head vector by the angles of its row's position.
    ///
    /// * `x`: `[n, heads, head_dim]`, where `positions` are `[n]`, each below the number of rows of `angles`
    /// * `angles`: cosine and sine, `[positions, pairs]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn rope(
        &mut self,
        x: &mut Buffer<f32>,
        [n, heads, head_dim]: [usize; 3],
        positions: &Buffer<u32>,
        (angles, pairs): (&Buffer<[f32; 2]>, usize),
        style: RopeStyle,
    ) -> Result<(), DeviceError> {
        assert!(x.len() >= n * heads * head_dim, "x is [{n}, {heads}, {head_dim}]");
        assert!(positions.len() >= n, "positions are [{n}]");
        assert!(angles.len().is_multiple_of(pairs), "angles are [positions, {pairs}]");
        assert!(2 * pairs <= head_dim, "{pairs} pairs of {head_dim}");
        let kernel = Kernel {
            pieces: vec![piece!("element"), piece!("rope")],
            constants: vec![("INTERLEAVED", Constant::Bool(style == RopeStyle::Interleaved))],
            buffers: &[Read, Read, Write],
            params: size_of::<RopeParams>(),
        };
        let groups = grid_of_elements(n * heads * pairs);
        let [n, heads, head_dim, pairs] = [n, heads, head_dim, pairs].map(|size| size as u32);
        let params = RopeParams { n, heads, head_dim, pairs };
        self.dispatch(&kernel, &[positions.raw(), angles.raw(), x.raw()], &params, groups)
    }

    /// `out[n] = x[rows[n]]`
    ///
    /// * `x`: rows of `d` elements, indexed by `rows`, `[n]`
    /// * `out`: `[n, d]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn gather(
        &mut self,
        x: &Buffer<f32>,
        rows: &Buffer<u32>,
        [n, d]: [usize; 2],
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(rows.len() >= n && out.len() >= n * d, "rows are [{n}] and out is [{n}, {d}]");
        let kernel = Kernel {
            pieces: vec![piece!("element"), piece!("gather")],
            constants: vec![],
            buffers: &[Read, Read, Write],
            params: size_of::<RowsParams>(),
        };
        let params = RowsParams { n: n as u32, d: d as u32 };
        self.dispatch(&kernel, &[x.raw(), rows.raw(), out.raw()], &params, grid_of_elements(n * d))
    }

    /// `x[n] = x[n] * factors[n]`
    ///
    /// * `x`: `[n, d]`
    /// * `factors`: `[n]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn scale_rows(
        &mut self,
        x: &mut Buffer<f32>,
        [n, d]: [usize; 2],
        factors: &Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(x.len() >= n * d && factors.len() >= n, "x is [{n}, {d}] and factors are [{n}]");
        let kernel = Kernel {
            pieces: vec![piece!("element"), piece!("scale_rows")],
            constants: vec![],
            buffers: &[Read, Write],
            params: size_of::<RowsParams>(),
        };
        let params = RowsParams { n: n as u32, d: d as u32 };
        self.dispatch(&kernel, &[factors.raw(), x.raw()], &params, grid_of_elements(n * d))
    }

    /// Index of the maximum of each of `n` rows, the first of equal ones. NaN is smaller than all others; a row
    /// of NaN and negative infinity only has [`NO_PLACE`].
    ///
    /// * `x`: `[n, len]`
    /// * `out`: `[n]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit, or rows are empty.
    pub fn argmax(
        &mut self,
        x: &Buffer<f32>,
        [n, len]: [usize; 2],
        out: &mut Buffer<u32>,
    ) -> Result<(), DeviceError> {
        assert!(len > 0 && x.len() >= n * len, "x is [{n}, {len}]");
        assert!(out.len() >= n, "out is [{n}]");
        let kernel = Kernel {
            pieces: vec![piece!("rank"), piece!("argmax")],
            constants: vec![],
            buffers: &[Read, Write],
            params: size_of::<u32>(),
        };
        self.dispatch(&kernel, &[x.raw(), out.raw()], &(len as u32), [n as u32, 1, 1])
    }
}
