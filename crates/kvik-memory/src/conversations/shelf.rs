//! Where conversations are kept: their heads in memory, what was said in the records.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::error::ConversationError;
use super::record::{ConversationHead, ConversationKey, HEADS, Record, is_id, is_name};
use crate::records::{Records, RecordsError, Table};

type Result<T> = std::result::Result<T, ConversationError>;

/// What was said, and what is known without reading it.
pub(super) struct Shelf {
    pub(super) table: Table<Record>,
    heads: Mutex<Heads>,
}

/// What is known of conversations without reading them.
pub(super) struct Heads {
    pub(super) all: BTreeMap<ConversationKey, ConversationHead>,
    /// Those that somebody is changing, and the names that they are to have.
    held: BTreeMap<ConversationKey, Option<String>>,
    /// The largest of all heads.
    order: u64,
}

impl Shelf {
    /// What was kept when the records were closed; without records it lasts as long as the process.
    pub(super) fn open(records: Option<&Records>) -> Shelf {
        let table: Table<Record> =
            records.map_or_else(Records::in_memory, Records::clone).table("conversations");
        let all = heads(&table).unwrap_or_else(|error| {
            tracing::warn!("the conversations cannot be read: {error}");
            BTreeMap::new()
        });
        let order = all.values().map(|head| head.order).max().unwrap_or(0);
        Shelf { table, heads: Mutex::new(Heads { all, held: BTreeMap::new(), order }) }
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

    /// Whether nobody changes a conversation or has changed it since this was its head.
    pub(super) fn is_at_rest(&self, key: &ConversationKey, head: &ConversationHead) -> bool {
        self.all.get(key) == Some(head) && !self.held.contains_key(key)
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
        if self.held.contains_key(key) {
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

    /// The place of the next change among all.
    pub(super) fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}

fn heads(
    table: &Table<Record>,
) -> std::result::Result<BTreeMap<ConversationKey, ConversationHead>, RecordsError> {
    let [from, until] = HEADS;
    let heads = table.between(from, until)?.into_iter().filter_map(|(text, record)| match record {
        Record::Head(head) => Some((ConversationKey::of_head(&text)?, head)),
        _ => None,
    });
    Ok(heads.collect())
}
