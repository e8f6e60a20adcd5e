//! Opens the model of the flags, whether embedded, on disk or to be downloaded, and loads its weights.

use std::sync::OnceLock;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use kvik_engine::stats::DraftSource;
use kvik_kernels::{Isa, Pool};
use kvik_model::{Conversion, Model, ModelConfig, ModelError, load::LoadedModel};
use kvik_session::{OpenError, OpenedModel};
use kvik_text::{
    files::{
        KnownDigests, TensorSource,
        bytes::FileBytes,
        small::{SETTINGS_BYTES_MAX, read_small_text},
    },
    template::ChatTemplate,
};

use super::fetch;
use crate::settings::{
    capacity::Speculate,
    dirs,
    model::{ModelArgs, WeightsArg},
};

/// The embedded model's bytes, provided by the binary; see [`bring`].
static EMBEDDED: OnceLock<&'static [u8]> = OnceLock::new();

/// Sets the embedded model, which answers if a command names none. Only the binary contains it: in this library it
/// would be copied into every program that links to it.
pub fn bring(model: &'static [u8]) {
    EMBEDDED.get_or_init(|| model);
}

/// Reads a model and packs its weights on `pool`, without a prediction head.
pub fn model(args: &ModelArgs, pool: &Pool) -> anyhow::Result<OpenedModel<Model>> {
    model_of(args, without_head(args.load()?), pool)
}

/// [`model`] for an engine: with its prediction head, if it has one and drafts may come from there.
pub(super) fn drafting_model(
    args: &ModelArgs,
    Speculate(sources): Speculate,
    pool: &Pool,
) -> anyhow::Result<OpenedModel<Model>> {
    let loaded = args.load()?;
    let loaded = if sources.has(DraftSource::Head) { loaded } else { without_head(loaded) };
    let opened = model_of(args, loaded, pool)?;
    if opened.model.predicts() {
        tracing::info!(
            "the model has a prediction head, which drafts; --speculate says from where drafts come"
        );
    }
    Ok(opened)
}

fn without_head(loaded: LoadedModel) -> LoadedModel {
    LoadedModel { config: loaded.config.without_head(), ..loaded }
}

fn model_of(args: &ModelArgs, loaded: LoadedModel, pool: &Pool) -> anyhow::Result<OpenedModel<Model>> {
    let load = |config, tensors, conversion, progress: &dyn Fn(u64, u64)| {
        warn_of(conversion);
        Model::load(config, tensors, conversion, pool, progress)
    };
    opened(args, loaded, load, Model::classifier)
}

/// [`model`] for commands that compute on blocks of keys and values alone.
pub fn model_without_states(args: &ModelArgs, pool: &Pool) -> anyhow::Result<OpenedModel<Model>> {
    let opened = model(args, pool)?;
    if opened.model.has_states() {
        bail!(
            "the model {} keeps a recurrent state of each sequence, which this command does not manage",
            args.source()
        );
    }
    Ok(opened)
}

/// Has `load` put the weights of a model that was read where they are multiplied, behind a progress bar.
pub(super) fn opened<M>(
    args: &ModelArgs,
    loaded: LoadedModel,
    load: impl FnOnce(ModelConfig, TensorSource, Conversion, &dyn Fn(u64, u64)) -> Result<M, ModelError>,
    classifier: impl FnOnce(&M) -> Option<&[f32]>,
) -> anyhow::Result<OpenedModel<M>> {
    let bar = progress(args.source(), loaded.tensors.total_bytes());
    let conversion = args.conversion().of(&loaded.tensors);
    let load = |config, tensors| load(config, tensors, conversion, &|done, _| bar.set_position(done));
    let opened = OpenedModel::load_by(loaded, load, classifier).map_err(|error| match error {
        OpenError::Template(error) => error.into(),
        error => anyhow::Error::from(error).context(format!("the model {} cannot be loaded", args.source())),
    })?;
    bar.finish_and_clear();
    opened.template.iter().flat_map(ChatTemplate::failures).for_each(|line| {
        tracing::warn!(
            "{line}; kvik writes that in a form of its own, and --chat-template FILE takes another template"
        );
    });
    Ok(opened)
}

impl ModelArgs {
    /// Finds the model, downloads it if need be, and reads its headers and vocabulary.
    pub fn load(&self) -> anyhow::Result<LoadedModel> {
        // An invalid choice of instruction set must fail before minutes of downloading and loading.
        Isa::chosen()?;
        if self.weights == Some(WeightsArg::Q4KM) {
            bail!(
                "no file is converted to q4_k_m: pull one in that format, or convert to q4_0; `kvik bench --shape` makes \
                 models in it"
            );
        }
        let mut loaded = match self.meant() {
            None => embedded()?,
            Some(model) => {
                let path = fetch::model(model, &self.models_dir)?;
                let loaded = LoadedModel::open(&path);
                loaded.with_context(|| format!("the model {} cannot be loaded", model.text()))?
            }
        };
        if let Some(path) = &self.chat_template {
            let template = read_small_text(path, SETTINGS_BYTES_MAX)
                .with_context(|| format!("the chat template {} cannot be read", path.display()))?;
            (loaded.chat_template, loaded.tool_template) = (Some(template), None);
        }
        let known = dirs::cache().map(|cache| KnownDigests::new(&cache.join("digests")));
        Ok(LoadedModel { tensors: loaded.tensors.with_known_digests(known), ..loaded })
    }
}

/// Warns about a default conversion of the weights that computes with other numbers than the file has.
pub(super) fn warn_of(conversion: Conversion) {
    if conversion == Conversion::Halves {
        tracing::warn!(
            "half floats are multiplied as codes of 14 bits, which lose less than rounding to half floats has lost; \
             --weights f16 keeps them as they are, and is slower"
        );
    }
}

/// A progress bar; indicatif hides it where standard error is not a terminal.
fn progress(name: &str, bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("loading {msg} {wide_bar} {bytes}/{total_bytes}");
    let bar = ProgressBar::new(bytes).with_message(name.to_owned());
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn embedded() -> anyhow::Result<LoadedModel> {
    // Test binaries of this library do not contain the model.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    EMBEDDED.get_or_init(|| {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/kvik-tiny-q8_0.gguf");
        std::fs::read(file).expect("the checkout has the model").leak()
    });
    let Some(bytes) = EMBEDDED.get() else {
        bail!("this kvik was built without an embedded model; name a model with -m MODEL");
    };
    LoadedModel::from_bytes(FileBytes::Static(bytes)).context("the embedded model cannot be loaded")
}
