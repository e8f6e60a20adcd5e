//! The database file behind the records: open, or broken until it can be reopened.
//!
//! ```text
//! open ── an error of the file system ──► broken ── the next access reopens it ──► open
//!                                            └── within a pause after a failed attempt, accesses are refused
//!
//! open or broken ── its owner closes it ──► closed, for ever: handles that are left are refused
//! ```
//!
//! A database that has met one error of its file answers every later call with that error, so it is reopened, which
//! also rolls back a partial write. The bytes of a removed record stay in the file until their space is reused, so the
//! file is rewritten when nothing of a removed record may remain.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};

use super::database::{create_at, open_at};
use super::holder::HolderFile;
use super::{FILE_PLACES, FileTurns, GiveWay, LOCK_RETRY, LOCK_WAIT, RecordsError};

/// Pause between two attempts to reopen the file: reopening reads all of it.
const PAUSE: Duration = Duration::from_secs(1);

/// Reopens a database.
type Reopen = Box<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>;

pub(super) struct RecordsFile {
    /// Dropped first: whoever opens the file next writes its own. `None` for a file that has no path, or is closed.
    holder: Mutex<Option<HolderFile>>,
    opened: RwLock<Opened>,
    turns: FileTurns,
    /// `None` for a database in memory.
    path: Option<PathBuf>,
    /// `None` if there is nothing to reopen the database from.
    reopen: Option<Reopen>,
}

struct Opened {
    /// `None` while it cannot be opened, and when it is closed.
    database: Option<Database>,
    /// True if nothing opens it again.
    is_closed: bool,
    /// Start and cause of the current fault.
    fault: Option<(Instant, String)>,
    /// Time of the last attempt to reopen it.
    tried: Option<Instant>,
}

impl RecordsFile {
    /// A file in memory, which ends with the process.
    pub(super) fn in_memory(database: Database) -> RecordsFile {
        RecordsFile::with(database, None, None)
    }

    /// The file at a path.
    pub(super) fn at(path: &Path, database: Database) -> RecordsFile {
        let place = path.to_owned();
        let reopen: Reopen = Box::new(move || open_at(&place));
        RecordsFile::with(database, Some(path.to_owned()), Some(reopen))
    }

    /// A file that `reopen` opens again after a fault.
    pub(super) fn reopened_by(database: Database, reopen: Reopen) -> RecordsFile {
        RecordsFile::with(database, None, Some(reopen))
    }

    fn with(database: Database, path: Option<PathBuf>, reopen: Option<Reopen>) -> RecordsFile {
        let opened = Opened { database: Some(database), is_closed: false, fault: None, tried: None };
        let holder = Mutex::new(path.as_deref().map(HolderFile::of));
        RecordsFile { holder, opened: RwLock::new(opened), turns: FileTurns::new(FILE_PLACES), path, reopen }
    }

    /// Where it is; `None` for a file in memory.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Announces that the file is about to be closed.
    pub(super) fn leave(&self) {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Closes the file, whoever has a handle to it. Calls that run end first.
    pub(super) fn close(&self) {
        self.leave();
        // A file system that hangs keeps the file open, as it keeps the threads that wait for it.
        let Some(mut opened) = self.write_within(LOCK_WAIT) else { return };
        opened.is_closed = true;
        opened.database = None;
    }

    /// Runs an operation on the database, which may block for as long as the file system does.
    pub(super) fn visit<R>(
        &self,
        give_way: GiveWay,
        visit: impl FnOnce(&Database) -> Result<R, RecordsError>,
    ) -> Result<R, RecordsError> {
        self.in_turn(give_way, || {
            self.mend()?;
            let opened = self.read();
            let visited = match &opened.database {
                Some(database) => visit(database),
                None => Err(opened.unavailable()),
            };
            drop(opened);
            visited.inspect_err(|error| self.note(error))
        })
    }

    /// Writes the contents into a new file, which replaces the old one, so that nothing of removed records is left. A
    /// database in memory is not rewritten.
    pub(super) fn rewrite(&self, give_way: GiveWay) -> Result<(), RecordsError> {
        let Some(path) = &self.path else { return Ok(()) };
        self.in_turn(give_way, || {
            self.mend()?;
            let mut opened = self.write();
            let Some(database) = &opened.database else { return Err(opened.unavailable()) };
            let written = copied(database, path);
            let written = written.inspect_err(|_| drop(fs::remove_file(beside(path))));
            opened.database =
                Some(written.map_err(|error| RecordsError::Rewrite { path: path.clone(), error })?);
            Ok(())
        })
    }

    fn in_turn<R>(
        &self,
        give_way: GiveWay,
        work: impl FnOnce() -> Result<R, RecordsError>,
    ) -> Result<R, RecordsError> {
        let (mut work, mut done) = (Some(work), None);
        give_way(&mut || {
            done = work.take().map(|work| {
                let _turn = self.turns.enter()?;
                work()
            });
        });
        done.expect("who gives way runs what waits")
    }

    /// Reopens a broken file, unless the last attempt was just now.
    fn mend(&self) -> Result<(), RecordsError> {
        if self.read().fault.is_none() {
            return Ok(());
        }
        let mut opened = self.write();
        let is_broken = opened.fault.is_some() && !opened.is_closed;
        let Some(reopen) = self.reopen.as_ref().filter(|_| is_broken) else { return Ok(()) };
        if opened.tried.is_some_and(|tried| tried.elapsed() < PAUSE) {
            return Err(opened.unavailable());
        }
        // The database has to be closed first: an open one holds a lock on the file.
        opened.database = None;
        let reopened = reopen();
        opened.tried = Some(Instant::now());
        match reopened {
            Ok(database) => {
                opened.database = Some(database);
                let since = opened.fault.take().map_or(0.0, |(since, _)| since.elapsed().as_secs_f64());
                tracing::info!("{} is used again, after {since:.1} s", self.name());
                Ok(())
            }
            Err(error) => {
                let since = opened.fault.as_ref().map_or_else(Instant::now, |(since, _)| *since);
                opened.fault = Some((since, error.to_string()));
                Err(opened.unavailable())
            }
        }
    }

    /// Marks the file as broken if only reopening it ends the error.
    fn note(&self, error: &RecordsError) {
        if !error.is_outage() || self.reopen.is_none() {
            return;
        }
        let mut opened = self.write();
        if opened.fault.is_none() && !opened.is_closed {
            tracing::warn!(
                "{} cannot be read or written: {error}; what needs it is refused until it can be, see whether the disk is full",
                self.name()
            );
            opened.fault = Some((Instant::now(), error.to_string()));
        }
    }

    fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "the records' file".to_owned(), |path| path.display().to_string())
    }

    fn read(&self) -> RwLockReadGuard<'_, Opened> {
        // A panic during a visit leaves it unchanged.
        self.opened.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Opened> {
        self.opened.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_within(&self, patience: Duration) -> Option<RwLockWriteGuard<'_, Opened>> {
        let start = Instant::now();
        loop {
            match self.opened.try_write() {
                Ok(opened) => return Some(opened),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if start.elapsed() >= patience => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_RETRY),
            }
        }
    }
}

impl Opened {
    fn unavailable(&self) -> RecordsError {
        let why = self.fault.as_ref().map_or_else(|| "it is closed".to_owned(), |(_, why)| why.clone());
        RecordsError::Unavailable(why)
    }
}

/// Removes the partial copy that a process left when it was killed during a rewrite.
pub(super) fn remove_left(path: &Path) {
    let _ = fs::remove_file(beside(path));
}

/// Path of the new file during a rewrite.
fn beside(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Copies a database into a new file, which replaces the one at `path`.
fn copied(database: &Database, path: &Path) -> Result<Database, Box<dyn std::error::Error + Send + Sync>> {
    remove_left(path);
    let new = create_at(&beside(path))?;
    let (read, write) = (database.begin_read()?, new.begin_write()?);
    for table in read.list_tables()? {
        let definition: TableDefinition<'_, &'static str, &'static [u8]> = TableDefinition::new(table.name());
        let (from, mut to) = (read.open_table(definition)?, write.open_table(definition)?);
        for entry in from.iter()? {
            let (key, value) = entry?;
            to.insert(key.value(), value.value())?;
        }
    }
    write.commit()?;
    // The open database keeps its file under the new name.
    fs::rename(beside(path), path)?;
    if let Some(folder) = path.parent() {
        // If this fails, a power failure may bring back the old file, with the removed records in it.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(new)
}

impl RecordsError {
    /// True if all calls fail until the file is reopened.
    pub fn is_outage(&self) -> bool {
        match self {
            RecordsError::Access(error) => {
                matches!(**error, redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed)
            }
            RecordsError::Unavailable(_) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::Arc;

    use redb::{StorageBackend, backends::InMemoryBackend};

    use super::*;
    use crate::records::{Records, Table, tests::files};

    #[test]
    fn a_closed_file_is_free_for_others_and_refuses_the_handles_that_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let first = Records::open(dir.path(), Duration::ZERO).unwrap();
        let left: Table<u64> = first.table("numbers");
        left.change(["a"], |_, _| Some(1)).unwrap();
        first.close();
        let second = Records::open(dir.path(), Duration::ZERO).unwrap();
        // The second call would open a file again that had failed.
        for _ in 0..2 {
            assert!(matches!(left.all_from(""), Err(RecordsError::Unavailable(_))));
            assert!(matches!(left.change(["a"], |_, _| Some(2)), Err(RecordsError::Unavailable(_))));
        }
        drop((first, left));
        assert_eq!(Records::holder(dir.path()), Some(std::process::id()), "the second's");
        assert_eq!(second.table::<u64>("numbers").all_from("").unwrap().records, [("a".to_owned(), 1)]);
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
}
