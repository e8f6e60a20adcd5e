//! Downloads of earlier versions of kvik: `OWNER/REPO/FILE` without names. The file `.chosen` names the default
//! file of the repository, or `.` for its directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{Shelf, files, now_s};
use crate::{
    HubSpec, Kind, Manifest, ModelSource, ShelfError, ShelfFile, disk, manifest::HUB_DIRECTORY,
    source::safe_path,
};

/// Maximum size of `.chosen`.
const NAME_BYTES_MAX: u64 = 1 << 12;

impl Shelf {
    /// Takes over the downloads of an earlier version, once: they become files of the shelf, with the names that a
    /// pull would give them. Does nothing if there are none, or if the shelf has downloads of its own.
    pub fn take_over(&self, earlier: &Path) -> Result<(), ShelfError> {
        let (hub, marker) = (self.hub_dir(), self.names_dir().join(".taking-over"));
        let is_due = || earlier.is_dir() && !hub.exists();
        // The marker remains if a process was killed between moving the files and naming them.
        if !is_due() && !marker.exists() {
            return Ok(());
        }
        let _lock = self.lock_names()?;
        fs::write(&marker, "").map_err(ShelfError::io(&marker))?;
        let renamed = if is_due() { fs::rename(earlier, &hub) } else { Ok(()) };
        if renamed.is_ok() && hub.is_dir() {
            self.name_all(&hub)?;
        }
        disk::remove(&marker).map_err(ShelfError::io(&marker))?;
        match renamed {
            // The shelf is on another disk: both are left unchanged.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => Ok(()),
            renamed => renamed.map_err(ShelfError::io(earlier)),
        }
    }

    /// Names the models in all repositories; existing names are not changed.
    fn name_all(&self, hub: &Path) -> Result<(), ShelfError> {
        for repository in repositories(hub)? {
            for manifest in self.manifests_of(&repository) {
                if self.at_path_of(&manifest.name)?.is_none() {
                    self.write(&manifest)?;
                }
            }
        }
        Ok(())
    }

    /// Manifests of the models in a repository's directory, under their default names.
    fn manifests_of(&self, repository: &Path) -> Vec<Manifest> {
        let chosen = disk::read_small(&repository.join(".chosen"), NAME_BYTES_MAX).ok();
        let chosen = chosen.and_then(|name| String::from_utf8(name).ok());
        let found = files_in(repository).unwrap_or_default().into_iter();
        let ggufs = found.filter_map(|(path, _)| {
            let name = path.strip_prefix(repository).ok()?.to_str()?.to_owned();
            name.ends_with(".gguf").then_some(name)
        });
        let by_file = ggufs.map(|file| (Some(file.clone()), file));
        let wanted = by_file.chain(chosen.map(|file| (None, file)));
        wanted.filter_map(|(wanted, file)| self.manifest_of(repository, wanted, &file)).collect()
    }

    fn manifest_of(&self, repository: &Path, wanted: Option<String>, file: &str) -> Option<Manifest> {
        let path = if file == "." { repository.to_owned() } else { repository.join(safe_path(file)?) };
        let relative = |path: &Path| path.strip_prefix(&self.dir).ok()?.to_str().map(str::to_owned);
        let (model, files) = files::at(&path).ok()?;
        let owned = |file: ShelfFile| Some(ShelfFile { path: relative(Path::new(&file.path))?, ..file });
        let files = files.into_iter().map(owned).collect::<Option<Vec<_>>>()?;
        let name = relative(repository)?.strip_prefix(HUB_DIRECTORY)?.trim_start_matches('/').to_owned();
        let spec: HubSpec = name.parse().ok()?;
        let source = ModelSource::Hub(HubSpec { wanted, ..spec });
        Some(Manifest {
            name: source.default_name().ok()?,
            kind: Kind::of(&path),
            source,
            revision: None,
            added_s: now_s(),
            model: relative(&model)?.into(),
            files,
        })
    }
}

/// The directories `hub/OWNER/REPO` of all owners.
fn repositories(hub: &Path) -> Result<Vec<PathBuf>, ShelfError> {
    let mut found = Vec::new();
    for owner in directories(hub)? {
        found.extend(directories(&owner)?);
    }
    Ok(found)
}

fn directories(dir: &Path) -> Result<Vec<PathBuf>, ShelfError> {
    let entries = fs::read_dir(dir).map_err(ShelfError::io(dir))?;
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
}

/// All files below a directory with their sizes. Symbolic links count as files and are not followed.
pub(super) fn files_in(dir: &Path) -> Result<Vec<(PathBuf, u64)>, ShelfError> {
    let (mut files, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(ShelfError::io(&folder))? {
            let path = entry.map_err(ShelfError::io(&folder))?.path();
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() => folders.push(path),
                Ok(found) => files.push((path, found.len())),
                Err(_) => {}
            }
        }
    }
    files.sort();
    Ok(files)
}
