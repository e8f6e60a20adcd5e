//! The layout of a recurrent state.

use super::ModelConfig;
use super::arch::MixingShape;

/// The offsets of each recurrent layer in a state, in order.
pub(crate) struct StateLayout {
    /// `[recurrent layers]`
    pub(crate) offsets: Vec<usize>,
    /// Number of floats of a state.
    pub(crate) floats: usize,
}

impl StateLayout {
    pub(crate) fn new(config: &ModelConfig) -> StateLayout {
        let (mut offsets, mut floats) = (Vec::new(), 0);
        for layer in 0..config.layers {
            if let MixingShape::Recurrent(shape) = config.layer(layer).mixing {
                offsets.push(floats);
                floats += shape.state_floats(config.d_model);
            }
        }
        StateLayout { offsets, floats }
    }
}
