//! A conversation held for exclusive change.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::context::leading_systems;
use kvik_text::measure::json_bytes;
use serde_json::Value;

use super::error::ConversationError;
use super::head::{ConversationHead, ConversationKey};
use super::limits::{BYTES_MAX, MESSAGES_MAX, TENANT_BYTES_MAX};
use super::record::Record;
use super::sharing::WrittenThrough;
use super::shelf::Shelf;
use crate::clock::unix_seconds;
use crate::deletions::Deletion;

type Result<T> = std::result::Result<T, ConversationError>;

/// Exclusive access to a conversation that is being changed; released when dropped.
pub struct Held {
    pub(super) shelf: Arc<Shelf>,
    pub(super) key: ConversationKey,
    pub(super) head: ConversationHead,
}

impl Held {
    /// Key of the conversation.
    pub fn key(&self) -> &ConversationKey {
        &self.key
    }

    /// Metadata of the conversation.
    pub fn head(&self) -> &ConversationHead {
        &self.head
    }

    /// Messages of the conversation.
    pub fn messages(&self) -> Result<Vec<Value>> {
        let messages = self.shelf.said(&self.key)?;
        match messages.len() == self.head.messages {
            true => Ok(messages),
            false => Err(ConversationError::Damaged(self.key.id.clone())),
        }
    }

    /// Sets the model for turns that name none, from the next change on.
    pub fn asks(&mut self, model: Option<String>) {
        self.head.model = model;
    }

    /// Refuses messages that would exceed a limit.
    pub fn make_room(&self, messages: &[Value]) -> Result<()> {
        let limit = |what, have, max| match have <= max {
            true => Ok(()),
            false => Err(ConversationError::Full { what, have, max }),
        };
        let count = (self.head.messages + messages.len()) as u64;
        limit("the conversation would have too many messages", count, MESSAGES_MAX as u64)?;
        let more: u64 = messages.iter().map(|message| json_bytes(message) as u64).sum();
        limit("the conversation would have too many bytes", self.head.bytes + more, BYTES_MAX)?;
        self.make_room_beside_all(more)
    }

    /// Refuses bytes with which all conversations of the tenant would exceed their limit.
    fn make_room_beside_all(&self, more: u64) -> Result<()> {
        let (have, max) = (self.shelf.heads().all.bytes(&self.key.tenant) + more, TENANT_BYTES_MAX);
        let what = "all conversations together would have too many bytes";
        if have <= max { Ok(()) } else { Err(ConversationError::AllFull { what, have, max }) }
    }

    /// Appends messages. System messages at their beginning replace those of the conversation.
    pub fn append(&mut self, messages: &[Value]) -> Result<()> {
        let (own, more) = messages.split_at(leading_systems(messages));
        let mut head = self.head.clone();
        let said = head.messages - head.systems;
        let mut records = Vec::new();
        if !own.is_empty() {
            head.systems = own.len();
            records.push((self.key.systems(), Some(Record::Systems(own.to_vec()))));
        }
        head.messages = head.systems + said + more.len();
        let more = more.iter().enumerate();
        records.extend(
            more.map(|(i, message)| (self.key.message(said + i), Some(Record::Message(message.clone())))),
        );
        self.commit(records, head)
    }

    /// Replaces the metadata of the client, from the next change on. Refuses what would exceed a limit.
    pub fn describe(&mut self, metadata: BTreeMap<String, String>) -> Result<()> {
        let head = ConversationHead { metadata, ..self.head.clone() };
        let more = head.metadata_bytes().saturating_sub(self.head.metadata_bytes());
        if more > 0 {
            self.make_room_beside_all(more)?;
        }
        self.head = head;
        Ok(())
    }

    /// Removes the messages from the index `from` on.
    pub fn take_back(&mut self, from: usize) -> Result<()> {
        let messages = self.head.messages;
        if from > messages {
            return Err(ConversationError::BeyondItsEnd { field: "from", asked: from, messages });
        }
        if let Some(deletions) = &self.shelf.deletions {
            // After the removal nothing leads to the data derived from these messages any more.
            let left = Deletion::of(&self.key.tenant, &self.shelf.readable(&self.key)?, from);
            deletions.begin(&self.key.owner().part(), left.of_part())?;
        }
        let mut head = self.head.clone();
        let kept = from.saturating_sub(head.systems);
        let gone = kept..messages - head.systems;
        let mut records: Vec<_> = gone.map(|index| (self.key.message(index), None)).collect();
        if from < head.systems {
            let mut left = self.messages()?;
            left.truncate(from);
            records.push((self.key.systems(), (from > 0).then_some(Record::Systems(left))));
            head.systems = from;
        }
        head.messages = from;
        self.commit(records, head)
    }

    /// Renames the conversation.
    pub fn rename(&mut self, name: &str) -> Result<()> {
        if let Some(sharing) = self.shelf.sharing() {
            sharing.refresh_name(&self.key.tenant, name);
        }
        {
            let mut heads = self.shelf.heads();
            heads.check_name(&self.key, name)?;
            heads.claim(&self.key, Some(name));
        }
        if let Some(sharing) = self.shelf.sharing().filter(|_| self.head.name.as_deref() != Some(name)) {
            sharing.claim_held(&self.key, name)?;
        }
        let head = ConversationHead { name: Some(name.to_owned()), ..self.head.clone() };
        self.commit(Vec::new(), head)
    }

    /// Deletes the conversation with all messages. The deletion of derived data is recorded first.
    pub fn delete(self) -> Result<()> {
        let owner = self.key.owner();
        if let Some(deletions) = &self.shelf.deletions {
            // A conversation that cannot be read can still be deleted. Identities of messages behind a lost one depend
            // on it and are unknown.
            let left = Deletion::of(&self.key.tenant, &self.shelf.readable(&self.key)?, 0);
            deletions.begin(&owner, left.named(self.head.name.clone()))?;
        }
        self.shelf.remove_said(&self.key)?;
        if let Some(deletions) = &self.shelf.deletions
            && let Some(left) = deletions.get(&owner)
        {
            deletions.put(&owner, Some(left.removed()))?;
        }
        self.shelf.sharing().map(|sharing| sharing.write_through(&self.key));
        Ok(())
    }

    /// Writes the records and the head in one transaction. The head counts the records' bytes.
    fn commit(&mut self, records: Vec<(String, Option<Record>)>, mut head: ConversationHead) -> Result<()> {
        head.updated = unix_seconds();
        head.order = self.shelf.next_order();
        head.stamp = self.shelf.next_stamp(head.stamp);
        let head_key = self.key.head();
        let (keys, records): (Vec<String>, Vec<Option<Record>>) = records.into_iter().unzip();
        let mut records = records.into_iter();
        let keys = keys.iter().map(String::as_str).chain([head_key.as_str()]);
        self.shelf.table.change_erasing(keys, |key, before| {
            if key == head_key {
                return Some(Record::Head(head.clone()));
            }
            let record = records.next().flatten();
            let bytes = |record: &Option<Record>| record.as_ref().map_or(0, Record::bytes);
            head.bytes = (head.bytes + bytes(&record)).saturating_sub(bytes(&before));
            record
        })?;
        self.shelf.heads().all.insert(self.key.clone(), head.clone());
        self.head = head;
        self.write_through()
    }

    /// Writes the conversation to the store that the nodes share. If another node has changed it concurrently, this
    /// becomes another conversation.
    fn write_through(&mut self) -> Result<()> {
        let written = self.shelf.sharing().map(|sharing| sharing.write_through(&self.key));
        if let Some(WrittenThrough::Forked(Some(fork))) = written {
            let of = std::mem::replace(&mut self.key, fork.clone());
            let mut heads = self.shelf.heads();
            heads.release(&of);
            heads.claim(&fork, None);
            self.head = heads.all.get(&fork).cloned().unwrap_or_default();
            return Err(ConversationError::Forked { of: of.id, fork: fork.id });
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The worker ends the hold in the store, so that no request waits for it.
        self.shelf.end_hold(&self.key);
        self.shelf.heads().release(&self.key);
    }
}
