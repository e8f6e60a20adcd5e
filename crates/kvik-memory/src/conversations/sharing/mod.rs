//! Conversations that the nodes of a fleet share: what is said at one of them is gone on with at any.
//!
//! ```text
//! hold    the newest version is read, and a lease on it written      others are refused meanwhile
//! commit  in this node's file, then in the store, without the lease  others read this from now on
//! ```
//!
//! A node's file has whole conversations, and of each what the store had when both were the same: the base. What
//! differs from its base was changed here and is yet to be written; what the store has instead of the base was changed
//! by others. Where both is so, both are kept: the store's under the id, this node's under another.

mod claims;
mod erase;
mod leases;
mod listing;
mod reconcile;
mod segments;
#[cfg(test)]
mod tests;
mod worker;
mod write_through;

use super::error::ConversationError;
use super::fleet::Fleet;
use super::fleet::queue::Task;
use super::fleet::record::{CONVERSATION, SharedConversation, conversation_name};
use super::fleet::store::Store;
use super::head::{ConversationKey, is_id, is_known_id};
use super::shelf::Shelf;
use crate::shared::SharedError;

pub(super) use worker::start;
pub(super) use write_through::WrittenThrough;

type Result<T> = std::result::Result<T, ConversationError>;

/// How often something is tried again at once that another node was faster with.
const ATTEMPTS: usize = 4;

/// This node's conversations beside those of the store.
pub(super) struct Sharing<'a> {
    shelf: &'a Shelf,
    fleet: &'a Fleet,
    store: Store,
}

impl Shelf {
    /// Where nodes share conversations: for a turn, which does not wait long.
    pub(super) fn sharing(&self) -> Option<Sharing<'_>> {
        let fleet = self.fleet.as_ref()?;
        Some(Sharing { shelf: self, fleet, store: fleet.store.clone() })
    }

    /// Nobody here changes a conversation any more.
    pub(super) fn end_hold(&self, key: &ConversationKey) {
        let Some(fleet) = &self.fleet else { return };
        if let Some(hold) = fleet.holds().remove(key) {
            fleet.queue.task(Task::Release(key.clone(), hold));
        }
    }

    /// The same for work for which nobody waits.
    fn sharing_in_background(&self) -> Option<Sharing<'_>> {
        let fleet = self.fleet.as_ref()?;
        Some(Sharing { shelf: self, fleet, store: fleet.store.in_background() })
    }
}

impl Sharing<'_> {
    /// Reads what is newer of a conversation. One that is held here is the newest.
    ///
    /// # Errors
    /// If it is in the store alone and that does not answer.
    pub(super) fn refresh(&self, key: &ConversationKey) -> Result<()> {
        let Some(_comparing) = self.shelf.compare(key) else {
            let is_newest = self.shelf.heads().is_held(key);
            return if is_newest { Ok(()) } else { Err(ConversationError::Elsewhere(key.id.clone())) };
        };
        match self.conversation(key) {
            Ok(found) => self.reconcile(key, found.as_ref().map(|(_, shared)| shared)),
            Err(_) => self.go_on_alone(key),
        }
    }

    /// Finds out whether the conversation that has a name here still has it. Where the store does not answer, it has.
    pub(super) fn refresh_name(&self, tenant: &str, name: &str) {
        let key = self.shelf.heads().find(tenant, name).cloned();
        if let Some(key) = key {
            let _ = self.refresh(&key);
        }
    }

    /// Does something with the conversation of a name or an id; `None` of it says that the conversation is another.
    ///
    /// # Errors
    /// If there is none, or the store does not say.
    pub(super) fn with_named<T>(
        &self,
        tenant: &str,
        reference: &str,
        mut attempt: impl FnMut(&ConversationKey) -> Result<Option<T>>,
    ) -> Result<T> {
        let not_found = || ConversationError::NotFound(reference.to_owned());
        let here = self.shelf.heads().find(tenant, reference).cloned();
        let done = here.as_ref().map_or(Ok(None), &mut attempt)?;
        if let Some(done) = done {
            return Ok(done);
        }
        let key = match is_id(reference) {
            true if is_known_id(reference) => {
                Some(ConversationKey { tenant: tenant.to_owned(), id: reference.to_owned() })
            }
            true => None,
            false => self.owner(tenant, reference)?,
        };
        let other = key.filter(|key| here.as_ref() != Some(key));
        other.map_or(Ok(None), |key| attempt(&key))?.ok_or_else(not_found)
    }

    /// Whether a conversation is there and is called this.
    pub(super) fn is_called(&self, key: &ConversationKey, reference: &str) -> bool {
        self.shelf.heads().find(&key.tenant, reference) == Some(key)
    }

    /// The store does not answer: this node's file is what there is.
    fn go_on_alone(&self, key: &ConversationKey) -> Result<()> {
        let heads = self.shelf.heads();
        let is_here = heads.all.contains_key(key) && !heads.elsewhere.contains(key);
        // One that was deleted here, and is so in the store as soon as that answers.
        let is_deleted = !heads.all.contains_key(key) && heads.bases.contains_key(key);
        if is_here || is_deleted { Ok(()) } else { Err(ConversationError::Elsewhere(key.id.clone())) }
    }

    /// What the store has of a conversation, and its version.
    fn conversation(
        &self,
        key: &ConversationKey,
    ) -> std::result::Result<Option<(u64, SharedConversation)>, SharedError> {
        self.store.get(CONVERSATION, &conversation_name(key))
    }
}
