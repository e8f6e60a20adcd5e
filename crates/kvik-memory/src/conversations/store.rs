//! All conversations, and who may change which.

use std::sync::Arc;

use serde_json::Value;

use super::error::ConversationError;
use super::head::{ConversationHead, ConversationKey, is_id};
use super::held::Held;
use super::limits::CONVERSATIONS_MAX;
use super::sharing;
use super::shelf::Shelf;
use crate::clock::unix_seconds;
use crate::deletions::{Deletion, Deletions, Owner};
use crate::records::Records;
use crate::shared::SharedRecords;

type Result<T> = std::result::Result<T, ConversationError>;

/// All conversations.
pub struct Conversations {
    pub(super) shelf: Arc<Shelf>,
}

impl Conversations {
    /// Those that were kept when the records were closed; without records they last as long as the process.
    pub fn open(records: Option<&Records>) -> Arc<Conversations> {
        Conversations::open_shared(records, None)
    }

    /// The same, with those of the other nodes that share these records: what is changed here is changed for all of them.
    ///
    /// Then whatever asks for conversations may wait for the store, some hundred milliseconds where that does not answer.
    pub fn open_shared(
        records: Option<&Records>,
        shared: Option<Arc<dyn SharedRecords>>,
    ) -> Arc<Conversations> {
        Conversations::with(Shelf::open(records, shared))
    }

    /// The same, that write down what others have to delete of a deleted one.
    pub fn open_deleting(
        records: Option<&Records>,
        shared: Option<Arc<dyn SharedRecords>>,
        deletions: Arc<Deletions>,
    ) -> Arc<Conversations> {
        Conversations::with(Shelf::open(records, shared).deleting(deletions))
    }

    fn with(shelf: Shelf) -> Arc<Conversations> {
        let shelf = Arc::new(shelf);
        sharing::start(&shelf);
        Arc::new(Conversations { shelf })
    }

    /// Removes what is left of a deleted conversation, here and in the store that nodes share. May be repeated.
    ///
    /// # Errors
    /// If something may be left: the store does not answer, or has not heard of it yet.
    pub fn erase(&self, owner: &Owner, left: &Deletion) -> Result<()> {
        let key = ConversationKey { tenant: owner.tenant.clone(), id: owner.id.clone() };
        if !left.is_removed {
            self.shelf.take(&key, None, &key.id)?;
            // It was to be deleted when the process ended.
            let held =
                Held { head: ConversationHead::default(), key: key.clone(), shelf: self.shelf.clone() };
            self.shelf.remove_said(&held.key)?;
            self.shelf.sharing().map(|sharing| sharing.write_through(&held.key));
        }
        self.shelf.erase_shared(&key, left.name.as_deref())
    }

    /// Whether nodes share them, so that asking for one may take its time.
    pub fn are_shared(&self) -> bool {
        self.shelf.fleet.is_some()
    }

    /// The conversations of a tenant, those that were changed last first. Other nodes may have changed some a few seconds
    /// ago.
    pub fn of(&self, tenant: &str) -> Vec<(ConversationKey, ConversationHead)> {
        if let Some(sharing) = self.shelf.sharing() {
            sharing.list(tenant);
        }
        let heads = self.shelf.heads();
        let mut all: Vec<_> = heads.of(tenant).map(|(key, head)| (key.clone(), head.clone())).collect();
        all.sort_unstable_by_key(|(_, head)| std::cmp::Reverse(head.order));
        all
    }

    /// The conversation of a tenant with this name or id.
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

    /// What was said in a conversation, as of one moment, and its head.
    pub fn read(
        &self,
        tenant: &str,
        reference: &str,
    ) -> Result<(ConversationKey, ConversationHead, Vec<Value>)> {
        let (key, head) = self.find(tenant, reference)?;
        let messages = self.shelf.said(&key)?;
        // It may have changed since its head was read.
        if messages.len() != head.messages && self.shelf.heads().is_at_rest(&key, &head) {
            return Err(ConversationError::Damaged(key.id));
        }
        Ok((key, ConversationHead { messages: messages.len(), ..head }, messages))
    }

    /// A conversation, to be changed by nobody else meanwhile.
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

    /// A new conversation. It is there once something is written in it, also if that is nothing.
    pub fn begin(&self, tenant: &str, name: Option<&str>) -> Result<Held> {
        let key = ConversationKey::random(tenant);
        if let Some((sharing, name)) = self.shelf.sharing().zip(name) {
            sharing.refresh_name(tenant, name);
        }
        {
            let mut heads = self.shelf.heads();
            let have = heads.of(tenant).count();
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

    /// The conversation with this name or id; a new one where nothing has the name.
    pub fn hold_or_begin(&self, tenant: &str, reference: &str) -> Result<Held> {
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
}

impl Drop for Conversations {
    fn drop(&mut self) {
        if let Some(fleet) = &self.shelf.fleet {
            fleet.queue.close();
        }
    }
}

fn not_found(reference: &str) -> ConversationError {
    ConversationError::NotFound(reference.to_owned())
}
