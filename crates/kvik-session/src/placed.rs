//! A loaded model where it is computed: on the processor or on a GPU.

use std::io;
use std::sync::Arc;

use kvik_cache::AuxiliaryState;
use kvik_engine::config::usual::STEP_ROWS;
use kvik_kernels::{Isa, KvLayout, Pool};
use kvik_model::batch::{Runner, StepSize};
#[cfg(feature = "gpu")]
use kvik_model::device::{DeviceError, DeviceModel, DeviceRunner};
use kvik_model::{Adapters, Model, ModelConfig, ModelRunner};

/// A model with its weights where they are multiplied.
pub enum Placed {
    /// In RAM.
    Processor(Box<Model>),
    /// In the memory of a GPU, or its last layers there.
    #[cfg(feature = "gpu")]
    Device(Box<DeviceModel>),
}

/// The memory that a model runs in.
pub struct RunnerRoom {
    /// Threads that compute.
    pub pool: Arc<Pool>,
    /// Formats of keys and values.
    pub layout: KvLayout,
    /// Blocks of keys and values.
    pub blocks: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// Adapters that requests may name.
    pub adapters: Adapters,
    /// Slots for states of recurrent layers.
    pub states: usize,
    /// The largest step, for which a GPU makes room at once.
    pub step: StepSize,
    /// Keep keys and values on the GPU, if it is one.
    pub resident: bool,
}

/// Why a model does not get its memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// The system has none for the blocks.
    #[error("there is no memory for {kv_bytes} bytes of keys and values: {source}")]
    NoMemory {
        /// Bytes of all blocks.
        kv_bytes: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The GPU has none, or fails.
    #[cfg(feature = "gpu")]
    #[error("with {kv_bytes} bytes of keys and values: {source}")]
    Device {
        /// Bytes of all blocks.
        kv_bytes: u64,
        /// The device's answer.
        source: DeviceError,
    },
}

/// Calls the method of the model that is there.
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
    /// Shape of the model.
    pub fn config(&self) -> &ModelConfig {
        of_model!(self, model => model.config())
    }

    /// Identity of the computed function, the same on every device.
    pub fn digest(&self) -> [u8; 32] {
        of_model!(self, model => model.digest())
    }

    /// [`Placed::digest`] in contexts of up to `context` tokens.
    pub fn digest_within(&self, context: usize) -> [u8; 32] {
        of_model!(self, model => model.digest_within(context))
    }

    /// Identity of the blocks that are computed here: those of a GPU and of the processor differ in their last bits, and
    /// neither reads the other's.
    pub fn blocks_digest(&self, context: usize) -> [u8; 32] {
        match self {
            Placed::Processor(model) => model.digest_within(context),
            #[cfg(feature = "gpu")]
            Placed::Device(model) => model.digest_here(context),
        }
    }

    /// Bytes of packed weights.
    pub fn weight_bytes(&self) -> usize {
        of_model!(self, model => model.weight_bytes())
    }

    /// The matrix of a reranker, see [`Model::classifier`].
    pub fn classifier(&self) -> Option<&[f32]> {
        of_model!(self, model => model.classifier())
    }

    /// Name of the instruction set or of the GPU: places that round differently have different names.
    pub fn place(&self) -> String {
        match self {
            Placed::Processor(_) => Isa::current().name().to_owned(),
            #[cfg(feature = "gpu")]
            Placed::Device(model) => model.place(),
        }
    }

    /// Name of the GPU, if the model is on one.
    pub fn device(&self) -> Option<String> {
        match self {
            Placed::Processor(_) => None,
            #[cfg(feature = "gpu")]
            Placed::Device(_) => Some(self.place()),
        }
    }

    /// The model on the processor, for which adapters are made.
    pub fn on_processor(&self) -> Option<&Model> {
        match self {
            Placed::Processor(model) => Some(model),
            #[cfg(feature = "gpu")]
            Placed::Device(_) => None,
        }
    }

    /// The largest number of blocks.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "the processor has no limit"))]
    pub fn blocks_max(&self, layout: &KvLayout) -> usize {
        match self {
            Placed::Processor(_) => usize::MAX,
            #[cfg(feature = "gpu")]
            Placed::Device(model) => model.blocks_max(layout),
        }
    }

    /// Number of budgets of keys and values that take of the machine's memory where no flag says otherwise: one, and
    /// where a GPU's blocks are there too, one more for the tier behind it.
    pub fn budgets(&self) -> u64 {
        match self {
            Placed::Processor(_) => 1,
            #[cfg(feature = "gpu")]
            Placed::Device(model) => 1 + u64::from(model.blocks_in_host_memory()),
        }
    }

    /// Bytes of a block that move in each step where keys and values do not stay on the GPU.
    pub fn moved_bytes(&self, layout: &KvLayout) -> usize {
        match self {
            Placed::Processor(_) => layout.block_bytes(),
            #[cfg(feature = "gpu")]
            Placed::Device(model) => model.layout_on_device(layout).block_bytes(),
        }
    }

    /// Memory that sequences hold in addition to blocks of a layout, in steps of the usual size.
    pub fn auxiliary(&self, layout: &KvLayout) -> AuxiliaryState {
        match self {
            Placed::Processor(model) => ModelRunner::auxiliary(model.config(), layout, STEP_ROWS),
            #[cfg(feature = "gpu")]
            Placed::Device(_) => DeviceRunner::auxiliary(layout),
        }
    }

    /// The runner of its batches.
    ///
    /// # Errors
    /// If there is no memory for the blocks.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "in RAM they stay where they are"))]
    pub fn runner(self, room: RunnerRoom) -> Result<Box<dyn Runner + Send>, RunnerError> {
        let RunnerRoom { pool, layout, blocks, context, adapters, states, step, resident } = room;
        let kv_bytes = blocks as u64 * layout.block_bytes() as u64;
        let no_memory = |source| RunnerError::NoMemory { kv_bytes, source };
        match self {
            Placed::Processor(model) => {
                let runner = ModelRunner::new(Arc::from(model), pool, layout, blocks, context);
                let runner = runner.map_err(no_memory)?.with_adapters(adapters);
                Ok(Box::new(runner.with_states(states).map_err(no_memory)?))
            }
            #[cfg(feature = "gpu")]
            Placed::Device(model) => {
                let runner = DeviceRunner::new(*model, pool, layout, blocks, context, step);
                let runner = runner.map_err(|source| RunnerError::Device { kv_bytes, source })?;
                Ok(if resident { Box::new(runner) } else { Box::new(runner.with_copies()) })
            }
        }
    }
}
