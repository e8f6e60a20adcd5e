//! What a layer knows of adapters: that they may add to its products.

/// What adapters say in one layer.
pub(crate) trait Adapt {
    /// Whether they say nothing, to any row of the batch.
    fn is_silent(&self) -> bool;

    /// Adds to `out`, `[n, rows]`, what they say of the matrix `name` to `x`, `[n, cols]`.
    fn add(&mut self, name: &'static str, x: &[f32], out: &mut [f32]);
}
