//! Small durable records: one database file, opened once, that hands out typed tables.
//!
//! A record is JSON under a text key, so that later versions can add fields and people can read it. The writes of one
//! call are atomic, even if the process ends at any point. `open` renames a broken or foreign file aside and starts a
//! new one: a bad file must not keep the server from starting. An unreadable record is kept in a separate table, under
//! its own key, when it is replaced, and until its key is erased.
//!
//! After an error of the file system (a full disk, say), the next access reopens the file, at most one attempt per
//! pause; once reopening succeeds, the records work as before ([`RecordsError::is_outage`]).
//!
//! A thread that reads or writes acquires a slot of the file, and can be made to release resources that others wait for
//! meanwhile ([`GiveWay`]): a file system that hangs blocks a few threads and nothing else.
//!
//! Only one process at a time writes. A reader copies the file and locks it only while copying; a writer waits for
//! that, and for a writer that is about to end, but not for one that goes on.

mod database;
mod file;
mod file_turns;
mod holder;
pub mod map;
pub mod private;
mod table;
mod unreadable;

use std::{
    fs::{File, TryLockError},
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use redb::{DatabaseError, ReadableDatabase, StorageBackend, TableHandle, backends::InMemoryBackend};
use serde::{Serialize, de::DeserializeOwned};

use database::{builder, create_at, has_one_aside, in_memory, is_broken, set_aside};
use file::RecordsFile;
use holder::holder;
use private::create_private_folder;

pub use file_turns::{FileSilent, FileTurns};
pub use table::{FoundRecords, Table};

/// Name of the file in the state directory.
pub const FILE_NAME: &str = "records.redb";
/// Maximum time that a server waits for another process that has locked the file for a moment: a reader, or a server
/// that is stopping.
pub const LOCK_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of threads that access the file at a time, and therefore of threads that a hung file blocks.
const FILE_PLACES: usize = 8;
/// Pause between two attempts to lock the file.
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// The open file; a clone is another handle to it.
#[derive(Clone)]
pub struct Records {
    file: Arc<RecordsFile>,
    /// Model whose tables these are, if each of several models has its own.
    model: Option<Arc<str>>,
    give_way: GiveWay,
    /// Whether this process has begun the file.
    is_new: bool,
}

/// Runs a blocking call, with the calling thread's shared resources (its compute slot, say) released meanwhile.
pub type GiveWay = fn(&mut dyn FnMut());

/// An error of reading or writing the records.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// Another process has the file open.
    #[error("{} is in use by another kvik; give this one another --state-dir", .0.display())]
    InUse(PathBuf),
    /// The file system returned an error.
    #[error("the records in {} cannot be opened: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Reading or writing failed.
    #[error("the records cannot be read or written: {0}")]
    Access(#[from] Box<redb::Error>),
    /// The file system has failed, and the file is not open.
    #[error("the file that this is kept in cannot be used now: {0}; send it again when that is mended")]
    Unavailable(String),
    /// The rewrite failed, so removed records may still be in the file.
    #[error("{} cannot be written anew: {error}", path.display())]
    Rewrite {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file system does not answer.
    #[error(transparent)]
    Silent(#[from] FileSilent),
}

impl Records {
    /// Opens or creates the records in `folder`; waits up to `patience` for another process that is about to close them.
    pub fn open(folder: &Path, patience: Duration) -> Result<Records, RecordsError> {
        let path = folder.join(FILE_NAME);
        create_private_folder(folder).map_err(|error| unopened(&path, error))?;
        let start = Instant::now();
        // A process that was killed at once leaves an empty one.
        let mut is_new = !path.metadata().is_ok_and(|found| found.len() > 0);
        let mut opened = create_at(&path);
        while matches!(opened, Err(DatabaseError::DatabaseAlreadyOpen))
            && holder(&path).is_none()
            && start.elapsed() < patience
        {
            std::thread::sleep(LOCK_RETRY);
            opened = create_at(&path);
        }
        if let Err(error) = &opened
            && is_broken(error)
        {
            set_aside(&path, error).map_err(|error| unopened(&path, error))?;
            is_new = true;
            opened = create_at(&path);
        }
        match opened {
            Ok(database) => {
                file::remove_left(&path);
                Ok(Records { is_new, ..Records::of(RecordsFile::at(&path, database)) })
            }
            Err(DatabaseError::DatabaseAlreadyOpen) => Err(RecordsError::InUse(path)),
            Err(error) => Err(unopened(&path, error)),
        }
    }

    /// Whether other records may be put in the place of these: this process has begun the file, or one that could not be
    /// used is kept beside it. Then what else is on the disk may belong to records that these lack.
    pub fn may_be_replaced(&self) -> bool {
        self.is_new || self.file.path().is_some_and(has_one_aside)
    }

    /// The process that has the records in `folder` open, unless it is about to close them.
    pub fn holder(folder: &Path) -> Option<u32> {
        holder(&folder.join(FILE_NAME))
    }

    /// Announces that this process is about to end: another one that opens the records waits for it.
    pub fn leave(&self) {
        self.file.leave();
    }

    /// Closes the file for all handles, whose calls fail from here on: another one may open it.
    pub fn close(&self) {
        self.file.close();
    }

    /// A copy, in memory, of the records in `folder`; `None` without a file. Changes nothing there, and
    /// locks the file only while reading it.
    pub fn copy(folder: &Path) -> Result<Option<Records>, RecordsError> {
        let path = folder.join(FILE_NAME);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| unopened(&path, error))?,
        };
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(RecordsError::InUse(path)),
            Err(TryLockError::Error(error)) => return Err(unopened(&path, error)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| unopened(&path, error))?;
        // Closing the file releases the lock.
        drop(file);
        let memory = in_memory(&bytes).map_err(|error| unopened(&path, error))?;
        let database = builder().create_with_backend(memory).map_err(|error| unopened(&path, error))?;
        Ok(Some(Records::of(RecordsFile::in_memory(database))))
    }

    /// Records that end with the process.
    pub fn in_memory() -> Records {
        let database = builder().create_with_backend(InMemoryBackend::new());
        Records::of(RecordsFile::in_memory(
            database.expect("a new database in memory has nothing that could fail"),
        ))
    }

    /// Opens records over a storage backend.
    ///
    /// # Errors
    /// If the backend holds something that is not a database.
    pub fn over(backend: impl StorageBackend) -> Result<Records, DatabaseError> {
        Ok(Records::of(RecordsFile::in_memory(builder().create_with_backend(backend)?)))
    }

    /// Opens records over a storage backend, which is reopened after a fault.
    ///
    /// # Errors
    /// If the backend holds something that is not a database.
    pub fn over_again<B: StorageBackend>(
        open: impl Fn() -> B + Send + Sync + 'static,
    ) -> Result<Records, DatabaseError> {
        let open = move || builder().create_with_backend(open());
        Ok(Records::of(RecordsFile::reopened_by(open()?, Box::new(open))))
    }

    /// Rewrites the file, so that nothing of removed records is left in it. Takes as long as copying its contents.
    ///
    /// # Errors
    /// If removed records may still be in the file.
    pub fn rewrite(&self) -> Result<(), RecordsError> {
        self.file.rewrite(self.give_way)
    }

    /// Full names of all tables called `name`, whether of one model or of several, as
    /// [`named_table`](Records::named_table) takes them.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn tables_of_models(&self, name: &str) -> Result<Vec<String>, RecordsError> {
        let names = self.file.visit(self.give_way, |database| {
            let read = database.begin_read().map_err(access)?;
            let tables = read.list_tables().map_err(access)?;
            Ok(tables.map(|table| table.name().to_owned()).collect::<Vec<String>>())
        })?;
        let is_it = |found: &String| {
            found.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
        };
        Ok(names.into_iter().filter(is_it).collect())
    }

    /// The table of exactly this name.
    pub fn named_table<T: Serialize + DeserializeOwned>(&self, name: &str) -> Table<T> {
        Table::new(self.file.clone(), name.into(), self.give_way)
    }

    /// Makes readers and writers run `give_way` while they wait for the file.
    #[must_use]
    pub fn giving_way(self, give_way: GiveWay) -> Records {
        Records { give_way, ..self }
    }

    /// The function that readers and writers run blocking calls with; for other blocking calls too.
    pub(crate) fn give_way(&self) -> GiveWay {
        self.give_way
    }

    /// The table `name`; tables of different types must have different names.
    pub fn table<T: Serialize + DeserializeOwned>(&self, name: &'static str) -> Table<T> {
        let name = self.model.as_ref().map_or_else(|| name.into(), |model| format!("{name}@{model}").into());
        Table::new(self.file.clone(), name, self.give_way)
    }

    /// Handle to the tables of one of several models: the names are the same, the tables separate.
    pub fn of_model(&self, name: &str) -> Records {
        Records { model: Some(name.into()), ..self.clone() }
    }

    fn of(file: RecordsFile) -> Records {
        Records { file: Arc::new(file), model: None, give_way: |wait| wait(), is_new: false }
    }
}

fn unopened(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> RecordsError {
    RecordsError::Open { path: path.to_owned(), error: error.into() }
}

fn access(error: impl Into<redb::Error>) -> RecordsError {
    RecordsError::Access(Box::new(error.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    pub(super) fn fill(folder: &Path, count: u64) {
        let table = Records::open(folder, Duration::ZERO).unwrap().table::<u64>("numbers");
        let keys: Vec<String> = (0..count).map(|i| format!("{i:04}")).collect();
        table.change(keys.iter().map(String::as_str), |key, _| key.parse().ok()).unwrap();
    }

    /// Number of files but that of who has them open.
    pub(super) fn files(folder: &Path) -> usize {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_none_or(|extension| extension != "pid")).count()
    }

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let _records = Records::open(dir.path(), Duration::ZERO).unwrap();
        let Err(error) = Records::open(dir.path(), Duration::ZERO) else { panic!("opened twice") };
        assert!(matches!(error, RecordsError::InUse(_)) && error.to_string().contains("--state-dir"));
    }

    /// Neither a process that goes on nor the file of a killed one is waited for.
    #[test]
    fn only_a_process_that_is_about_to_end_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let long = Duration::from_secs(3600);
        assert_eq!(Records::holder(dir.path()), None);
        let first = Records::open(dir.path(), long).unwrap();
        assert_eq!(Records::holder(dir.path()), Some(std::process::id()));
        assert!(matches!(Records::open(dir.path(), long), Err(RecordsError::InUse(_))), "at once");
        first.leave();
        assert_eq!(Records::holder(dir.path()), None);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Records::open(dir.path(), long).is_ok());
            // The second has found it locked by then.
            std::thread::sleep(Duration::from_millis(50));
            assert!(!second.is_finished(), "it waits");
            drop(first);
            assert!(second.join().unwrap(), "it waited");
        });
        fs::write(dir.path().join("records.pid"), "1").unwrap();
        assert_eq!(Records::holder(dir.path()), None, "a killed process holds no lock");
        assert!(Records::open(dir.path(), Duration::ZERO).is_ok());
    }

    #[test]
    fn a_foreign_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        fs::write(&path, "this is a letter to my aunt".repeat(1000)).unwrap();
        fill(dir.path(), 3);
        assert_eq!(files(dir.path()), 2);
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        assert_eq!(records.table::<u64>("numbers").all_from("").unwrap().records.len(), 3);
    }

    #[test]
    fn records_may_be_replaced_while_they_are_new_or_others_are_kept_beside_them() {
        let dir = tempfile::tempdir().unwrap();
        let may_be = || Records::open(dir.path(), Duration::ZERO).unwrap().may_be_replaced();
        assert_eq!([may_be(), may_be()], [true, false]);
        let path = dir.path().join(FILE_NAME);
        fs::write(&path, "this is a letter to my aunt".repeat(1000)).unwrap();
        assert_eq!([may_be(), may_be()], [true, true]);
        let aside = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        aside
            .filter(|path| path.to_string_lossy().contains("broken"))
            .for_each(|path| fs::remove_file(path).unwrap());
        assert!(!may_be());
        fs::remove_file(path).unwrap();
        assert_eq!([may_be(), may_be()], [true, false], "somebody has moved it away");
        assert!(!Records::in_memory().may_be_replaced());
    }

    /// A damaged file opens again, and each record is either correct or absent.
    #[test]
    fn damage_loses_records_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), 300);
        let path = dir.path().join(FILE_NAME);
        let whole = fs::read(&path).unwrap();
        let mut set_aside = 0;
        for i in 0..60 {
            let damaged_dir = tempfile::tempdir().unwrap();
            let mut damaged = whole.clone();
            let at = (whole.len() * i / 60 + 17 * i) % whole.len();
            match i % 3 {
                0 => damaged[at] ^= 0x55,
                1 => damaged.truncate(at),
                _ => damaged[at..].iter_mut().take(512).for_each(|byte| *byte = 0),
            }
            fs::write(damaged_dir.path().join(FILE_NAME), &damaged).unwrap();
            let table = Records::open(damaged_dir.path(), Duration::ZERO).unwrap().table::<u64>("numbers");
            for (key, number) in table.all_from("").unwrap().records {
                assert_eq!(key.parse(), Ok(number), "damage {i}");
            }
            table.change(["new"], |_, _| Some(1)).unwrap();
            set_aside += files(damaged_dir.path()) - 1;
        }
        assert!(set_aside > 10, "{set_aside} files were damaged enough to be set aside");
    }

    /// A writer gets the file however often readers copy it.
    #[test]
    fn readers_never_keep_a_writer_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Records::copy(dir.path()).unwrap().is_none());
        assert_eq!(files(dir.path()), 0, "a reader creates no file");
        fill(dir.path(), 3);
        let path = dir.path().join(FILE_NAME);
        let before = fs::read(&path).unwrap();
        let copy = Records::copy(dir.path()).unwrap().unwrap();
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        assert_eq!(
            copy.table::<u64>("numbers").all_from("").unwrap().records.len(),
            3,
            "a copy holds no lock"
        );
        assert!(matches!(Records::copy(dir.path()), Err(RecordsError::InUse(_))));
        drop(records);
        assert_eq!(fs::read(&path).unwrap().len(), before.len());
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let _ = Records::copy(dir.path());
                    }
                });
            }
            for _ in 0..15 {
                Records::open(dir.path(), LOCK_WAIT).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_reader_leaves_a_broken_file_in_place() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE_NAME), "this is a letter to my aunt".repeat(1000)).unwrap();
        assert!(matches!(Records::copy(dir.path()), Err(RecordsError::Open { .. })));
        assert_eq!(files(dir.path()), 1);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_the_folder_and_the_file_from_their_creation() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state/kvik");
        fill(&folder, 1);
        assert_eq!([mode(&folder), mode(folder.parent().unwrap())], [0o700; 2]);
        let path = dir.path().join(FILE_NAME);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true);
        private::readable_by_owner_only(&mut options);
        options.open(&path).unwrap();
        assert_eq!(mode(&path), 0o600, "when created, before the first write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        fill(dir.path(), 1);
        assert_eq!(mode(&path), 0o600, "and after a file that others could read was opened");
    }
}
