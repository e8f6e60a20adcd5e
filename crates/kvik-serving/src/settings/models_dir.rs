//! The directory of named models.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use kvik_engine::free_memory::available_bytes;
use kvik_shelf::Shelf;

use super::{dirs, logging::say};

/// Divisor of the free memory for the weights of a pulled model; the rest is for its keys and values, and for others.
const WEIGHTS_SHARE: u64 = 2;

/// The directory of the shelf.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelsDirArgs {
    /// Directory of downloads and names, which may be shared [default: models in the user's data directory]
    #[arg(long, value_name = "DIR")]
    pub models_dir: Option<PathBuf>,
}

impl ModelsDirArgs {
    /// The directory; `None` if the user has no home directory.
    pub fn directory(&self) -> Option<PathBuf> {
        self.models_dir.clone().or_else(dirs::models)
    }

    /// The shelf in that directory. The default one takes over downloads of versions without names.
    pub fn shelf(&self) -> anyhow::Result<Shelf> {
        if let Some(dir) = &self.models_dir {
            return Ok(open(dir));
        }
        let shelf = open(&dirs::models().context("there is no directory for models; set KVIK_MODELS_DIR")?);
        if let Some(Err(error)) = dirs::cache().map(|cache| shelf.take_over(&cache.join("hub"))) {
            say(&format!("note: earlier downloads stay where they are: {error}"));
        }
        Ok(shelf)
    }
}

/// The shelf in a directory, whose pulls choose files that fit this machine.
fn open(dir: &Path) -> Shelf {
    Shelf::open(dir).with_memory(available_bytes().map(|free| free / WEIGHTS_SHARE))
}
