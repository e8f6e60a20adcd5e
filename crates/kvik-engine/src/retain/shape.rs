//! What retention needs to know of a model, from its configuration and its layout.

use kvik_cache::BLOCK_POSITIONS;
use kvik_cache::retain::ModelShape;
use kvik_kernels::{KvLayout, KvValues};
use kvik_model::{ModelConfig, ModelRunner};

/// The shape of a model whose keys and values have this layout, with `kv_heads` by layer, before anything was measured
/// of it.
pub fn model_shape<'a>(config: &ModelConfig, layout: &KvLayout, kv_heads: &'a [usize]) -> ModelShape<'a> {
    // Whether there is auxiliary state does not depend on how much a step stores.
    let auxiliary = ModelRunner::auxiliary(config, layout, BLOCK_POSITIONS);
    ModelShape {
        kv_heads,
        windows: !auxiliary.is_nothing(),
        latent: layout.layers().iter().any(|layer| layer.values == KvValues::OfKeys),
        heads: None,
        gated: false,
    }
}

/// The KV heads of each group of layers whose tiles are interchangeable.
pub fn tile_heads(layout: &KvLayout) -> Vec<usize> {
    let mut heads = vec![0; layout.layers().len()];
    for (layer, shape) in layout.layers().iter().enumerate() {
        heads[layout.tile_class(layer)] += shape.kv_heads;
    }
    heads.retain(|&heads| heads > 0);
    heads
}

/// The KV heads of each layer of a layout.
pub fn kv_heads(layout: &KvLayout) -> Vec<usize> {
    layout.layers().iter().map(|layer| layer.kv_heads).collect()
}
