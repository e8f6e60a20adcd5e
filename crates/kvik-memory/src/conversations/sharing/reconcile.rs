//! A conversation as this node's file has it beside what the store has.

use super::segments::Unread;
use super::{ATTEMPTS, Result, Sharing};
use crate::conversations::error::ConversationError;
use crate::conversations::fleet::record::{Content, SharedConversation, SharedState};
use crate::conversations::head::{ConversationHead, ConversationKey, NAME_BYTES_MAX};
use crate::shared::SharedError;

/// Who has changed a conversation since both were the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nobody.
    Equal,
    /// This node.
    Ahead,
    /// Others.
    Behind,
    /// Both.
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
            // A store that has lost it gets it again: of what is deleted it says so.
            (None, _) => Standing::Ahead,
            (_, Some(_)) if kept == here => Standing::Equal,
            _ if here == base => Standing::Behind,
            (_, Some(_)) if kept == base => Standing::Ahead,
            _ => Standing::Diverged,
        }
    }

    /// Makes this node's copy that of the store. What was changed here and is not there yet is kept: as it is where it
    /// follows what is there, else as another conversation.
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

    /// What the file has is what is there.
    pub(super) fn note_equal(&self, key: &ConversationKey, content: Option<&Content>) -> Result<()> {
        let is_noted = {
            let mut heads = self.shelf.heads();
            heads.count_file(key);
            heads.bases.get(key) == content
        };
        if is_noted { Ok(()) } else { Ok(self.shelf.set_base(key, content)?) }
    }

    /// Takes over what others have done.
    fn follow(&self, key: &ConversationKey, there: Option<&SharedConversation>) -> Result<()> {
        match there.map(|there| &there.state) {
            Some(SharedState::Kept(content)) => self.pull(key, content.clone()),
            _ => Ok(self.shelf.drop_copy(key)?),
        }
    }

    /// Reads what was said from the store.
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

    /// Keeps this node's copy under an id of its own, and says so in its name and in the log.
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

/// What a conversation is called whose name or id another node's has.
pub(super) fn conflict_name(name: Option<&str>, of: &str, id: &str) -> String {
    let note = format!(" (conflict {})", &id[id.len().saturating_sub(8)..]);
    let name = name.map_or_else(|| format!("conflict of {of}"), str::to_owned);
    let end = name.floor_char_boundary(NAME_BYTES_MAX - note.len());
    format!("{}{note}", &name[..end])
}
