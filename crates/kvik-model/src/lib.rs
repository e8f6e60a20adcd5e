//! Models: reads their files, packs their weights, computes forward passes on processors and GPUs.
//!
//! Of a request it knows a [`batch`] alone: rows of tokens, and the blocks in which their sequences store keys and
//! values. Which rows a step computes is the engine's decision, which blocks there are the cache's.
//!
//! | subject | modules |
//! | --- | --- |
//! | what a file says | `load` (one entry for all formats), `config` (the shape), `arch` (an architecture a file), `extras`, `expected` (the tensors there must be), `layer_tensor` (their names) |
//! | weights | `loader` (packs tensors), `convert`, `weights`, `digest` (identity of what is computed) |
//! | forward pass | `batch` (the work of a step), `decoder` (a list of named steps), `feed_forward`, `latent` and `recurrent` (kinds of layers), `residual` (around the stream), `rope`, `state_layout` |
//! | drafts | `prediction` (what the head of a model holds that predicts the token after the next one) |
//! | adapters | `adapter` (low-rank matrices), `adapt` (as layers see them) |
//! | KV | `runner` (owns the blocks and runs batches), `kv_map` (formats by layer), `observation`, `facts` and `gates` (of attention, for retention), `fit` (of the values that it retains) |
//! | GPUs | `device`, `device_work` (counters) |
//! | progress | `pulse` |

#![deny(unsafe_code)]

mod adapt;
mod adapter;
mod arch;
pub mod batch;
mod config;
mod config_error;
mod convert;
mod decoder;
#[cfg(feature = "gpu")]
pub mod device;
pub mod device_work;
mod digest;
mod expected;
mod extras;
mod facts;
mod feed_forward;
mod fit;
pub mod gates;
mod kv_map;
mod latent;
mod layer_tensor;
pub mod load;
mod loader;
pub mod observation;
mod prediction;
pub mod pulse;
mod recurrent;
mod residual;
mod rope;
mod runner;
mod state_layout;
mod weights;

use std::sync::Arc;
use std::thread;

use kvik_kernels::{MatrixError, Pool};

use kvik_text::files::TensorSource;
use weights::{ModelLoader, Weights};

pub use adapter::{
    ADAPTERS_MAX, Adapter, AdapterError, AdapterId, AdapterMix, AdapterUse, Adapters, LoadedAdapter,
};
pub use arch::Arch;
pub(crate) use arch::metadata;
pub use config::{ModelConfig, RopeConfig, RopeScaling, RopeStyle};
pub use config_error::ConfigError;
pub use convert::{CONVERT_TARGETS, Conversion};
pub use digest::digest;
pub use extras::{
    ByLayer, ExpertsConfig, Extras, LatentConfig, Multipliers, Recurrence, StateMatrices, Temperature, Window,
};
pub use kv_map::{KvMap, KvMapError, LAYERS_MAX};
pub(crate) use residual::INPUTS_MAX;
pub use runner::ModelRunner;

/// A model ready to run: its shape and its packed weights.
pub struct Model {
    config: ModelConfig,
    tensors: Arc<TensorSource>,
    weights: Weights,
    digest: [u8; 32],
}

impl Model {
    /// Packs the weights of `tensors` on `pool`.
    ///
    /// `conversion` determines the types of matrices; `None` keeps the file's types, and a type converts all to it.
    /// `progress` receives `(bytes read, total bytes)` after each tensor. Every tensor is used: a file with others is
    /// refused before anything is read.
    pub fn load(
        config: ModelConfig,
        tensors: TensorSource,
        conversion: impl Into<Conversion>,
        pool: &Pool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Model, ModelError> {
        let conversion = conversion.into().of(&tensors);
        let loader = ModelLoader::open(&config, &tensors, conversion, pool, progress)?;
        let (digest, weights) = thread::scope(|threads| {
            threads.spawn(|| tensors.read_ahead());
            (digest(&config, &tensors, conversion, pool), loader.load())
        });
        let weights = weights?;
        progress(tensors.total_bytes(), tensors.total_bytes());
        Ok(Model { config, tensors: Arc::new(tensors), weights, digest })
    }

    /// The shape of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Identity of the model's results: a digest of its shape, every weight, and the conversion.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// [`Model::digest`] in contexts of up to `context` tokens: some models rotate differently in longer ones.
    pub fn digest_within(&self, context: usize) -> [u8; 32] {
        digest::within(&self.config, self.digest, context)
    }

    /// Whether its layers keep a recurrent state of each sequence in addition to keys and values.
    pub fn has_states(&self) -> bool {
        state_layout::StateLayout::new(&self.config).floats > 0
    }

    /// Whether it has a prediction head, to draft with.
    pub fn predicts(&self) -> bool {
        self.weights.prediction.is_some()
    }

    /// The largest bias of each layer's keys, by magnitude, `[layers]`: 0 where keys have none.
    pub fn key_biases(&self) -> Vec<f32> {
        self.weights.layers.iter().map(|layer| layer.mixing.largest_key_bias()).collect()
    }

    /// Bytes of packed weights in memory.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// The matrix by which a reranker multiplies the hidden state of its last token, `[2, d_model]`: the row of yes,
    /// then that of no. `None` if its file has none: then these are rows of the output matrix.
    pub fn classifier(&self) -> Option<&[f32]> {
        self.weights.classifier.as_deref()
    }
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A tensor that the architecture needs is not in the file.
    #[error("the model has no tensor `{tensor}`; the file is incomplete or of another architecture")]
    MissingTensor {
        /// Canonical name.
        tensor: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor `{tensor}` is {found:?} and the model's configuration needs {expected:?} (rows, cols)")]
    WrongShape {
        /// Canonical name.
        tensor: String,
        /// Rows and columns in the file.
        found: [usize; 2],
        /// Rows and columns the configuration needs.
        expected: [usize; 2],
    },
    /// Tensors that no computation reads: without them the answers would be those of another model.
    #[error(
        "the file has {count} tensors that kvik's {arch} does not compute with, so the model is refused: {}{}; \
         use a variant of the model without them",
        first.join(", "),
        if *count > first.len() { ", and more" } else { "" }
    )]
    UnusedTensors {
        /// The architecture.
        arch: &'static str,
        /// The first few, by their names in the file, each with the reason.
        first: Vec<String>,
        /// Number of unused tensors.
        count: usize,
    },
    /// Weights that the file has twice: it is ambiguous which of them the model uses.
    #[error("the file has the same weights as `{tensor}` and as `{other}`; one of them is needed")]
    StoredTwice {
        /// Canonical name.
        tensor: String,
        /// Canonical name of the other.
        other: String,
    },
    /// Settings of the model that contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device does not support the model or has failed.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Device(#[from] kvik_gpu::DeviceError),
    /// A tensor cannot be packed.
    #[error("tensor `{tensor}`: {source}")]
    Matrix {
        /// Canonical name.
        tensor: String,
        /// The error of the kernels.
        source: MatrixError,
    },
    /// A tensor cannot be converted to the requested type.
    #[error(
        "a tensor of {from} with rows of {cols} cannot be converted to {to}; choose f32, f16, bf16, q8_0 or q4_0"
    )]
    NoConversion {
        /// Type in the file.
        from: &'static str,
        /// Requested type.
        to: &'static str,
        /// Columns of the tensor.
        cols: usize,
    },
}
