//! Reconciliation of a local copy with the version in the store.

use super::segments::Unread;
use super::{ATTEMPTS, Result, Sharing};
use crate::conversations::error::ConversationError;
use crate::conversations::fleet::record::{Content, SharedConversation, SharedState};
use crate::conversations::head::{ConversationHead, ConversationKey, NAME_BYTES_MAX};
use crate::shared::SharedError;

/// The nodes that have changed a conversation since the local copy and the store were equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// None.
    Equal,
    /// Only this node.
    Ahead,
    /// Only other nodes.
    Behind,
    /// Both this node and others.
    Diverged,
}

impl Sharing<'_> {
    pub(super) fn standing(&self, key: &ConversationKey, there: Option<&SharedConversation>) -> Standing {
        let heads = self.shelf.heads();
        let base = heads.bases.get(key).map(|base| base.head.stamp);
        let here = match heads.elsewhere.contains(key) {
            true => base,
            false => heads.all.get(key).map(|head| head.stamp),
        };
        let kept = there.and_then(SharedConversation::content).map(|content| content.head.stamp);
        match (there, kept) {
            (_, None) if here.is_none() => Standing::Equal,
            // A store that has lost the conversation gets it again: a deletion would have left a mark.
            (None, _) => Standing::Ahead,
            (_, Some(_)) if kept == here => Standing::Equal,
            _ if here == base => Standing::Behind,
            (_, Some(_)) if kept == base => Standing::Ahead,
            _ => Standing::Diverged,
        }
    }

    /// Brings the local copy up to the version of the store. Local changes that are not in the store are kept: under
    /// the same id if they follow the store's version, otherwise as another conversation.
    pub(super) fn reconcile(&self, key: &ConversationKey, there: Option<&SharedConversation>) -> Result<()> {
        match self.standing(key, there) {
            Standing::Equal => self.note_equal(key, there.and_then(SharedConversation::content))?,
            Standing::Ahead => {
                self.shelf.heads().count_file(key);
                self.fleet.queue.push(key);
            }
            Standing::Behind => self.follow(key, there)?,
            Standing::Diverged => {
                self.fork(key)?;
                self.follow(key, there)?;
            }
        }
        Ok(())
    }

    /// Notes that the local copy and the store are equal.
    pub(super) fn note_equal(&self, key: &ConversationKey, content: Option<&Content>) -> Result<()> {
        let is_noted = {
            let mut heads = self.shelf.heads();
            heads.count_file(key);
            heads.bases.get(key) == content
        };
        if is_noted { Ok(()) } else { Ok(self.shelf.set_base(key, content)?) }
    }

    /// Applies the changes of other nodes.
    fn follow(&self, key: &ConversationKey, there: Option<&SharedConversation>) -> Result<()> {
        match there.map(|there| &there.state) {
            Some(SharedState::Kept(content)) => self.pull(key, content.clone()),
            _ => Ok(self.shelf.drop_copy(key)?),
        }
    }

    /// Reads the messages from the store.
    fn pull(&self, key: &ConversationKey, mut content: Content) -> Result<()> {
        for _ in 0..ATTEMPTS {
            self.shelf.heads().note_elsewhere(key, &content.head);
            match self.fetch_said(key, &content) {
                Ok(messages) => return Ok(self.shelf.replace(key, &messages, &content)?),
                Err(Unread::Replaced) => {}
                Err(Unread::Store(SharedError::Failed(why))) => {
                    tracing::warn!("the conversation {} cannot be read from the store: {why}", key.id);
                    break;
                }
                Err(Unread::Store(_)) => break,
            }
            match self.conversation(key) {
                Ok(Some((_, newer))) if newer.content().is_some() => {
                    content = newer.content().cloned().unwrap_or(content);
                }
                Ok(_) => return Ok(self.shelf.drop_copy(key)?),
                Err(_) => break,
            }
        }
        Err(ConversationError::Elsewhere(key.id.clone()))
    }

    /// Moves the local copy to a new id; its name and the log mention the conflict.
    pub(super) fn fork(&self, key: &ConversationKey) -> Result<Option<ConversationKey>> {
        let Some(head) = self.shelf.heads().all.get(key).cloned() else {
            tracing::warn!(
                "the conversation {} was deleted here while the store did not answer, and changed by another node: it stays",
                key.id
            );
            self.shelf.drop_copy(key)?;
            return Ok(None);
        };
        let fork = ConversationKey::random(&key.tenant);
        let name = Some(conflict_name(head.name.as_deref(), &key.id, &fork.id));
        let head = ConversationHead { name, stamp: self.shelf.next_stamp(head.stamp), ..head };
        self.shelf.move_copy(key, &fork, head)?;
        tracing::warn!(
            "the conversation {} was changed here and by another node while neither knew of the other: what was said here is kept as {}",
            key.id,
            fork.id
        );
        self.fleet.queue.push(&fork);
        Ok(Some(fork))
    }
}

/// Name of a conversation whose name or id another node's conversation has taken.
pub(super) fn conflict_name(name: Option<&str>, of: &str, id: &str) -> String {
    let note = format!(" (conflict {})", &id[id.len().saturating_sub(8)..]);
    let name = name.map_or_else(|| format!("conflict of {of}"), str::to_owned);
    let end = name.floor_char_boundary(NAME_BYTES_MAX - note.len());
    format!("{}{note}", &name[..end])
}
