//! The first keys of a streaming sequence: StreamingLLM (arXiv 2309.17453) counts positions within the cache.
//!
//! Keys in the window keep the RoPE rotation of their position, which grows without bound. Only the distance between
//! the sinks and the window would grow with it, so at each point the sinks are rotated to the positions just before the
//! window: always from copies of the unrotated keys, so that errors do not accumulate.

use kvik_model::batch::{Retainer, SequenceKv};

/// Copies of the first keys before RoPE rotation.
#[derive(Debug, Clone, PartialEq)]
pub struct Sinks {
    /// `[layers]`, each `[kv_heads, count, key_dim]`.
    keys: Vec<Vec<f32>>,
    count: usize,
}

impl Sinks {
    /// Copies the first `count` keys of an exact sequence.
    pub fn copy(retainer: &dyn Retainer, exact: &SequenceKv<'_>, count: usize) -> Sinks {
        let layers = 0..retainer.layout().layers().len();
        let keys = layers.map(|layer| retainer.first_keys(layer, exact, count));
        Sinks { keys: keys.collect(), count }
    }

    /// Number of keys per head.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Rotates the sinks in a layer of the `kept` positions to the positions before `windows`, `[kv_heads]`: the position
    /// of the first key after them, if the head stores one.
    pub fn rotate(
        &self,
        retainer: &mut dyn Retainer,
        layer: usize,
        kept: &SequenceKv<'_>,
        windows: &[Option<u32>],
    ) {
        let first = |window: &Option<u32>| window.map(|window| window - self.count as u32);
        let positions: Vec<Option<u32>> = windows.iter().map(first).collect();
        retainer.replace_first_keys(layer, kept, &self.keys[layer], &positions);
    }
}
