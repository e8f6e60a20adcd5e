//! What is to be deleted: written down before anything of it is, and until nothing of it is left.
//!
//! ```text
//! begin: a record ──► what can be deleted now is ──► end: the record goes
//!                                └── the rest is tried again, also after the end of the process
//! ```
//!
//! A record holds nothing that was said: identities of messages are hashes with the tenant's key. Whoever deletes does it
//! in an order that any moment may interrupt: each step finds what is left by this record, and may be repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::context::ChainId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hex;
use crate::memory::chain_behind;
use crate::random::random;
use crate::records::map::{self, RecordKey};
use crate::records::{Records, RecordsError, Table};

type Result<T> = std::result::Result<T, RecordsError>;

/// Whose, and what: a conversation or another thing of which something was computed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The tenant's name.
    pub tenant: String,
    /// An id.
    pub id: String,
}

/// What is left to do until it is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// Identities of its messages, by which summaries are found.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    chain: BTreeSet<String>,
    /// The name that nodes know it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What was said is no longer in the records.
    #[serde(default)]
    pub is_removed: bool,
    /// It is of a thing that stays.
    #[serde(default)]
    pub is_part: bool,
    /// Nothing is left but in places of files that are free.
    #[serde(default)]
    pub is_done: bool,
}

/// All that is to be deleted.
pub struct Deletions {
    /// Absent where nothing can be written: then it is tried as long as the process lasts.
    table: Option<Table<Deletion>>,
    all: Mutex<BTreeMap<Owner, Deletion>>,
    ended: Condvar,
}

impl Owner {
    /// A thing of a tenant.
    pub fn new(tenant: impl Into<String>, id: impl Into<String>) -> Owner {
        Owner { tenant: tenant.into(), id: id.into() }
    }

    /// A part of it that is deleted while the rest stays.
    pub fn part(&self) -> Owner {
        Owner::new(&self.tenant, format!("{} {:016x}", self.id, random()))
    }
}

impl Deletion {
    /// Of a tenant's messages from this index on.
    pub fn of(tenant: &str, messages: &[Value], from: usize) -> Deletion {
        let chain = chain_behind(tenant, messages, from);
        Deletion { chain: chain.into_iter().map(|id| hex::written(id.0)).collect(), ..Deletion::default() }
    }

    /// The same of something with this name.
    #[must_use]
    pub fn named(self, name: Option<String>) -> Deletion {
        Deletion { name, ..self }
    }

    /// What was said is no longer in the records.
    #[must_use]
    pub fn removed(self) -> Deletion {
        Deletion { is_removed: true, ..self }
    }

    /// What was said is no longer in the records, and was a part of a thing that stays.
    #[must_use]
    pub fn of_part(self) -> Deletion {
        Deletion { is_part: true, ..self.removed() }
    }

    /// Nothing is left but in places of files that are free.
    pub fn done() -> Deletion {
        Deletion { is_done: true, ..Deletion::default().removed() }
    }

    /// Identities of its messages.
    pub fn chain(&self) -> BTreeSet<ChainId> {
        self.chain.iter().filter_map(|text| hex::read(text).map(ChainId)).collect()
    }

    /// As it was before what was said was removed.
    #[cfg(test)]
    pub(crate) fn begun_only(self) -> Deletion {
        Deletion { is_removed: false, ..self }
    }

    /// Both.
    fn and(mut self, other: Deletion) -> Deletion {
        self.chain.extend(other.chain);
        Deletion {
            chain: self.chain,
            name: other.name.or(self.name),
            is_removed: self.is_removed && other.is_removed,
            is_part: self.is_part && other.is_part,
            is_done: false,
        }
    }
}

impl Deletions {
    /// What was not deleted yet when the records were closed.
    pub fn open(records: Option<&Records>) -> Arc<Deletions> {
        let (table, all) = map::open(records, "deletions");
        Arc::new(Deletions { table, all: Mutex::new(all), ended: Condvar::new() })
    }

    /// Something is to be deleted, beside what is of it already.
    ///
    /// # Errors
    /// If that cannot be written down; then nothing is to be deleted.
    pub fn begin(&self, owner: &Owner, deletion: Deletion) -> Result<()> {
        let before = self.lock().get(owner).cloned();
        let deletion = before.map_or(deletion.clone(), |before| before.and(deletion));
        self.put(owner, Some(deletion))
    }

    /// What is left of it has changed; `None` says that nothing is.
    ///
    /// # Errors
    /// If that cannot be written down; what is deleted already is deleted once more.
    pub fn put(&self, owner: &Owner, left: Option<Deletion>) -> Result<()> {
        if let Some(table) = &self.table {
            table.change([owner.text().as_str()], |_, _| left.clone())?;
        }
        let mut all = self.lock();
        match left {
            Some(left) => drop(all.insert(owner.clone(), left)),
            None => drop(all.remove(owner)),
        }
        drop(all);
        self.ended.notify_all();
        Ok(())
    }

    /// All of it.
    pub fn all(&self) -> Vec<(Owner, Deletion)> {
        self.lock().iter().map(|(owner, left)| (owner.clone(), left.clone())).collect()
    }

    /// What is left of one.
    pub fn get(&self, owner: &Owner) -> Option<Deletion> {
        self.lock().get(owner).cloned()
    }

    /// What is to be deleted of a tenant under this id or name.
    pub fn find(&self, tenant: &str, reference: &str) -> Option<Owner> {
        let all = self.lock();
        let own = all.iter().filter(|(owner, _)| owner.tenant == tenant);
        let is_it = |(owner, left): &(&Owner, &Deletion)| {
            owner.id == reference || left.name.as_deref() == Some(reference)
        };
        own.filter(|(_, left)| !left.is_part).find(is_it).map(|(owner, _)| owner.clone())
    }

    /// Waits until something is deleted, so long at most; whether it is.
    pub fn wait(&self, owner: &Owner, patience: Duration) -> bool {
        let due = Instant::now() + patience;
        let mut all = self.lock();
        while all.contains_key(owner) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.ended.wait_timeout(all, left);
            all = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Owner, Deletion>> {
        // Every change of the map is one call, so it is whole whatever panicked.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordKey for Owner {
    fn parts(&self) -> (&str, String) {
        (&self.tenant, self.id.clone())
    }

    fn of_parts(tenant: &str, id: &str) -> Option<Owner> {
        Some(Owner::new(tenant, id))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_left_outlives_the_process_until_it_has_ended() {
        let records = Records::in_memory();
        let (one, two) = (Owner::new("a", "conv_1"), Owner::new("a", "conv_2"));
        let message = |text: &str| json!({"role": "user", "content": text});
        let begun = Deletions::open(Some(&records));
        begun.begin(&one, Deletion::of("a", &[message("x"), message("y")], 0)).unwrap();
        begun.begin(&one, Deletion::of("a", &[message("x"), message("y"), message("z")], 2)).unwrap();
        begun.begin(&two, Deletion { name: Some("trip".to_owned()), ..Deletion::default() }).unwrap();
        let again = Deletions::open(Some(&records));
        assert_eq!(again.all(), begun.all());
        let left = again.get(&one).unwrap();
        assert_eq!(left.chain().len(), 3, "what is deleted twice is deleted together");
        assert_eq!(left.chain(), Deletion::of("a", &["x", "y", "z"].map(message), 0).chain());
        assert_ne!(left.chain(), Deletion::of("b", &["x", "y", "z"].map(message), 0).chain());
        assert!(!again.wait(&two, Duration::from_millis(1)));
        again.put(&two, None).unwrap();
        assert!(again.wait(&two, Duration::ZERO) && !again.wait(&one, Duration::ZERO));
        assert_eq!(Deletions::open(Some(&records)).all().len(), 1);
    }

    #[test]
    fn a_thread_hears_of_the_end_that_another_one_notes() {
        let deletions = Deletions::open(None);
        let owner = Owner::new("a", "conv_1");
        deletions.begin(&owner, Deletion::default()).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| deletions.wait(&owner, Duration::from_secs(20)));
            deletions.put(&owner, None).unwrap();
            assert!(waiting.join().unwrap());
        });
    }
}
