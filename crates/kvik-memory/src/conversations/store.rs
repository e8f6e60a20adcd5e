//! The set of all conversations, and exclusive access to each.

use std::sync::Arc;

use serde_json::Value;

use super::error::ConversationError;
use super::head::{ConversationHead, ConversationKey, is_id};
use super::held::Held;
use super::limits::CONVERSATIONS_MAX;
use super::record::{HEADS, SHARED};
use super::sharing;
use super::shelf::{OnFork, Shelf};
use crate::clock::unix_seconds;
use crate::deletions::{Deletion, Deletions, Owner};
use crate::records::{Records, RecordsError};
use crate::shared::SharedRecords;

type Result<T> = std::result::Result<T, ConversationError>;

/// All conversations.
pub struct Conversations {
    pub(super) shelf: Arc<Shelf>,
}

impl Conversations {
    /// Loads the stored conversations; without records, they last until the process ends.
    pub fn open(records: Option<&Records>) -> Arc<Conversations> {
        Conversations::open_shared(records, None)
    }

    /// Loads them together with those of the other nodes that share `shared`: a change on one node is a change on all.
    ///
    /// Calls then may wait for the store, for some hundred milliseconds if it does not answer.
    pub fn open_shared(
        records: Option<&Records>,
        shared: Option<Arc<dyn SharedRecords>>,
    ) -> Arc<Conversations> {
        Conversations::with(Shelf::open(records, shared))
    }

    /// Opens them and records the deletion of data derived from deleted conversations in `deletions`.
    pub fn open_deleting(
        records: Option<&Records>,
        shared: Option<Arc<dyn SharedRecords>>,
        deletions: Arc<Deletions>,
    ) -> Arc<Conversations> {
        Conversations::with(Shelf::open(records, shared).deleting(deletions))
    }

    /// The same, of which `forked` is told what becomes another conversation.
    pub fn open_forking(
        records: Option<&Records>,
        shared: Option<Arc<dyn SharedRecords>>,
        deletions: Arc<Deletions>,
        forked: OnFork,
    ) -> Arc<Conversations> {
        Conversations::with(Shelf::open(records, shared).deleting(deletions).telling(forked))
    }

    fn with(shelf: Shelf) -> Arc<Conversations> {
        let shelf = Arc::new(shelf);
        sharing::start(&shelf);
        Arc::new(Conversations { shelf })
    }

    /// Removes the rest of a deleted conversation, locally and in the store that nodes share. May be repeated.
    ///
    /// # Errors
    /// If something may be left: the store does not answer, or the deletion is not written to it yet.
    pub fn erase(&self, owner: &Owner, left: &Deletion) -> Result<()> {
        let key = ConversationKey { tenant: owner.tenant.clone(), id: owner.id.clone() };
        if !left.is_removed {
            self.shelf.take(&key, None, &key.id)?;
            // The process ended after the deletion was recorded and before the messages were removed.
            let held =
                Held { head: ConversationHead::default(), key: key.clone(), shelf: self.shelf.clone() };
            self.shelf.remove_said(&held.key)?;
            self.shelf.sharing().map(|sharing| sharing.write_through(&held.key));
        }
        self.shelf.erase_shared(&key, left.name.as_deref())
    }

    /// Applies what other nodes have done to the conversations on this node: what was made of deleted ones is recorded
    /// as to be deleted. Waits for the store that the nodes share, for some seconds at most.
    pub fn hear_deletions(&self) {
        self.shelf.hear();
    }

    /// Writes to the store that nodes share what it has not taken yet, once more, and releases what this node holds of
    /// it. Waits for some seconds at most. The store gets later changes when this node runs again.
    pub fn close(&self) {
        if let Some(fleet) = &self.shelf.fleet {
            fleet.queue.close();
        }
    }

    /// True if nodes share them, so that finding one may take time.
    pub fn are_shared(&self) -> bool {
        self.shelf.fleet.is_some()
    }

    /// Reads what other nodes have changed in the list of a tenant's conversations; changes may be missing for a few
    /// seconds. Waits for the store that the nodes share, for a second at most.
    pub fn refresh(&self, tenant: &str) {
        if let Some(sharing) = self.shelf.sharing() {
            sharing.list(tenant);
        }
    }

    /// At most `limit` of the conversations of a tenant that this node knows, after the one with the id `after` and the
    /// most recently changed first, and whether others follow. Only these are copied: the heads of all may be large.
    ///
    /// # Errors
    /// If the tenant has no conversation with the id `after`.
    pub fn page(
        &self,
        tenant: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<(ConversationKey, ConversationHead)>, bool)> {
        let heads = self.shelf.heads();
        let all = heads.newest_first(tenant, after)?;
        let page = all.iter().take(limit).map(|&(key, head)| (key.clone(), head.clone())).collect();
        Ok((page, all.len() > limit))
    }

    /// All conversations of a tenant, the most recently changed first.
    pub fn of(&self, tenant: &str) -> Vec<(ConversationKey, ConversationHead)> {
        self.refresh(tenant);
        self.page(tenant, None, CONVERSATIONS_MAX).map(|(all, _)| all).unwrap_or_default()
    }

    /// The owners of what was computed for all conversations in the records, also for those that cannot be read. Where
    /// nodes share conversations, there are others.
    ///
    /// # Errors
    /// If the records cannot be read.
    pub fn owners(&self) -> std::result::Result<Vec<Owner>, RecordsError> {
        let mut owners = Vec::new();
        for [from, until] in [HEADS, SHARED] {
            let keys = self.shelf.table.keys_between(from, until)?;
            let keys = keys.iter().filter_map(|text| ConversationKey::of_record(text));
            owners.extend(keys.map(|key| key.owner()));
        }
        Ok(owners)
    }

    /// A tenant's conversation with this name or id that a request on this node is changing. One that begins exists only
    /// once it is written, and has its name before.
    pub fn held(&self, tenant: &str, reference: &str) -> Option<ConversationKey> {
        self.shelf.heads().find_held(tenant, reference).cloned()
    }

    /// Finds a tenant's conversation by name or id.
    pub fn find(&self, tenant: &str, reference: &str) -> Result<(ConversationKey, ConversationHead)> {
        if let Some(sharing) = self.shelf.sharing() {
            sharing.with_named(tenant, reference, |key| {
                sharing.refresh(key)?;
                Ok(sharing.is_called(key, reference).then_some(()))
            })?;
        }
        let heads = self.shelf.heads();
        let key = heads.find(tenant, reference).ok_or_else(|| not_found(reference))?;
        Ok((key.clone(), heads.all[key].clone()))
    }

    /// Reads the messages of a conversation in one transaction, and its head.
    pub fn read(
        &self,
        tenant: &str,
        reference: &str,
    ) -> Result<(ConversationKey, ConversationHead, Vec<Value>)> {
        let (key, head) = self.find(tenant, reference)?;
        let messages = self.shelf.said(&key)?;
        // The conversation may have changed since its head was read.
        if messages.len() != head.messages && self.shelf.heads().is_at_rest(&key, &head) {
            return Err(ConversationError::Damaged(key.id));
        }
        Ok((key, ConversationHead { messages: messages.len(), ..head }, messages))
    }

    /// Takes a conversation for exclusive change.
    pub fn hold(&self, tenant: &str, reference: &str) -> Result<Held> {
        let Some(sharing) = self.shelf.sharing() else {
            let mut heads = self.shelf.heads();
            let key = heads.find(tenant, reference).ok_or_else(|| not_found(reference))?.clone();
            heads.take(&key, None, reference)?;
            return Ok(Held { head: heads.all[&key].clone(), key, shelf: self.shelf.clone() });
        };
        sharing.with_named(tenant, reference, |key| {
            self.shelf.take(key, None, reference)?;
            let mut held =
                Held { head: ConversationHead::default(), key: key.clone(), shelf: self.shelf.clone() };
            sharing.lease(key, reference)?;
            let is_it = sharing.is_called(key, reference);
            held.head = self.shelf.heads().all.get(key).cloned().unwrap_or_default();
            Ok(is_it.then_some(held))
        })
    }

    /// Begins a new conversation. It exists once it is written, even if without messages.
    pub fn begin(&self, tenant: &str, name: Option<&str>) -> Result<Held> {
        let key = ConversationKey::random(tenant);
        if let Some((sharing, name)) = self.shelf.sharing().zip(name) {
            sharing.refresh_name(tenant, name);
        }
        {
            let mut heads = self.shelf.heads();
            let have = heads.all.of(tenant).count();
            if have >= CONVERSATIONS_MAX {
                let (have, max) = (have as u64, CONVERSATIONS_MAX as u64);
                return Err(ConversationError::AllFull { what: "there are many conversations", have, max });
            }
            name.map_or(Ok(()), |name| heads.check_name(&key, name))?;
            heads.take(&key, name, &key.id)?;
        }
        let head = ConversationHead {
            name: name.map(str::to_owned),
            created: unix_seconds(),
            ..ConversationHead::default()
        };
        let held = Held { head, key, shelf: self.shelf.clone() };
        if let Some((sharing, name)) = self.shelf.sharing().zip(name) {
            sharing.claim_held(&held.key, name)?;
        }
        Ok(held)
    }

    /// Takes the conversation with this name or id; begins a new one if no conversation has the name.
    pub fn hold_or_begin(&self, tenant: &str, reference: &str) -> Result<Held> {
        match self.hold(tenant, reference) {
            Err(ConversationError::NotFound(_)) if !is_id(reference) => {
                match self.begin(tenant, Some(reference)) {
                    // Another request has begun it, and its first turn is not answered yet.
                    Err(ConversationError::NameTaken(name)) => Err(ConversationError::Busy(name)),
                    begun => begun,
                }
            }
            held => held,
        }
    }
}

impl Drop for Conversations {
    fn drop(&mut self) {
        self.close();
    }
}

fn not_found(reference: &str) -> ConversationError {
    ConversationError::NotFound(reference.to_owned())
}
