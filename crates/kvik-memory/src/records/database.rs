//! The database in a file: how it is opened, and which of its errors are damage.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use redb::{
    Database, DatabaseError, StorageBackend, StorageError,
    backends::{FileBackend, InMemoryBackend},
};

use super::private::{close_to_others, readable_by_owner_only};
use crate::clock::unix_seconds;

/// Page cache of the database; it is small because records are few.
const CACHE_BYTES: usize = 1 << 20;

/// Opens or creates the file and checks all of it for damage.
pub(super) fn create_at(path: &Path) -> Result<Database, DatabaseError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    open_with(options, path)
}

/// Opens an existing file.
pub(super) fn open_at(path: &Path) -> Result<Database, DatabaseError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    open_with(options, path)
}

fn open_with(mut options: OpenOptions, path: &Path) -> Result<Database, DatabaseError> {
    readable_by_owner_only(&mut options);
    let file = options.open(path)?;
    close_to_others(&file);
    builder().create_with_backend(FileBackend::new(file)?)
}

pub(super) fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

pub(super) fn in_memory(bytes: &[u8]) -> std::io::Result<InMemoryBackend> {
    let memory = InMemoryBackend::new();
    memory.set_len(bytes.len() as u64)?;
    StorageBackend::write(&memory, 0, bytes)?;
    Ok(memory)
}

/// True if the content is damaged, as opposed to an error of the file system or a lock.
pub(super) fn is_broken(error: &DatabaseError) -> bool {
    match error {
        DatabaseError::UpgradeRequired(_) | DatabaseError::RepairAborted => true,
        DatabaseError::Storage(StorageError::Corrupted(_)) => true,
        DatabaseError::Storage(StorageError::Io(error)) => {
            matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

pub(super) fn set_aside(path: &Path, error: &DatabaseError) -> std::io::Result<()> {
    let aside = aside(path, &unix_seconds().to_string());
    fs::rename(path, &aside)?;
    tracing::warn!("{} cannot be used ({error}); it is kept as {}", path.display(), aside.display());
    Ok(())
}

/// Whether a file that could not be used is kept beside the one at `path`, as far as that can be known.
pub(super) fn has_one_aside(path: &Path) -> bool {
    let first = aside(path, "");
    let (Some(folder), Some(first)) = (path.parent(), first.file_name()) else { return false };
    let begins = |name: &OsStr| name.as_encoded_bytes().starts_with(first.as_encoded_bytes());
    match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().any(|entry| begins(&entry.file_name())),
        Err(_) => true,
    }
}

/// Where a file that cannot be used is kept.
fn aside(path: &Path, time: &str) -> PathBuf {
    path.with_extension(format!("broken-{time}"))
}
