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

#[cfg(feature = "gpu")]
use super::kv;
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

/// Whether models are computed on the processor, as far as that is known before one is opened.
pub fn is_processor(cache: &CacheArgs) -> bool {
    match choice(cache) {
        Ok(DeviceChoice::Cpu) => true,
        Ok(DeviceChoice::Auto) => !has_gpu(),
        Ok(DeviceChoice::Gpu(_)) | Err(_) => false,
    }
}

#[cfg(feature = "gpu")]
fn has_gpu() -> bool {
    Device::open(Choice::Auto).is_ok()
}

#[cfg(not(feature = "gpu"))]
fn has_gpu() -> bool {
    false
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
    let count = layers.of(loaded.config.layers);
    check(args, &loaded.config, count)?;
    if loaded.config.extras.predicts {
        tracing::info!(
            "the model's prediction head is not used on a GPU; drafts come from the other sources"
        );
    }
    let device = Device::open(number.map_or(Choice::Auto, Choice::Index))?;
    let load = |config: ModelConfig, tensors, conversion, progress: &dyn Fn(u64, u64)| {
        if count < config.layers {
            open::warn_of(conversion);
        }
        let model = DeviceModel::load_last(device, count, config, tensors, conversion, pool, progress)?;
        Ok(Placed::Device(Box::new(model)))
    };
    let opened = open::opened(args, loaded, load, Placed::classifier)?;
    // Formats that depend on measurements are known now. If they cannot be had, the start fails wherever it computes.
    let model = &opened.model;
    if let Ok(layout) = kv::layout_of(&args.kv, model.config(), || model.digest()) {
        DeviceModel::check_layout(&layout, count)?;
    }
    Ok(opened)
}

/// Whether a GPU supports a model, and the formats in which its last `layers` layers store keys and values, as far as these
/// are known without its weights.
#[cfg(feature = "gpu")]
fn check(args: &ModelArgs, config: &ModelConfig, layers: usize) -> anyhow::Result<()> {
    DeviceModel::check(config)?;
    if let Some(layout) = kv::stated_layout(&args.kv, config)? {
        DeviceModel::check_layout(&layout, layers)?;
    }
    Ok(())
}

/// Fails: this build has no GPU support.
#[cfg(not(feature = "gpu"))]
fn on_gpu(_: &ModelArgs, _: Option<usize>, _: GpuLayers, _: &Pool) -> anyhow::Result<OpenedModel> {
    bail!("this kvik was built without GPUs; build one with `cargo build --release --features gpu`")
}

#[cfg(feature = "gpu")]
#[cfg(test)]
mod tests {
    use clap::Parser;
    use kvik_engine::stats::DraftSources;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        model: ModelArgs,
    }

    fn args(kv: &str) -> ModelArgs {
        Flags::try_parse_from(["kvik", "-m", "embedded", "--kv", kv]).unwrap().model
    }

    /// Without a GPU it is the formats that are refused, so that is told before one is opened.
    #[test]
    fn formats_that_a_gpu_lacks_are_refused_before_it_is_opened() {
        let refused = |kv, number, layers| {
            let error = on_gpu(&args(kv), number, layers, &Pool::new(1)).err();
            error.map_or_else(String::new, |error| with_causes(&error))
        };
        for number in [None, Some(0), Some(99)] {
            for kv in ["q4", "q8/bf16", "0-4:f16,5:f32"] {
                let told = refused(kv, number, GpuLayers::All);
                assert!(told.contains("no kernel for layer") && told.contains("processor"), "{kv}: {told}");
            }
        }
        // The layers before the last are the processor's, which has all formats.
        let told = refused("0-4:q4,5:f16", Some(99), GpuLayers::Last(1));
        assert!(!told.is_empty() && !told.contains("no kernel"), "{told}");
    }

    #[test]
    fn formats_that_a_gpu_lacks_are_computed_on_the_processor_if_it_may_be_either() {
        let layers = GpuLayers::All;
        let open = |device| open(&args("q4"), (device, layers), Speculate(DraftSources::NONE), &Pool::new(1));
        assert!(open(DeviceChoice::Auto).unwrap().model.on_processor().is_some());
        let error = open(DeviceChoice::Gpu(Some(0))).err().unwrap();
        assert!(with_causes(&error).starts_with("--device"), "{error:#}");
    }
}
