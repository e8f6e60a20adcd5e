//! A model with the memory it runs in: KV blocks, scratch, threads.

use std::io;
use std::sync::Arc;

use kvik_cache::BlockId;
use kvik_kernels::{KvArena, KvFormats, KvLayer, KvLayout, Pool, RopeTable};

use super::arch::LayerShape;
use super::batch::{Batch, Runner};
use super::decoder::{Context, Scratch, forward};
use super::{KvMap, KvMapError, Model, ModelConfig, rope};

/// Runs batches of one model against KV blocks that it owns.
pub struct ModelRunner {
    model: Arc<Model>,
    pool: Pool,
    arena: KvArena,
    rope: RopeTable,
    scratch: Scratch,
}

impl ModelRunner {
    /// Reserves `blocks` KV blocks (memory is touched as they are used) and the rotations of
    /// `context` positions.
    pub fn new(
        model: Arc<Model>,
        pool: Pool,
        layout: KvLayout,
        blocks: usize,
        context: usize,
    ) -> io::Result<Self> {
        let frequencies = rope::frequencies(&model.config().rope, model.rope_divisors());
        let rope = RopeTable::new(&frequencies.radians, context, frequencies.attention_factor);
        let arena = KvArena::new(layout, blocks)?;
        Ok(ModelRunner { model, pool, arena, rope, scratch: Scratch::default() })
    }

    /// The KV layout of a model that stores its layers as `map` says.
    ///
    /// # Errors
    /// When the map is for another number of layers.
    pub fn layout(config: &ModelConfig, map: &KvMap) -> Result<KvLayout, KvMapError> {
        Ok(by_layer(config, &map.layers(config.layers)?))
    }

    /// The KV layout of a model that stores all its layers in the same formats.
    pub fn uniform_layout(config: &ModelConfig, formats: impl Into<KvFormats>) -> KvLayout {
        by_layer(config, &vec![formats.into(); config.layers])
    }

    /// Replaces the blocks by as many of another layout, of which nothing is stored.
    pub fn store_as(&mut self, layout: KvLayout) -> io::Result<()> {
        self.arena = KvArena::new(layout, self.arena.blocks())?;
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The threads that compute.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// `formats`: `[layers]`
fn by_layer(config: &ModelConfig, formats: &[KvFormats]) -> KvLayout {
    let layer = |(index, &KvFormats { k, v }): (usize, &KvFormats)| {
        let LayerShape { kind, kv_heads, head_dim, .. } = config.layer(index);
        KvLayer { kind, ..KvLayer::full(kv_heads, head_dim, k, v) }
    };
    KvLayout::new(formats.iter().enumerate().map(layer).collect())
}

impl Runner for ModelRunner {
    fn vocab_len(&self) -> usize {
        self.model.config().vocab
    }

    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
        self.arena.copy_partial(from.0, to.0, positions);
    }

    fn read_block(&self, block: BlockId, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.arena.block(block.0));
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        self.arena.block_mut(block.0).copy_from_slice(bytes);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> &[f32] {
        let context = Context { model: &self.model, pool: &self.pool, rope: &self.rope };
        forward(&context, &mut self.arena, &mut self.scratch, batch);
        &self.scratch.logits
    }
}
