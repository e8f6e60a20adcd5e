//! One table: the records of one kind, by key, read and changed in transactions.

use std::{marker::PhantomData, ops::Bound, sync::Arc};

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use serde::{Serialize, de::DeserializeOwned};

use super::{GiveWay, RecordsError, access, file::RecordsFile};

/// Records of one kind, by key.
#[derive(Clone)]
pub struct Table<T> {
    pub(super) file: Arc<RecordsFile>,
    pub(super) name: Arc<str>,
    pub(super) give_way: GiveWay,
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

impl<T: Serialize + DeserializeOwned> Table<T> {
    pub(super) fn new(file: Arc<RecordsFile>, name: Arc<str>, give_way: GiveWay) -> Table<T> {
        Table { file, name, give_way, kind: PhantomData }
    }

    /// All records whose key is at least `from`, in the order of their keys.
    pub fn all_from(&self, from: &str) -> Result<FoundRecords<T>, RecordsError> {
        self.selected((from, None), |_| true)
    }

    /// The records whose keys are at least `from`, less than `until`, and wanted, in the order of their keys. Others are
    /// never in memory together.
    pub fn selected(
        &self,
        (from, until): (&str, Option<&str>),
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<FoundRecords<T>, RecordsError> {
        let (stored, mut unreadable) = self.file.visit(self.give_way, |database| {
            let read = database.begin_read().map_err(access)?;
            let end = until.map_or(Bound::Unbounded, Bound::Excluded);
            let stored = self.stored(&read, (Bound::Included(from), end), &is_wanted)?;
            Ok((stored, self.set_aside_from(&read, from)?))
        })?;
        unreadable.retain(|key| until.is_none_or(|until| key.as_str() < until) && is_wanted(key));
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
            self.stored(&read, (Bound::Included(from), Bound::Excluded(until)), |_| true)
        })?;
        // Parsing needs the processor, so it runs outside `visit`, where the caller may hold its compute slot.
        let records = stored.into_iter().filter_map(|(key, bytes)| Some((self.decode(&key, &bytes)?, key)));
        Ok(records.map(|(record, key)| (key, record)).collect())
    }

    /// Reads wanted records as stored bytes.
    pub(super) fn stored(
        &self,
        read: &ReadTransaction,
        keys: (Bound<&str>, Bound<&str>),
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<(String, Vec<u8>)>, RecordsError> {
        let Some(table) = absent_as_none(read.open_table(self.definition()))? else { return Ok(Vec::new()) };
        let entries = table.range::<&str>(keys).map_err(access)?;
        let mut found = Vec::new();
        for entry in entries {
            let (key, value) = entry.map_err(access)?;
            if is_wanted(key.value()) {
                found.push((key.value().to_owned(), value.value().to_vec()));
            }
        }
        Ok(found)
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
pub(super) fn absent_as_none<T>(opened: Result<T, TableError>) -> Result<Option<T>, RecordsError> {
    match opened {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        opened => opened.map(Some).map_err(access),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, time::Duration};

    use crate::records::{Records, tests::fill};

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

    /// A tenant's usage was looked for among the decoded rows of all tenants and days.
    #[test]
    fn only_wanted_records_are_read() {
        let records = Records::in_memory();
        let words = records.table::<String>("numbers");
        words.change(["1/a", "1/b", "2/b", "9/a"], |key, _| Some(key.to_owned())).unwrap();
        let table = records.table::<u64>("numbers");
        table.change(["2/a", "3/a"], |_, _| Some(7)).unwrap();
        let asked = RefCell::new(Vec::new());
        let found = table.selected(("1", Some("4")), |key| {
            asked.borrow_mut().push(key.to_owned());
            key.ends_with('a')
        });
        let found = found.unwrap();
        assert_eq!(found.records, [("2/a".to_owned(), 7), ("3/a".to_owned(), 7)]);
        assert_eq!(found.unreadable, ["1/a"], "what is not wanted was not decoded");
        let read = asked.into_inner();
        assert_eq!(read, ["1/a", "1/b", "2/a", "2/b", "3/a"], "what is behind the last key was not");
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
}
