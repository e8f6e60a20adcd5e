//! What the store has of a conversation that was deleted.
//!
//! ```text
//! head: deleted ──► messages, found in the list of all ──► marks of changes ──► older versions of the head and of the name
//! ```
//!
//! Messages are found by their names and not by a head that names them: a node that was killed leaves some that no head
//! names. All of it may be repeated, by any node.

use super::{Result, Sharing};
use crate::conversations::error::ConversationError;
use crate::conversations::fleet::record::{
    CHANGED, CONVERSATION, NAME, SAID, SharedState, conversation_name, name_name, parsed,
};
use crate::conversations::head::ConversationKey;
use crate::conversations::shelf::Shelf;
use crate::shared::SharedError;

impl Shelf {
    /// Removes what the store has of a deleted conversation, but for the mark that says so.
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
                // Another node has gone on with it, or the store has not heard of its end.
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

    /// Removes the marks of all changes but the last.
    fn erase_marks(&self, key: &ConversationKey, last: Option<u64>) -> std::result::Result<(), SharedError> {
        let last = last.map(|stamp| format!("{stamp:016x}"));
        self.erase_named(CHANGED, key, |stamp| Some(stamp) != last.as_deref())
    }

    /// Removes records of a conversation by what their names end with.
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
