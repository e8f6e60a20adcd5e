//! The process that has a file of records open, by a small file beside it, so that others know whom they would wait for.
//!
//! The file is there from the opening until its process begins to end. Records that are locked without it will be free
//! soon: their process is about to end, has only just begun, or reads them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::private::readable_by_owner_only;

/// The file of this process, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct HolderFile(PathBuf);

impl HolderFile {
    /// Writes down that this process has the records at `records`. If that fails, others wait for it.
    pub(super) fn of(records: &Path) -> HolderFile {
        let path = beside(records);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        readable_by_owner_only(&mut options);
        let written = options.open(&path).and_then(|mut file| write!(file, "{}", std::process::id()));
        if let Err(error) = written {
            tracing::debug!("{} is not written: {error}", path.display());
        }
        HolderFile(path)
    }
}

impl Drop for HolderFile {
    /// The records will be free soon.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The process that has the records at `records` open and does not end yet. A file that a killed process has left behind
/// names nobody, and neither does that of records which are only read.
pub(super) fn holder(records: &Path) -> Option<u32> {
    let pid = fs::read_to_string(beside(records)).ok()?.trim().parse().ok()?;
    let is_locked = File::open(records).is_ok_and(|file| file.try_lock_shared().is_err());
    is_locked.then_some(pid)
}

fn beside(records: &Path) -> PathBuf {
    records.with_extension("pid")
}
