//! A partially downloaded file: `NAME.part`, locked against other processes, and `NAME.part.json`, which records
//! the bytes that are present.

use std::{
    fs::{self, File},
    io::{Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::{Wanted, Watch, sha256_of};
use crate::{ShelfError, disk};

/// The result of looking for a wanted file.
pub(super) enum Found {
    /// The target exists, with this size.
    Target(u64),
    /// The target does not exist; its locked part file.
    Part(File),
}

/// A locked part file.
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) target: PathBuf,
    pub(super) file: File,
    what: String,
}

/// The part file of a target.
pub(super) fn path_of(target: &Path) -> PathBuf {
    with_ending(target, ".part")
}

/// The state file of a target's part file.
pub(super) fn state_path_of(target: &Path) -> PathBuf {
    with_ending(target, ".part.json")
}

/// The temporary file of the state while it is written.
pub(super) fn new_state_path_of(target: &Path) -> PathBuf {
    with_ending(target, ".part.json.new")
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

impl Part {
    pub(super) fn new(wanted: &Wanted, file: File) -> Part {
        let (target, what) = (wanted.target.clone(), wanted.what.clone());
        Part { path: path_of(&target), target, file, what }
    }

    /// Removes the part and its state.
    pub(super) fn discard(&self) -> Result<(), ShelfError> {
        for path in [state_path_of(&self.target), new_state_path_of(&self.target), self.path.clone()] {
            disk::remove(&path).map_err(ShelfError::io(&path))?;
        }
        Ok(())
    }

    /// Verifies the whole file and renames it; an invalid one is removed.
    pub(super) fn finish(self, size: u64, sha256: Option<&str>, watch: Watch<'_>) -> Result<(), ShelfError> {
        let failed = ShelfError::io(&self.path);
        let have = self.file.metadata().map_err(&failed)?.len();
        if have != size {
            self.discard()?;
            return Err(ShelfError::BrokeOff { file: self.what, have, size });
        }
        if let Some(expected) = sha256 {
            watch.progress.checking(watch.file);
            let mut file = &self.file;
            file.seek(SeekFrom::Start(0)).map_err(&failed)?;
            let file = self.file.try_clone().map_err(&failed)?;
            let found = sha256_of(file, watch).map_err(&failed)??;
            if found != expected {
                self.discard()?;
                return Err(ShelfError::Checksum { file: self.what, expected: expected.to_owned(), found });
            }
        }
        self.file.sync_all().map_err(&failed)?;
        fs::rename(&self.path, &self.target).map_err(&failed)?;
        disk::sync_directory_of(&self.target).map_err(&failed)?;
        // The part was renamed: only the state is left to remove.
        self.discard()
    }
}
