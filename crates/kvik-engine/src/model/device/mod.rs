//! A model on a GPU: the same layers as in `decoder`, as steps of `kvik-gpu`.
//!
//! Where the device has no room for all layers, the last ones are there and `front` has the first on the processor.
//! `shape` says what there are kernels for, `loader` uploads what the file has, or what `convert` makes of it, to
//! `weights`, `scratch` has the buffers of a step, `rows` its batch, `forward` is the pass as a list of steps, and `runner`
//! answers the scheduler. The device belongs to the thread that runs batches; what fails on it is told by
//! [`Runner::fault`](super::batch::Runner::fault).

mod convert;
mod copies;
mod dense;
mod experts;
mod feed_forward;
mod forward;
mod front;
mod loader;
mod rows;
mod runner;
mod scratch;
mod shape;
mod weights;

use std::cell::Cell;
use std::sync::Arc;

use kvik_gpu::DeviceArena;
use kvik_kernels::{Isa, KvLayout, Pool};
use kvik_text::files::TensorSource;

use super::digest::{digest, within};
use super::weights::ModelLoader;
use super::{Conversion, Model, ModelConfig, ModelError};
use loader::DeviceLoader;
use weights::DeviceWeights;

pub use kvik_gpu::{Choice, Device, DeviceError, DeviceInfo, DeviceKind, devices};
pub use runner::DeviceRunner;

/// A model whose weights are in the memory of a device, or those of its last layers.
pub struct DeviceModel {
    config: ModelConfig,
    tensors: Arc<TensorSource>,
    /// What matrices become on the way.
    conversion: Conversion,
    digest: [u8; 32],
    /// The first layers, where the processor computes them.
    front: Option<Arc<Model>>,
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

    /// Uploads the weights of `tensors` to `device`, as [`Model::load`] packs them.
    ///
    /// # Errors
    /// When the file is not the model that its configuration says, there is no kernel for a part of it, or the memory
    /// of the device does not hold it.
    pub fn load(
        device: Device,
        config: ModelConfig,
        tensors: TensorSource,
        conversion: impl Into<Conversion>,
        pool: &Pool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<DeviceModel, ModelError> {
        let layers = config.layers;
        DeviceModel::load_last(device, layers, config, tensors, conversion, pool, progress)
    }

    /// The same of the last `layers` layers, at least one, and of what makes logits; those before them are packed for the
    /// processor.
    ///
    /// # Errors
    /// As [`DeviceModel::load`]; layers on the processor have to be such as the device could compute.
    pub fn load_last(
        device: Device,
        layers: usize,
        config: ModelConfig,
        tensors: TensorSource,
        conversion: impl Into<Conversion>,
        pool: &Pool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<DeviceModel, ModelError> {
        shape::check(&config)?;
        let (tensors, first) = (Arc::new(tensors), config.layers - layers.clamp(1, config.layers));
        let conversion = conversion.into().of(&tensors);
        let digest = digest(&config, &tensors, conversion, pool);
        let read = Cell::new(0);
        let counted = |bytes, all| {
            read.set(bytes);
            progress(bytes, all);
        };
        let front =
            (first > 0).then(|| front::load((&config, digest), first, &tensors, conversion, pool, &counted));
        let front = front.transpose()?.map(Arc::new);
        let further = |bytes, all| progress(read.get() + bytes, all);
        let weights = Some(upload(&device, first, &config, &tensors, conversion, pool, &further)?);
        progress(tensors.total_bytes(), tensors.total_bytes());
        Ok(DeviceModel { config, tensors, conversion, digest, front, device, weights })
    }

    /// The shape of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How many of its layers, the first ones, the processor computes.
    pub fn front_layers(&self) -> usize {
        self.front.as_ref().map_or(0, |front| front.weights.layers.len())
    }

    /// Who computes it, in words: what rounds otherwise has other ones.
    pub fn place(&self) -> String {
        let device = &self.device.info().name;
        match self.front_layers() {
            0 => device.clone(),
            first => format!("{device}, and the first {first} layers by {}", Isa::current().name()),
        }
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

    /// The name of what it computes in contexts of up to `context` tokens: its digest, and who computes which layers.
    /// Another device or driver, and the processor, round otherwise.
    pub fn digest_here(&self, context: usize) -> [u8; 32] {
        let DeviceInfo { name, backend, driver, .. } = self.device.info();
        let mut here = blake3::Hasher::new_derive_key("kvik 2026-11-25 a model on a device");
        here.update(&self.digest_within(context));
        here.update(format!("{backend}\n{name}\n{driver}\n").as_bytes());
        if self.front.is_some() {
            here.update(self.place().as_bytes());
        }
        *here.finalize().as_bytes()
    }

    /// Blocks of a layout that one arena may have on the device.
    pub fn blocks_max(&self, layout: &KvLayout) -> usize {
        DeviceArena::blocks_max(&self.device, &self.layout_on_device(layout))
    }

    /// What its layers on the device store of blocks of a layout.
    pub fn layout_on_device(&self, layout: &KvLayout) -> KvLayout {
        front::layout_behind(layout, self.front_layers())
    }

    /// Bytes of weights in the memory of the device, and in that of the processor.
    pub fn weight_bytes(&self) -> usize {
        let on_device = self.weights.as_ref().map_or(0, DeviceWeights::bytes);
        on_device + self.front.as_ref().map_or(0, |front| front.weight_bytes())
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
        let DeviceModel { device, config, tensors, conversion, .. } = self;
        let first = self.front.as_ref().map_or(0, |front| front.weights.layers.len());
        self.weights = Some(upload(device, first, config, tensors, *conversion, pool, &|_, _| {})?);
        Ok(())
    }
}

/// Uploads layers from `first` on, and what makes logits.
fn upload(
    device: &Device,
    first: usize,
    config: &ModelConfig,
    tensors: &TensorSource,
    conversion: Conversion,
    pool: &Pool,
    progress: &dyn Fn(u64, u64),
) -> Result<DeviceWeights, ModelError> {
    let loader = ModelLoader::open(config, tensors, conversion.on_device(), pool, progress)?.loader;
    DeviceLoader { config, loader, device }.load(first)
}
