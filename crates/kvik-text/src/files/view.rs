//! A view of a tensor in the bytes of its file.

use kvik_kernels::WeightType;

/// A tensor as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Storage type.
    pub ty: WeightType,
    /// Product of all dimensions but the fastest; 1 for a vector.
    pub rows: usize,
    /// The fastest dimension.
    pub cols: usize,
    /// Rows of blocks, shape `[rows, cols]`, of any alignment.
    pub data: &'a [u8],
}
