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
mod record;
mod segments;
mod store;
#[cfg(test)]
mod tests;
mod worker;
mod write_through;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::ConversationError;
use super::record::{ConversationKey, is_id, is_known_id};
use super::shelf::Shelf;
use crate::random::random;
use crate::records::GiveWay;
use crate::shared::SharedRecords;
use listing::Listing;
use store::Store;
use worker::{Queue, Task};

use leases::Hold;
pub(super) use record::Content;
pub(super) use worker::start;
pub(super) use write_through::WrittenThrough;

type Result<T> = std::result::Result<T, ConversationError>;

/// How long a turn waits for an answer of the store.
const PATIENCE: Duration = Duration::from_millis(400);
/// How long a lease lasts that nobody renews: the node that had it has ended.
const LEASE: Duration = Duration::from_secs(60);
/// How often it is renewed. Answers may take longer than a lease.
const RENEWED: Duration = Duration::from_secs(20);
/// How long a list is as new as is needed.
const LISTED: Duration = Duration::from_secs(3);
/// Behind a store that did not answer.
const RETRY: Duration = Duration::from_secs(2);
/// How often something is tried again at once that another node was faster with.
const ATTEMPTS: usize = 4;

/// The nodes that share conversations, as one of them sees them.
pub(super) struct Fleet {
    store: Store,
    /// This node, as long as it runs.
    holder: u64,
    lease: Duration,
    holds: Mutex<BTreeMap<ConversationKey, Arc<Mutex<Hold>>>>,
    listing: Mutex<Listing>,
    pub(super) queue: Arc<Queue>,
}

/// This node's conversations beside those of the store.
pub(super) struct Sharing<'a> {
    shelf: &'a Shelf,
    fleet: &'a Fleet,
    store: Store,
}

impl Fleet {
    pub(super) fn new(shared: Arc<dyn SharedRecords>, give_way: GiveWay) -> Fleet {
        Fleet {
            store: Store::new(shared, give_way, PATIENCE),
            holder: random(),
            lease: LEASE,
            holds: Mutex::default(),
            listing: Mutex::default(),
            queue: Arc::default(),
        }
    }

    /// Runs what waits for somebody who asks the store.
    pub(super) fn aside(&self, wait: impl FnOnce()) {
        self.store.aside(wait);
    }

    fn holds(&self) -> MutexGuard<'_, BTreeMap<ConversationKey, Arc<Mutex<Hold>>>> {
        // Every change of the map is one call, so it is whole whatever panicked.
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    ) -> std::result::Result<Option<(u64, record::SharedConversation)>, crate::shared::SharedError> {
        self.store.get(record::CONVERSATION, &record::conversation_name(key))
    }
}
