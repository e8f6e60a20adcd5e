//! Loads tensors and packs them for the kernels, one at a time, by name.
//!
//! Every tensor of the file is removed from the list of names exactly once.

use std::collections::BTreeSet;
use std::ops::Range;

use kvik_kernels::{Matrix, Pool, dequantize};
use kvik_text::files::{TensorSource, TensorView};

use super::ModelError;
use super::convert::{Conversion, check_conversion, transposed};
use super::layer_tensor::{SSM_NORM, part_of_stack, transposed_stack};

/// A projection with an optional bias.
pub(crate) struct Linear {
    /// `[rows, cols]`
    pub(crate) matrix: Matrix,
    /// `[rows]`
    pub(crate) bias: Option<Vec<f32>>,
}

/// Loads and packs weights, one tensor at a time, each in parallel on the pool.
pub(crate) struct Loader<'a> {
    pub(crate) tensors: &'a TensorSource,
    /// Names of the tensors that have not been taken yet.
    pub(crate) left: BTreeSet<String>,
    /// Added to every weight of a norm.
    pub(crate) norm_offset: f32,
    /// The conversion of matrices.
    pub(crate) conversion: Conversion,
    pub(crate) pool: &'a Pool,
    /// Receives `(bytes read, total bytes)` after each tensor.
    pub(crate) progress: &'a dyn Fn(u64, u64),
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
}

impl<'a> Loader<'a> {
    /// A projection by its name without the suffix.
    pub(super) fn linear(&mut self, name: &str) -> Result<Linear, ModelError> {
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

    /// Packs a tensor or a part of it, converted.
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

    /// [`Loader::pack`] without progress.
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
        // The norm after a state has no offset in any file.
        if name.ends_with("norm.weight") && !name.ends_with(SSM_NORM) {
            values.iter_mut().for_each(|weight| *weight += self.norm_offset);
        }
        self.report(view.data.len());
        Ok(values)
    }

    pub(crate) fn take(&mut self, name: &str) -> Result<TensorView<'a>, ModelError> {
        let listed = self.left.remove(name);
        debug_assert!(listed, "{name} is read and was not expected");
        self.tensors.get(name).ok_or_else(|| ModelError::MissingTensor { tensor: name.to_owned() })
    }

    /// Whether the file has a stack in one of its forms that has not been loaded yet.
    pub(super) fn has_stack(&self, name: &str) -> bool {
        [name, &part_of_stack(name, 0), &transposed_stack(name)]
            .into_iter()
            .any(|form| self.left.contains(form))
    }

    /// Loads `count` matrices of equal shape: in one tensor, one below the other, each as it is or transposed; or each
    /// in a tensor of its own. The file may have an alternative to the stack instead.
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

    /// Applies `load` to each of `count` matrices of a stack, in any form.
    pub(super) fn each_of_stack<T>(
        &mut self,
        stack: &str,
        count: usize,
        mut load: impl FnMut(&mut Self, &str, &TensorView<'_>) -> Result<T, ModelError>,
    ) -> Result<Vec<T>, ModelError> {
        let turned = transposed_stack(stack);
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

    /// Applies `load` to each of `count` equal ranges of the rows of a tensor.
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

/// Loads the parts of a layer, by their names in the layer.
pub(crate) struct LayerLoader<'l, 'a> {
    pub(crate) loader: &'l mut Loader<'a>,
    pub(crate) layer: usize,
}

impl LayerLoader<'_, '_> {
    /// Whether the file has a tensor that has not been loaded yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.loader.left.contains(&self.name(name))
    }

    /// The error for a missing tensor that has alternatives.
    pub(crate) fn missing(&self, name: &str) -> ModelError {
        ModelError::MissingTensor { tensor: self.name(name) }
    }

    /// A matrix, with the model's conversion.
    pub(crate) fn matrix(&mut self, name: &str) -> Result<Matrix, ModelError> {
        self.loader.matrix(&self.name(name))
    }

    /// A matrix in the type of the file: routers are not converted.
    pub(crate) fn stored_matrix(&mut self, name: &str) -> Result<Matrix, ModelError> {
        let name = self.name(name);
        let view = self.loader.take(&name)?;
        self.loader.pack(&name, &view, Conversion::Stored)
    }

    /// Whether the file has a stack in one of its forms that has not been loaded yet.
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

    /// Matrices that are in a tensor one below the other, with these numbers of rows.
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

    /// Matrices that are ranges of rows of a tensor, with the model's conversion.
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

    /// The full name of a tensor of the layer.
    pub(crate) fn name(&self, part: &str) -> String {
        format!("blk.{}.{part}", self.layer)
    }
}

/// A range of rows of a tensor.
pub(super) fn rows_of<'a>(view: &TensorView<'a>, rows: Range<usize>) -> TensorView<'a> {
    let row_bytes = view.data.len() / view.rows;
    let data = &view.data[rows.start * row_bytes..rows.end * row_bytes];
    TensorView { ty: view.ty, rows: rows.len(), cols: view.cols, data }
}
