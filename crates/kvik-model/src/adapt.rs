//! The interface between layers and adapters, which may add to matrix products.

/// The adapters of one layer.
pub(crate) trait Adapt {
    /// Whether they change no row of the batch.
    fn is_silent(&self) -> bool;

    /// Adds to `out`, `[n, rows]`, their contribution to the product of the matrix `name` and `x`, `[n, cols]`.
    fn add(&mut self, name: &'static str, x: &[f32], out: &mut [f32]);
}
