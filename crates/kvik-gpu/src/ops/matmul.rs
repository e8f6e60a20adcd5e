//! Matrix products, and lookups of matrix rows.

use bytemuck::{Pod, Zeroable};
use kvik_kernels::Activation;

use super::elements::activation_pieces;
use crate::kernel::Access::{Read, Write};
use crate::kernel::{Constant, Kernel, Piece, grid_of_elements, piece};
use crate::{Buffer, DeviceError, DeviceMatrix, Step};

/// Rows of the matrix per work group.
pub(super) const TILE_ROWS: usize = 8;
/// Numbers of inputs per work group. They do not affect any sum.
const BATCHES: [usize; 4] = [1, 4, 8, 16];
/// Number of inputs of a work group where they need several.
const BATCH_OF_MANY: usize = 8;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ProductParams {
    cols: u32,
    rows: u32,
    first_row: u32,
    out_rows: u32,
    n: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct EmbedParams {
    cols: u32,
    rows: u32,
    first_row: u32,
    n: u32,
}

impl Step<'_> {
    /// `out[n][row] = sum of matrix[row][col] x[n][col]`
    ///
    /// * `x`: `[n, cols]`
    /// * `out`: `[n, rows]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn matmul(
        &mut self,
        matrix: &DeviceMatrix,
        x: &Buffer<f32>,
        n: usize,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(out.len() >= n * matrix.rows(), "out is [{n}, {}]", matrix.rows());
        self.product(matrix, (x, n), vec![piece!("matmul/results")], (out, 1))
    }

    /// `out[n][row] = activation(gate[row] x[n], up[row] x[n])`, for matrices stored by [`DeviceMatrix::upload_pairs`].
    ///
    /// * `x`: `[n, cols]`
    /// * `out`: `[n, rows / 2]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit, or the activation has no gate.
    pub fn matmul_gated(
        &mut self,
        activation: Activation,
        matrix: &DeviceMatrix,
        x: &Buffer<f32>,
        n: usize,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(activation.is_gated(), "{activation:?} has a gate");
        assert!(out.len() >= n * matrix.rows() / 2, "out is [{n}, {}]", matrix.rows() / 2);
        let [sigmoid, activation] = activation_pieces(activation);
        self.product(matrix, (x, n), vec![sigmoid, activation, piece!("matmul/pairs")], (out, 2))
    }

    /// Products of `n` inputs, stored by the last of `pieces`, which makes one result of so many rows.
    fn product(
        &mut self,
        matrix: &DeviceMatrix,
        (x, n): (&Buffer<f32>, usize),
        mut pieces: Vec<Piece>,
        (out, rows_of_result): (&Buffer<f32>, usize),
    ) -> Result<(), DeviceError> {
        assert!(x.len() >= n * matrix.cols(), "x is [{n}, {}]", matrix.cols());
        let batch = BATCHES.into_iter().find(|&batch| batch >= n).unwrap_or(BATCH_OF_MANY);
        pieces.extend([piece!("matmul/product"), piece!("matmul/rows")]);
        let kernel = Kernel {
            pieces: matrix.pieces(&pieces),
            constants: vec![("BATCH", Constant::U32(batch as u32))],
            buffers: &[Read, Read, Write],
            params: size_of::<ProductParams>(),
        };
        let batches = n.div_ceil(batch);
        self.device().count(|work| {
            work.weight_bytes += (matrix.bytes() * batches) as u64;
            work.weight_bytes_least += (matrix.bytes() * batches.min(1)) as u64;
        });
        for band in matrix.bands() {
            let params = ProductParams {
                cols: matrix.cols() as u32,
                rows: band.rows as u32,
                first_row: (band.first_row / rows_of_result) as u32,
                out_rows: (matrix.rows() / rows_of_result) as u32,
                n: n as u32,
            };
            let tiles = [band.rows.div_ceil(TILE_ROWS) as u32, batches as u32, 1];
            self.dispatch(&kernel, &[band.words.raw(), x.raw(), out.raw()], &params, tiles)?;
        }
        Ok(())
    }

    /// `out[n] = matrix[tokens[n]]`, rows of an embedding.
    ///
    /// * `tokens`: `[n]`, each below the number of rows: others write nothing
    /// * `out`: `[n, cols]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn embed(
        &mut self,
        matrix: &DeviceMatrix,
        tokens: &Buffer<u32>,
        n: usize,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(tokens.len() >= n, "tokens are [{n}]");
        assert!(out.len() >= n * matrix.cols(), "out is [{n}, {}]", matrix.cols());
        let kernel = Kernel {
            pieces: matrix.pieces(&[piece!("element"), piece!("embed")]),
            constants: vec![],
            buffers: &[Read, Read, Write],
            params: size_of::<EmbedParams>(),
        };
        for band in matrix.bands() {
            let params = EmbedParams {
                cols: matrix.cols() as u32,
                rows: band.rows as u32,
                first_row: band.first_row as u32,
                n: n as u32,
            };
            let groups = grid_of_elements(n * matrix.cols() / 4);
            self.dispatch(&kernel, &[band.words.raw(), tokens.raw(), out.raw()], &params, groups)?;
        }
        Ok(())
    }
}
