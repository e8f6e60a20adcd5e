//! Checks of the directories: whether they are writable, their free space, and the speed of their disk.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kvik_engine::store::{bytes_allowed, wear, writers};

use super::report::Diagnosis;
use crate::command::serve_args::ServeArgs;
use kvik_server::clock::unix_seconds;
use kvik_serving::settings::size::ByteSize;

/// Bytes that are written and read at a time.
const PIECE_BYTES: usize = 4 << 20;
/// Maximum bytes that are written, and maximum duration.
const TRIAL_BYTES: u64 = 64 << 20;
const TRIAL_TIME: Duration = Duration::from_secs(1);
/// A smaller disk cache holds few prompts.
const CACHE_BYTES_MIN: u64 = 256 << 20;
/// At fewer bytes per second small models compute a prompt as fast as it is read.
const SPEED_MIN: f64 = 100e6;

/// All directories that a server with these flags uses, and the configuration file of its settings.
pub(super) fn all(args: &ServeArgs, config: Option<&Path>) -> Vec<Diagnosis> {
    let models = args.model.models_dir.directory();
    vec![
        directory("state directory", args.state.folder(), "--state-dir"),
        directory("models directory", models, "--models-dir"),
        disk_cache(args.cache.cache_disk.directory(), args.cache.cache_disk_size),
        config_file(config),
    ]
}

/// A directory that must be writable, and the flag that selects another.
fn directory(subject: &'static str, dir: Option<PathBuf>, flag: &str) -> Diagnosis {
    let Some(dir) = dir else { return no_home(subject, flag) };
    match Trial::in_directory(&dir) {
        Ok(_) => Diagnosis::ok(subject, format!("{} can be written", dir.display())),
        Err(error) => cannot_write(subject, &dir, &error, flag),
    }
}

fn no_home(subject: &'static str, flag: &str) -> Diagnosis {
    Diagnosis::note(subject, "none: this user has no home directory", format!("name one with {flag}"))
}

fn cannot_write(subject: &'static str, dir: &Path, error: &io::Error, flag: &str) -> Diagnosis {
    let found = format!("{} cannot be written: {error}", dir.display());
    Diagnosis::wrong(subject, found, format!("let this user write there, or name another with {flag}"))
}

/// The disk cache: its directory, its free space, and the speed of its disk.
fn disk_cache(dir: Option<PathBuf>, size: ByteSize) -> Diagnosis {
    const SUBJECT: &str = "disk cache";
    let Some(dir) = dir else {
        return Diagnosis::ok(
            SUBJECT,
            "off, or without a home directory: a restart forgets what was computed",
        );
    };
    let allowed = match bytes_for_cache(bytes_allowed(&dir), size) {
        Ok(allowed) => allowed,
        Err(error) => return cannot_write(SUBJECT, &dir, &error, "--cache-disk"),
    };
    // No more than the cache itself would write.
    let measured =
        Trial::in_directory(&dir).and_then(|mut trial| trial.speed(TRIAL_BYTES.min(allowed), TRIAL_TIME));
    match measured {
        Ok(speed) => speed.judge(&dir, allowed),
        Err(error) => cannot_write(SUBJECT, &dir, &error, "--cache-disk"),
    }
}

/// The bytes that a disk cache takes: as the flag says, or less if the system reports that less is free.
fn bytes_for_cache(reported: io::Result<u64>, size: ByteSize) -> io::Result<u64> {
    match reported {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(size.0),
        reported => reported.map(|free| free.min(size.0)),
    }
}

/// Whether there is a configuration file. An existing one was read before this command ran.
fn config_file(path: Option<&Path>) -> Diagnosis {
    const SUBJECT: &str = "configuration";
    match path {
        Some(path) if path.exists() => Diagnosis::ok(SUBJECT, format!("{} is in force", path.display())),
        Some(path) => Diagnosis::ok(SUBJECT, format!("none; it would stand in {}", path.display())),
        None => Diagnosis::ok(SUBJECT, "none, and no home directory for one; --config names one"),
    }
}

/// A file that is created to test a directory, and removed.
struct Trial {
    path: PathBuf,
    file: File,
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Trial {
    /// Creates it in a directory, or in the nearest existing ancestor.
    fn in_directory(dir: &Path) -> io::Result<Trial> {
        let existing = dir.ancestors().find(|path| path.symlink_metadata().is_ok());
        let path = existing.unwrap_or(Path::new(".")).join(format!(".kvik-doctor-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        Ok(Trial { path, file })
    }

    /// Writes up to `bytes_max` bytes within about `time`, waits until they are on the disk, and reads them back.
    fn speed(&mut self, bytes_max: u64, time: Duration) -> io::Result<DiskSpeed> {
        let mut piece = noise(PIECE_BYTES.min(usize::try_from(bytes_max).unwrap_or(usize::MAX)).max(1));
        let (started, mut bytes) = (Instant::now(), 0);
        while bytes < bytes_max && (bytes == 0 || started.elapsed() < time) {
            self.file.write_all(&piece)?;
            self.file.sync_data()?;
            bytes += piece.len() as u64;
        }
        let write_bytes_per_s = per_second(bytes, started.elapsed());
        let from_disk = forget_pages(&self.file);
        self.file.rewind()?;
        let started = Instant::now();
        let mut read = 0;
        while read < bytes {
            self.file.read_exact(&mut piece)?;
            read += piece.len() as u64;
        }
        let read_bytes_per_s = from_disk.then(|| per_second(read, started.elapsed()));
        Ok(DiskSpeed { write_bytes_per_s, read_bytes_per_s })
    }
}

/// Incompressible bytes.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}

fn per_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9)
}

/// Asks the system to drop a file from its page cache; false if this is not supported.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn forget_pages(file: &File) -> bool {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).is_ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn forget_pages(_: &File) -> bool {
    false
}

/// The processes that write a disk cache now.
fn users(dir: &Path) -> String {
    let named =
        |pid: Option<u32>| pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    let writers: Vec<String> = writers(dir).into_iter().map(named).collect();
    match writers.as_slice() {
        [] => String::new(),
        some => {
            format!("; {} writes there: others of the same model read that, and take over", some.join(", "))
        }
    }
}

/// Bytes that the disk cache has written, as the end of a sentence; nothing before its first byte.
fn written(today_bytes: u64, year_bytes: u64) -> String {
    match year_bytes {
        0 => String::new(),
        _ => format!(
            "; {} were written today, a year at this rate is {}",
            ByteSize(today_bytes),
            ByteSize(year_bytes)
        ),
    }
}

/// Write and read speed of a disk.
#[derive(Debug, Clone, Copy)]
struct DiskSpeed {
    write_bytes_per_s: f64,
    /// `None` if the system would read the data from its page cache.
    read_bytes_per_s: Option<f64>,
}

impl DiskSpeed {
    /// The diagnosis for a disk cache of `allowed` bytes.
    fn judge(self, dir: &Path, allowed: u64) -> Diagnosis {
        const SUBJECT: &str = "disk cache";
        let DiskSpeed { write_bytes_per_s, read_bytes_per_s } = self;
        let read = read_bytes_per_s.map_or_else(
            || "reading was not measured".to_owned(),
            |read| format!("reads {:.0} MB/s", read / 1e6),
        );
        let (written_so_far, now_s) = (wear(dir), unix_seconds());
        let (today_bytes, year_bytes) = (written_so_far.today(now_s), written_so_far.year(now_s));
        let found = format!(
            "{} in {}; the disk {read} and writes {:.0} MB/s{}{}",
            ByteSize(allowed),
            dir.display(),
            write_bytes_per_s / 1e6,
            written(today_bytes, year_bytes),
            users(dir)
        );
        let diagnosis = if allowed < CACHE_BYTES_MIN {
            Diagnosis::note(
                SUBJECT,
                found,
                "few prompts fit: free some space, or name another directory with --cache-disk",
            )
        } else if read_bytes_per_s.unwrap_or(write_bytes_per_s) < SPEED_MIN {
            Diagnosis::note(
                SUBJECT,
                found,
                "computing may be faster than reading: --cache-disk names a faster disk, or off",
            )
        } else {
            Diagnosis::ok(SUBJECT, found)
        };
        let diagnosis = match read_bytes_per_s {
            Some(read) => diagnosis.with("read_bytes_per_s", read.round() as u64),
            None => diagnosis,
        };
        diagnosis
            .with("write_bytes_per_s", write_bytes_per_s.round() as u64)
            .with("bytes_max", allowed)
            .with("written_bytes_today", today_bytes)
            .with("written_bytes_per_year", year_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    fn entries(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    /// Covers directories that exist, that do not exist yet, and that cannot exist: even root cannot write below a
    /// file.
    #[test]
    fn a_directory_that_cannot_be_written_is_wrong_and_nothing_is_left_behind() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "x").unwrap();
        let check = |sub: &str, expect: Verdict| {
            let dir = root.path().join(sub);
            let found = directory("state directory", Some(dir.clone()), "--state-dir");
            assert_eq!(found.verdict, expect, "{sub}: {}", found.found);
            let cached = disk_cache(Some(dir), ByteSize(1 << 20));
            assert_eq!(cached.verdict == Verdict::Wrong, expect == Verdict::Wrong, "{sub}: {}", cached.found);
            assert_eq!(
                found.remedy.is_some_and(|remedy| remedy.contains("--state-dir")),
                expect == Verdict::Wrong
            );
            assert_eq!(entries(root.path()), 1, "{sub}");
        };
        check("", Verdict::Ok);
        check("new/and/deeper", Verdict::Ok);
        check("file", Verdict::Wrong);
        check("file/kv", Verdict::Wrong);
        let relative = disk_cache(Some("not/there".into()), ByteSize(1 << 20));
        assert_ne!(relative.verdict, Verdict::Wrong, "{}", relative.found);
        assert_eq!(directory("state directory", None, "--state-dir").verdict, Verdict::Note);
        assert_eq!(disk_cache(None, ByteSize(1)).verdict, Verdict::Ok);
    }

    /// Windows does not report it.
    #[test]
    fn a_disk_whose_free_space_is_not_reported_is_no_error() {
        let failed = |kind: io::ErrorKind| Err(io::Error::from(kind));
        for (reported, expect) in [
            (Ok(3), Some(3)),
            (Ok(9), Some(5)),
            (failed(io::ErrorKind::Unsupported), Some(5)),
            (failed(io::ErrorKind::PermissionDenied), None),
        ] {
            assert_eq!(bytes_for_cache(reported, ByteSize(5)).ok(), expect);
        }
    }

    #[test]
    fn the_configuration_file_is_the_one_that_was_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("kvik.toml");
        let found = |path: Option<&Path>| config_file(path).found;
        assert_eq!(found(Some(path.as_path())), format!("none; it would stand in {}", path.display()));
        fs::write(&path, "").unwrap();
        assert_eq!(found(Some(path.as_path())), format!("{} is in force", path.display()));
        assert!(found(None).contains("--config"));
    }

    #[test]
    fn what_is_read_is_what_was_written_however_little_that_is() {
        let root = tempfile::tempdir().unwrap();
        for bytes in [1, 4095, PIECE_BYTES as u64, 2 * PIECE_BYTES as u64 + 1] {
            let mut trial = Trial::in_directory(root.path()).unwrap();
            let speed = trial.speed(bytes, Duration::ZERO).unwrap();
            assert!(speed.write_bytes_per_s > 0.0 && speed.read_bytes_per_s.is_none_or(|read| read > 0.0));
            // Out of time after the first piece.
            assert_eq!(trial.file.metadata().unwrap().len(), bytes.min(PIECE_BYTES as u64));
        }
        assert_eq!(entries(root.path()), 0);
    }

    #[test]
    fn a_slow_disk_and_a_full_one_are_told() {
        let check = |read: Option<f64>, write: f64, allowed: u64, expect| {
            let speed = DiskSpeed { write_bytes_per_s: write, read_bytes_per_s: read };
            assert_eq!(speed.judge(Path::new("/d"), allowed).verdict, expect, "{speed:?} {allowed}");
        };
        check(Some(2e9), 1e9, 8 << 30, Verdict::Ok);
        check(Some(2e9), 1e9, 1 << 20, Verdict::Note);
        check(Some(20e6), 1e9, 8 << 30, Verdict::Note);
        check(None, 20e6, 8 << 30, Verdict::Note);
        check(None, 1e9, 8 << 30, Verdict::Ok);
    }

    #[test]
    fn noise_does_not_repeat_itself() {
        let noise = noise(4096);
        let words: std::collections::HashSet<&[u8]> = noise.chunks(8).collect();
        assert_eq!(words.len(), 512);
    }
}
