//! Unreadable records that newer ones have replaced: a table of their own keeps them until their keys are erased.

use std::collections::BTreeSet;
use std::ops::Bound;

use redb::{ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::{Serialize, de::DeserializeOwned};

use super::{RecordsError, Table, access, table::absent_as_none};

/// Name of the table of unreadable records that newer ones have replaced.
const SET_ASIDE: &str = "unreadable";

impl<T: Serialize + DeserializeOwned> Table<T> {
    /// The keys at least `from` and less than `until` of all records: readable ones, unreadable ones, and unreadable
    /// ones that newer ones have replaced.
    pub fn keys_between(&self, from: &str, until: &str) -> Result<BTreeSet<String>, RecordsError> {
        self.file.visit(self.give_way, |database| {
            let read = database.begin_read().map_err(access)?;
            let stored = self.stored(&read, (Bound::Included(from), Bound::Excluded(until)), |_| true)?;
            let aside = self.set_aside_from(&read, from)?.into_iter().filter(|key| key.as_str() < until);
            Ok(stored.into_iter().map(|(key, _)| key).chain(aside).collect())
        })
    }

    /// The keys at least `from` of unreadable records that newer ones have replaced.
    pub(super) fn set_aside_from(
        &self,
        read: &ReadTransaction,
        from: &str,
    ) -> Result<Vec<String>, RecordsError> {
        let mut unreadable = Vec::new();
        if let Some(aside) = absent_as_none(read.open_table(aside()))? {
            for entry in aside.range(self.aside_key(from, 0).as_str()..).map_err(access)? {
                let (key, _) = entry.map_err(access)?;
                let Some(key) = self.parse_aside(key.value()) else { break };
                unreadable.push(key.to_owned());
            }
        }
        Ok(unreadable)
    }

    /// Stores the bytes of an unreadable record in the table of unreadable records.
    pub(super) fn set_aside(
        &self,
        write: &WriteTransaction,
        key: &str,
        bytes: &[u8],
    ) -> Result<(), RecordsError> {
        let mut table = write.open_table(aside()).map_err(access)?;
        let mut number = 0;
        while table.get(self.aside_key(key, number).as_str()).map_err(access)?.is_some() {
            number += 1;
        }
        table.insert(self.aside_key(key, number).as_str(), bytes).map_err(access)?;
        tracing::error!("the record {} {key} cannot be read; it is kept in the table {SET_ASIDE}", self.name);
        Ok(())
    }

    /// Removes everything that was set aside under these keys.
    pub(super) fn erase_aside(&self, write: &WriteTransaction, keys: &[&str]) -> Result<(), RecordsError> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut table = write.open_table(aside()).map_err(access)?;
        for key in keys {
            let mut number = 0;
            while table.remove(self.aside_key(key, number).as_str()).map_err(access)?.is_some() {
                number += 1;
            }
        }
        Ok(())
    }

    /// Key of the `number`th unreadable record of a key in that table; sorts as the keys do.
    fn aside_key(&self, key: &str, number: u32) -> String {
        format!("{}\0{key}\0{number:04}", self.name)
    }

    /// The inverse of [`aside_key`](Table::aside_key); `None` for another table.
    fn parse_aside<'k>(&self, aside: &'k str) -> Option<&'k str> {
        let key = aside.strip_prefix(&*self.name)?.strip_prefix('\0')?;
        key.rsplit_once('\0').map(|(key, _)| key)
    }
}

fn aside() -> TableDefinition<'static, &'static str, &'static [u8]> {
    TableDefinition::new(SET_ASIDE)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::records::Records;

    #[test]
    fn a_deletion_leaves_nothing_of_a_record_that_cannot_be_read() {
        let records = Records::in_memory();
        let (words, numbers) = (records.table::<String>("numbers"), records.table::<u64>("numbers"));
        words.change(["a", "b", "c"], |key, _| Some(format!("word {key}"))).unwrap();
        let unreadable = || numbers.all_from("").unwrap().unreadable;
        let kept = || records.table::<String>(SET_ASIDE).all_from("").unwrap().records.len();
        let keys = || numbers.keys_between("a", "c").unwrap().into_iter().collect::<Vec<String>>();
        numbers.change(["a", "b"], |key, _| (key == "a").then_some(1)).unwrap();
        assert_eq!((unreadable(), kept()), (["c", "a", "b"].map(str::to_owned).to_vec(), 2));
        assert_eq!(keys(), ["a", "b"], "of a number, and of a word that was set aside");
        numbers.change_erasing(["a", "b"], |_, _| None).unwrap();
        assert_eq!((unreadable(), kept()), (vec!["c".to_owned()], 0));
        assert_eq!(keys(), [""; 0]);
        numbers.change_erasing(["c"], |_, _| Some(3)).unwrap();
        assert_eq!(kept(), 1, "what is replaced is not deleted");
        words.change(["c"], |_, _| Some("another word".to_owned())).unwrap();
        numbers.change_erasing(["c"], |_, _| None).unwrap();
        assert_eq!((unreadable().len(), kept()), (0, 0));
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
}
