//! The default model of a shelf: the chosen one, else the last one that was added.
//!
//! `names/.default` holds the name that was chosen. A name that is gone counts as none.

use std::path::PathBuf;

use super::Shelf;
use crate::{Kind, Manifest, ModelName, ShelfError, disk};

/// Maximum bytes of the file.
const BYTES_MAX: u64 = 1024;

/// The model of commands that name none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultModel {
    /// Its manifest.
    pub manifest: Manifest,
    /// False for the last one that was added.
    pub is_chosen: bool,
}

impl Shelf {
    /// The default model; `None` if there is no model.
    pub fn default_model(&self) -> Result<Option<DefaultModel>, ShelfError> {
        let mut models = self.list()?.manifests;
        models.retain(|manifest| manifest.kind == Kind::Model);
        let chosen = self.chosen();
        let is_chosen = |manifest: &Manifest| chosen.as_ref() == Some(&manifest.name);
        let found = models.iter().position(is_chosen);
        let newest =
            || models.iter().enumerate().max_by_key(|(_, manifest)| manifest.added_s).map(|(at, _)| at);
        let Some(at) = found.or_else(newest) else { return Ok(None) };
        Ok(Some(DefaultModel { manifest: models.swap_remove(at), is_chosen: found.is_some() }))
    }

    /// Chooses the default model, or leaves it to be the last one that was added.
    ///
    /// # Errors
    /// [`ShelfError::UnknownName`], and I/O errors.
    pub fn set_default(&self, name: Option<&ModelName>) -> Result<(), ShelfError> {
        let path = self.default_path();
        let _lock = self.lock_names()?;
        let Some(name) = name else { return disk::remove(&path).map_err(ShelfError::io(&path)) };
        self.find(name.as_str())?;
        disk::replace(&path, &self.names_dir().join(".new"), name.as_str().as_bytes())
            .map_err(ShelfError::io(&path))
    }

    fn default_path(&self) -> PathBuf {
        self.names_dir().join(".default")
    }

    /// The chosen name; what is no name counts as none.
    fn chosen(&self) -> Option<ModelName> {
        let bytes = disk::read_small(&self.default_path(), BYTES_MAX).ok()?;
        std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
    }
}
