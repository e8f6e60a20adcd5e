//! The files that the names of a shelf use.

use std::{collections::HashMap, path::Path};

use super::Listing;
use crate::disk;

/// The files of all manifests, which may write one path in different letters where the file system takes upper and lower
/// case for one.
pub(super) struct Used<'a> {
    dir: &'a Path,
    /// Paths relative to the shelf's directory, by their lower-case form.
    paths: HashMap<String, Vec<&'a str>>,
}

impl<'a> Used<'a> {
    /// The files of the manifests of the shelf in `dir`.
    pub(super) fn of(dir: &'a Path, listing: &'a Listing) -> Used<'a> {
        let mut paths = HashMap::<String, Vec<&str>>::new();
        for file in listing.manifests.iter().flat_map(|manifest| &manifest.files) {
            paths.entry(file.path.to_lowercase()).or_default().push(&file.path);
        }
        Used { dir, paths }
    }

    /// Whether a name uses the file at a path.
    pub(super) fn has(&self, path: &str) -> bool {
        let is_it =
            |used: &&str| *used == path || disk::is_same_entry(&self.dir.join(*used), &self.dir.join(path));
        self.paths.get(&path.to_lowercase()).is_some_and(|alike| alike.iter().any(is_it))
    }
}
