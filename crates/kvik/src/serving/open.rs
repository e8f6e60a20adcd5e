//! Finds the model of the flags: embedded, on disk, or downloaded first.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kvik_engine::{files::bytes::FileBytes, load::LoadedModel};
use kvik_kernels::Isa;

use crate::{
    hub::{Hub, HubSpec},
    settings::model::ModelArgs,
};

/// The embedded model.
#[cfg(feature = "embedded-model")]
const EMBEDDED: Option<&[u8]> =
    Some(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/kvik-tiny-q8_0.gguf")));
#[cfg(not(feature = "embedded-model"))]
const EMBEDDED: Option<&[u8]> = None;

impl ModelArgs {
    /// Finds the model, downloads it if need be, and reads its headers and vocabulary.
    pub(crate) fn load(&self) -> anyhow::Result<LoadedModel> {
        // An invalid choice of instruction set must fail before minutes of downloading and loading.
        Isa::chosen()?;
        let mut loaded = match &self.model {
            None => embedded()?,
            Some(model) => {
                let path = locate(model)?;
                LoadedModel::open(&path).with_context(|| format!("the model {model} cannot be loaded"))?
            }
        };
        if let Some(path) = &self.chat_template {
            let template = std::fs::read_to_string(path)
                .with_context(|| format!("the chat template {} cannot be read", path.display()))?;
            loaded.chat_template = Some(template);
        }
        Ok(loaded)
    }
}

fn embedded() -> anyhow::Result<LoadedModel> {
    let Some(bytes) = EMBEDDED else {
        bail!("this kvik was built without an embedded model; name a model with -m MODEL");
    };
    LoadedModel::from_bytes(FileBytes::Static(bytes)).context("the embedded model cannot be loaded")
}

/// The path of a model, which is downloaded first if need be.
fn locate(model: &str) -> anyhow::Result<PathBuf> {
    if let Some(spec) = model.strip_prefix("hf:") {
        let spec: HubSpec = spec.parse()?;
        return Ok(Hub::from_env()?.fetch(&spec)?);
    }
    let path = Path::new(model);
    if !path.exists() {
        bail!(
            "there is no model at {model}; -m takes a GGUF file, a Hugging Face directory, or hf:owner/repo[:file]"
        );
    }
    Ok(path.to_owned())
}
