//! The first keys of a sequence that streams: StreamingLLM (arXiv 2309.17453) counts positions within the cache.
//!
//! Window keys keep the rotation of their position, which grows for ever. Only the distance between the sinks and
//! the window would grow with it, so at each point the sinks are rotated anew, to the positions just before
//! the window: always from copies of what they were before any rotation, so that no error adds up.

use crate::model::batch::{Retainer, SequenceKv};

/// Copies of the first keys before rotation.
#[derive(Debug, Clone, PartialEq)]
pub struct Sinks {
    /// `[layers]`, each `[kv_heads, count, key_dim]`.
    keys: Vec<Vec<f32>>,
    count: usize,
}

impl Sinks {
    /// The first `count` keys of an exact sequence.
    pub fn copy(retainer: &dyn Retainer, exact: &SequenceKv<'_>, count: usize) -> Sinks {
        let layers = 0..retainer.layout().layers().len();
        let keys = layers.map(|layer| retainer.first_keys(layer, exact, count));
        Sinks { keys: keys.collect(), count }
    }

    /// How many keys it has of each head.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Rotates the sinks of a layer of what was `kept` to the positions before `window`, that of the first key behind
    /// them. All heads store the same positions.
    pub fn rotate(&self, retainer: &mut dyn Retainer, layer: usize, kept: &SequenceKv<'_>, window: u32) {
        retainer.replace_first_keys(layer, kept, &self.keys[layer], window - self.count as u32);
    }
}
