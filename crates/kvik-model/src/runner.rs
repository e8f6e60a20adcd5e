//! A model with the memory it runs in: KV blocks, scratch, threads.

mod predict;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use kvik_cache::retain::{LayerFacts, Needs};
use kvik_cache::{AuxiliaryState, BlockId, Reach, StateId, Windows};
use kvik_kernels::{
    KvArena, KvFormat, KvFormats, KvKind, KvLayer, KvLayout, Pool, RopeTable, StateArena, StateRows, rope,
    rope_back,
};

use super::arch::LayerShape;
use super::batch::{Batch, PredictionHead, Retainer, Runner, SequenceKv, StoredLayer};
use super::decoder::{Context, Scratch, Stores, forward};
use super::facts::FactsContext;
use super::fit::LayerFit;
use super::observation::Watched;
use super::prediction::Slots;
use super::recurrent::{LayerStates, Means, Tried, TriedRows};
use super::state_layout::StateLayout;
use super::weights::Layer;
use super::{Adapters, KvMap, KvMapError, Model, ModelConfig};
use crate::pulse::Pulse;

/// Accounted size of a block that stores only the part of windowed layers.
const PAGE_BYTES: usize = 4096;

/// Runs batches of a model with KV blocks that it owns.
pub struct ModelRunner {
    model: Arc<Model>,
    pool: Arc<Pool>,
    arena: KvArena,
    states: StateArena,
    state_layout: StateLayout,
    tried: Tried,
    /// As [`ModelConfig::ropes`] lists them; empty where no layer has the rotation.
    ropes: Vec<Arc<RopeTable>>,
    scratch: Scratch,
    adapters: Adapters,
    pulse: Arc<Pulse>,
    /// The prediction head, if the model has one.
    predicting: Option<Predicting>,
}

/// The memory of a prediction head.
struct Predicting {
    slots: Slots,
    scratch: Scratch,
}

impl ModelRunner {
    /// Reserves `blocks` KV blocks (memory is touched as they are used). All runners of a model share the rotation
    /// tables, which are computed for `context` positions if any layer rotates. Two models may share a pool.
    pub fn new(
        model: Arc<Model>,
        pool: impl Into<Arc<Pool>>,
        layout: KvLayout,
        blocks: usize,
        context: usize,
    ) -> io::Result<Self> {
        let ropes = ropes(&model, context);
        let arena = KvArena::new(layout, blocks)?;
        let state_layout = StateLayout::new(model.config());
        let predicting =
            model.predicts().then(|| Predicting::new(model.config(), arena.layout())).transpose()?;
        Ok(ModelRunner {
            predicting,
            model,
            pool: pool.into(),
            arena,
            states: StateArena::new(state_layout.floats, 0)?,
            state_layout,
            tried: Tried::default(),
            ropes,
            scratch: Scratch::default(),
            adapters: Adapters::default(),
            pulse: Arc::default(),
        })
    }

    /// The KV layout of a model that stores its layers in the formats of `map`.
    ///
    /// # Errors
    /// If the map is for another number of layers.
    pub fn layout(config: &ModelConfig, map: &KvMap) -> Result<KvLayout, KvMapError> {
        Ok(by_layer(config, &map.layers(config.layers)?))
    }

    /// The KV layout of a model that stores all its layers in the same formats.
    pub fn uniform_layout(config: &ModelConfig, formats: impl Into<KvFormats>) -> KvLayout {
        by_layer(config, &vec![formats.into(); config.layers])
    }

    /// Auxiliary state of a model's sequences in addition to blocks of a layout, if one step stores at most
    /// `step_positions` positions of a sequence.
    pub fn auxiliary(config: &ModelConfig, layout: &KvLayout, step_positions: usize) -> AuxiliaryState {
        let state_bytes = StateArena::state_bytes_of(StateLayout::new(config).floats);
        let part = layout.windowed_part();
        let reach = layout.layers().iter().filter_map(|layer| match layer.kind {
            KvKind::Full => None,
            KvKind::Window { positions } => Some(Reach::Last(positions)),
            KvKind::Chunk { positions } => Some(Reach::Chunk(positions)),
        });
        let reach = reach.max_by_key(|reach| reach.positions());
        let windows = reach.map(|reach| Windows { reach, part_bytes: part.len(), step_positions });
        AuxiliaryState { block_bytes: part.start.max(PAGE_BYTES), windows, state_bytes }
    }

    /// Replaces the blocks by as many empty ones of another layout.
    pub fn store_as(&mut self, layout: KvLayout) -> io::Result<()> {
        self.arena = KvArena::new(layout, self.arena.blocks())?;
        Ok(())
    }

    /// Adds slots for the states of its recurrent layers, whose memory is touched as they are used.
    pub fn with_states(self, slots: usize) -> io::Result<ModelRunner> {
        Ok(ModelRunner { states: StateArena::new(self.state_layout.floats, slots)?, ..self })
    }

    /// Sets the adapters, which were loaded for its model.
    pub fn with_adapters(self, adapters: Adapters) -> ModelRunner {
        ModelRunner { adapters, ..self }
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The shape of a layer of the KV layout.
    fn kv_layer(&self, layer: usize) -> LayerShape {
        let config = self.model.config();
        config.layer(config.kv_layers().nth(layer).expect("a layer of the layout is one of the model"))
    }

    /// The rotation of a layer of the KV layout, if it has one.
    fn rope(&self, layer: usize) -> Option<&RopeTable> {
        Some(&self.ropes[self.kv_layer(layer).rotation?])
    }

    /// Applies the first `count` tentative rows to their state.
    fn replay(&mut self, tried: &TriedRows, count: usize) {
        let rows = [StateRows { rows: 0..count, certain: count, live: tried.live, saves: &[] }];
        let means = Means { pool: &self.pool, norm_eps: self.model.config().norm_eps };
        let (mut mixed, mut out) = (Vec::new(), Vec::new());
        let recurrent = self.model.weights.layers.iter().filter_map(Layer::recurrent);
        for ((layer, inputs), &offset) in recurrent.zip(&tried.layers).zip(&self.state_layout.offsets) {
            let mut states = LayerStates { arena: &mut self.states, offset, rows: &rows };
            layer.recur(means, &mut states, inputs, &mut mixed, &mut out);
        }
    }

    /// Computes a batch on a model whose last layers are elsewhere; returns the stream for those, `[n, d_model]`.
    #[cfg(feature = "gpu")]
    pub(super) fn stream(&mut self, batch: &Batch<'_>) -> &[f32] {
        self.forward(batch, &mut []);
        &self.scratch.x
    }

    /// The bytes of a block.
    #[cfg(feature = "gpu")]
    pub(super) fn block(&self, block: BlockId) -> &[u8] {
        self.arena.block(block.0)
    }

    /// The bytes of a block, to be replaced.
    #[cfg(feature = "gpu")]
    pub(super) fn block_mut(&mut self, block: BlockId) -> &mut [u8] {
        self.arena.block_mut(block.0)
    }

    /// The features that gates read of the stored positions of a layer: for each KV head `[stored, width]`, where
    /// [`gates::width`](super::gates::width) says how wide.
    pub fn gate_features(&self, stored: &StoredLayer<'_>) -> Vec<Vec<f32>> {
        self.facts_context(stored.layer).features_of_heads(stored)
    }

    fn facts_context(&self, layer: usize) -> FactsContext<'_> {
        let (rope, style) = (self.rope(layer), self.model.config().rope.style);
        FactsContext { arena: &self.arena, pool: &self.pool, rope, style }
    }

    fn layer_fit(&self, layer: usize) -> LayerFit<'_> {
        let config = self.model.config();
        let index = config.kv_layers().nth(layer).expect("a layer of the layout is one of the model");
        LayerFit {
            arena: &self.arena,
            pool: &self.pool,
            pulse: &self.pulse,
            shape: config.layer(index),
            softcap: config.extras.score_cap,
            sinks: self.model.weights.layers[index].sinks(),
        }
    }

    /// The threads that compute.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Predicting {
    /// Its keys and values have the formats of the last layer in `layout`.
    fn new(config: &ModelConfig, layout: &KvLayout) -> io::Result<Predicting> {
        let formats =
            layout.layers().last().map_or(KvFormat::F16.into(), |last| KvFormats { k: last.k, v: last.v });
        let layer = kv_layer(&config.head_layer(), formats);
        let slots = Slots::new(KvLayout::new(vec![layer]), config.d_model)?;
        Ok(Predicting { slots, scratch: Scratch::default() })
    }
}

/// The tables of all rotations, of which those that no layer has are empty: for a million positions a table takes
/// hundreds of megabytes.
fn ropes(model: &Model, context: usize) -> Vec<Arc<RopeTable>> {
    let positions = |rotation: usize| if model.config().has_rotation(rotation) { context } else { 0 };
    let rotations = model.weights.rotations.iter().enumerate();
    rotations.map(|(index, rotation)| rotation.table(positions(index))).collect()
}

/// The layers that store keys and values, in their formats among `formats`, `[layers]`.
fn by_layer(config: &ModelConfig, formats: &[KvFormats]) -> KvLayout {
    let layer = |index: usize| kv_layer(&config.layer(index), formats[index]);
    KvLayout::new(config.kv_layers().map(layer).collect())
}

/// What a layer of this shape stores.
fn kv_layer(shape: &LayerShape, KvFormats { k, v }: KvFormats) -> KvLayer {
    let LayerShape { kind, kv_heads, head_dim, .. } = *shape;
    let layer = match shape.latent {
        // The format of the keys counts: they hold the values.
        Some(_) => KvLayer::latent(head_dim, shape.value_dim(), k),
        None => KvLayer::full(kv_heads, head_dim, k, v),
    };
    KvLayer { kind, ..layer }
}

impl Runner for ModelRunner {
    fn vocab_len(&self) -> usize {
        self.model.config().vocab
    }

    fn adapters_len(&self) -> usize {
        self.adapters.len()
    }

    fn threads(&self) -> Option<Arc<Pool>> {
        Some(self.pool.clone())
    }

    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
        self.arena.copy_partial(from.0, to.0, positions);
    }

    fn read_block(&self, block: BlockId, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.arena.block(block.0));
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        self.arena.block_mut(block.0)[..bytes.len()].copy_from_slice(bytes);
    }

    fn windowed_part(&self) -> Range<usize> {
        self.arena.layout().windowed_part()
    }

    fn copy_windowed(&mut self, from: BlockId, to: BlockId) {
        self.arena.copy_windowed(from.0, to.0);
    }

    fn release_block(&mut self, block: BlockId, all: bool) {
        self.arena.release(block.0, all);
    }

    fn state_bytes(&self) -> usize {
        self.states.state_bytes()
    }

    fn set_state(&mut self, to: StateId, from: Option<StateId>) {
        self.tried.take(to.0);
        match from {
            Some(from) => self.states.copy(from.0, to.0),
            None => self.states.release(to.0),
        }
    }

    fn release_state(&mut self, state: StateId) {
        self.tried.take(state.0);
        self.states.release(state.0);
    }

    fn settle_state(&mut self, live: StateId, positions: u32) {
        if let Some(tried) = self.tried.take(live.0) {
            let count = positions.saturating_sub(tried.first) as usize;
            assert!(count <= tried.rows, "{count} of {} tried rows", tried.rows);
            if count > 0 {
                self.replay(&tried, count);
            }
        }
    }

    fn read_state(&self, state: StateId, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.states.state(state.0));
    }

    fn write_state_piece(&mut self, state: StateId, start: usize, bytes: &[u8]) {
        self.tried.take(state.0);
        let rest = self.states.state_mut(state.0).get_mut(start..).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        rest[..count].copy_from_slice(&bytes[..count]);
    }

    fn forward(&mut self, batch: &Batch<'_>, watched: &mut [Watched<'_>]) -> &[f32] {
        let context = Context {
            model: &self.model,
            pool: &self.pool,
            ropes: &self.ropes,
            adapters: &self.adapters,
            pulse: &self.pulse,
        };
        let stores = Stores {
            kv: &mut self.arena,
            states: &mut self.states,
            layout: &self.state_layout,
            tried: &mut self.tried,
        };
        forward(&context, stores, &mut self.scratch, batch, watched);
        if let Some(Predicting { slots, .. }) = &mut self.predicting {
            let followed = self.scratch.followed(self.model.config().d_model);
            followed.for_each(|(id, position, state)| slots.note(id, position, state));
        }
        &self.scratch.outputs
    }

    fn set_pulse(&mut self, pulse: Arc<Pulse>) {
        self.pulse = pulse;
    }

    fn head(&mut self) -> Option<&mut dyn PredictionHead> {
        match self.predicting {
            Some(_) => Some(self),
            None => None,
        }
    }

    fn retainer(&mut self) -> Option<&mut dyn Retainer> {
        Some(self)
    }
}

impl Retainer for ModelRunner {
    fn layout(&self) -> &KvLayout {
        self.arena.layout()
    }

    fn facts(&mut self, stored: &StoredLayer<'_>, needs: Needs) -> LayerFacts {
        self.pulse.beat();
        let shape = self.kv_layer(stored.layer);
        self.facts_context(stored.layer).facts(shape.heads, stored, needs)
    }

    fn move_positions(&mut self, layer: usize, from: &SequenceKv<'_>, kept: &[&[u32]], to: &[&[u32]]) {
        let blocks: Vec<u32> = from.blocks.iter().map(|block| block.0).collect();
        self.arena.move_positions(&self.pool, layer, &from.layer(layer, &blocks), kept, to);
    }

    fn fit_values(&mut self, stored: &StoredLayer<'_>, kept: &[&[u32]], fixed: usize, to: &SequenceKv<'_>) {
        let Some(values) = self.layer_fit(stored.layer).values(stored, kept, fixed) else { return };
        let blocks: Vec<u32> = to.blocks.iter().map(|block| block.0).collect();
        let to = to.layer(stored.layer, &blocks);
        let dim = self.arena.layout().layers()[stored.layer].value_dim;
        for (head, values) in values.iter().enumerate() {
            for (index, value) in values.chunks_exact(dim).enumerate().skip(fixed) {
                self.arena.write_value(stored.layer, head, &to, index, value);
            }
        }
    }

    fn bytes(&self, block: BlockId) -> Vec<u8> {
        self.arena.block(block.0).to_vec()
    }

    fn replace_bytes(&mut self, block: BlockId, bytes: &[u8]) {
        self.arena.block_mut(block.0).copy_from_slice(bytes);
    }

    fn first_keys(&self, layer: usize, kv: &SequenceKv<'_>, count: usize) -> Vec<f32> {
        let shape = self.arena.layout().layers()[layer];
        let blocks: Vec<u32> = kv.blocks.iter().map(|block| block.0).collect();
        let mut keys = vec![0.0; shape.kv_heads * count * shape.key_dim];
        for (head, keys) in keys.chunks_exact_mut(count * shape.key_dim).enumerate() {
            self.arena.keys(layer, head, &kv.layer(layer, &blocks)).copy(0..count, keys);
            let positions: Vec<u32> = (0..count as u32).collect();
            let style = self.model.config().rope.style;
            if let Some(table) = self.rope(layer) {
                rope_back(&self.pool, keys, shape.key_dim, &positions, table, style);
            }
        }
        keys
    }

    fn replace_first_keys(
        &mut self,
        layer: usize,
        kv: &SequenceKv<'_>,
        keys: &[f32],
        positions: &[Option<u32>],
    ) {
        let shape = self.arena.layout().layers()[layer];
        let blocks: Vec<u32> = kv.blocks.iter().map(|block| block.0).collect();
        let count = keys.len() / (shape.kv_heads * shape.key_dim);
        let style = self.model.config().rope.style;
        for (head, (keys, first)) in keys.chunks_exact(count * shape.key_dim).zip(positions).enumerate() {
            let Some(first) = *first else { continue };
            let (mut keys, positions) = (keys.to_vec(), (first..).take(count).collect::<Vec<u32>>());
            if let Some(table) = self.rope(layer) {
                rope(&self.pool, &mut keys, shape.key_dim, &positions, table, style);
            }
            for (index, key) in keys.chunks_exact(shape.key_dim).enumerate() {
                self.arena.write_key(layer, head, &kv.layer(layer, &blocks), index, key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kvik_kernels::KvFormat;
    use kvik_testing::{golden, tiny_model};

    use super::*;
    use crate::load::LoadedModel;

    /// A model, and a runner of it in a context of this length.
    fn runner(path: &Path, context: usize) -> (Arc<Model>, ModelRunner) {
        let LoadedModel { config, tensors, .. } = LoadedModel::open(path).unwrap();
        let pool = Arc::new(Pool::new(1));
        let layout = ModelRunner::uniform_layout(&config, KvFormat::F16);
        let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {}).unwrap());
        let runner = ModelRunner::new(model.clone(), pool, layout, 1, context).unwrap();
        (model, runner)
    }

    #[test]
    fn runners_of_a_model_share_its_rotations() {
        let (model, first) = runner(&tiny_model(), 64);
        let layout = first.arena.layout().clone();
        let second = ModelRunner::new(model, first.pool.clone(), layout, 1, 32).unwrap();
        assert!(Arc::ptr_eq(&first.ropes[0], &second.ropes[0]));
    }

    /// What these models compute is compared with llama.cpp, whose answers are beside their files.
    #[test]
    fn a_rotation_that_no_layer_has_takes_no_table() {
        let cases: [(&str, &[usize]); 5] = [
            ("arch-granitehybrid.gguf", &[0]),
            ("arch-nemotron_h.gguf", &[0]),
            ("arch-granitehybrid-rotated.gguf", &[64]),
            ("arch-gemma3.gguf", &[64, 64]),
            ("head-qwen35.gguf", &[64]),
        ];
        for (file, expect) in cases {
            let (_, runner) = runner(&golden(file), 64);
            let positions: Vec<usize> = runner.ropes.iter().map(|table| table.positions()).collect();
            assert_eq!(positions, expect, "{file}");
        }
    }
}
