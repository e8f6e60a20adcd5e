//! Uploads tensors, in the formats of the file or converted.

use std::ops::Range;

use kvik_gpu::{Buffer, Device, DeviceError, DeviceMatrix, Step};
use kvik_text::files::TensorView;

use super::convert::converted;
use crate::loader::{Loader, rows_of};
use crate::{Conversion, ModelConfig, ModelError};

/// A projection with an optional bias.
pub(super) struct DeviceLinear {
    /// `[rows, cols]`
    pub(super) matrix: DeviceMatrix,
    /// `[rows]`
    pub(super) bias: Option<Buffer<f32>>,
}

impl DeviceLinear {
    /// Projects `n` rows of `x`, `[n, cols]`.
    pub(super) fn multiply(
        &self,
        step: &mut Step<'_>,
        (x, n): (&Buffer<f32>, usize),
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        step.matmul(&self.matrix, x, n, out)?;
        let Some(bias) = &self.bias else { return Ok(()) };
        let rows = self.matrix.rows();
        step.add(out, n * rows, (bias, rows))
    }
}

/// Uploads weights, one tensor at a time.
pub(super) struct DeviceLoader<'l, 'a> {
    pub(super) config: &'l ModelConfig,
    pub(super) loader: Loader<'a>,
    pub(super) device: &'l Device,
}

impl DeviceLoader<'_, '_> {
    /// A projection by the names of its weight and bias.
    pub(super) fn linear(&mut self, [weight, bias]: [String; 2]) -> Result<DeviceLinear, ModelError> {
        Ok(DeviceLinear { matrix: self.matrix(&weight)?, bias: self.optional_vector(&bias)? })
    }

    /// Projections that are ranges of rows of one tensor.
    pub(super) fn parts<const PARTS: usize>(
        &mut self,
        [weight, bias]: [String; 2],
        rows: [Range<usize>; PARTS],
    ) -> Result<[DeviceLinear; PARTS], ModelError> {
        let view = self.loader.take(&weight)?;
        let biases = self.loader.optional_vector(&bias)?;
        let mut parts = Vec::with_capacity(PARTS);
        for rows in rows {
            let part = biases.as_ref().map(|biases| self.device.upload(&bias, &biases[rows.clone()]));
            parts.push(DeviceLinear {
                matrix: self.upload(&weight, &rows_of(&view, rows), self.loader.conversion)?,
                bias: part.transpose()?,
            });
        }
        self.loader.tensors.release(&weight);
        Ok(parts.try_into().unwrap_or_else(|_| unreachable!("one for each part")))
    }

    pub(super) fn matrix(&mut self, name: &str) -> Result<DeviceMatrix, ModelError> {
        let view = self.loader.take(name)?;
        let matrix = self.upload(name, &view, self.loader.conversion);
        self.loader.tensors.release(name);
        matrix
    }

    /// A matrix in the type of the file: routers are not converted.
    pub(super) fn stored_matrix(&mut self, name: &str) -> Result<DeviceMatrix, ModelError> {
        let view = self.loader.take(name)?;
        self.upload(name, &view, Conversion::Stored)
    }

    /// Uploads a tensor or a part of it, converted.
    pub(super) fn upload(
        &mut self,
        name: &str,
        view: &TensorView<'_>,
        conversion: Conversion,
    ) -> Result<DeviceMatrix, ModelError> {
        let (ty, bytes) = converted(view, conversion, self.loader.pool)?;
        let matrix = DeviceMatrix::upload(self.device, name, ty, [view.rows, view.cols], &bytes)?;
        self.loader.report(view.data.len());
        Ok(matrix)
    }

    /// Uploads two tensors of one type and shape, or parts of them, as one whose rows are theirs in turn, converted.
    pub(super) fn upload_pairs(
        &mut self,
        name: &str,
        views: &[TensorView<'_>; 2],
    ) -> Result<DeviceMatrix, ModelError> {
        let [first, second] = views;
        let (ty, one) = converted(first, self.loader.conversion, self.loader.pool)?;
        let (_, other) = converted(second, self.loader.conversion, self.loader.pool)?;
        let shape = [first.rows, first.cols];
        let matrix = DeviceMatrix::upload_pairs(self.device, name, ty, shape, [&one, &other])?;
        self.loader.report(first.data.len() + second.data.len());
        Ok(matrix)
    }

    pub(super) fn vector(&mut self, name: &str) -> Result<Buffer<f32>, ModelError> {
        Ok(self.device.upload(name, &self.loader.vector(name)?)?)
    }

    pub(super) fn optional_vector(&mut self, name: &str) -> Result<Option<Buffer<f32>>, ModelError> {
        let vector = self.loader.optional_vector(name)?;
        Ok(vector.map(|vector| self.device.upload(name, &vector)).transpose()?)
    }
}

/// The full names of tensors of a layer.
pub(super) fn in_layer<const COUNT: usize>(layer: usize, names: [&str; COUNT]) -> [String; COUNT] {
    names.map(|name| format!("blk.{layer}.{name}"))
}
