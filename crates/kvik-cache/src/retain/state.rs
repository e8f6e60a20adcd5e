//! The memory of a policy of a sequence from one point to the next.

use super::sketch::Sketch;

/// The memory of a policy of one sequence. Most policies have none: the facts suffice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyState {
    layers: Vec<LayerState>,
}

/// The memory of a policy of one layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LayerState {
    /// The points so far.
    pub(super) points: Vec<usize>,
    /// Attention observed so far, of each KV head.
    pub(super) sketches: Vec<Sketch>,
}

impl PolicyState {
    /// The memory of a layer.
    pub(super) fn layer(&mut self, layer: usize) -> &mut LayerState {
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, LayerState::default);
        }
        &mut self.layers[layer]
    }
}
