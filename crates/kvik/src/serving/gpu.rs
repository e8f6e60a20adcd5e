//! A model on a GPU, where this kvik has them.

use kvik_kernels::Pool;

use super::open::Opened;
use super::placed::Placed;
use crate::settings::{device::GpuLayers, model::ModelArgs};

/// Loads a model, or its last layers, on the GPU of a number, or on the one that is probably the fastest.
#[cfg(feature = "gpu")]
pub(crate) fn open(
    args: &ModelArgs,
    number: Option<usize>,
    layers: GpuLayers,
    pool: &Pool,
) -> anyhow::Result<Opened<Placed>> {
    use kvik_engine::model::ModelConfig;
    use kvik_engine::model::device::{Choice, Device, DeviceModel};

    let loaded = args.load()?;
    DeviceModel::check(&loaded.config)?;
    let device = Device::open(number.map_or(Choice::Auto, Choice::Index))?;
    let load = |config: ModelConfig, tensors, conversion, progress: &dyn Fn(u64, u64)| {
        let layers = layers.of(config.layers);
        if layers < config.layers {
            super::open::warn_of(conversion);
        }
        let model = DeviceModel::load_last(device, layers, config, tensors, conversion, pool, progress)?;
        Ok(Placed::Device(Box::new(model)))
    };
    Opened::of(args, loaded, load, Placed::classifier)
}

/// Says that there are none.
#[cfg(not(feature = "gpu"))]
pub(crate) fn open(
    _: &ModelArgs,
    _: Option<usize>,
    _: GpuLayers,
    _: &Pool,
) -> anyhow::Result<Opened<Placed>> {
    anyhow::bail!("this kvik was built without GPUs; build one with `cargo build --release --features gpu`")
}
