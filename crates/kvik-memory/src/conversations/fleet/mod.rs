//! The nodes of a fleet that share conversations, as one of them sees them: the store, what is held, listed and to be done.

pub(super) mod hold;
pub(super) mod listing;
pub(super) mod queue;
pub(super) mod record;
pub(super) mod store;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::head::ConversationKey;
use crate::random::random;
use crate::records::GiveWay;
use crate::shared::SharedRecords;
use hold::Hold;
use listing::Listing;
use queue::Queue;
pub(super) use record::Content;
use store::Store;

/// How long a turn waits for an answer of the store.
pub(super) const PATIENCE: Duration = Duration::from_millis(400);
/// How long a lease lasts that nobody renews: the node that had it has ended.
pub(super) const LEASE: Duration = Duration::from_secs(60);

/// The nodes that share conversations, as one of them sees them.
pub(super) struct Fleet {
    pub(super) store: Store,
    /// This node, as long as it runs.
    pub(super) holder: u64,
    pub(super) lease: Duration,
    pub(super) holds: Mutex<BTreeMap<ConversationKey, Arc<Mutex<Hold>>>>,
    pub(super) listing: Mutex<Listing>,
    pub(super) queue: Arc<Queue>,
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

    pub(super) fn holds(&self) -> MutexGuard<'_, BTreeMap<ConversationKey, Arc<Mutex<Hold>>>> {
        // Every change of the map is one call, so it is whole whatever panicked.
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
