//! The first layers of a model on the processor, if the device has no room for all layers.
//!
//! The residual stream of a batch is transferred once, after the last of them. A block has one number and two parts:
//! the part of these layers is in an arena of the processor, the other in that of the device. Blocks are read and
//! written as a whole, as [`KvLayout`] defines them, so other modules do not depend on the split.

use std::ops::Range;
use std::sync::Arc;

use kvik_cache::BlockId;
use kvik_gpu::DeviceError;
use kvik_kernels::{KvLayout, Pool};
use kvik_text::files::TensorSource;

use crate::batch::{Batch, Runner};
use crate::pulse::Pulse;
use crate::weights::{Ending, ModelLoader, Weights};
use crate::{Conversion, Model, ModelConfig, ModelError, ModelRunner};

/// Packs the weights of the first `count` layers on `pool`.
pub(super) fn load(
    (config, digest): (&ModelConfig, [u8; 32]),
    count: usize,
    tensors: &Arc<TensorSource>,
    conversion: Conversion,
    pool: &Pool,
    progress: &dyn Fn(u64, u64),
) -> Result<Model, ModelError> {
    let mut loader = ModelLoader::open(config, tensors, conversion, pool, progress)?;
    let layers = loader.first_layers(count)?;
    let ends = config.residual().load_ends(&mut loader.loader)?;
    let Ending { rotations, .. } = Ending::load(config, &mut loader.loader)?;
    let weights = Weights { layers, head: None, ends, rotations, classifier: None, prediction: None };
    Ok(Model { config: config.clone(), tensors: tensors.clone(), weights, digest })
}

/// The layout of the layers from `first` on.
pub(super) fn layout_behind(layout: &KvLayout, first: usize) -> KvLayout {
    KvLayout::new(layout.layers()[first..].to_vec())
}

/// The ranges of a layer in a whole block, and in its part.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    whole: Range<usize>,
    part: Range<usize>,
}

/// The ranges of the layers of `part`, whose first is layer `first` of the whole.
fn places(whole: &KvLayout, part: &KvLayout, first: usize) -> Vec<Place> {
    let place = |layer| Place { whole: whole.layer_part(first + layer), part: part.layer_part(layer) };
    (0..part.layers().len()).map(place).collect()
}

/// The split of a block into two parts.
struct BlockParts {
    /// On the processor.
    front: Vec<Place>,
    /// On the device.
    behind: Vec<Place>,
    behind_bytes: usize,
}

impl BlockParts {
    /// The split of a block whose first layers are those of `front`.
    fn new(whole: &KvLayout, front: &KvLayout) -> BlockParts {
        let first = front.layers().len();
        let behind = layout_behind(whole, first);
        BlockParts {
            front: places(whole, front, 0),
            behind: places(whole, &behind, first),
            behind_bytes: behind.block_bytes(),
        }
    }

    /// Assembles a whole block from its parts.
    fn join(&self, [front, behind]: [&[u8]; 2], whole: &mut [u8]) {
        // Padding to pages is zero.
        whole.fill(0);
        for (places, bytes) in [(&self.front, front), (&self.behind, behind)] {
            for Place { whole: to, part } in places {
                whole[to.clone()].copy_from_slice(&bytes[part.clone()]);
            }
        }
    }

    /// Copies the parts of a whole block.
    fn split(&self, whole: &[u8], [front, behind]: [&mut [u8]; 2]) {
        for (places, bytes) in [(&self.front, front), (&self.behind, behind)] {
            for Place { whole: from, part } in places {
                bytes[part.clone()].copy_from_slice(&whole[from.clone()]);
            }
        }
    }
}

/// The first layers and their part of the blocks.
pub(super) struct Front {
    runner: ModelRunner,
    parts: BlockParts,
}

impl Front {
    /// Allocates that part of `blocks` blocks of `layout`, and the angles of `context` positions.
    pub(super) fn new(
        model: Arc<Model>,
        pool: Arc<Pool>,
        layout: &KvLayout,
        blocks: usize,
        context: usize,
    ) -> Result<Front, DeviceError> {
        let own = KvLayout::new(layout.layers()[..model.weights.layers.len()].to_vec());
        let parts = BlockParts::new(layout, &own);
        let bytes = blocks as u64 * own.block_bytes() as u64;
        let runner = ModelRunner::new(model, pool, own, blocks, context).map_err(|_| {
            DeviceError::HostMemory { what: format!("what the first layers store in {blocks} blocks"), bytes }
        })?;
        Ok(Front { runner, parts })
    }

    pub(super) fn set_pulse(&mut self, pulse: Arc<Pulse>) {
        self.runner.set_pulse(pulse);
    }

    /// Computes a batch: stores keys and values of the first layers. Returns the stream for the device, `[n, d_model]`.
    pub(super) fn stream(&mut self, batch: &Batch<'_>) -> &[f32] {
        self.runner.stream(batch)
    }

    pub(super) fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
        self.runner.copy_partial(from, to, positions);
    }

    pub(super) fn release(&mut self, block: BlockId) {
        self.runner.release_block(block, true);
    }

    /// Reads a whole block; `read` copies the other part from the device.
    pub(super) fn read(
        &self,
        block: BlockId,
        whole: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut behind = vec![0; self.parts.behind_bytes];
        read(&mut behind)?;
        self.parts.join([self.runner.block(block), &behind], whole);
        Ok(())
    }

    /// Replaces its part of a block by that of a whole one; returns the other part, for the device.
    pub(super) fn write(&mut self, block: BlockId, whole: &[u8]) -> Vec<u8> {
        let mut behind = vec![0; self.parts.behind_bytes];
        self.parts.split(whole, [self.runner.block_mut(block), &mut behind]);
        behind
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use kvik_kernels::{KvFormat, KvLayer};
    use proptest::prelude::*;

    use super::*;

    fn any_layer() -> impl Strategy<Value = KvLayer> {
        let format = || prop::sample::select(vec![KvFormat::F16, KvFormat::Q8]);
        (1..4usize, 1..5usize, format(), format(), any::<bool>()).prop_map(|(heads, dim, k, v, sees_all)| {
            match sees_all {
                true => KvLayer::full(heads, 16 * dim, k, v),
                false => KvLayer::windowed(heads, 16 * dim, k, v, 32),
            }
        })
    }

    proptest! {
        /// Each byte of a layer is in one part, and is restored from there.
        #[test]
        fn a_block_is_the_same_after_it_was_two(layers in prop::collection::vec(any_layer(), 2..7), at: prop::sample::Index) {
            let first = 1 + at.index(layers.len() - 1);
            let whole = KvLayout::new(layers);
            let own = KvLayout::new(whole.layers()[..first].to_vec());
            let parts = BlockParts::new(&whole, &own);
            let mut block = vec![0; whole.block_bytes()];
            for layer in 0..whole.layers().len() {
                let part = whole.layer_part(layer);
                block[part.clone()].iter_mut().zip(part).for_each(|(byte, at)| *byte = 1 + (at % 251) as u8);
            }
            let (mut front, mut behind) = (vec![0; own.block_bytes()], vec![0; parts.behind_bytes]);
            parts.split(&block, [&mut front, &mut behind]);
            let mut joined = vec![9; block.len()];
            parts.join([&front, &behind], &mut joined);
            prop_assert_eq!(joined, block.clone());
            let stored = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte != 0).count();
            prop_assert_eq!(stored(&front) + stored(&behind), stored(&block));
        }
    }
}
