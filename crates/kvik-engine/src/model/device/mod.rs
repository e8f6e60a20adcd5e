//! A model on a GPU: the same layers as in `decoder`, as steps of `kvik-gpu`.
//!
//! `shape` says what there are kernels for, `loader` uploads what the file has to `weights`, `scratch` has the buffers of a step,
//! `rows` its batch, `forward` is the pass as a list of steps, and `runner` answers the scheduler. The device belongs to
//! the thread that runs batches; what fails on it is told by [`Runner::fault`](super::batch::Runner::fault).

mod copies;
mod dense;
mod experts;
mod feed_forward;
mod forward;
mod loader;
mod rows;
mod runner;
mod scratch;
mod shape;
mod weights;

use kvik_gpu::DeviceArena;
use kvik_kernels::{KvLayout, Pool, WeightType};

use super::digest::{digest, within};
use super::weights::Loader;
use super::{ModelConfig, ModelError};
use crate::files::TensorSource;
use loader::DeviceLoader;
use weights::DeviceWeights;

pub use kvik_gpu::{Choice, Device, DeviceError, DeviceInfo, DeviceKind, devices};
pub use runner::DeviceRunner;

/// A model whose weights are in the memory of a device.
pub struct DeviceModel {
    config: ModelConfig,
    tensors: TensorSource,
    /// The type that matrices are converted to on the way; `None` keeps the file's.
    target: Option<WeightType>,
    digest: [u8; 32],
    device: Device,
    /// `None` while the device is lost.
    weights: Option<DeviceWeights>,
}

impl DeviceModel {
    /// Whether there are kernels for all that a model computes.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] names the first thing that there is none for.
    pub fn check(config: &ModelConfig) -> Result<(), DeviceError> {
        shape::check(config)
    }

    /// Uploads the weights of `tensors` to `device`, as [`Model::load`](super::Model::load) packs them.
    ///
    /// # Errors
    /// When the file is not the model that its configuration says, there is no kernel for a part of it, or the memory
    /// of the device does not hold it.
    pub fn load(
        device: Device,
        config: ModelConfig,
        tensors: TensorSource,
        target: Option<WeightType>,
        pool: &Pool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<DeviceModel, ModelError> {
        shape::check(&config)?;
        let weights = Some(upload(&device, &config, &tensors, target, pool, progress)?);
        let digest = digest(&config, &tensors, target, pool);
        progress(tensors.total_bytes(), tensors.total_bytes());
        Ok(DeviceModel { config, tensors, target, digest, device, weights })
    }

    /// The shape of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The device that it is on.
    pub fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// [`Model::digest`](super::Model::digest): who computes it is not in it.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// [`Model::digest_within`](super::Model::digest_within)
    pub fn digest_within(&self, context: usize) -> [u8; 32] {
        within(&self.config, self.digest, context)
    }

    /// The name of what it computes in contexts of up to `context` tokens: its digest, and who computes it. Another device
    /// or driver, and the processor, round otherwise.
    pub fn digest_here(&self, context: usize) -> [u8; 32] {
        let DeviceInfo { name, backend, driver, .. } = self.device.info();
        let mut here = blake3::Hasher::new_derive_key("kvik 2026-11-25 a model on a device");
        here.update(&self.digest_within(context));
        here.update(format!("{backend}\n{name}\n{driver}\n").as_bytes());
        *here.finalize().as_bytes()
    }

    /// Blocks of a layout that one arena may have on the device.
    pub fn blocks_max(&self, layout: &KvLayout) -> usize {
        DeviceArena::blocks_max(&self.device, layout)
    }

    /// Bytes of weights in the memory of the device.
    pub fn weight_bytes(&self) -> usize {
        self.weights.as_ref().map_or(0, DeviceWeights::bytes)
    }

    /// [`Model::classifier`](super::Model::classifier)
    pub fn classifier(&self) -> Option<&[f32]> {
        self.weights.as_ref()?.classifier.as_deref()
    }

    /// Opens its device again, which was lost, and uploads the weights.
    fn reopen(&mut self, pool: &Pool) -> Result<(), ModelError> {
        let before = self.device.info();
        let device = Device::open(Choice::Index(before.index))?;
        if device.info() != before {
            let reason = format!("{} is there instead of {}", device.info().name, before.name);
            return Err(DeviceError::Lost { reason }.into());
        }
        // The driver may hold the memory of what is lost until it is dropped.
        self.weights = None;
        self.device = device;
        let uploaded = upload(&self.device, &self.config, &self.tensors, self.target, pool, &|_, _| {});
        self.weights = Some(uploaded?);
        Ok(())
    }
}

fn upload(
    device: &Device,
    config: &ModelConfig,
    tensors: &TensorSource,
    target: Option<WeightType>,
    pool: &Pool,
    progress: &dyn Fn(u64, u64),
) -> Result<DeviceWeights, ModelError> {
    let loader = Loader::open(config, tensors, target, pool, progress)?;
    DeviceLoader { loader, device }.load()
}
