//! Where the layers of a model lie in a state.

use super::ModelConfig;
use super::arch::MixingShape;

/// Where the numbers of each recurrent layer begin in a state, in order.
pub(crate) struct StateLayout {
    /// `[recurrent layers]`
    pub(crate) offsets: Vec<usize>,
    /// Numbers of a state.
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
