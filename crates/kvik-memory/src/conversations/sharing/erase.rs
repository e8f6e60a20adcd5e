//! Removal of a deleted conversation's records from the store.
//!
//! ```text
//! head: deleted ──► messages, found by listing ──► marks of changes ──► older versions of the head and of the name
//! ```
//!
//! Messages are found by their names and not through a head: a node that was killed leaves some that no head refers to.
//! Any node may repeat all of it.

use super::{Result, Sharing};
use crate::conversations::error::ConversationError;
use crate::conversations::fleet::record::{
    CHANGED, CONVERSATION, NAME, SAID, SharedState, conversation_name, name_name, parsed,
};
use crate::conversations::head::ConversationKey;
use crate::conversations::shelf::Shelf;
use crate::shared::SharedError;

impl Shelf {
    /// Removes the records of a deleted conversation from the store, except for the mark of the deletion.
    ///
    /// # Errors
    /// If something may be left.
    pub(in crate::conversations) fn erase_shared(
        &self,
        key: &ConversationKey,
        name: Option<&str>,
    ) -> Result<()> {
        let Some(sharing) = self.sharing_in_background() else { return Ok(()) };
        sharing.erase(key, name).map_err(|error| {
            tracing::debug!("the store may still have something of the conversation {}: {error}", key.id);
            ConversationError::Elsewhere(key.id.clone())
        })
    }
}

impl Sharing<'_> {
    fn erase(&self, key: &ConversationKey, name: Option<&str>) -> std::result::Result<(), SharedError> {
        let own = conversation_name(key);
        if let Some((_, there)) = self.conversation(key)? {
            let SharedState::Deleted { stamp, .. } = there.state else {
                // Another node has continued the conversation, or the deletion is not written to the store yet.
                let heads = self.shelf.heads();
                let is_unwritten = heads.bases.contains_key(key) && !heads.all.contains_key(key);
                return if is_unwritten { Err(SharedError::Down) } else { Ok(()) };
            };
            self.erase_marks(key, Some(stamp))?;
        } else {
            self.erase_marks(key, None)?;
        }
        self.erase_named(SAID, key, |_| true)?;
        self.store.forget_older(CONVERSATION, own)?;
        if let Some(name) = name {
            self.release_name(key, name)?;
            self.store.forget_older(NAME, name_name(&key.tenant, name))?;
        }
        Ok(())
    }

    /// Removes the marks of all changes except the last.
    fn erase_marks(&self, key: &ConversationKey, last: Option<u64>) -> std::result::Result<(), SharedError> {
        let last = last.map(|stamp| format!("{stamp:016x}"));
        self.erase_named(CHANGED, key, |stamp| Some(stamp) != last.as_deref())
    }

    /// Removes those records of a conversation whose names end with a selected suffix.
    fn erase_named(
        &self,
        kind: &'static str,
        key: &ConversationKey,
        is_meant: impl Fn(&str) -> bool,
    ) -> std::result::Result<(), SharedError> {
        let own = conversation_name(key);
        for name in self.store.list(kind)? {
            let is_own = parsed(&name).is_some_and(|(tenant, id, rest)| {
                own == format!("{tenant}.{id}") && rest.is_some_and(&is_meant)
            });
            if is_own {
                self.store.delete(kind, name)?;
            }
        }
        Ok(())
    }
}
