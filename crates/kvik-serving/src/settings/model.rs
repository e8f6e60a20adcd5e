//! The flags that all commands share: the model, its formats, and the cache.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args, ValueEnum, builder::TypedValueParser};
use kvik_cache::Policy;
use kvik_kernels::{Pool, WeightType, performance_cores};
use kvik_model::Conversion;

use super::device::{DeviceChoice, GpuLayers};
use super::disk_place::DiskPlace;
use super::domain::DomainArgs;
use super::home;
use super::kv::KvArgs;
use super::lora::LoraArgs;
use super::models_dir::ModelsDirArgs;
use super::remote::RemoteArgs;
use super::retain::RetainArgs;
use super::size::ByteSize;

/// The model and the formats of its weights and of the KV cache.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    // This is text of `--help`; rustdoc takes parts of it for links.
    #[allow(rustdoc::broken_intra_doc_links)]
    /// A GGUF file, a Hugging Face directory, a name of `kvik list`, or hf:owner/repo[:file|:Q4_K_M][@revision], which is
    /// downloaded once [default: the embedded model]
    #[arg(short, long, value_name = "MODEL", value_parser = home::text)]
    pub model: Option<String>,
    /// Directory of models by name.
    #[command(flatten)]
    pub models_dir: ModelsDirArgs,
    /// Convert the weights while loading [default: half floats become codes of 14 bits, which lose less than rounding to
    /// half floats has lost; all else stays as it is]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub weights: Option<WeightsArg>,
    /// Use this Jinja template instead of the model's own
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Formats of keys and values.
    #[command(flatten)]
    pub kv: KvArgs,
    /// Compute threads [default: the number of performance cores, of --memory-domain if there is one]
    #[arg(short, long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Part of the machine's memory to stay in.
    #[command(flatten)]
    pub domain: DomainArgs,
}

/// Sizes and eviction of the cache, and the adapters that are part of its namespaces.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    /// Where to compute: cpu, gpu, gpu:N as `kvik devices` counts them, or auto, which is a GPU if there is one that can do
    /// all that is asked for
    #[arg(long, value_name = "DEVICE", default_value = "auto", help_heading = "Model")]
    pub device: DeviceChoice,
    /// Layers that the GPU computes, the last ones of the model, or all; the others, and their part of the keys and values,
    /// stay with the processor
    #[arg(long, value_name = "N", default_value = "all", help_heading = "Model")]
    pub gpu_layers: GpuLayers,
    /// Tokens of prompt and answer together [default: the model's own, or what fits --cache-ram]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(16..).map(|n| n as usize))]
    pub context: Option<usize>,
    /// Memory for keys and values, as 512MiB or 2GiB; where a GPU computes, for what it has no more room for [default: half
    /// of the free memory, at most 8 GiB]
    #[arg(long, value_name = "SIZE")]
    pub cache_ram: Option<ByteSize>,
    /// Memory for keys and values that a GPU computes with, its own and, of layers that it does not compute, the machine's
    /// [default: as much as half of the machine's free memory, at most 8 GiB]
    #[arg(long, value_name = "SIZE")]
    pub cache_device: Option<ByteSize>,
    /// Memory for pinned prompts of all tenants together [default: half of --cache-ram]
    #[arg(long, value_name = "SIZE")]
    pub cache_pin: Option<ByteSize>,
    /// Which prompts are evicted when memory is short: lru, lfu, slru, s3-fifo, arc, cost, forecast, or auto
    #[arg(long, value_name = "POLICY", default_value = Policy::default().name())]
    pub evict: Policy,
    /// Directory of the disk cache, which survives a restart, or off [default: the user's cache directory]
    #[arg(long, value_name = "DIR", default_value = "default", hide_default_value = true)]
    pub cache_disk: DiskPlace,
    /// Size of the disk cache at most; never more than a tenth of the free space
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    pub cache_disk_size: ByteSize,
    /// Store that nodes share.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Retention of long prompts.
    #[command(flatten)]
    pub retain: RetainArgs,
    /// Adapters beside the model.
    #[command(flatten)]
    pub lora: LoraArgs,
    /// A smaller model with the same vocabulary that tries what may come next, as -m names one; it shares --cache-ram
    #[arg(long, value_name = "MODEL", value_parser = home::text, help_heading = "Capacity")]
    pub draft: Option<String>,
}

#[cfg(any(test, feature = "testing"))]
impl CacheArgs {
    /// A cache of this size in RAM, without a disk cache.
    pub fn in_ram(context_tokens: usize, cache_ram: ByteSize) -> CacheArgs {
        CacheArgs {
            device: DeviceChoice::Cpu,
            gpu_layers: GpuLayers::All,
            context: Some(context_tokens),
            cache_ram: Some(cache_ram),
            cache_device: None,
            cache_disk: DiskPlace::Off,
            cache_disk_size: ByteSize(0),
            remote: RemoteArgs::default(),
            cache_pin: None,
            evict: Policy::Lru,
            retain: RetainArgs::default(),
            lora: LoraArgs::default(),
            draft: None,
        }
    }
}

/// Types that weights can be converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum WeightsArg {
    /// 8 bits in blocks of 32
    #[value(name = "q8_0")]
    Q8,
    /// 4 bits in blocks of 32
    #[value(name = "q4_0")]
    Q4,
    /// 14 bits in blocks of 32: of half floats, multiplied almost twice as fast, and off by less than a half is
    #[value(name = "q14_0")]
    Q14,
    /// 16-bit floats: keeps a file of half floats exactly as it is
    F16,
    /// bfloat16
    Bf16,
    /// 32-bit floats
    F32,
}

impl From<WeightsArg> for WeightType {
    fn from(arg: WeightsArg) -> WeightType {
        match arg {
            WeightsArg::Q8 => WeightType::Q8_0,
            WeightsArg::Q4 => WeightType::Q4_0,
            WeightsArg::Q14 => WeightType::Q14_0,
            WeightsArg::F16 => WeightType::F16,
            WeightsArg::Bf16 => WeightType::Bf16,
            WeightsArg::F32 => WeightType::F32,
        }
    }
}

impl ModelArgs {
    /// The embedded model, in the default formats.
    #[cfg(any(test, feature = "testing"))]
    pub fn embedded() -> ModelArgs {
        ModelArgs {
            model: None,
            models_dir: ModelsDirArgs::default(),
            weights: None,
            chat_template: None,
            kv: KvArgs::default(),
            threads: None,
            domain: DomainArgs::default(),
        }
    }

    /// The arguments for another model, with the same threads and conversions.
    pub fn of(&self, model: &str) -> ModelArgs {
        ModelArgs {
            model: Some(model.to_owned()),
            models_dir: self.models_dir.clone(),
            weights: self.weights,
            chat_template: None,
            kv: KvArgs::default(),
            threads: self.threads,
            domain: self.domain,
        }
    }

    /// The conversion of the file's weights.
    pub fn conversion(&self) -> Conversion {
        self.weights.map_or(Conversion::Halves, |arg| Conversion::To(arg.into()))
    }

    /// Whether this is the embedded model.
    pub fn is_embedded(&self) -> bool {
        self.model.is_none()
    }

    /// The origin of the model, for display.
    pub fn source(&self) -> &str {
        self.model.as_deref().unwrap_or("embedded model")
    }

    /// The compute threads.
    pub fn pool(&self) -> Pool {
        Pool::new(self.threads.map_or_else(performance_cores, NonZeroUsize::get))
    }
}
