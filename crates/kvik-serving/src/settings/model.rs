//! The flags that all commands share: the model, its formats, and the cache.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use anyhow::bail;
use clap::{ArgMatches, Args, ValueEnum, builder::TypedValueParser, parser::ValueSource};
use kvik_cache::{Policy, tier::WritePolicy};
use kvik_kernels::{Pool, PoolError, WeightType, performance_cores};
use kvik_model::Conversion;
use kvik_session::AheadMode;

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

/// The word for the embedded model.
pub const EMBEDDED: &str = "embedded";

/// The model and the formats of its weights and of the KV cache.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    // This is text of `--help`; rustdoc takes parts of it for links.
    #[allow(rustdoc::broken_intra_doc_links)]
    /// A GGUF file, a Hugging Face directory, a name of `kvik list`, a short name of `kvik search` as qwen3:0.6b, or
    /// hf:owner/repo[:file|:Q4_K_M][@revision], which are downloaded once; embedded is the demonstration within kvik
    /// [default: that of `kvik default`, else embedded]
    #[arg(short, long, value_name = "MODEL", value_parser = home::text)]
    pub model: Option<String>,
    /// Whether kvik has taken the model from the shelf by its name: what a user writes may be a path.
    #[arg(skip)]
    pub is_of_shelf: bool,
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

/// A text that means a model or an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meant<'a> {
    /// As a user writes it: a path or a source on the hub before a name.
    Said(&'a str),
    /// A name of the shelf, which is no path, whatever the working directory has.
    Name(&'a str),
}

impl<'a> Meant<'a> {
    /// The text.
    pub fn text(self) -> &'a str {
        let (Meant::Said(text) | Meant::Name(text)) = self;
        text
    }

    /// The path that is meant; `None` if there is none.
    pub fn path(self) -> Option<&'a Path> {
        match self {
            Meant::Said(text) => Some(Path::new(text)).filter(|path| path.exists()),
            Meant::Name(_) => None,
        }
    }
}

impl<'a> From<&'a str> for Meant<'a> {
    fn from(text: &'a str) -> Meant<'a> {
        Meant::Said(text)
    }
}

/// Whether -m is on the command line, as opposed to a variable or a file that sets it.
pub fn is_named_by_flag(matches: &ArgMatches) -> bool {
    matches.value_source("model") == Some(ValueSource::CommandLine)
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
    /// of the free memory, or a quarter where --cache-device takes of it too, at most 8 GiB]
    #[arg(long, value_name = "SIZE")]
    pub cache_ram: Option<ByteSize>,
    /// Memory for keys and values that a GPU computes with, its own and, of layers that it does not compute, the machine's
    /// [default: as much as half of the machine's free memory, or a quarter where it is of that memory, at most 8 GiB]
    #[arg(long, value_name = "SIZE")]
    pub cache_device: Option<ByteSize>,
    /// Memory for pinned prompts of all tenants together [default: half of --cache-ram]
    #[arg(long, value_name = "SIZE")]
    pub cache_pin: Option<ByteSize>,
    /// Which prompts are evicted when memory is short.
    #[arg(long, value_name = "POLICY", default_value = Policy::default().name(), help = evict_help())]
    pub evict: Policy,
    /// Directory of the disk cache, which survives a restart, or off [default: the user's cache directory]
    #[arg(long, value_name = "DIR", default_value = "default", hide_default_value = true)]
    pub cache_disk: DiskPlace,
    /// Size of the disk cache at most; never more than a tenth of the free space
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    pub cache_disk_size: ByteSize,
    /// Whether an answer that comes back within a later prompt has the tokens that the model chose for it. A client sends text,
    /// of which a tokenizer often makes other tokens, and all behind them would be computed again; off reads every prompt as
    /// if it were the first
    #[arg(long, value_name = "on|off", value_enum, default_value = "on")]
    pub retokenise: Retokenise,
    /// What is written to the disk cache: all, as it is computed; reused, what a second request used; or auto, which
    /// also waits with ends of conversations until they leave memory or kvik ends, and writes those that are likely to
    /// go on. What a kill finds unwritten is computed again
    #[arg(long, value_name = "POLICY", default_value = WritePolicy::Auto.name())]
    pub cache_disk_write: WritePolicy,
    /// Bytes written to the disk cache a day (UTC), as 20GB; after them, only pinned prompts are [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub cache_disk_write_budget: Option<ByteSize>,
    /// Store that nodes share.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Retention of long prompts.
    #[command(flatten)]
    pub retain: RetainArgs,
    /// Compute the next turn of a chat as far as it is known, while its client reads the answer and nothing else waits: most
    /// templates leave an answer's thoughts out of the history, so that all behind them would be new when the next question
    /// comes. auto stops for clients that find too little of it, on computes every turn, off none
    #[arg(long, value_name = "MODE", default_value_t)]
    pub ahead: AheadMode,
    /// Adapters beside the model.
    #[command(flatten)]
    pub lora: LoraArgs,
    /// A smaller model with the same vocabulary that tries what may come next, as -m names one; it shares --cache-ram
    #[arg(long, value_name = "MODEL", value_parser = home::text, help_heading = "Capacity")]
    pub draft: Option<String>,
}

/// The help of `--evict`, with the policies that exist.
fn evict_help() -> String {
    let names = Policy::ALL.map(Policy::name).join(", ");
    format!("Which prompts are evicted when memory is short: {names}")
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
            retokenise: Retokenise::On,
            cache_disk_write: WritePolicy::All,
            cache_disk_write_budget: None,
            remote: RemoteArgs::default(),
            cache_pin: None,
            evict: Policy::Lru,
            retain: RetainArgs::default(),
            ahead: AheadMode::Off,
            lora: LoraArgs::default(),
            draft: None,
        }
    }
}

/// Whether answers in prompts have the tokens that were generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Retokenise {
    /// They have.
    On,
    /// A tokenizer chooses all tokens of a prompt.
    Off,
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
    /// 4 bits in blocks of 256, and 6 bits for some matrices: what `kvik bench --shape` makes; no file is converted to it
    #[value(name = "q4_k_m", hide = true)]
    Q4KM,
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
            WeightsArg::Q4KM => WeightType::Q4K,
        }
    }
}

impl ModelArgs {
    /// The origin of the embedded model, for display.
    pub const EMBEDDED_SOURCE: &str = "embedded model";

    /// The embedded model, in the default formats.
    #[cfg(any(test, feature = "testing"))]
    pub fn embedded() -> ModelArgs {
        ModelArgs {
            model: None,
            is_of_shelf: false,
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
            is_of_shelf: false,
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

    /// The model's path, name or source; `None` for the embedded one.
    pub fn named(&self) -> Option<&str> {
        self.model.as_deref().filter(|model| self.is_of_shelf || *model != EMBEDDED)
    }

    /// The same text with what it may mean.
    pub fn meant(&self) -> Option<Meant<'_>> {
        let text = self.named()?;
        Some(if self.is_of_shelf { Meant::Name(text) } else { Meant::Said(text) })
    }

    /// Whether this is the embedded model.
    pub fn is_embedded(&self) -> bool {
        self.named().is_none()
    }

    /// The origin of the model, for display.
    pub fn source(&self) -> &str {
        self.named().unwrap_or(ModelArgs::EMBEDDED_SOURCE)
    }

    /// Takes the model that the word behind a command names.
    pub fn take_word(&mut self, word: Option<String>, matches: &ArgMatches) -> anyhow::Result<()> {
        let Some(word) = word else { return Ok(()) };
        match &self.model {
            Some(flag) if is_named_by_flag(matches) => {
                bail!("`{word}` and -m {flag} are two models, and this command takes one; leave one out")
            }
            _ => self.model = Some(word),
        }
        Ok(())
    }

    /// Takes the model that has this name on the shelf.
    pub fn take_of_shelf(&mut self, name: String) {
        (self.model, self.is_of_shelf) = (Some(name), true);
    }

    /// Takes the default model of the shelf, if there is one and no flag, variable or file names another.
    pub fn take_default(&mut self) {
        if self.model.is_none() {
            // A shelf that cannot be read has no default, as for a service without a home directory.
            let default = self.models_dir.shelf().ok().and_then(|shelf| shelf.default_model().ok().flatten());
            if let Some(default) = default {
                self.take_of_shelf(default.manifest.name.to_string());
            }
        }
    }

    /// The compute threads.
    ///
    /// # Errors
    /// If the system does not start so many.
    pub fn pool(&self) -> Result<Pool, PoolError> {
        Pool::start(self.threads.map_or_else(performance_cores, NonZeroUsize::get))
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        model: ModelArgs,
    }

    /// The model of these flags with a word behind the command.
    fn with_word(flags: &[&str], word: Option<&str>) -> anyhow::Result<Option<String>> {
        let matches = Flags::command().get_matches_from([&["kvik"], flags].concat());
        let mut model = Flags::from_arg_matches(&matches)?.model;
        model.take_word(word.map(str::to_owned), &matches)?;
        Ok(model.model)
    }

    /// A model of the shelf was a folder of its name in the working directory, which in tests is that of this crate.
    #[test]
    fn a_name_is_no_path() {
        assert_eq!(Meant::Said("src").path(), Some(Path::new("src")));
        assert_eq!((Meant::Said("nothere").path(), Meant::Name("src").path()), (None, None));
        let mut args = ModelArgs { model: Some(EMBEDDED.to_owned()), ..ModelArgs::embedded() };
        assert_eq!((args.meant(), args.is_embedded()), (None, true));
        args.take_of_shelf(EMBEDDED.to_owned());
        assert_eq!((args.meant(), args.is_embedded()), (Some(Meant::Name(EMBEDDED)), false));
    }

    #[test]
    fn a_word_or_a_flag_names_the_model() {
        assert_eq!(with_word(&[], Some("a")).unwrap().as_deref(), Some("a"));
        assert_eq!(with_word(&["-m", "b"], None).unwrap().as_deref(), Some("b"));
        assert_eq!(with_word(&[], None).unwrap(), None);
        let error = with_word(&["-m", "b"], Some("a")).unwrap_err().to_string();
        assert!(error.contains("`a` and -m b are two models"), "{error}");
    }

    #[test]
    fn threads_that_no_machine_has_are_an_error() {
        let threads = |count: &str| {
            Flags::parse_from(["kvik", "--threads", count]).model.pool().map(|pool| pool.threads())
        };
        assert_eq!(threads("3").unwrap(), 3);
        let error = threads("100000").unwrap_err().to_string();
        assert!(error.contains("`threads` is 100000"), "{error}");
    }

    #[test]
    fn a_command_without_a_model_takes_the_default_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, b"GGUF and more").unwrap();
        let models_dir = ModelsDirArgs { models_dir: Some(dir.path().join("models")) };
        let default = |model: Option<&str>| {
            let model = model.map(str::to_owned);
            let mut args = ModelArgs { model, models_dir: models_dir.clone(), ..ModelArgs::embedded() };
            args.take_default();
            args
        };
        assert!(default(None).is_embedded());
        models_dir.shelf().unwrap().add(&file, &"m".parse().unwrap()).unwrap();
        assert_eq!(default(None).meant(), Some(Meant::Name("m")), "whatever path is called so");
        assert_eq!(default(Some("other")).meant(), Some(Meant::Said("other")));
        assert!(default(Some(EMBEDDED)).is_embedded());
    }
}
