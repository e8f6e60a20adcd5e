//! A loaded model on its device: the processor or a GPU.

use std::sync::Arc;

use anyhow::Context;
use kvik_cache::Beside;
use kvik_engine::model::batch::Runner;
#[cfg(feature = "gpu")]
use kvik_engine::model::device::{DeviceModel, DeviceRunner};
use kvik_engine::model::{Adapters, Model, ModelConfig, ModelRunner};
use kvik_kernels::{Isa, KvLayout, Pool};

use super::kv::beside;
use crate::settings::size::ByteSize;

/// A model with its weights on a device.
pub(crate) enum Placed {
    Processor(Box<Model>),
    #[cfg(feature = "gpu")]
    Device(Box<DeviceModel>),
}

/// The resources that a model runs with.
pub(crate) struct Room {
    pub(crate) pool: Arc<Pool>,
    pub(crate) layout: KvLayout,
    pub(crate) blocks: usize,
    /// Maximum positions of a sequence.
    pub(crate) context: usize,
    pub(crate) adapters: Adapters,
    /// Slots for recurrent states.
    pub(crate) states: usize,
    /// Whether keys and values stay on the GPU, if there is one.
    pub(crate) resident: bool,
}

/// Calls a method of the model in either variant.
macro_rules! of_model {
    ($placed:expr, $model:ident => $call:expr) => {
        match $placed {
            Placed::Processor($model) => $call,
            #[cfg(feature = "gpu")]
            Placed::Device($model) => $call,
        }
    };
}

impl Placed {
    pub(crate) fn config(&self) -> &ModelConfig {
        of_model!(self, model => model.config())
    }

    /// Digest of the model's function, on any device.
    pub(crate) fn digest(&self) -> [u8; 32] {
        of_model!(self, model => model.digest())
    }

    /// Digest of the model's function in contexts of up to `context` tokens.
    pub(crate) fn digest_within(&self, context: usize) -> [u8; 32] {
        of_model!(self, model => model.digest_within(context))
    }

    /// Identity of the blocks computed on this device: those of a GPU and of the processor differ in their last bits,
    /// and are never exchanged.
    pub(crate) fn blocks_digest(&self, context: usize) -> [u8; 32] {
        match self {
            Placed::Processor(model) => model.digest_within(context),
            #[cfg(feature = "gpu")]
            Placed::Device(model) => model.digest_here(context),
        }
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        of_model!(self, model => model.weight_bytes())
    }

    #[cfg(feature = "gpu")]
    pub(crate) fn classifier(&self) -> Option<&[f32]> {
        of_model!(self, model => model.classifier())
    }

    /// The name of the device. Devices that round differently have different names.
    pub(crate) fn place(&self) -> String {
        match self {
            Placed::Processor(_) => Isa::current().name().to_owned(),
            #[cfg(feature = "gpu")]
            Placed::Device(model) => model.place(),
        }
    }

    /// The name of the GPU, if the model is on one.
    pub(crate) fn device(&self) -> Option<String> {
        match self {
            Placed::Processor(_) => None,
            #[cfg(feature = "gpu")]
            Placed::Device(_) => Some(self.place()),
        }
    }

    /// The model on the processor, the only device for adapters.
    pub(crate) fn on_processor(&self) -> Option<&Model> {
        match self {
            Placed::Processor(model) => Some(model),
            #[cfg(feature = "gpu")]
            Placed::Device(_) => None,
        }
    }

    /// Maximum number of blocks.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "the processor has no limit"))]
    pub(crate) fn blocks_max(&self, layout: &KvLayout) -> usize {
        match self {
            Placed::Processor(_) => usize::MAX,
            #[cfg(feature = "gpu")]
            Placed::Device(model) => model.blocks_max(layout),
        }
    }

    /// Bytes of a layout's block that are copied to and from the GPU if keys and values do not stay there.
    pub(crate) fn moved_bytes(&self, layout: &KvLayout) -> usize {
        match self {
            Placed::Processor(_) => layout.block_bytes(),
            #[cfg(feature = "gpu")]
            Placed::Device(model) => model.layout_on_device(layout).block_bytes(),
        }
    }

    /// Auxiliary state that sequences hold in addition to blocks of a layout, with the server's step size.
    pub(crate) fn beside(&self, layout: &KvLayout) -> Beside {
        match self {
            Placed::Processor(model) => beside(model.config(), layout),
            #[cfg(feature = "gpu")]
            Placed::Device(_) => DeviceRunner::beside(layout),
        }
    }

    /// The runner of its batches.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "in RAM they stay where they are"))]
    pub(crate) fn runner(self, room: Room) -> anyhow::Result<Box<dyn Runner + Send>> {
        let Room { pool, layout, blocks, context, adapters, states, resident } = room;
        let bytes = ByteSize(blocks as u64 * layout.block_bytes() as u64);
        match self {
            Placed::Processor(model) => {
                let runner = ModelRunner::new(Arc::from(model), pool, layout, blocks, context);
                let no_room = || format!("no memory for a KV cache of {bytes}; lower --cache-ram");
                let runner = runner.with_context(no_room)?;
                Ok(Box::new(runner.with_adapters(adapters).with_states(states)?))
            }
            #[cfg(feature = "gpu")]
            Placed::Device(model) => {
                let runner = DeviceRunner::new(*model, pool, layout, blocks, context);
                let runner =
                    runner.with_context(|| format!("with a KV cache of {bytes} (--cache-device)"))?;
                Ok(if resident { Box::new(runner) } else { Box::new(runner.with_copies()) })
            }
        }
    }
}
