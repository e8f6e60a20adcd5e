//! Conversations that the nodes of a fleet share: a conversation begun on one node continues on any.
//!
//! ```text
//! hold    read the newest version, and write a lease on it         other nodes are refused meanwhile
//! commit  write this node's file, then the store without the lease other nodes read this version from now on
//! ```
//!
//! A node's file has whole conversations, and for each the version that the store had when both were equal: the base.
//! A local copy that differs from its base was changed locally and is yet to be written; a version in the store that
//! differs from the base was changed by other nodes. If both differ, both are kept: the store's version under the id,
//! the local one under a new id.

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

/// Maximum number of immediate attempts when other nodes write first.
const ATTEMPTS: usize = 4;

/// The local conversations together with the store.
pub(super) struct Sharing<'a> {
    shelf: &'a Shelf,
    fleet: &'a Fleet,
    store: Store,
}

impl Shelf {
    /// Access to the store for a turn, with a short time limit; `None` if no nodes share the conversations.
    pub(super) fn sharing(&self) -> Option<Sharing<'_>> {
        let fleet = self.fleet.as_ref()?;
        Some(Sharing { shelf: self, fleet, store: fleet.store.clone() })
    }

    /// Ends the local hold on a conversation.
    pub(super) fn end_hold(&self, key: &ConversationKey) {
        let Some(fleet) = &self.fleet else { return };
        if let Some(hold) = fleet.holds().remove(key) {
            fleet.queue.task(Task::Release(key.clone(), hold));
        }
    }

    /// Access to the store for background work, without a time limit.
    fn sharing_in_background(&self) -> Option<Sharing<'_>> {
        let fleet = self.fleet.as_ref()?;
        Some(Sharing { shelf: self, fleet, store: fleet.store.in_background() })
    }
}

impl Sharing<'_> {
    /// Brings the local copy of a conversation up to date. A copy that is held locally is the newest.
    ///
    /// # Errors
    /// If the newest version is only in the store, and the store does not answer.
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

    /// Checks whether the conversation that has a name locally still has it. If the store does not answer, the local
    /// name counts.
    pub(super) fn refresh_name(&self, tenant: &str, name: &str) {
        let key = self.shelf.heads().find(tenant, name).cloned();
        if let Some(key) = key {
            let _ = self.refresh(&key);
        }
    }

    /// Runs `attempt` on the conversation with a name or id; it returns `None` if the conversation turns out to be
    /// another.
    ///
    /// # Errors
    /// If there is no such conversation, or the store does not answer.
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

    /// True if a conversation exists and has this name or id.
    pub(super) fn is_called(&self, key: &ConversationKey, reference: &str) -> bool {
        self.shelf.heads().find(&key.tenant, reference) == Some(key)
    }

    /// Falls back to the local copy, because the store does not answer.
    fn go_on_alone(&self, key: &ConversationKey) -> Result<()> {
        let heads = self.shelf.heads();
        let is_here = heads.all.contains_key(key) && !heads.elsewhere.contains(key);
        // The conversation was deleted locally; the deletion is written once the store answers.
        let is_deleted = !heads.all.contains_key(key) && heads.bases.contains_key(key);
        if is_here || is_deleted { Ok(()) } else { Err(ConversationError::Elsewhere(key.id.clone())) }
    }

    /// Record of a conversation in the store, and its version.
    fn conversation(
        &self,
        key: &ConversationKey,
    ) -> std::result::Result<Option<(u64, SharedConversation)>, SharedError> {
        self.store.get(CONVERSATION, &conversation_name(key))
    }
}
