//! The folders of a directory that nodes share: what `object_store` leaves in them, and their flushing.
//!
//! A file is written as `NAME#1`, which no listing shows, and then gets its name. A killed process leaves it. Folders are
//! created with their first file, and stay when it is removed.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// Removes incomplete files and empty folders from before this time in a folder, and in as many `levels` of folders below
/// it. A folder that a node is about to write to has a file from before it is found empty, or is created again.
pub(super) fn remove_left(folder: &Path, levels: usize, before: SystemTime) {
    // What cannot be read is left for the next time.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // A link counts as a file, and is not followed.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && levels > 0 {
            let is_old = is_from_before(&path, before);
            remove_left(&path, levels - 1, before);
            if is_old {
                // Only an empty one can be removed.
                let _ = fs::remove_dir(&path);
            }
        } else if !is_folder && is_incomplete(&path) && is_from_before(&path, before) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Removes a folder whose files were removed, unless a node writes to it again.
pub(super) fn remove(folder: &Path) {
    match (fs::remove_dir(folder), folder.parent()) {
        (Ok(()), Some(parent)) => flush(parent),
        _ => flush(folder),
    }
}

/// Removes a file that was last written at this time, and no other that has its name by now.
///
/// # Errors
/// If it cannot be examined or removed; that it is gone is none.
pub(super) fn remove_unchanged(file: &Path, written: SystemTime) -> io::Result<()> {
    let modified = fs::metadata(file).and_then(|found| found.modified());
    match modified.and_then(|at| if at == written { fs::remove_file(file) } else { Ok(()) }) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes removals in a folder outlast a loss of power, where the system can.
pub(super) fn flush(folder: &Path) {
    // Of a folder that is gone there is nothing that could come back.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

/// Whether the file system can flush a folder. On systems other than Unix nobody does.
pub(super) fn can_be_flushed(folder: &Path) -> bool {
    let flushed = if cfg!(unix) { File::open(folder).and_then(|folder| folder.sync_all()) } else { Ok(()) };
    if let Err(error) = &flushed {
        tracing::warn!(
            "{} cannot be flushed ({error}): a loss of power may take the last changes of conversations",
            folder.display()
        );
    }
    flushed.is_ok()
}

/// Whether a file has the name of one that is being written.
fn is_incomplete(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.rsplit_once('#')).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

fn is_from_before(path: &Path, before: SystemTime) -> bool {
    fs::symlink_metadata(path).and_then(|found| found.modified()).is_ok_and(|modified| modified < before)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_that_was_written_anew_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("1");
        fs::write(&file, "").unwrap();
        let written = file.metadata().unwrap().modified().unwrap();
        remove_unchanged(&file, written - Duration::from_secs(100)).unwrap();
        assert!(file.exists());
        for _ in 0..2 {
            remove_unchanged(&file, written).unwrap();
            assert!(!file.exists());
        }
    }
}
