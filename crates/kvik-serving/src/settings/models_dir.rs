//! The directory of named models.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use kvik_shelf::Shelf;

use super::{dirs, logging::say};

/// The directory of the shelf.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelsDirArgs {
    /// Directory of downloads and names, which may be shared [default: models in the user's cache directory]
    #[arg(long, value_name = "DIR")]
    pub models_dir: Option<PathBuf>,
}

impl ModelsDirArgs {
    /// The directory; `None` if the user has no home directory.
    pub fn directory(&self) -> Option<PathBuf> {
        self.models_dir.clone().or_else(|| Some(dirs::cache()?.join("models")))
    }

    /// The shelf in that directory. The default one takes over downloads of versions without names.
    pub fn shelf(&self) -> anyhow::Result<Shelf> {
        if let Some(dir) = &self.models_dir {
            return Ok(Shelf::open(dir));
        }
        let cache = dirs::cache().context("there is no directory for models; set KVIK_MODELS_DIR")?;
        let shelf = Shelf::open(&cache.join("models"));
        if let Err(error) = shelf.take_over(&cache.join("hub")) {
            say(&format!("note: earlier downloads stay where they are: {error}"));
        }
        Ok(shelf)
    }
}
