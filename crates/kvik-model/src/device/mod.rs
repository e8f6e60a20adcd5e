//! A model on a GPU: the same layers as in `decoder`, as steps of `kvik-gpu`.
//!
//! If the device has no room for all layers, it has the last ones and `front` computes the first on the processor.
//! `shape` says which models the kernels support, `loader` uploads the tensors of the file, converted by `convert`, to
//! `weights`, `scratch` has the buffers of a step, `rows` its batch, `forward` is the pass as a list of steps, and
//! `runner` implements the interface to the scheduler, after the batches of `warm`. The device belongs to the thread that
//! runs batches; its failures are reported by [`Runner::fault`](super::batch::Runner::fault).

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
mod warm;
mod weights;

use std::cell::Cell;
use std::sync::Arc;

use kvik_kernels::{Isa, KvLayout, Pool};
use kvik_text::files::TensorSource;

use super::digest::{digest, within};
use super::weights::ModelLoader;
use super::{Conversion, Model, ModelConfig, ModelError};
use loader::DeviceLoader;
use weights::DeviceWeights;

pub use kvik_gpu::{Choice, Device, DeviceArena, DeviceError, DeviceInfo, DeviceKind, devices};
pub use runner::DeviceRunner;

/// A model whose weights, or those of its last layers, are in the memory of a device.
pub struct DeviceModel {
    config: ModelConfig,
    tensors: Arc<TensorSource>,
    /// The conversion of matrices.
    conversion: Conversion,
    digest: [u8; 32],
    /// The first layers, if the processor computes them.
    front: Option<Arc<Model>>,
    device: Device,
    /// `None` while the device is lost.
    weights: Option<DeviceWeights>,
}

impl DeviceModel {
    /// Whether the kernels support the model.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] names the first unsupported part.
    pub fn check(config: &ModelConfig) -> Result<(), DeviceError> {
        shape::check(config)
    }

    /// Whether the kernels support the formats in which the last `layers` layers store keys and values.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] names the first layer whose formats they do not support.
    pub fn check_layout(layout: &KvLayout, layers: usize) -> Result<(), DeviceError> {
        DeviceArena::check(layout, layout.layers().len().saturating_sub(layers.max(1)))
    }

    /// Uploads the weights of `tensors` to `device`, as [`Model::load`] packs them.
    ///
    /// # Errors
    /// If the file does not match its configuration, no kernel supports a part of it, or the memory
    /// of the device is too small.
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

    /// As [`load`](DeviceModel::load), for the last `layers` layers, at least one, and the output head; the layers
    /// before them are packed for the processor.
    ///
    /// # Errors
    /// As [`DeviceModel::load`]; layers on the processor must also be supported by the device.
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

    /// Number of first layers that the processor computes.
    pub fn front_layers(&self) -> usize {
        self.front.as_ref().map_or(0, |front| front.weights.layers.len())
    }

    /// Description of where it is computed: places with different rounding have different descriptions.
    pub fn place(&self) -> String {
        let device = &self.device.info().name;
        match self.front_layers() {
            0 => device.clone(),
            first => format!("{device}, and the first {first} layers by {}", Isa::current().name()),
        }
    }

    /// Its device.
    pub fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// As [`Model::digest`](super::Model::digest): independent of where it is computed.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// [`Model::digest_within`](super::Model::digest_within)
    pub fn digest_within(&self, context: usize) -> [u8; 32] {
        within(&self.config, self.digest, context)
    }

    /// Identity of its results in contexts of up to `context` tokens: its digest, and where each layer is computed.
    /// Another device or driver, and the processor, round differently.
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

    /// Maximum number of blocks of a layout that an arena can have on the device.
    pub fn blocks_max(&self, layout: &KvLayout) -> usize {
        DeviceArena::blocks_max(&self.device, &self.layout_on_device(layout))
    }

    /// Whether blocks take of the machine's memory, all of them or the part of layers on the processor.
    pub fn blocks_in_host_memory(&self) -> bool {
        self.front.is_some() || matches!(self.info().kind, DeviceKind::Integrated | DeviceKind::Software)
    }

    /// The part of a layout that its layers on the device store.
    pub fn layout_on_device(&self, layout: &KvLayout) -> KvLayout {
        front::layout_behind(layout, self.front_layers())
    }

    /// Bytes of weights in the memory of the device and of the processor.
    pub fn weight_bytes(&self) -> usize {
        let on_device = self.weights.as_ref().map_or(0, DeviceWeights::bytes);
        on_device + self.front.as_ref().map_or(0, |front| front.weight_bytes())
    }

    /// [`Model::classifier`](super::Model::classifier)
    pub fn classifier(&self) -> Option<&[f32]> {
        self.weights.as_ref()?.classifier.as_deref()
    }

    /// Opens its device again after it was lost, and uploads the weights.
    fn reopen(&mut self, pool: &Pool) -> Result<(), ModelError> {
        let before = self.device.info();
        let device = Device::open(Choice::Index(before.index))?;
        if device.info() != before {
            let reason = format!("{} is there instead of {}", device.info().name, before.name);
            return Err(DeviceError::Lost { reason }.into());
        }
        // The driver may hold the memory of lost objects until they are dropped. A device that does not answer keeps its
        // memory: if the new one then has too little, the upload says so.
        self.weights = None;
        self.device = device;
        let DeviceModel { device, config, tensors, conversion, .. } = self;
        let first = self.front.as_ref().map_or(0, |front| front.weights.layers.len());
        self.weights = Some(upload(device, first, config, tensors, *conversion, pool, &|_, _| {})?);
        Ok(())
    }
}

/// Uploads the layers from `first` on, and the output head.
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
