//! Downloads a file: resumes a partial download, fetches pieces concurrently, verifies the whole, renames it into
//! place.

mod part;
mod ranges;
mod state;
mod whole;

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use sha2::{Digest, Sha256};

use crate::{Hub, Progress, ShelfError, disk, hub};
use part::{Found, Part};

/// Pause between two attempts to get a lock that another process holds.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// A file to be downloaded.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// The repository and the name, for messages.
    pub(crate) what: String,
    pub(crate) url: String,
    /// The final path.
    pub(crate) target: PathBuf,
    pub(crate) size: Option<u64>,
    pub(crate) sha256: Option<String>,
    /// Whether the URL names a commit, so that its content never changes.
    pub(crate) is_pinned: bool,
}

/// Progress reports for a file of a download.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    pub(crate) progress: &'a dyn Progress,
    /// The file's index.
    pub(crate) file: usize,
}

impl Watch<'_> {
    fn check(&self) -> Result<(), ShelfError> {
        match self.progress.cancelled() {
            true => Err(ShelfError::Cancelled),
            false => Ok(()),
        }
    }
}

/// Ensures that the file is at its target. Returns its size and its checksum, if one is known.
pub(crate) fn download(
    hub: &Hub,
    wanted: &Wanted,
    earlier: &[PathBuf],
    watch: Watch<'_>,
) -> Result<(u64, Option<String>), ShelfError> {
    if let Some(size) = present(wanted) {
        watch.progress.bytes(watch.file, size, Some(size));
        return Ok((size, wanted.sha256.clone()));
    }
    let part = match lock(wanted, watch)? {
        Found::Target(size) => {
            watch.progress.bytes(watch.file, size, Some(size));
            return Ok((size, wanted.sha256.clone()));
        }
        Found::Part(file) => Part::new(wanted, file),
    };
    if let Some(size) = linked(wanted, earlier, watch)? {
        part.discard()?;
        return Ok((size, wanted.sha256.clone()));
    }
    let (size, sha256) = fetch(hub, wanted, &part, watch)?;
    part.finish(size, sha256.as_deref(), watch)?;
    Ok((size, sha256))
}

/// The size of the target, if it exists with the right size: it is renamed into place only when it is complete.
fn present(wanted: &Wanted) -> Option<u64> {
    let size = fs::metadata(&wanted.target).ok().filter(fs::Metadata::is_file)?.len();
    wanted.size.is_none_or(|expected| expected == size).then_some(size)
}

/// Opens and locks the part file, or finds that another process has completed the download.
fn lock(wanted: &Wanted, watch: Watch<'_>) -> Result<Found, ShelfError> {
    let path = part::path_of(&wanted.target);
    let directory = wanted.target.parent().unwrap_or(Path::new("."));
    let failed = ShelfError::io(&path);
    let mut told = None;
    loop {
        watch.check()?;
        if let Some(size) = present(wanted) {
            return Ok(Found::Target(size));
        }
        disk::create_directory(directory).map_err(ShelfError::io(directory))?;
        let file = match disk::open_to_lock(&path) {
            // A process that removes the last file of a directory removes the directory as well.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(&failed)?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let holder = state::holder(&wanted.target);
                if told.as_ref() != Some(&holder) {
                    watch.progress.waiting(watch.file, &holder);
                    told = Some(holder);
                }
                hub::sleep(LOCK_PAUSE, watch.progress)?;
                continue;
            }
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        // The previous holder may have renamed or removed the file meanwhile: then this locks an unlinked file.
        if !disk::is_at(&file, &path) {
            continue;
        }
        // A part file of another user can only be resumed by that user.
        if present(wanted).is_none() && !disk::is_writable(&path) {
            Part::new(wanted, file).discard()?;
            continue;
        }
        return Ok(match present(wanted) {
            Some(size) => {
                disk::remove(&path).map_err(&failed)?;
                Found::Target(size)
            }
            None => Found::Part(file),
        });
    }
}

/// Links the target to a candidate among the existing files, if that has the right checksum.
fn linked(wanted: &Wanted, earlier: &[PathBuf], watch: Watch<'_>) -> Result<Option<u64>, ShelfError> {
    let (Some(size), Some(sha256)) = (wanted.size, &wanted.sha256) else { return Ok(None) };
    for path in earlier {
        let has_size = fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == size);
        if !has_size {
            continue;
        }
        watch.progress.checking(watch.file);
        let found = File::open(path).map(|file| sha256_of(file, watch));
        if !matches!(found, Ok(Ok(Ok(found))) if found == *sha256) {
            continue;
        }
        let _ = fs::remove_file(&wanted.target);
        if fs::hard_link(path, &wanted.target).is_ok() {
            disk::sync_directory_of(&wanted.target).map_err(ShelfError::io(&wanted.target))?;
            watch.progress.bytes(watch.file, size, Some(size));
            return Ok(Some(size));
        }
    }
    Ok(None)
}

/// Fetches all bytes into the part. Returns their number and the checksum they should have.
fn fetch(
    hub: &Hub,
    wanted: &Wanted,
    part: &Part,
    watch: Watch<'_>,
) -> Result<(u64, Option<String>), ShelfError> {
    let directory = part.path.parent().unwrap_or(Path::new("."));
    if let Some(size) = wanted.size {
        let needed = size.saturating_sub(disk::allocated(&part.file));
        let free = hub.tuning.free_in(directory);
        if let Some(free) = free.filter(|free| *free < needed) {
            if needed == size {
                part.discard()?;
            }
            return Err(ShelfError::NoRoom { path: wanted.target.clone(), needed, free: Some(free) });
        }
        match ranges::fetch(hub, wanted, part, size, watch)? {
            ranges::Outcome::Complete(sha256) => return Ok((size, sha256)),
            ranges::Outcome::NoRanges => {}
        }
    }
    whole::fetch(hub, wanted, part, watch)
}

/// SHA-256 of the rest of a file, in hexadecimal.
fn sha256_of(mut file: File, watch: Watch<'_>) -> io::Result<Result<String, ShelfError>> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        if let Err(cancelled) = watch.check() {
            return Ok(Err(cancelled));
        }
        match file.read(&mut buffer)? {
            0 => break,
            count => digest.update(&buffer[..count]),
        }
    }
    Ok(Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Converts a write error, distinguishing a lack of room.
fn write_error(part: &Part, needed: u64) -> impl Fn(io::Error) -> ShelfError {
    move |error| match disk::is_no_room(&error) {
        true => {
            let free = part.path.parent().and_then(disk::free_bytes);
            ShelfError::NoRoom { path: part.target.clone(), needed, free }
        }
        false => ShelfError::Io { path: part.path.clone(), source: error },
    }
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Holds a part, and moves it away when another process waits for it.
    struct Holder {
        part: PathBuf,
        lock: Mutex<Option<File>>,
    }

    impl Progress for Holder {
        fn waiting(&self, _: usize, _: &str) {
            fs::rename(&self.part, self.part.with_extension("elsewhere")).unwrap();
            *self.lock.lock().unwrap() = None;
        }
    }

    #[test]
    fn the_lock_of_a_part_that_was_taken_away_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("m");
        let part = part::path_of(&target);
        let file = disk::open_to_lock(&part).unwrap();
        file.lock().unwrap();
        let holder = Holder { part: part.clone(), lock: Mutex::new(Some(file)) };
        let (what, url) = ("m".into(), "http://hub/m".into());
        let wanted = Wanted { what, url, target, size: Some(1), sha256: None, is_pinned: false };
        let Found::Part(locked) = lock(&wanted, Watch { progress: &holder, file: 0 }).unwrap() else {
            panic!("there is no target");
        };
        assert!(disk::is_at(&locked, &part), "who comes now finds it locked");
        assert!(disk::open_to_lock(&part).unwrap().try_lock().is_err());
    }
}
