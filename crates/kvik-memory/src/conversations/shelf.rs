//! Where conversations are kept: their heads in memory, what was said in the records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::error::ConversationError;
use super::fleet::{Content, Fleet};
use super::head::{ConversationHead, ConversationKey, is_id, is_name};
use super::record::{HEADS, Record, SHARED};
use crate::clock::unix_millis;
use crate::deletions::Deletions;
use crate::random::random;
use crate::records::{Records, RecordsError, Table};
use crate::shared::SharedRecords;

type Result<T> = std::result::Result<T, ConversationError>;

/// What was said, and what is known without reading it.
pub(super) struct Shelf {
    pub(super) table: Table<Record>,
    heads: Mutex<Heads>,
    /// A conversation is no longer compared with the store.
    compared: Condvar,
    /// The nodes that share the conversations, if any do.
    pub(super) fleet: Option<Fleet>,
    /// Where it is written down what of a deleted conversation others are to delete, if there are any.
    pub(super) deletions: Option<Arc<Deletions>>,
}

/// How long somebody waits until a conversation has been compared with the store.
const COMPARED_WITHIN: Duration = Duration::from_secs(2);

/// A conversation that is compared with the store, and not held meanwhile.
pub(super) struct Comparing<'a> {
    shelf: &'a Shelf,
    key: ConversationKey,
}

/// What is known of conversations without reading them.
#[derive(Default)]
pub(super) struct Heads {
    pub(super) all: BTreeMap<ConversationKey, ConversationHead>,
    /// Those that somebody is changing, and the names that they are to have.
    held: BTreeMap<ConversationKey, Option<String>>,
    /// The largest of all heads.
    order: u64,
    /// What the store had when this node last wrote or read it there.
    pub(super) bases: BTreeMap<ConversationKey, Content>,
    /// Those of which only the head is here: what was said is in the store.
    pub(super) elsewhere: BTreeSet<ConversationKey>,
    /// Those that are compared with the store.
    comparing: BTreeSet<ConversationKey>,
}

impl Shelf {
    /// What was kept when the records were closed; without records it lasts as long as the process.
    pub(super) fn open(records: Option<&Records>, shared: Option<Arc<dyn SharedRecords>>) -> Shelf {
        let records = records.map_or_else(Records::in_memory, Records::clone);
        let table: Table<Record> = records.table("conversations");
        let heads = Heads::read(&table).unwrap_or_else(|error| {
            tracing::warn!("the conversations cannot be read: {error}");
            Heads::default()
        });
        let fleet = shared.map(|shared| Fleet::new(shared, records.give_way()));
        Shelf { table, heads: Mutex::new(heads), compared: Condvar::new(), fleet, deletions: None }
    }

    /// The same, which writes down what others have to delete of a deleted one.
    pub(super) fn deleting(self, deletions: Arc<Deletions>) -> Shelf {
        Shelf { deletions: Some(deletions), ..self }
    }

    /// What was said in a conversation, as of one moment.
    pub(super) fn said(&self, key: &ConversationKey) -> Result<Vec<Value>> {
        let mut messages = Vec::new();
        let mut index = 0;
        for (text, record) in self.table.between(&key.systems(), &key.said_end())? {
            match record {
                Record::Systems(systems) => messages.extend(systems),
                Record::Message(message) if text == key.message(index) => {
                    messages.push(message);
                    index += 1;
                }
                // One before it is missing.
                _ => return Err(ConversationError::Damaged(key.id.clone())),
            }
        }
        Ok(messages)
    }

    /// What a change is called: where nodes share conversations no other change has its name.
    pub(super) fn next_stamp(&self, before: u64) -> u64 {
        // One that was shared may be again: then it has to show that it was changed.
        if self.fleet.is_some() || before != 0 { random().max(1) } else { 0 }
    }

    /// The place of the next change among all; where nodes share conversations, among those of all nodes.
    pub(super) fn next_order(&self) -> u64 {
        let now = if self.fleet.is_some() { unix_millis() } else { 0 };
        self.heads().next_order(now)
    }

    /// Somebody changes a conversation, once it is not compared with the store.
    pub(super) fn take(&self, key: &ConversationKey, name: Option<&str>, reference: &str) -> Result<()> {
        let mut heads = self.not_comparing(key);
        if heads.comparing.contains(key) {
            return Err(ConversationError::Busy(reference.to_owned()));
        }
        heads.take(key, name, reference)
    }

    /// A conversation, to be compared with the store by nobody else; `None` where somebody changes it.
    pub(super) fn compare(&self, key: &ConversationKey) -> Option<Comparing<'_>> {
        let mut heads = self.not_comparing(key);
        let is_free = !heads.is_held(key) && heads.comparing.insert(key.clone());
        is_free.then(|| Comparing { shelf: self, key: key.clone() })
    }

    /// The heads once a conversation is not compared with the store any more, or after some time.
    fn not_comparing(&self, key: &ConversationKey) -> MutexGuard<'_, Heads> {
        let is_comparing = |heads: &mut Heads| heads.comparing.contains(key);
        if let Some(fleet) = self.fleet.as_ref().filter(|_| is_comparing(&mut self.heads())) {
            fleet.aside(|| {
                drop(self.compared.wait_timeout_while(self.heads(), COMPARED_WITHIN, is_comparing))
            });
        }
        self.heads()
    }

    /// The heads. Nobody waits for the records with them in hand.
    pub(super) fn heads(&self) -> MutexGuard<'_, Heads> {
        // Every change of the maps is one call, so they are whole whatever panicked.
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heads {
    /// The conversations of a tenant, by id.
    pub(super) fn of<'a>(
        &'a self,
        tenant: &'a str,
    ) -> impl Iterator<Item = (&'a ConversationKey, &'a ConversationHead)> {
        let first = ConversationKey { tenant: tenant.to_owned(), id: String::new() };
        self.all.range(first..).take_while(move |(key, _)| key.tenant == tenant)
    }

    pub(super) fn find<'a>(&'a self, tenant: &'a str, reference: &str) -> Option<&'a ConversationKey> {
        let is_it = |key: &ConversationKey, head: &ConversationHead| match is_id(reference) {
            true => key.id == reference,
            false => head.name.as_deref() == Some(reference),
        };
        self.of(tenant).find(|(key, head)| is_it(key, head)).map(|(key, _)| key)
    }

    /// Whether somebody changes a conversation.
    pub(super) fn is_held(&self, key: &ConversationKey) -> bool {
        self.held.contains_key(key)
    }

    /// Whether nobody changes a conversation or has changed it since this was its head.
    pub(super) fn is_at_rest(&self, key: &ConversationKey, head: &ConversationHead) -> bool {
        self.all.get(key) == Some(head) && !self.is_held(key) && !self.comparing.contains(key)
    }

    /// Bytes of what was said in a tenant's conversations.
    pub(super) fn bytes(&self, tenant: &str) -> u64 {
        self.of(tenant).map(|(_, head)| head.bytes).sum()
    }

    /// Refuses what is no name, and one that another conversation has or is to have.
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

    /// Notes that somebody changes a conversation, which is to have this name.
    pub(super) fn take(&mut self, key: &ConversationKey, name: Option<&str>, reference: &str) -> Result<()> {
        if self.is_held(key) {
            return Err(ConversationError::Busy(reference.to_owned()));
        }
        self.claim(key, name);
        Ok(())
    }

    /// A conversation that is held is to have this name.
    pub(super) fn claim(&mut self, key: &ConversationKey, name: Option<&str>) {
        self.held.insert(key.clone(), name.map(str::to_owned));
    }

    pub(super) fn release(&mut self, key: &ConversationKey) {
        self.held.remove(key);
    }

    /// The place of the next change among all, `at_least` so far behind.
    fn next_order(&mut self, at_least: u64) -> u64 {
        self.order = at_least.max(self.order.saturating_add(1));
        self.order
    }

    /// What the file has of a conversation is the newest.
    pub(super) fn count_file(&mut self, key: &ConversationKey) {
        if !self.elsewhere.remove(key) {
            return;
        }
        match self.bases.get(key).map(|base| base.head.clone()) {
            Some(head) => drop(self.all.insert(key.clone(), head)),
            None => drop(self.all.remove(key)),
        }
    }

    /// The newest version of a conversation is in the store, and this its head.
    pub(super) fn note_elsewhere(&mut self, key: &ConversationKey, head: &ConversationHead) {
        self.note_order(head.order);
        self.elsewhere.insert(key.clone());
        self.all.insert(key.clone(), head.clone());
    }

    /// Which change of a conversation in the store is known here as the newest.
    pub(super) fn known_stamp(&self, key: &ConversationKey) -> Option<u64> {
        let head = match self.elsewhere.contains(key) {
            true => self.all.get(key),
            false => self.bases.get(key).map(|base| &base.head),
        };
        head.map(|head| head.stamp)
    }

    /// Conversations that were changed here since the store had them.
    pub(super) fn changed_here(&self) -> Vec<ConversationKey> {
        let is_changed = |key: &&ConversationKey| {
            let base = self.bases.get(*key).map(|base| base.head.stamp);
            self.all.get(*key).map(|head| head.stamp) != base
        };
        let keys: BTreeSet<&ConversationKey> = self.all.keys().chain(self.bases.keys()).collect();
        keys.into_iter().filter(is_changed).cloned().collect()
    }

    /// Nothing is here of a conversation any more.
    pub(super) fn forget(&mut self, key: &ConversationKey) {
        self.all.remove(key);
        self.bases.remove(key);
        self.elsewhere.remove(key);
    }

    /// Another node has changed something.
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
        Ok(heads)
    }
}

impl Drop for Comparing<'_> {
    fn drop(&mut self) {
        self.shelf.heads().comparing.remove(&self.key);
        self.shelf.compared.notify_all();
    }
}
