//! The device that computes a model: the processor, or a GPU if this build supports them.

use anyhow::{Context, bail};
use kvik_kernels::Pool;
#[cfg(feature = "gpu")]
use kvik_model::{
    ModelConfig,
    device::{Choice, Device, DeviceModel},
};
use kvik_session::OpenedModel;
#[cfg(feature = "gpu")]
use kvik_session::Placed;

use super::open;
use crate::{
    causes::with_causes,
    settings::{
        capacity::Speculate,
        device::{DeviceChoice, GpuLayers},
        model::{CacheArgs, ModelArgs},
    },
};

/// The device to compute on. If the flags leave it open, features that only the processor supports decide.
pub fn choice(cache: &CacheArgs) -> anyhow::Result<DeviceChoice> {
    let flags = [
        ("--lora", !cache.lora.files().is_empty()),
        ("--retain", cache.retain.retain.is_some()),
        ("--retain-idle", cache.retain.retain_idle.is_some()),
    ];
    match (cache.device.with(cache.gpu_layers)?, flags.into_iter().find(|(_, asked)| *asked)) {
        (DeviceChoice::Gpu(_), Some((flag, _))) => {
            bail!("what {flag} asks for is computed on the processor; leave it out, or use --device cpu")
        }
        (DeviceChoice::Auto, Some(_)) => Ok(DeviceChoice::Cpu),
        (device, _) => Ok(device),
    }
}

/// Reads a model and puts its weights on the device of the flags. If the choice was left open and falls on the
/// processor, one log line gives the reason. On the processor a prediction head is loaded if `speculate` says so.
pub fn open(
    args: &ModelArgs,
    (device, layers): (DeviceChoice, GpuLayers),
    speculate: Speculate,
    pool: &Pool,
) -> anyhow::Result<OpenedModel> {
    let on_processor = || Ok(open::drafting_model(args, speculate, pool)?.on_processor());
    match device {
        DeviceChoice::Cpu => on_processor(),
        DeviceChoice::Auto if !cfg!(feature = "gpu") && layers == GpuLayers::All => on_processor(),
        DeviceChoice::Auto => on_gpu(args, None, layers, pool).or_else(|why| {
            tracing::info!("computing on the processor: {}", with_causes(&why));
            on_processor()
        }),
        DeviceChoice::Gpu(number) => on_gpu(args, number, layers, pool).context("--device"),
    }
}

/// Loads a model, or its last layers, on the GPU of a number, or on the one that is probably the fastest.
#[cfg(feature = "gpu")]
fn on_gpu(
    args: &ModelArgs,
    number: Option<usize>,
    layers: GpuLayers,
    pool: &Pool,
) -> anyhow::Result<OpenedModel> {
    let loaded = args.load()?;
    DeviceModel::check(&loaded.config)?;
    if loaded.config.extras.predicts {
        tracing::info!(
            "the model's prediction head is not used on a GPU; drafts come from the other sources"
        );
    }
    let device = Device::open(number.map_or(Choice::Auto, Choice::Index))?;
    let load = |config: ModelConfig, tensors, conversion, progress: &dyn Fn(u64, u64)| {
        let layers = layers.of(config.layers);
        if layers < config.layers {
            open::warn_of(conversion);
        }
        let model = DeviceModel::load_last(device, layers, config, tensors, conversion, pool, progress)?;
        Ok(Placed::Device(Box::new(model)))
    };
    open::opened(args, loaded, load, Placed::classifier)
}

/// Fails: this build has no GPU support.
#[cfg(not(feature = "gpu"))]
fn on_gpu(_: &ModelArgs, _: Option<usize>, _: GpuLayers, _: &Pool) -> anyhow::Result<OpenedModel> {
    bail!("this kvik was built without GPUs; build one with `cargo build --release --features gpu`")
}
