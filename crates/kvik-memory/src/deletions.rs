//! Pending deletions: recorded before anything is deleted, and until nothing is left.
//!
//! ```text
//! begin: write a record ──► delete all that can be deleted now ──► end: remove the record
//!                                └── the rest is retried, also after a restart of the process
//! ```
//!
//! A record contains no message text: messages are identified by hashes with the tenant's key. The steps of a deletion
//! run in an order that may be interrupted at any point: each step finds the rest by this record, and may be repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::context::{ChainId, leading_systems};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hex;
use crate::memory::chain_behind;
use crate::random::random;
use crate::records::map::{self, RecordKey};
use crate::records::{Records, RecordsError, Table};

type Result<T> = std::result::Result<T, RecordsError>;

/// Owner of derived data: a tenant, and the id of its conversation or of another object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The tenant's name.
    pub tenant: String,
    /// Id of the object.
    pub id: String,
}

/// The remaining work of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// Identities of the deleted messages, by which summaries are found.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    chain: BTreeSet<String>,
    /// Name under which the nodes of a fleet know the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// True if the messages are no longer in the records.
    #[serde(default)]
    pub is_removed: bool,
    /// True if only a part of the object is deleted.
    #[serde(default)]
    pub is_part: bool,
    /// True if nothing is left except bytes in free space of files.
    #[serde(default)]
    pub is_done: bool,
}

/// All pending deletions.
pub struct Deletions {
    /// Absent if nothing can be written: then a deletion is retried only until the process ends.
    table: Option<Table<Deletion>>,
    all: Mutex<BTreeMap<Owner, Deletion>>,
    ended: Condvar,
}

impl Owner {
    /// An object of a tenant.
    pub fn new(tenant: impl Into<String>, id: impl Into<String>) -> Owner {
        Owner { tenant: tenant.into(), id: id.into() }
    }

    /// A new owner for a part of this object that is deleted while the rest stays.
    pub fn part(&self) -> Owner {
        Owner::new(&self.tenant, format!("{} {:016x}", self.id, random()))
    }
}

impl Deletion {
    /// Deletion of a tenant's messages from the index `from` on.
    pub fn of(tenant: &str, messages: &[Value], from: usize) -> Deletion {
        Deletion::of_beginnings(chain_behind(tenant, messages, from))
    }

    /// Deletion of messages that these beginnings of conversations include.
    pub fn of_beginnings(chain: impl IntoIterator<Item = ChainId>) -> Deletion {
        Deletion { chain: chain.into_iter().map(|id| hex::written(id.0)).collect(), ..Deletion::default() }
    }

    /// Deletion of a tenant's messages that a newer version of their conversation lacks; `None` if it lacks none. Other
    /// system messages take no messages back.
    pub fn of_replaced(tenant: &str, old: &[Value], new: &[Value]) -> Option<Deletion> {
        if behind_systems(new).starts_with(behind_systems(old)) {
            return None;
        }
        let (mut left, kept) = (Deletion::of(tenant, old, 0), Deletion::of(tenant, new, 0));
        left.chain.retain(|id| !kept.chain.contains(id));
        (!left.chain.is_empty()).then_some(left)
    }

    /// Sets the name of the deleted object.
    #[must_use]
    pub fn named(self, name: Option<String>) -> Deletion {
        Deletion { name, ..self }
    }

    /// Marks the messages as removed from the records.
    #[must_use]
    pub fn removed(self) -> Deletion {
        Deletion { is_removed: true, ..self }
    }

    /// Marks the messages as removed from the records, and as a part of an object that stays.
    #[must_use]
    pub fn of_part(self) -> Deletion {
        Deletion { is_part: true, ..self.removed() }
    }

    /// Deletion of which nothing is left except bytes in free space of files.
    pub fn done() -> Deletion {
        Deletion { is_done: true, ..Deletion::default().removed() }
    }

    /// Identities of the deleted messages.
    pub fn chain(&self) -> BTreeSet<ChainId> {
        self.chain.iter().filter_map(|text| hex::read(text).map(ChainId)).collect()
    }

    /// State before the messages were removed from the records.
    #[cfg(test)]
    pub(crate) fn begun_only(self) -> Deletion {
        Deletion { is_removed: false, ..self }
    }

    /// Merges two deletions of the same owner.
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
    /// Loads the deletions that were pending when the records were closed.
    pub fn open(records: Option<&Records>) -> Arc<Deletions> {
        let (table, all) = map::open(records, "deletions");
        Arc::new(Deletions { table, all: Mutex::new(all), ended: Condvar::new() })
    }

    /// Records a deletion, merged with a pending one of the same owner.
    ///
    /// # Errors
    /// If it cannot be recorded; then nothing is pending.
    pub fn begin(&self, owner: &Owner, deletion: Deletion) -> Result<()> {
        let before = self.lock().get(owner).cloned();
        let deletion = before.map_or(deletion.clone(), |before| before.and(deletion));
        self.put(owner, Some(deletion))
    }

    /// Updates the remaining work of a deletion; `None` ends it.
    ///
    /// # Errors
    /// If the update cannot be recorded; then steps already done are repeated.
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

    /// All pending deletions.
    pub fn all(&self) -> Vec<(Owner, Deletion)> {
        self.lock().iter().map(|(owner, left)| (owner.clone(), left.clone())).collect()
    }

    /// Remaining work of one deletion.
    pub fn get(&self, owner: &Owner) -> Option<Deletion> {
        self.lock().get(owner).cloned()
    }

    /// Owner of the pending deletion of a whole object with this id or name.
    pub fn find(&self, tenant: &str, reference: &str) -> Option<Owner> {
        let all = self.lock();
        let own = all.iter().filter(|(owner, _)| owner.tenant == tenant);
        let is_it = |(owner, left): &(&Owner, &Deletion)| {
            owner.id == reference || left.name.as_deref() == Some(reference)
        };
        own.filter(|(_, left)| !left.is_part).find(is_it).map(|(owner, _)| owner.clone())
    }

    /// Waits at most `patience` until a deletion has ended; returns whether it has.
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
        // Every change of the map is a single call, so a panic leaves it consistent.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn behind_systems(messages: &[Value]) -> &[Value] {
    &messages[leading_systems(messages)..]
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
    fn what_a_newer_version_lacks_is_deleted_and_nothing_else() {
        let said = |role: &str, texts: &[&str]| -> Vec<Value> {
            texts.iter().map(|text| json!({"role": role, "content": text})).collect()
        };
        let old = [said("system", &["brief"]), said("user", &["x", "y", "z"])].concat();
        let lacking = |new: &[Value]| Deletion::of_replaced("a", &old, new).map(|left| left.chain());
        let behind = |from: usize| Some(Deletion::of("a", &old, from).chain());
        assert_eq!(lacking(&old), None);
        let longer = [said("system", &["other", "rules"]), said("user", &["x", "y", "z", "more"])].concat();
        assert_eq!(lacking(&longer), None, "system messages are replaced, and messages follow");
        assert_eq!(lacking(&old[..3]), behind(3), "z was taken back");
        let changed = [&old[..2], &said("user", &["other", "z"])].concat();
        assert_eq!(lacking(&changed), behind(2), "y was, and something else was said");
        assert_eq!(lacking(&[]), behind(0));
        let mut decorated = old.clone();
        decorated[1]["refusal"] = Value::Null;
        assert_eq!(lacking(&decorated), None, "what is no part of its identity");
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
