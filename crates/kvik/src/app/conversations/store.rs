//! All conversations, and who may change which.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::error::ConversationError;
use super::held::Held;
use super::record::{ConversationHead, ConversationKey, HEADS, Record, is_id, is_name};
use crate::accounts::ledger::{Records, RecordsError, Table};
use crate::clock::unix_seconds;

type Result<T> = std::result::Result<T, ConversationError>;

/// Conversations of one tenant at most.
pub(super) const CONVERSATIONS_MAX: usize = 4096;
/// Bytes of all that was said in one tenant's conversations, at most. The answers of turns that run may go beyond it:
/// they are written down all the same.
pub(super) const TENANT_BYTES_MAX: u64 = 256 << 20;
/// Bytes of what was said in one conversation at most, likewise: every turn reads all of it.
pub(super) const BYTES_MAX: u64 = 32 << 20;
/// Messages of one conversation at most, as of one request: what is exported can be sent again.
pub(crate) const MESSAGES_MAX: usize = 65_536;

/// All conversations.
pub(crate) struct Conversations {
    pub(super) table: Table<Record>,
    shelf: Mutex<Shelf>,
}

/// What is known of conversations without reading them.
#[derive(Default)]
pub(super) struct Shelf {
    pub(super) heads: BTreeMap<ConversationKey, ConversationHead>,
    /// Those that somebody is changing, and the names that they are to have.
    held: BTreeMap<ConversationKey, Option<String>>,
    /// The largest of all heads.
    order: u64,
}

impl Conversations {
    /// Those that were kept when the records were closed; without records they last as long as the process.
    pub(crate) fn open(records: Option<&Records>) -> Arc<Conversations> {
        let table: Table<Record> =
            records.map_or_else(Records::in_memory, Records::clone).table("conversations");
        let heads = heads(&table).unwrap_or_else(|error| {
            tracing::warn!("the conversations cannot be read: {error}");
            BTreeMap::new()
        });
        let order = heads.values().map(|head| head.order).max().unwrap_or(0);
        let shelf = Mutex::new(Shelf { heads, held: BTreeMap::new(), order });
        Arc::new(Conversations { table, shelf })
    }

    /// The conversations of a tenant, those that were changed last first.
    pub(crate) fn of(&self, tenant: &str) -> Vec<(ConversationKey, ConversationHead)> {
        let shelf = self.lock();
        let mut all: Vec<_> = shelf.of(tenant).map(|(key, head)| (key.clone(), head.clone())).collect();
        all.sort_unstable_by_key(|(_, head)| std::cmp::Reverse(head.order));
        all
    }

    /// The conversation of a tenant with this name or id.
    pub(crate) fn find(&self, tenant: &str, reference: &str) -> Result<(ConversationKey, ConversationHead)> {
        let shelf = self.lock();
        let key = shelf.find(tenant, reference).ok_or_else(|| not_found(reference))?;
        Ok((key.clone(), shelf.heads[key].clone()))
    }

    /// What was said in a conversation, as of one moment, and its head.
    pub(crate) fn read(
        &self,
        tenant: &str,
        reference: &str,
    ) -> Result<(ConversationKey, ConversationHead, Vec<Value>)> {
        let (key, head) = self.find(tenant, reference)?;
        let messages = self.said(&key)?;
        // It may have changed since its head was read.
        if messages.len() != head.messages && self.lock().is_at_rest(&key, &head) {
            return Err(ConversationError::Damaged(key.id));
        }
        Ok((key, ConversationHead { messages: messages.len(), ..head }, messages))
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

    /// A conversation, to be changed by nobody else meanwhile.
    pub(crate) fn hold(self: &Arc<Self>, tenant: &str, reference: &str) -> Result<Held> {
        let mut shelf = self.lock();
        let key = shelf.find(tenant, reference).ok_or_else(|| not_found(reference))?.clone();
        shelf.take(&key, None, reference)?;
        Ok(Held { head: shelf.heads[&key].clone(), key, store: self.clone() })
    }

    /// A new conversation. It is there once something is written in it, also if that is nothing.
    pub(crate) fn begin(self: &Arc<Self>, tenant: &str, name: Option<&str>) -> Result<Held> {
        let mut shelf = self.lock();
        let have = shelf.of(tenant).count();
        if have >= CONVERSATIONS_MAX {
            let remedy = "delete some first: DELETE /v1/conversations/{id}";
            let (have, max) = (have as u64, CONVERSATIONS_MAX as u64);
            return Err(ConversationError::Limit { what: "there are many conversations", have, max, remedy });
        }
        let key = ConversationKey::random(tenant);
        name.map_or(Ok(()), |name| shelf.check_name(&key, name))?;
        shelf.take(&key, name, &key.id)?;
        let head = ConversationHead {
            name: name.map(str::to_owned),
            created: unix_seconds(),
            ..ConversationHead::default()
        };
        Ok(Held { head, key, store: self.clone() })
    }

    /// The conversation with this name or id; a new one where nothing has the name.
    pub(crate) fn hold_or_begin(self: &Arc<Self>, tenant: &str, reference: &str) -> Result<Held> {
        match self.hold(tenant, reference) {
            Err(ConversationError::NotFound(_)) if !is_id(reference) => {
                match self.begin(tenant, Some(reference)) {
                    // Somebody has begun it and is not answered yet.
                    Err(ConversationError::NameTaken(name)) => Err(ConversationError::Busy(name)),
                    begun => begun,
                }
            }
            held => held,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shelf> {
        // Every change of the maps is one call, so they are whole whatever panicked.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    /// The conversations of a tenant, by id.
    fn of<'a>(
        &'a self,
        tenant: &'a str,
    ) -> impl Iterator<Item = (&'a ConversationKey, &'a ConversationHead)> {
        let first = ConversationKey { tenant: tenant.to_owned(), id: String::new() };
        self.heads.range(first..).take_while(move |(key, _)| key.tenant == tenant)
    }

    fn find<'a>(&'a self, tenant: &'a str, reference: &str) -> Option<&'a ConversationKey> {
        let is_it = |key: &ConversationKey, head: &ConversationHead| match is_id(reference) {
            true => key.id == reference,
            false => head.name.as_deref() == Some(reference),
        };
        self.of(tenant).find(|(key, head)| is_it(key, head)).map(|(key, _)| key)
    }

    /// Whether nobody changes a conversation or has changed it since this was its head.
    fn is_at_rest(&self, key: &ConversationKey, head: &ConversationHead) -> bool {
        self.heads.get(key) == Some(head) && !self.held.contains_key(key)
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
    fn take(&mut self, key: &ConversationKey, name: Option<&str>, reference: &str) -> Result<()> {
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

fn not_found(reference: &str) -> ConversationError {
    ConversationError::NotFound(reference.to_owned())
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
