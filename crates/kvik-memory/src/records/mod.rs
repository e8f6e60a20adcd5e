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

mod file;
mod file_turns;
mod holder;
pub mod map;
pub mod private;
mod unreadable;

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{ErrorKind, Read},
    marker::PhantomData,
    ops::Bound,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use redb::{
    Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableError, TableHandle,
    backends::{FileBackend, InMemoryBackend},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::clock::unix_seconds;
use file::RecordsFile;
use holder::holder;
use private::{close_to_others, create_private_folder, readable_by_owner_only};

pub use file_turns::{FileSilent, FileTurns};

/// Name of the file in the state directory.
pub const FILE_NAME: &str = "records.redb";
/// Page cache of the database; it is small because records are few.
const CACHE_BYTES: usize = 1 << 20;
/// Maximum time that a server waits for another process that has locked the file for a moment: a reader, or a server
/// that is stopping.
pub const LOCK_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of threads that access the file at a time, and therefore of threads that a hung file blocks.
const FILE_PLACES: usize = 8;
/// Pause between two attempts to lock the file.
const LOCK_RETRY: Duration = Duration::from_millis(10);
/// Name of the table of unreadable records that newer ones have replaced.
const SET_ASIDE: &str = "unreadable";

/// The open file; a clone is another handle to it.
#[derive(Clone)]
pub struct Records {
    file: Arc<RecordsFile>,
    /// Model whose tables these are, if each of several models has its own.
    model: Option<Arc<str>>,
    give_way: GiveWay,
}

/// Runs a blocking call, with the calling thread's shared resources (its compute slot, say) released meanwhile.
pub type GiveWay = fn(&mut dyn FnMut());

/// Records of one kind, by key.
#[derive(Clone)]
pub struct Table<T> {
    file: Arc<RecordsFile>,
    name: Arc<str>,
    give_way: GiveWay,
    kind: PhantomData<fn() -> T>,
}

/// Readable records, and the keys of the unreadable ones.
#[derive(Debug, PartialEq)]
pub struct FoundRecords<T> {
    /// Readable records, with their keys.
    pub records: Vec<(String, T)>,
    /// Keys of the unreadable records.
    pub unreadable: Vec<String>,
}

/// What a removal does with a record that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// It is set aside: nobody knows what is in it.
    SetsAside,
    /// It is deleted, with all that was set aside under its key.
    Erases,
}

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
            opened = create_at(&path);
        }
        match opened {
            Ok(database) => {
                file::remove_left(&path);
                Ok(Records::of(RecordsFile::at(&path, database)))
            }
            Err(DatabaseError::DatabaseAlreadyOpen) => Err(RecordsError::InUse(path)),
            Err(error) => Err(unopened(&path, error)),
        }
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
        Table { file: self.file.clone(), name: name.into(), give_way: self.give_way, kind: PhantomData }
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
        Table { file: self.file.clone(), name, give_way: self.give_way, kind: PhantomData }
    }

    /// Handle to the tables of one of several models: the names are the same, the tables separate.
    pub fn of_model(&self, name: &str) -> Records {
        Records { model: Some(name.into()), ..self.clone() }
    }

    fn of(file: RecordsFile) -> Records {
        Records { file: Arc::new(file), model: None, give_way: |wait| wait() }
    }
}

/// Opens or creates the file and checks all of it for damage.
fn create_at(path: &Path) -> Result<Database, DatabaseError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    open_with(options, path)
}

/// Opens an existing file.
fn open_at(path: &Path) -> Result<Database, DatabaseError> {
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

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

fn in_memory(bytes: &[u8]) -> std::io::Result<InMemoryBackend> {
    let memory = InMemoryBackend::new();
    memory.set_len(bytes.len() as u64)?;
    StorageBackend::write(&memory, 0, bytes)?;
    Ok(memory)
}

fn unopened(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> RecordsError {
    RecordsError::Open { path: path.to_owned(), error: error.into() }
}

/// True if the content is damaged, as opposed to an error of the file system or a lock.
fn is_broken(error: &DatabaseError) -> bool {
    match error {
        DatabaseError::UpgradeRequired(_) | DatabaseError::RepairAborted => true,
        DatabaseError::Storage(StorageError::Corrupted(_)) => true,
        DatabaseError::Storage(StorageError::Io(error)) => {
            matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

fn set_aside(path: &Path, error: &DatabaseError) -> std::io::Result<()> {
    let aside = path.with_extension(format!("broken-{}", unix_seconds()));
    fs::rename(path, &aside)?;
    tracing::warn!("{} cannot be used ({error}); it is kept as {}", path.display(), aside.display());
    Ok(())
}

impl<T: Serialize + DeserializeOwned> Table<T> {
    /// All records whose key is at least `from`, in the order of their keys.
    pub fn all_from(&self, from: &str) -> Result<FoundRecords<T>, RecordsError> {
        let (stored, unreadable) = self.file.visit(self.give_way, |database| {
            let read = database.begin_read().map_err(access)?;
            let stored = self.stored(&read, (Bound::Included(from), Bound::Unbounded))?;
            Ok((stored, self.set_aside_from(&read, from)?))
        })?;
        let mut found = FoundRecords { records: Vec::new(), unreadable: Vec::new() };
        for (key, bytes) in stored {
            match self.decode(&key, &bytes) {
                Some(record) => found.records.push((key, record)),
                None => found.unreadable.push(key),
            }
        }
        found.unreadable.extend(unreadable);
        Ok(found)
    }

    /// The records whose keys are at least `from` and less than `until`, in the order of their keys; without those that
    /// cannot be read.
    pub fn between(&self, from: &str, until: &str) -> Result<Vec<(String, T)>, RecordsError> {
        let stored = self.file.visit(self.give_way, |database| {
            let read = database.begin_read().map_err(access)?;
            self.stored(&read, (Bound::Included(from), Bound::Excluded(until)))
        })?;
        // Parsing needs the processor, so it runs outside `visit`, where the caller may hold its compute slot.
        let records = stored.into_iter().filter_map(|(key, bytes)| Some((self.decode(&key, &bytes)?, key)));
        Ok(records.map(|(record, key)| (key, record)).collect())
    }

    /// Reads records as stored bytes.
    fn stored(
        &self,
        read: &ReadTransaction,
        keys: (Bound<&str>, Bound<&str>),
    ) -> Result<Vec<(String, Vec<u8>)>, RecordsError> {
        let Some(table) = absent_as_none(read.open_table(self.definition()))? else { return Ok(Vec::new()) };
        let entries = table.range::<&str>(keys).map_err(access)?;
        entries
            .map(|entry| {
                let (key, value) = entry.map_err(access)?;
                Ok((key.value().to_owned(), value.value().to_vec()))
            })
            .collect()
    }

    /// Replaces each record of `keys` by the result of `change`; `None` removes it or leaves it absent.
    /// On `Ok` all changes are on disk, on `Err` none. An unreadable record counts as absent and is set
    /// aside.
    pub fn change<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a str>,
        change: impl FnMut(&str, Option<T>) -> Option<T>,
    ) -> Result<(), RecordsError> {
        self.file.visit(self.give_way, |database| self.write(database, keys, Removal::SetsAside, change))
    }

    /// As [`change`](Table::change), where a removal is a deletion: an unreadable record is not set aside, and all that
    /// was set aside under its key is removed too.
    pub fn change_erasing<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a str>,
        change: impl FnMut(&str, Option<T>) -> Option<T>,
    ) -> Result<(), RecordsError> {
        self.file.visit(self.give_way, |database| self.write(database, keys, Removal::Erases, change))
    }

    fn write<'a>(
        &self,
        database: &Database,
        keys: impl IntoIterator<Item = &'a str>,
        removal: Removal,
        mut change: impl FnMut(&str, Option<T>) -> Option<T>,
    ) -> Result<(), RecordsError> {
        let write = database.begin_write().map_err(access)?;
        let mut erased = Vec::new();
        {
            let mut table = write.open_table(self.definition()).map_err(access)?;
            for key in keys {
                let stored = table.get(key).map_err(access)?.map(|value| value.value().to_vec());
                let before = stored.as_ref().and_then(|bytes| self.decode(key, bytes));
                let unreadable = stored.filter(|_| before.is_none());
                let after = change(key, before).and_then(|record| serde_json::to_vec(&record).ok());
                if after.is_none() && removal == Removal::Erases {
                    erased.push(key);
                } else if let Some(bytes) = unreadable {
                    self.set_aside(&write, key, &bytes)?;
                }
                match after {
                    Some(bytes) => drop(table.insert(key, bytes.as_slice()).map_err(access)?),
                    None => drop(table.remove(key).map_err(access)?),
                }
            }
        }
        self.erase_aside(&write, &erased)?;
        write.commit().map_err(access)
    }

    fn definition(&self) -> TableDefinition<'_, &'static str, &'static [u8]> {
        TableDefinition::new(&self.name)
    }

    fn decode(&self, key: &str, bytes: &[u8]) -> Option<T> {
        let record = serde_json::from_slice(bytes);
        record
            .inspect_err(|error| tracing::warn!("a record cannot be read: {} {key}: {error}", self.name))
            .ok()
    }
}

/// Maps the error for a table that was never written to `None`.
fn absent_as_none<T>(opened: Result<T, TableError>) -> Result<Option<T>, RecordsError> {
    match opened {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        opened => opened.map(Some).map_err(access),
    }
}

fn access(error: impl Into<redb::Error>) -> RecordsError {
    RecordsError::Access(Box::new(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(folder: &Path, count: u64) {
        let table = Records::open(folder, Duration::ZERO).unwrap().table::<u64>("numbers");
        let keys: Vec<String> = (0..count).map(|i| format!("{i:04}")).collect();
        table.change(keys.iter().map(String::as_str), |key, _| key.parse().ok()).unwrap();
    }

    /// Number of files but that of who has them open.
    fn files(folder: &Path) -> usize {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_none_or(|extension| extension != "pid")).count()
    }

    #[test]
    fn records_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        fill(&folder, 300);
        let records = Records::open(&folder, Duration::ZERO).unwrap();
        let table = records.table::<u64>("numbers");
        let tail: Vec<u64> =
            table.all_from("0297").unwrap().records.into_iter().map(|(_, number)| number).collect();
        assert_eq!(tail, [297, 298, 299]);
        table.change(["0298", "0299"], |key, before| (key == "0299").then_some(before.unwrap() + 1)).unwrap();
        assert_eq!(table.all_from("0298").unwrap().records, [("0299".to_owned(), 300)]);
        assert_eq!(records.table::<String>("words").all_from("").unwrap().records, []);
    }

    #[test]
    fn records_between_two_keys_are_read_alone() {
        for records in [
            Records::in_memory(),
            Records::open(tempfile::tempdir().unwrap().path(), Duration::ZERO).unwrap(),
        ] {
            let table = records.table::<u64>("numbers");
            assert_eq!(table.between("", "~").unwrap(), [], "a table that was never written");
            table.change(["a", "b", "c", "d"], |key, _| Some(key.as_bytes()[0].into())).unwrap();
            assert_eq!(table.between("b", "d").unwrap(), [("b".to_owned(), 98), ("c".to_owned(), 99)]);
            records.table::<String>("numbers").change(["b"], |_, _| Some("words".to_owned())).unwrap();
            assert_eq!(
                table.between("b", "d").unwrap(),
                [("c".to_owned(), 99)],
                "what cannot be read is left out"
            );
        }
    }

    /// Bytes that survive the handles that open them, on a disk that may be full.
    #[derive(Debug, Clone, Default)]
    struct Disk(Arc<(InMemoryBackend, std::sync::atomic::AtomicBool)>);

    impl Disk {
        fn set_full(&self, is_full: bool) {
            self.0.1.store(is_full, std::sync::atomic::Ordering::SeqCst);
        }

        fn room(&self) -> std::io::Result<()> {
            match self.0.1.load(std::sync::atomic::Ordering::SeqCst) {
                true => Err(ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> std::io::Result<u64> {
            self.0.0.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
            self.0.0.read(offset, out)
        }
        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.room()?;
            self.0.0.set_len(len)
        }
        fn sync_data(&self) -> std::io::Result<()> {
            self.room()?;
            self.0.0.sync_data()
        }
        fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
            self.room()?;
            StorageBackend::write(&self.0.0, offset, data)
        }
    }

    #[test]
    fn a_full_disk_refuses_what_needs_it_until_there_is_room_again() {
        let disk = Disk::default();
        let (again, mut read_between) = (disk.clone(), 0);
        let records = Records::over_again(move || again.clone()).unwrap();
        let table = records.table::<u64>("numbers");
        table.change(["a"], |_, _| Some(1)).unwrap();
        for round in 0..2 {
            disk.set_full(true);
            let refused = table.change(["b"], |_, _| Some(2)).unwrap_err();
            assert!(refused.is_outage(), "{refused}");
            let deadline = Instant::now() + Duration::from_secs(5);
            while Instant::now() < deadline && read_between == round {
                match table.all_from("") {
                    Ok(found) => {
                        assert_eq!(found.records, [("a".to_owned(), 1)], "nothing is written by halves");
                        read_between += 1;
                    }
                    Err(error) => assert!(error.is_outage(), "{error}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            disk.set_full(false);
            let mut written = table.change(["b"], |_, _| None);
            while written.is_err() && Instant::now() < deadline + Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
                written = table.change(["b"], |_, _| None);
            }
            written.unwrap();
        }
        table.change(["b"], |_, _| Some(3)).unwrap();
        assert_eq!(table.all_from("").unwrap().records, [("a".to_owned(), 1), ("b".to_owned(), 3)]);
    }

    #[test]
    fn nothing_is_left_in_a_file_written_anew_of_what_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let holds = |word: &str| {
            let read = |entry: std::io::Result<fs::DirEntry>| fs::read(entry.unwrap().path()).unwrap();
            fs::read_dir(dir.path())
                .unwrap()
                .map(read)
                .any(|bytes| bytes.windows(word.len()).any(|window| window == word.as_bytes()))
        };
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        let (table, other) = (records.table::<String>("words"), records.of_model("m").table::<u64>("words"));
        other.change(["n"], |_, _| Some(7)).unwrap();
        table.change(["a", "b"], |key, _| Some(format!("marker-{key}-xyzzy").repeat(50))).unwrap();
        table.change(["a"], |_, _| None).unwrap();
        records.rewrite().unwrap();
        assert!(!holds("marker-a-xyzzy") && holds("marker-b-xyzzy"));
        assert_eq!(other.all_from("").unwrap().records, [("n".to_owned(), 7)]);
        assert_eq!(records.tables_of_models("words").unwrap(), ["words", "words@m"]);
        table.change(["c"], |_, _| Some("new".to_owned())).unwrap();
        assert!(
            matches!(Records::open(dir.path(), Duration::ZERO), Err(RecordsError::InUse(_))),
            "it is locked"
        );
        drop((records, table, other));
        fs::write(dir.path().join("records.new"), "marker-a-xyzzy").unwrap();
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        assert_eq!(records.table::<String>("words").all_from("").unwrap().records.len(), 2);
        assert!(!holds("marker-a-xyzzy"), "what a killed process left is removed");
        assert_eq!(files(dir.path()), 1);
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

    #[test]
    fn a_record_that_cannot_be_read_is_kept_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        let (words, numbers) = (records.table::<String>("numbers"), records.table::<u64>("numbers"));
        let unreadable = |from: &str| numbers.all_from(from).unwrap().unreadable;
        // In the second round the table of words finds a number, which is set aside like the words.
        for (word, named) in [("seven", vec!["b"]), ("eight", vec!["b"; 3])] {
            words.change(["b"], |_, _| Some(word.to_owned())).unwrap();
            assert_eq!(unreadable(""), named, "while it is under its key");
            numbers.change(["a", "b"], |_, before| Some(before.unwrap_or(0) + 1)).unwrap();
            assert_eq!(unreadable(""), named, "and after it was replaced");
        }
        let found = numbers.all_from("").unwrap();
        assert_eq!(found.records, [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!((unreadable("b").len(), unreadable("c").len()), (3, 0));
        assert_eq!(records.table::<u64>("number").all_from("").unwrap().unreadable, [""; 0]);
        let kept: Vec<String> = records
            .table::<String>(SET_ASIDE)
            .all_from("")
            .unwrap()
            .records
            .into_iter()
            .map(|(_, word)| word)
            .collect();
        assert_eq!(kept, ["seven", "eight"], "word for word");
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
        let mut options = OpenOptions::new();
        options.write(true).create(true);
        readable_by_owner_only(&mut options);
        options.open(&path).unwrap();
        assert_eq!(mode(&path), 0o600, "when created, before the first write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        fill(dir.path(), 1);
        assert_eq!(mode(&path), 0o600, "and after a file that others could read was opened");
    }
}
