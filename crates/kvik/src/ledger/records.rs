//! Small durable records: one database file, opened once, that hands out typed tables.
//!
//! A record is JSON under a text key, so that later versions can add fields and people can read
//! them. What is written in one call is there as a whole or not at all, whenever the process ends.
//! A file that is broken or not ours is renamed aside and a new one begun: records are worth
//! keeping, never worth a server that does not start.

use std::{
    fs,
    marker::PhantomData,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition, TableError,
};
use serde::{Serialize, de::DeserializeOwned};

/// Name of the file in the state directory.
pub(crate) const FILE_NAME: &str = "records.redb";
/// Memory for its pages: records are few.
const CACHE_BYTES: usize = 1 << 20;

/// The open file; a clone is another handle to it.
#[derive(Clone)]
pub(crate) struct Records(Arc<Database>);

/// Records of one kind, by key.
#[derive(Clone)]
pub(crate) struct Table<T> {
    database: Arc<Database>,
    name: &'static str,
    kind: PhantomData<fn() -> T>,
}

/// The records cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordsError {
    /// Only one process at a time can have the file.
    #[error("{} is in use by another kvik; give this one another --state-dir", .0.display())]
    InUse(PathBuf),
    /// The file system refuses.
    #[error("the records in {} cannot be opened: {error}", path.display())]
    Open { path: PathBuf, error: Box<dyn std::error::Error + Send + Sync> },
    /// Reading or writing failed.
    #[error("the records cannot be read or written: {0}")]
    Access(#[from] Box<redb::Error>),
}

impl Records {
    /// Opens the records in `folder`, or begins new ones there.
    pub(crate) fn open(folder: &Path) -> Result<Records, RecordsError> {
        let path = folder.join(FILE_NAME);
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| RecordsError::Open {
            path: path.clone(),
            error,
        };
        fs::create_dir_all(folder).map_err(|error| failed(error.into()))?;
        let opened = match database(&path) {
            Err(error) if is_broken(&error) => {
                set_aside(&path, &error).map_err(|error| failed(error.into()))?;
                database(&path)
            }
            opened => opened,
        };
        match opened {
            Ok(database) => Ok(Records(Arc::new(database))),
            Err(DatabaseError::DatabaseAlreadyOpen) => Err(RecordsError::InUse(path)),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// The records of one kind. Two kinds must not have one name.
    pub(crate) fn table<T: Serialize + DeserializeOwned>(&self, name: &'static str) -> Table<T> {
        Table { database: self.0.clone(), name, kind: PhantomData }
    }
}

/// Opens or creates the file and checks all of it: it may have been damaged while nobody looked.
fn database(path: &Path) -> Result<Database, DatabaseError> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    let database = builder.create(path)?;
    private(path);
    Ok(database)
}

/// What tenants have asked and paid is nobody else's business.
#[cfg(unix)]
fn private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    // Where it fails, the folder's permissions still hold.
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o600));
}

#[cfg(not(unix))]
fn private(_path: &Path) {}

/// Whether the content is at fault, not the file system or another process.
fn is_broken(error: &DatabaseError) -> bool {
    match error {
        DatabaseError::UpgradeRequired(_) | DatabaseError::RepairAborted => true,
        DatabaseError::Storage(StorageError::Corrupted(_)) => true,
        DatabaseError::Storage(StorageError::Io(error)) => {
            matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

fn set_aside(path: &Path, error: &DatabaseError) -> std::io::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let aside = path.with_extension(format!("broken-{now}"));
    fs::rename(path, &aside)?;
    tracing::warn!("{} cannot be used ({error}); it is kept as {}", path.display(), aside.display());
    Ok(())
}

impl<T: Serialize + DeserializeOwned> Table<T> {
    /// The record of `key`; one that cannot be read counts as absent.
    #[allow(dead_code, reason = "for the registry of prompts")]
    pub(crate) fn get(&self, key: &str) -> Result<Option<T>, RecordsError> {
        let read = self.database.begin_read().map_err(access)?;
        let Some(table) = absent_as_none(read.open_table(self.definition()))? else { return Ok(None) };
        let value = table.get(key).map_err(access)?;
        Ok(value.and_then(|value| self.decode(key, value.value())))
    }

    /// All records whose key is at least `from`, in the order of their keys.
    pub(crate) fn all_from(&self, from: &str) -> Result<Vec<(String, T)>, RecordsError> {
        let read = self.database.begin_read().map_err(access)?;
        let Some(table) = absent_as_none(read.open_table(self.definition()))? else { return Ok(Vec::new()) };
        let mut records = Vec::new();
        for entry in table.range(from..).map_err(access)? {
            let (key, value) = entry.map_err(access)?;
            if let Some(record) = self.decode(key.value(), value.value()) {
                records.push((key.value().to_owned(), record));
            }
        }
        Ok(records)
    }

    /// Replaces each record of `keys` by what `change` makes of it; `None` removes or leaves it out.
    /// All of it happens, and is on disk, when this returns without an error; else none of it.
    pub(crate) fn change<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a str>,
        mut change: impl FnMut(&str, Option<T>) -> Option<T>,
    ) -> Result<(), RecordsError> {
        let write = self.database.begin_write().map_err(access)?;
        {
            let mut table = write.open_table(self.definition()).map_err(access)?;
            for key in keys {
                let before =
                    table.get(key).map_err(access)?.and_then(|value| self.decode(key, value.value()));
                match change(key, before).and_then(|record| serde_json::to_vec(&record).ok()) {
                    Some(bytes) => drop(table.insert(key, bytes.as_slice()).map_err(access)?),
                    None => drop(table.remove(key).map_err(access)?),
                }
            }
        }
        write.commit().map_err(access)
    }

    fn definition(&self) -> TableDefinition<'static, &'static str, &'static [u8]> {
        TableDefinition::new(self.name)
    }

    fn decode(&self, key: &str, bytes: &[u8]) -> Option<T> {
        let record = serde_json::from_slice(bytes);
        record.inspect_err(|error| tracing::warn!("a record is lost: {} {key}: {error}", self.name)).ok()
    }
}

/// A table that nobody has written to yet has no records.
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
        let table = Records::open(folder).unwrap().table::<u64>("numbers");
        let keys: Vec<String> = (0..count).map(|i| format!("{i:04}")).collect();
        table.change(keys.iter().map(String::as_str), |key, _| key.parse().ok()).unwrap();
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn records_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        fill(&folder, 300);
        let records = Records::open(&folder).unwrap();
        let table = records.table::<u64>("numbers");
        assert_eq!(table.get("0007").unwrap(), Some(7));
        assert_eq!(table.get("7").unwrap(), None);
        let tail: Vec<u64> = table.all_from("0297").unwrap().into_iter().map(|(_, number)| number).collect();
        assert_eq!(tail, [297, 298, 299]);
        table.change(["0298", "0299"], |key, before| (key == "0299").then_some(before.unwrap() + 1)).unwrap();
        assert_eq!(table.all_from("0298").unwrap(), [("0299".to_owned(), 300)]);
        assert_eq!(records.table::<String>("words").all_from("").unwrap(), []);
    }

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let _records = Records::open(dir.path()).unwrap();
        let Err(error) = Records::open(dir.path()) else { panic!("opened twice") };
        assert!(matches!(error, RecordsError::InUse(_)) && error.to_string().contains("--state-dir"));
    }

    #[test]
    fn a_foreign_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        fs::write(&path, "this is a letter to my aunt".repeat(1000)).unwrap();
        fill(dir.path(), 3);
        assert_eq!(files(dir.path()), 2);
        assert_eq!(Records::open(dir.path()).unwrap().table::<u64>("numbers").all_from("").unwrap().len(), 3);
    }

    /// Whatever happens to the file, it opens again, and a record is the right one or absent.
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
            let table = Records::open(damaged_dir.path()).unwrap().table::<u64>("numbers");
            for (key, number) in table.all_from("").unwrap() {
                assert_eq!(key.parse(), Ok(number), "damage {i}");
            }
            table.change(["new"], |_, _| Some(1)).unwrap();
            set_aside += files(damaged_dir.path()) - 1;
        }
        assert!(set_aside > 10, "{set_aside} files were damaged enough to be set aside");
    }

    #[test]
    fn a_record_of_another_shape_counts_as_absent() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        records.table::<String>("numbers").change(["a"], |_, _| Some("seven".to_owned())).unwrap();
        assert_eq!(records.table::<u64>("numbers").get("a").unwrap(), None);
    }
}
