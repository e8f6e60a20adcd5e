//! The identity and modification time of a file, by which its bytes are known to be unchanged.

use std::fs::{File, Metadata};
use std::time::{Duration, SystemTime};

/// Minimum age of the last change: a more recent one may be followed by another within the resolution of the
/// timestamp.
const SETTLED: Duration = Duration::from_secs(2);

/// An open file and its state when it was opened.
#[derive(Debug)]
pub struct Stamp {
    file: File,
    seen: Seen,
}

/// Device, inode, size, modification time and change time: the change time is set by the system alone, so that no
/// change of a file can be hidden.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: [i64; 2],
    changed: [i64; 2],
}

impl Stamp {
    /// The stamp of a file; `None` if it changed a moment ago, or if the system has no file identities.
    pub fn of(file: &File) -> Option<Stamp> {
        let file = file.try_clone().ok()?;
        let seen = Seen::of(&file.metadata().ok()?)?;
        seen.is_settled(SystemTime::now()).then_some(Stamp { file, seen })
    }

    /// Whether the file is unchanged.
    pub fn is_unchanged(&self) -> bool {
        self.file.metadata().ok().and_then(|now| Seen::of(&now)).is_some_and(|now| now == self.seen)
    }

    /// The identity and times as text.
    pub fn text(&self) -> String {
        format!("{:?}", self.seen)
    }
}

impl Seen {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Option<Seen> {
        use std::os::unix::fs::MetadataExt;
        Some(Seen {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: [metadata.mtime(), metadata.mtime_nsec()],
            changed: [metadata.ctime(), metadata.ctime_nsec()],
        })
    }

    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Option<Seen> {
        None
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::from_secs(self.changed[0].max(self.modified[0]).max(0).unsigned_abs());
        now.checked_sub(changed).is_some_and(|age| age > SETTLED)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_that_changed_is_another() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        assert!(Stamp::of(file.as_file()).is_none(), "it was made a moment ago");
        file.write_all(b"weights").unwrap();
        let seen = Seen::of(&file.as_file().metadata().unwrap()).unwrap();
        let stamp = Stamp { file: file.as_file().try_clone().unwrap(), seen };
        assert!(stamp.is_unchanged());
        let modified = file.as_file().metadata().unwrap().modified().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        file.as_file().write_all_at(b"W", 0).unwrap();
        file.as_file().set_modified(modified).unwrap();
        assert!(
            !stamp.is_unchanged(),
            "of the same size and the same time of change as far as one can say so"
        );
    }

    #[test]
    fn a_file_settles_after_a_while() {
        let at = |seconds: i64| Seen {
            device: 1,
            inode: 2,
            bytes: 3,
            modified: [seconds, 5],
            changed: [seconds, 5],
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        assert!(at(900).is_settled(now) && !at(999).is_settled(now));
        assert!(!at(2000).is_settled(now), "a clock that was set back tells nothing");
    }
}
