//! Writes local changes to the store: at once if it answers, otherwise in the background.

use super::claims::Claimed;
use super::reconcile::{Standing, conflict_name};
use super::{ATTEMPTS, Sharing};
use crate::clock::unix_seconds;
use crate::conversations::error::ConversationError;
use crate::conversations::fleet::hold::lock;
use crate::conversations::fleet::queue::Task;
use crate::conversations::fleet::record::{
    CONVERSATION, Content, NameClaim, SharedConversation, SharedState, conversation_name,
};
use crate::conversations::head::{ConversationHead, ConversationKey};
use crate::random::random;
use crate::shared::SharedError;

/// Outcome of writing a change.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::conversations) enum WrittenThrough {
    /// The change is in the store.
    Done,
    /// The change is in this node's file, and will be written to the store.
    Later,
    /// The change is not in the store, because this node's file cannot be read or written; the log has the cause.
    Failed,
    /// Another node has changed the conversation: the local version was moved to another id, unless it was deleted.
    Forked(Option<ConversationKey>),
}

/// Reasons why a change was not written to the store.
enum Unwritten {
    Store(SharedError),
    /// This node's file cannot be read or written.
    Here(ConversationError),
}

impl Sharing<'_> {
    /// Writes a conversation that no other local request changes, which ends its lease.
    pub(in crate::conversations) fn write_through(&self, key: &ConversationKey) -> WrittenThrough {
        let held = self.fleet.holds().remove(key);
        let (lease, claim) = held.map_or((None, None), |hold| {
            let mut hold = lock(&hold);
            hold.is_written = true;
            (hold.lease.take(), hold.claim.take())
        });
        let mut known = lease.map(Some);
        for _ in 0..ATTEMPTS {
            let found = known.take().map_or_else(|| self.conversation(key), Ok).map_err(Unwritten::Store);
            match found.and_then(|found| self.write_after(key, found, claim.as_ref().map(|(_, claim)| claim)))
            {
                Ok(written) => return written,
                Err(Unwritten::Store(SharedError::Conflict { .. })) => {}
                Err(Unwritten::Store(error)) => {
                    tracing::debug!("the conversation {} is not written in the store yet: {error}", key.id);
                    break;
                }
                Err(Unwritten::Here(error)) => {
                    tracing::warn!("the conversation {} is not written in the store: {error}", key.id);
                    return WrittenThrough::Failed;
                }
            }
        }
        self.fleet.queue.push(key);
        WrittenThrough::Later
    }

    /// Writes it as the version that follows `found`.
    fn write_after(
        &self,
        key: &ConversationKey,
        found: Option<(u64, SharedConversation)>,
        claim: Option<&NameClaim>,
    ) -> Result<WrittenThrough, Unwritten> {
        let there = found.as_ref().map(|(_, there)| there);
        let version = found.as_ref().map_or(0, |(version, _)| *version);
        match self.standing(key, there) {
            Standing::Ahead if there.is_some_and(|there| self.is_leased_elsewhere(key, there)) => {
                self.fleet.queue.push(key);
                Ok(WrittenThrough::Later)
            }
            Standing::Ahead => {
                let content = there.and_then(SharedConversation::content);
                let before = there.map(SharedConversation::stamp);
                self.put(key, (version, before), content, claim).map(|()| WrittenThrough::Done)
            }
            Standing::Equal | Standing::Behind => {
                self.reconcile(key, there)?;
                Ok(WrittenThrough::Done)
            }
            Standing::Diverged => {
                let fork = self.fork(key)?;
                // If the other node's version cannot be read now, it is read at the next access.
                let _ = self.reconcile(key, there);
                Ok(WrittenThrough::Forked(fork))
            }
        }
    }

    fn put(
        &self,
        key: &ConversationKey,
        (version, before): (u64, Option<u64>),
        there: Option<&Content>,
        claim: Option<&NameClaim>,
    ) -> Result<(), Unwritten> {
        let head = self.shelf.heads().all.get(key).cloned();
        let content = head.map(|head| self.content(key, head, there, claim)).transpose()?;
        let state = match &content {
            Some(content) => SharedState::Kept(content.clone()),
            None => SharedState::Deleted { stamp: random().max(1), at: deleted_at(there) },
        };
        let written = SharedConversation { state, lease: None };
        let stamp = written.stamp();
        self.store.put(CONVERSATION, &conversation_name(key), version, &written)?;
        self.shelf.set_base(key, content.as_ref()).map_err(ConversationError::from)?;
        let named = there.and_then(|there| there.head.name.as_deref());
        if let Some(name) = named.filter(|name| name_of(&content) != Some(name)) {
            // If this fails, the name is free once its claim has lapsed.
            let _ = self.release_name(key, name);
        }
        let kept = content.map_or(Vec::new(), |content| content.segments);
        let mut swept = there.map_or(Vec::new(), |there| there.segments.clone());
        swept.retain(|segment| !kept.iter().any(|kept| kept.generation == segment.generation));
        self.fleet.queue.task(Task::Changed { key: key.clone(), stamp, before, swept });
        Ok(())
    }

    /// Content of a conversation for the store; its segments are written here.
    fn content(
        &self,
        key: &ConversationKey,
        head: ConversationHead,
        there: Option<&Content>,
        claim: Option<&NameClaim>,
    ) -> Result<Content, Unwritten> {
        let head = self.named(key, head, there, claim)?;
        let messages = self.shelf.said(key)?;
        if messages.len() != head.messages {
            return Err(Unwritten::Here(ConversationError::Damaged(key.id.clone())));
        }
        let segments = there.map_or(&[][..], |there| &there.segments);
        let segments = self.put_said(key, (&messages, head.systems), segments)?;
        Ok(Content { head, segments })
    }

    /// Head with a name that no other conversation has, and a stamp.
    fn named(
        &self,
        key: &ConversationKey,
        head: ConversationHead,
        there: Option<&Content>,
        claim: Option<&NameClaim>,
    ) -> Result<ConversationHead, Unwritten> {
        let mut named = head.clone();
        if named.stamp == 0 {
            named.stamp = self.shelf.next_stamp(0);
        }
        let has = there.and_then(|there| there.head.name.as_deref());
        let claimed = claim.filter(|claim| self.is_sure(claim)).map(|claim| claim.name.as_str());
        if let Some(name) = head.name.as_deref().filter(|&name| has != Some(name) && claimed != Some(name))
            && matches!(self.claim(key, name)?, Claimed::Taken)
        {
            let other = conflict_name(Some(name), &key.id, &key.id);
            tracing::warn!(
                "another node has named a conversation `{name}`: {} is called `{other}` now",
                key.id
            );
            let is_free = matches!(self.claim(key, &other)?, Claimed::Own(..));
            named.name = is_free.then_some(other);
            named.stamp = self.shelf.next_stamp(named.stamp);
        }
        if named != head {
            self.shelf.set_head(key, named.clone()).map_err(ConversationError::from)?;
        }
        Ok(named)
    }

    /// Writes a change that the store does not have yet; returns true if nothing is left to do.
    pub(super) fn write_late(&self, key: &ConversationKey) -> bool {
        // The holder of the conversation writes it.
        let Some(_comparing) = self.shelf.compare(key) else { return false };
        self.write_through(key) != WrittenThrough::Later
    }
}

/// Time of a deletion in Unix seconds: not before the last change, which a node with another clock may have made.
fn deleted_at(there: Option<&Content>) -> u64 {
    there.map_or(0, |content| content.head.updated).max(unix_seconds())
}

fn name_of(content: &Option<Content>) -> Option<&str> {
    content.as_ref().and_then(|content| content.head.name.as_deref())
}

impl From<SharedError> for Unwritten {
    fn from(error: SharedError) -> Unwritten {
        Unwritten::Store(error)
    }
}

impl From<ConversationError> for Unwritten {
    fn from(error: ConversationError) -> Unwritten {
        Unwritten::Here(error)
    }
}
