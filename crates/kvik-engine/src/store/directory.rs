//! The directory of a store, one per model and KV format, with private files and a lock.
//!
//! ```text
//! DIR/3f9a…e1.lock         locked by the process that writes 3f9a…e1, whose id it holds; its mtime is the last opening
//! DIR/3f9a…e1.answers      answers as they were generated (`answer_log`)
//! DIR/3f9a…e1.answers-new  what is about to replace them, or was when a process was killed
//! DIR/3f9a…e1.written      bytes written to it (`wear`)
//! DIR/3f9a…e1/headers      superblock, then one header per slot
//! DIR/3f9a…e1/payloads     one payload per slot
//! ```
//!
//! The lock file lies next to the directory, so that the directory can be removed while it is held.
//! Symbolic links are never followed, and only plain files are read or written.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::StoreError;
use super::system::{allocated_bytes, is_at, make_private_directories, private, read_at, write_all_at};

/// Hexadecimal digits of a fingerprint in a directory's name: 128 bits.
const NAME_DIGITS: usize = 32;
/// Maximum digits of a process id.
const PID_BYTES_MAX: usize = 20;

/// The paths of one store.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    root: PathBuf,
    name: String,
}

/// The result of trying to take a lock.
#[derive(Debug)]
pub(super) enum Locked {
    /// This store holds it now.
    Here(Lock),
    /// Another one holds it: of this process, where it is known.
    Elsewhere(Option<u32>),
}

/// Held by the store that writes; dropping it unlocks.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    path: PathBuf,
}

impl Directory {
    /// The directory under `root` of the store with this fingerprint.
    pub(super) fn new(root: &Path, fingerprint: &[u8; 32]) -> Directory {
        let digits = fingerprint.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(NAME_DIGITS);
        let name = digits.map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or('0')).collect();
        Directory { root: root.to_owned(), name }
    }

    /// At most 4,096 stores under `root`, in no order; none if it cannot be read.
    pub(super) fn all(root: &Path) -> impl Iterator<Item = Directory> {
        let entries = fs::read_dir(root).into_iter().flatten().flatten().take(4096);
        entries.filter_map(move |entry| Directory::at(root, &entry))
    }

    /// Every store under `root`, in no order; none if it does not exist.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn every(root: &Path) -> io::Result<Vec<Directory>> {
        Ok(entries(root)?.iter().filter_map(|entry| Directory::at(root, entry)).collect())
    }

    /// Paths of the answers of every store of which there is any file under `root`: those of a store may be all that is
    /// left of it.
    ///
    /// # Errors
    /// If `root` cannot be read.
    pub(super) fn every_answers(root: &Path) -> io::Result<BTreeSet<PathBuf>> {
        let name = |entry: fs::DirEntry| {
            let without_extension = PathBuf::from(entry.file_name()).with_extension("");
            without_extension.into_os_string().into_string().ok().filter(|name| is_name(name))
        };
        let names = entries(root)?.into_iter().filter_map(name);
        Ok(names.map(|name| Directory { root: root.to_owned(), name }.answers()).collect())
    }

    /// The store of this entry of `root`, if it is one.
    fn at(root: &Path, entry: &fs::DirEntry) -> Option<Directory> {
        entry.file_type().ok().filter(fs::FileType::is_dir)?;
        let name = entry.file_name().into_string().ok().filter(|name| is_name(name))?;
        Some(Directory { root: root.to_owned(), name })
    }

    /// Its name, the digits of the fingerprint.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Directory of all stores.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// File of the superblock and the headers.
    pub(super) fn headers(&self) -> PathBuf {
        self.root.join(&self.name).join("headers")
    }

    /// File of the payloads.
    pub(super) fn payloads(&self) -> PathBuf {
        self.root.join(&self.name).join("payloads")
    }

    /// File of generated answers. It has a lock of its own, and is beside the directory as that of the directory is.
    pub(super) fn answers(&self) -> PathBuf {
        self.root.join(format!("{}.answers", self.name))
    }

    /// Creates missing directories, accessible to this user only.
    pub(super) fn create(&self) -> Result<(), StoreError> {
        make_private_directories(&self.root).map_err(StoreError::io(&self.root))?;
        let path = self.root.join(&self.name);
        // A link could point anywhere; its target is left alone.
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
            fs::remove_file(&path).map_err(StoreError::io(&path))?;
        }
        make_private_directories(&path).map_err(StoreError::io(&path))
    }

    /// Takes the lock, unless another process or another store of this one holds it, and writes down who has it.
    ///
    /// # Errors
    /// If the file of the lock cannot be used.
    pub(super) fn lock(&self) -> Result<Locked, StoreError> {
        let path = self.lock_path();
        make_private_directories(&self.root).map_err(StoreError::io(&self.root))?;
        let file = open_private(&path, Missing::Create).map_err(StoreError::io(&path))?;
        match file.try_lock() {
            // Whoever removed the file in the meantime may have locked another one at its place.
            Ok(()) if !is_at(&file, &path) => return Ok(Locked::Elsewhere(None)),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Locked::Elsewhere(pid_in(&file))),
            Err(TryLockError::Error(source)) => return Err(StoreError::Io { path, source }),
        }
        // If one of these fails, the store only looks older than it is, or used by a process without a name.
        let _ = file.set_modified(SystemTime::now());
        let pid = std::process::id().to_string();
        let _ = file.set_len(pid.len() as u64).and_then(|()| write_all_at(&file, pid.as_bytes(), 0));
        Ok(Locked::Here(Lock { file, path }))
    }

    /// Whether its lock is held, and by which process as far as that is known. Takes nothing and creates nothing.
    pub(super) fn is_held(&self) -> Option<Option<u32>> {
        let file = open_private(&self.lock_path(), Missing::Fail).ok()?;
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)).then(|| pid_in(&file))
    }

    /// When it was last opened; the epoch if that is unknown.
    pub(super) fn used(&self) -> SystemTime {
        let modified = fs::symlink_metadata(self.lock_path()).and_then(|found| found.modified());
        modified.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Allocated bytes of disk; the files are sparse.
    pub(super) fn bytes(&self) -> u64 {
        self.files().iter().map(|path| allocated_bytes(path)).sum()
    }

    /// What goes with the store: all of its files but those that outlive it.
    fn files(&self) -> [PathBuf; 4] {
        let answers = self.answers();
        [self.headers(), self.payloads(), replacement(&answers), answers]
    }

    /// Removes its files unless it is in use; returns whether it did. The lock file stays: other processes may wait for
    /// it.
    pub(super) fn remove(&self) -> Result<bool, StoreError> {
        match self.lock()? {
            Locked::Here(lock) => self.remove_files(&lock).map(|()| true),
            Locked::Elsewhere(_) => Ok(false),
        }
    }

    /// Removes its files, whose lock is held.
    pub(super) fn remove_files(&self, _: &Lock) -> Result<(), StoreError> {
        for path in self.files() {
            remove_file(&path).map_err(StoreError::io(&path))?;
        }
        let path = self.root.join(&self.name);
        match fs::remove_dir(&path) {
            // Something else was put there, and stays.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed.map_err(StoreError::io(&path)),
        }
    }

    /// File of the bytes that were written.
    pub(super) fn wear_path(&self) -> PathBuf {
        self.root.join(format!("{}.written", self.name))
    }

    fn lock_path(&self) -> PathBuf {
        self.root.join(format!("{}.lock", self.name))
    }
}

impl Lock {
    /// Whether the file at the lock's path is still the one that is locked.
    pub(super) fn is_in_place(&self) -> bool {
        is_at(&self.file, &self.path)
    }
}

impl Drop for Lock {
    /// A lock that is not held names nobody and takes no disk; its time stays that of the opening.
    fn drop(&mut self) {
        let opened = self.file.metadata().and_then(|found| found.modified());
        let _ = self.file.set_len(0);
        let _ = opened.and_then(|opened| self.file.set_modified(opened));
        // Closing the file is not enough: a child process that is being started briefly holds a copy of it.
        let _ = self.file.unlock();
    }
}

/// The process id in the file of a lock. A process that has just taken the lock has not written it yet.
fn pid_in(file: &File) -> Option<u32> {
    let mut bytes = [0; PID_BYTES_MAX];
    let length = read_at(file, &mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes[..length]).ok()?.trim().parse().ok()
}

/// Behaviour if the file is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// Create it.
    Create,
    /// Fail.
    Fail,
}

/// Opens a plain file to read and write, accessible to this user only.
pub(super) fn open_private(path: &Path, missing: Missing) -> io::Result<File> {
    let file = private().create(missing == Missing::Create).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file")),
    }
}

/// Whether a link, a folder or a pipe is at this path, which is no file of a store.
pub(super) fn is_no_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.is_file())
}

/// Where a file is written that replaces the answers at `path`.
pub(super) fn replacement(path: &Path) -> PathBuf {
    path.with_extension("answers-new")
}

/// Creates an empty file, replacing whatever file or link has its path.
pub(super) fn replace_file(path: &Path) -> io::Result<File> {
    remove_file(path)?;
    // `create_new` fails instead of following a link created in the meantime.
    private().create_new(true).open(path)
}

/// Removes a file that may not exist.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The entries of a directory that may not exist.
fn entries(root: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.collect(),
    }
}

/// Whether a store may have this name.
fn is_name(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.len() == NAME_DIGITS && name.bytes().all(is_digit)
}
