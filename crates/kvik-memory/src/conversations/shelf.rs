//! Storage of conversations: heads in memory, messages in the records.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::error::ConversationError;
use super::fleet::{Content, Fleet};
use super::head::{ConversationHead, ConversationKey, is_id, is_name};
use super::head_map::HeadMap;
use super::record::{HEADS, Record, SHARED};
use crate::clock::unix_millis;
use crate::deletions::{Deletions, Owner};
use crate::random::random;
use crate::records::{Records, RecordsError, Table};
use crate::shared::SharedRecords;

type Result<T> = std::result::Result<T, ConversationError>;

/// The storage of all conversations.
pub(super) struct Shelf {
    pub(super) table: Table<Record>,
    heads: Mutex<Heads>,
    /// Signalled when a comparison with the store ends.
    compared: Condvar,
    /// The fleet whose nodes share the conversations, if there is one.
    pub(super) fleet: Option<Fleet>,
    /// Where the deletion of data derived from deleted conversations is recorded, if there is any.
    pub(super) deletions: Option<Arc<Deletions>>,
    /// Told of each conversation that becomes another one.
    pub(super) forked: Option<OnFork>,
}

/// Hears of a conversation that has become another one, before anybody finds that: the owners of what was computed for
/// the one, and of what has to be deleted with the other.
pub type OnFork = Box<dyn Fn(&Owner, &Owner) + Send + Sync>;

/// Maximum time that a caller waits for the end of a comparison with the store.
const COMPARED_WITHIN: Duration = Duration::from_secs(2);

/// A conversation being compared with the store; it cannot be held meanwhile.
pub(super) struct Comparing<'a> {
    shelf: &'a Shelf,
    key: ConversationKey,
}

/// Metadata of the conversations.
#[derive(Default)]
pub(super) struct Heads {
    pub(super) all: HeadMap,
    /// Conversations being changed, with the names that they will have.
    held: BTreeMap<ConversationKey, Option<String>>,
    /// Largest `order` of all heads.
    order: u64,
    /// Version in the store when this node last wrote or read it there.
    pub(super) bases: BTreeMap<ConversationKey, Content>,
    /// Conversations of which only the head is local: the messages are in the store.
    pub(super) elsewhere: BTreeSet<ConversationKey>,
    /// Conversations being compared with the store.
    comparing: BTreeSet<ConversationKey>,
}

impl Shelf {
    /// Loads the stored conversations; without records, they last until the process ends.
    pub(super) fn open(records: Option<&Records>, shared: Option<Arc<dyn SharedRecords>>) -> Shelf {
        let records = records.map_or_else(Records::in_memory, Records::clone);
        let table: Table<Record> = records.table("conversations");
        let heads = Heads::read(&table).unwrap_or_else(|error| {
            tracing::warn!("the conversations cannot be read: {error}");
            Heads::default()
        });
        let fleet = shared.map(|shared| Fleet::new(shared, records.give_way()));
        let (heads, compared) = (Mutex::new(heads), Condvar::new());
        Shelf { table, heads, compared, fleet, deletions: None, forked: None }
    }

    /// Records the deletion of data derived from deleted conversations in `deletions`.
    pub(super) fn deleting(self, deletions: Arc<Deletions>) -> Shelf {
        Shelf { deletions: Some(deletions), ..self }
    }

    /// Tells `forked` of each conversation that becomes another one.
    pub(super) fn telling(self, forked: OnFork) -> Shelf {
        Shelf { forked: Some(forked), ..self }
    }

    /// Reads the messages of a conversation in one transaction.
    pub(super) fn said(&self, key: &ConversationKey) -> Result<Vec<Value>> {
        match self.leading_said(key)? {
            (messages, true) => Ok(messages),
            (_, false) => Err(ConversationError::Damaged(key.id.clone())),
        }
    }

    /// Messages of a conversation before the first one that is lost.
    pub(super) fn readable(&self, key: &ConversationKey) -> std::result::Result<Vec<Value>, RecordsError> {
        Ok(self.leading_said(key)?.0)
    }

    /// Messages before the first one that is lost, and whether no other message follows.
    fn leading_said(&self, key: &ConversationKey) -> std::result::Result<(Vec<Value>, bool), RecordsError> {
        let mut messages = Vec::new();
        let mut index = 0;
        for (text, record) in self.table.between(&key.systems(), &key.said_end())? {
            match record {
                Record::Systems(systems) => messages.extend(systems),
                Record::Message(message) if text == key.message(index) => {
                    messages.push(message);
                    index += 1;
                }
                // The message before it is missing.
                _ => return Ok((messages, false)),
            }
        }
        Ok((messages, true))
    }

    /// Identity of the next change: unique where nodes share conversations, otherwise 0.
    pub(super) fn next_stamp(&self, before: u64) -> u64 {
        // A conversation that was shared once may be again: then it has to be recognisable as changed.
        if self.fleet.is_some() || before != 0 { random().max(1) } else { 0 }
    }

    /// Position of the next change in the order; where nodes share conversations, among the changes of all
    /// nodes.
    pub(super) fn next_order(&self) -> u64 {
        let now = if self.fleet.is_some() { unix_millis() } else { 0 };
        self.heads().next_order(now)
    }

    /// Takes a conversation for exclusive change, after any comparison with the store has ended.
    pub(super) fn take(&self, key: &ConversationKey, name: Option<&str>, reference: &str) -> Result<()> {
        let mut heads = self.not_comparing(key);
        if heads.comparing.contains(key) {
            return Err(ConversationError::Busy(reference.to_owned()));
        }
        heads.take(key, name, reference)
    }

    /// Begins a comparison of a conversation with the store; `None` while another request changes or compares
    /// it.
    pub(super) fn compare(&self, key: &ConversationKey) -> Option<Comparing<'_>> {
        let mut heads = self.not_comparing(key);
        let is_free = !heads.is_held(key) && heads.comparing.insert(key.clone());
        is_free.then(|| Comparing { shelf: self, key: key.clone() })
    }

    /// The heads, after a comparison of this conversation with the store has ended or a time limit has
    /// passed. The lock is kept from the moment of the check on, so that no other comparison begins between.
    fn not_comparing(&self, key: &ConversationKey) -> MutexGuard<'_, Heads> {
        let heads = self.heads();
        let Some(fleet) = self.fleet.as_ref().filter(|_| heads.comparing.contains(key)) else { return heads };
        let mut waited = None;
        fleet.aside(|| {
            let is_comparing = |heads: &mut Heads| heads.comparing.contains(key);
            let wait = self.compared.wait_timeout_while(heads, COMPARED_WITHIN, is_comparing);
            waited = Some(wait.unwrap_or_else(PoisonError::into_inner).0);
        });
        waited.unwrap_or_else(|| self.heads())
    }

    /// Locks the heads. The lock must not be held while waiting for the records.
    pub(super) fn heads(&self) -> MutexGuard<'_, Heads> {
        // Every change of the maps is a single call, so a panic leaves them consistent.
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heads {
    pub(super) fn find<'a>(&'a self, tenant: &'a str, reference: &str) -> Option<&'a ConversationKey> {
        let is_it = |key: &ConversationKey, head: &ConversationHead| match is_id(reference) {
            true => key.id == reference,
            false => head.name.as_deref() == Some(reference),
        };
        self.all.of(tenant).find(|(key, head)| is_it(key, head)).map(|(key, _)| key)
    }

    /// The conversation with this id that is being changed, or the one that will have this name.
    pub(super) fn find_held(&self, tenant: &str, reference: &str) -> Option<&ConversationKey> {
        let is_it = |key: &ConversationKey, name: Option<&str>| match is_id(reference) {
            true => key.id == reference,
            false => name == Some(reference),
        };
        let mut held = self.held.iter().filter(|(key, _)| key.tenant == tenant);
        held.find(|(key, name)| is_it(key, name.as_deref())).map(|(key, _)| key)
    }

    /// True if a request is changing the conversation.
    pub(super) fn is_held(&self, key: &ConversationKey) -> bool {
        self.held.contains_key(key)
    }

    /// True if this is still the head, and no request is changing or comparing the conversation.
    pub(super) fn is_at_rest(&self, key: &ConversationKey, head: &ConversationHead) -> bool {
        self.all.get(key) == Some(head) && !self.is_held(key) && !self.comparing.contains(key)
    }

    /// Conversations that exist here, or had a copy here.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ConversationKey> {
        self.all.keys().chain(self.bases.keys())
    }

    /// True if this node has a copy of a conversation, or had one of which data may be left.
    pub(super) fn has_copy(&self, key: &ConversationKey) -> bool {
        let is_here = self.all.contains_key(key) && !self.elsewhere.contains(key);
        is_here || self.bases.contains_key(key)
    }

    /// Conversations of a tenant after the one with the id `after`, the most recently changed first.
    pub(super) fn newest_first<'a>(
        &'a self,
        tenant: &'a str,
        after: Option<&str>,
    ) -> Result<Vec<(&'a ConversationKey, &'a ConversationHead)>> {
        let mut all: Vec<_> = self.all.of(tenant).collect();
        all.sort_unstable_by_key(|(_, head)| Reverse(head.order));
        let Some(after) = after else { return Ok(all) };
        match all.iter().position(|(key, _)| key.id == after) {
            Some(index) => Ok(all.split_off(index + 1)),
            None => Err(ConversationError::NothingBehind(after.to_owned())),
        }
    }

    /// Refuses an invalid name, and a name that another conversation has or will have.
    pub(super) fn check_name(&self, of: &ConversationKey, name: &str) -> Result<()> {
        if !is_name(name) {
            return Err(ConversationError::BadName);
        }
        let has = self.find(&of.tenant, name).is_some_and(|key| key != of);
        let is_to_have = self
            .held
            .iter()
            .any(|(key, claimed)| key != of && key.tenant == of.tenant && claimed.as_deref() == Some(name));
        if has || is_to_have { Err(ConversationError::NameTaken(name.to_owned())) } else { Ok(()) }
    }

    /// Takes a conversation, which will have this name, for exclusive change.
    pub(super) fn take(&mut self, key: &ConversationKey, name: Option<&str>, reference: &str) -> Result<()> {
        if self.is_held(key) {
            return Err(ConversationError::Busy(reference.to_owned()));
        }
        self.claim(key, name);
        Ok(())
    }

    /// Sets the name that a held conversation will have.
    pub(super) fn claim(&mut self, key: &ConversationKey, name: Option<&str>) {
        self.held.insert(key.clone(), name.map(str::to_owned));
    }

    pub(super) fn release(&mut self, key: &ConversationKey) {
        self.held.remove(key);
    }

    /// Position of the next change in the order, not less than `at_least`.
    fn next_order(&mut self, at_least: u64) -> u64 {
        self.order = at_least.max(self.order.saturating_add(1));
        self.order
    }

    /// Marks the copy in the file as the newest version of a conversation.
    pub(super) fn count_file(&mut self, key: &ConversationKey) {
        if !self.elsewhere.remove(key) {
            return;
        }
        match self.bases.get(key).map(|base| base.head.clone()) {
            Some(head) => self.all.insert(key.clone(), head),
            None => self.all.remove(key),
        }
    }

    /// Marks the version in the store, with this head, as the newest of a conversation.
    pub(super) fn note_elsewhere(&mut self, key: &ConversationKey, head: &ConversationHead) {
        self.note_order(head.order);
        self.elsewhere.insert(key.clone());
        self.all.insert(key.clone(), head.clone());
    }

    /// Identity of the newest change in the store that this node knows.
    pub(super) fn known_stamp(&self, key: &ConversationKey) -> Option<u64> {
        let head = match self.elsewhere.contains(key) {
            true => self.all.get(key),
            false => self.bases.get(key).map(|base| &base.head),
        };
        head.map(|head| head.stamp)
    }

    /// Conversations that were changed or deleted locally and not written to the store yet.
    pub(super) fn changed_here(&self) -> Vec<ConversationKey> {
        let is_changed = |key: &&ConversationKey| {
            let base = self.bases.get(*key).map(|base| base.head.stamp);
            self.all.get(*key).map(|head| head.stamp) != base
        };
        let keys: BTreeSet<&ConversationKey> = self.all.keys().chain(self.bases.keys()).collect();
        keys.into_iter().filter(is_changed).cloned().collect()
    }

    /// Removes all metadata of a conversation.
    pub(super) fn forget(&mut self, key: &ConversationKey) {
        self.all.remove(key);
        self.bases.remove(key);
        self.elsewhere.remove(key);
    }

    /// Takes the `order` of a change by another node, or of a stored one, into account.
    pub(super) fn note_order(&mut self, order: u64) {
        self.order = self.order.max(order);
    }

    fn read(table: &Table<Record>) -> std::result::Result<Heads, RecordsError> {
        let mut heads = Heads::default();
        for [from, until] in [HEADS, SHARED] {
            for (text, record) in table.between(from, until)? {
                let Some(key) = ConversationKey::of_record(&text) else { continue };
                match record {
                    Record::Head(head) => {
                        heads.note_order(head.order);
                        heads.all.insert(key, head);
                    }
                    Record::Shared(content) => drop(heads.bases.insert(key, content)),
                    _ => {}
                }
            }
        }
        // A head that cannot be read is no deletion: the version of the store is read again.
        let without_head = heads.bases.keys().filter(|key| !heads.all.contains_key(key)).cloned();
        for key in without_head.collect::<Vec<_>>() {
            let head = key.head();
            if !table.keys_between(&head, &format!("{head}\0"))?.is_empty() {
                heads.bases.remove(&key);
            }
        }
        Ok(heads)
    }
}

impl Drop for Comparing<'_> {
    fn drop(&mut self) {
        self.shelf.heads().comparing.remove(&self.key);
        self.shelf.compared.notify_all();
    }
}
