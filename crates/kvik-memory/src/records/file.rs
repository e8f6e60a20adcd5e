//! The file behind records: open, or closed by a fault and opened again when that is over.
//!
//! ```text
//! open ── an error of the file system ──► broken ── after a pause, when somebody asks ──► open
//!                                            └── others are told so, and when to come back
//! ```
//!
//! A database that met one error of its file answers every later call with it, so it is opened anew, which also undoes what
//! was written by halves. What was removed leaves its bytes in the file until their place is used again: a file is
//! written anew where nothing of it is to be left.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};

use super::{FILE_PLACES, FileTurns, GiveWay, RecordsError, create_at, open_at};

/// How long a file is left alone that was opened again: opening reads all of it.
const PAUSE: Duration = Duration::from_secs(1);

/// Opens a database again.
type Reopen = Box<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>;

pub(super) struct RecordsFile {
    opened: RwLock<Opened>,
    turns: FileTurns,
    /// Where it is; nowhere for one in memory.
    path: Option<PathBuf>,
    /// None for one that has nothing to be opened from again.
    reopen: Option<Reopen>,
}

struct Opened {
    /// `None` while it cannot be opened.
    database: Option<Database>,
    /// Since when it is broken, and why.
    fault: Option<(Instant, String)>,
    /// When it was tried to open it again last.
    tried: Option<Instant>,
}

impl RecordsFile {
    /// One that ends with the process.
    pub(super) fn in_memory(database: Database) -> RecordsFile {
        RecordsFile::with(database, None, None)
    }

    /// One at a path.
    pub(super) fn at(path: &Path, database: Database) -> RecordsFile {
        let place = path.to_owned();
        let reopen: Reopen = Box::new(move || open_at(&place));
        RecordsFile::with(database, Some(path.to_owned()), Some(reopen))
    }

    /// One that `reopen` opens again.
    pub(super) fn reopened_by(database: Database, reopen: Reopen) -> RecordsFile {
        RecordsFile::with(database, None, Some(reopen))
    }

    fn with(database: Database, path: Option<PathBuf>, reopen: Option<Reopen>) -> RecordsFile {
        let opened = Opened { database: Some(database), fault: None, tried: None };
        RecordsFile { opened: RwLock::new(opened), turns: FileTurns::new(FILE_PLACES), path, reopen }
    }

    /// Does what may take as long as the file system likes.
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

    /// Writes what it holds into a new file, which takes its place: nothing is left of what was removed. One in memory
    /// stays as it is.
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

    /// Opens a broken file again, unless that was tried just now.
    fn mend(&self) -> Result<(), RecordsError> {
        if self.read().fault.is_none() {
            return Ok(());
        }
        let mut opened = self.write();
        let Some(reopen) = self.reopen.as_ref().filter(|_| opened.fault.is_some()) else { return Ok(()) };
        if opened.tried.is_some_and(|tried| tried.elapsed() < PAUSE) {
            return Err(opened.unavailable());
        }
        // One that is open is locked.
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

    /// Notes an error that only ends when the file is opened again.
    fn note(&self, error: &RecordsError) {
        if !error.is_outage() || self.reopen.is_none() {
            return;
        }
        let mut opened = self.write();
        if opened.fault.is_none() {
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
        // A visit that panics changes nothing of it.
        self.opened.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Opened> {
        self.opened.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opened {
    fn unavailable(&self) -> RecordsError {
        let why = self.fault.as_ref().map_or_else(|| "it is closed".to_owned(), |(_, why)| why.clone());
        RecordsError::Unavailable(why)
    }
}

/// Removes what a process left that was killed while it wrote a file anew.
pub(super) fn remove_left(path: &Path) {
    let _ = fs::remove_file(beside(path));
}

/// Where a file is written anew.
fn beside(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// A database at `path` with all that another one holds, which it replaces.
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
    // Its file goes on under the new name.
    fs::rename(beside(path), path)?;
    if let Some(folder) = path.parent() {
        // After a power failure the old file may be back, with what was removed from it.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(new)
}

impl RecordsError {
    /// Whether all calls fail until the file is opened again.
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
