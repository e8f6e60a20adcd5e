//! Operating-system functions: atomic replacement of files, file locks, and free space.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Replaces the file at `path` by `bytes` atomically: after a crash there is either the old or the new file.
///
/// The caller holds a lock that keeps others from replacing the same file: the temporary file has a fixed name, so
/// that a leftover of a crash is replaced by the next writer.
pub(crate) fn replace(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    // Another user's leftover may not be writable, but can be removed.
    remove(temporary)?;
    let mut file = OpenOptions::new().write(true).create_new(true).open(temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    sync_directory_of(path)
}

/// Reads a small regular file of the shelf or of the machine's administrator. Others are refused: reading a pipe
/// might wait forever, and a device never ends.
pub(crate) fn read_small(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("more than {bytes_max} bytes are too many"),
        ));
    }
    Ok(bytes)
}

/// Creates a directory and its ancestors, while others may remove them: if one exists at its creation but is gone
/// afterwards, this is retried for a while.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let raced =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound);
    let start = Instant::now();
    loop {
        match fs::create_dir_all(path) {
            // A file in the place of a directory is left there.
            Err(error) if raced(&error) && !path.is_file() && start.elapsed() < PATIENCE => {
                thread::yield_now()
            }
            made => return made,
        }
    }
}

/// Removes a file that may not exist.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens a file for its lock and its bytes, creating it if need be. Without permission to write, it is opened for
/// reading, which is enough for the lock.
pub(crate) fn open_to_lock(path: &Path) -> io::Result<File> {
    match OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(path),
        other => other,
    }
}

/// Returns whether this user may write the file.
pub(crate) fn is_writable(path: &Path) -> bool {
    OpenOptions::new().write(true).open(path).is_ok()
}

/// Makes renames and removals in the directory of `path` survive a power failure, where the system supports that.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if cfg!(unix) => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}

/// Returns whether an error means that there is no room: a full disk, a quota, or a limit on the size of files.
pub(crate) fn is_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(unix)]
pub(crate) use unix::{allocated, free_bytes, is_at, is_same_entry, reserve, write_at};

#[cfg(unix)]
mod unix {
    use std::{
        fs::{self, File},
        io,
        os::unix::fs::{FileExt, MetadataExt},
        path::Path,
    };

    /// Returns whether the open file is the one that now has this path.
    pub(crate) fn is_at(file: &File, path: &Path) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match (file.metadata(), fs::metadata(path)) {
            (Ok(open), Ok(there)) => identity(open) == identity(there),
            _ => false,
        }
    }

    /// Returns whether two paths name one file of one folder. A file with two names in two folders is not meant.
    pub(crate) fn is_same_entry(one: &Path, other: &Path) -> bool {
        let identity = |path: &Path| {
            let found = fs::symlink_metadata(path).ok()?;
            Some((found.dev(), found.ino()))
        };
        let entry = |path: &Path| Some((identity(path)?, identity(path.parent()?)?));
        entry(one).is_some_and(|one| entry(other) == Some(one))
    }

    /// Allocated bytes of a file; a sparse one has fewer than its length.
    pub(crate) fn allocated(file: &File) -> u64 {
        file.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// Bytes that this user may still write to the file system of `path`.
    pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
        let stat = rustix::fs::statvfs(path).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Makes the file `len` bytes long, and allocates the space if the file system can, so that a full disk is
    /// noticed now.
    pub(crate) fn reserve(file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)?;
        #[cfg(target_os = "linux")]
        if len > 0 {
            use rustix::{fs::FallocateFlags, io::Errno};
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
                // Not every file system supports this.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes all bytes at an offset, concurrently with writes elsewhere in the file.
    pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }
}

#[cfg(not(unix))]
pub(crate) use other::{allocated, free_bytes, is_at, is_same_entry, reserve, write_at};

#[cfg(not(unix))]
mod other {
    use std::{
        fs::File,
        io::{self, Seek, SeekFrom, Write},
        path::Path,
        sync::Mutex,
    };

    pub(crate) fn is_at(_: &File, path: &Path) -> bool {
        path.exists()
    }

    pub(crate) fn is_same_entry(one: &Path, other: &Path) -> bool {
        one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| other == one))
    }

    pub(crate) fn allocated(_: &File) -> u64 {
        0
    }

    pub(crate) fn free_bytes(_: &Path) -> Option<u64> {
        None
    }

    pub(crate) fn reserve(file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    /// Seeking and writing are two steps, so one thread at a time takes both.
    pub(crate) fn write_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    #[test]
    fn a_leftover_of_a_crash_does_not_stop_the_next_that_writes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("a"), dir.path().join(".new"));
        fs::write(&temporary, "half of som").unwrap();
        replace(&path, &temporary, b"whole").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert!(!temporary.exists());
        remove(&temporary).unwrap();
    }

    #[test]
    fn a_small_file_is_read_within_its_bound_and_nothing_else_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifest");
        fs::write(&path, b"four").unwrap();
        assert_eq!(read_small(&path, 4).unwrap(), b"four");
        assert_eq!(read_small(&path, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_small(dir.path(), 4).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        if cfg!(unix) {
            let fifo = dir.path().join("fifo");
            assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
            for endless in [Path::new("/dev/zero"), &fifo] {
                assert_eq!(read_small(endless, 4).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            }
        }
    }

    #[test]
    fn a_directory_is_made_while_others_remove_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        let is_done = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = fs::remove_dir(&path);
                    let _ = fs::remove_dir(path.parent().unwrap());
                }
            });
            let made = (0..2_000).try_for_each(|_| create_directory(&path));
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            made.unwrap();
        });
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_was_replaced_is_not_at_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = open_to_lock(&path).unwrap();
        assert!(is_at(&file, &path));
        fs::rename(&path, dir.path().join("b")).unwrap();
        assert!(!is_at(&file, &path));
        open_to_lock(&path).unwrap();
        assert!(!is_at(&file, &path));
        assert!(free_bytes(&path).unwrap() > 0);
    }
}
