//! A node's view of the fleet whose nodes share conversations: the store, holds, the last listing, and background work.

pub(super) mod hold;
pub(super) mod listing;
pub(super) mod queue;
pub(super) mod record;
pub(super) mod rights;
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
use rights::Rights;
use store::Store;

/// Maximum time that a turn waits for an answer of the store.
pub(super) const PATIENCE: Duration = Duration::from_millis(400);
/// Duration of a lease. A lease that is not renewed lapses: its node has ended.
pub(super) const LEASE: Duration = Duration::from_secs(60);

/// A node's view of the fleet whose nodes share conversations.
pub(super) struct Fleet {
    pub(super) store: Store,
    /// Identity of this process as a lease holder.
    pub(super) holder: u64,
    pub(super) lease: Duration,
    pub(super) holds: Mutex<BTreeMap<ConversationKey, Arc<Mutex<Hold>>>>,
    pub(super) listing: Mutex<Listing>,
    /// Leases and claims of other nodes.
    rights: Mutex<Rights>,
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
            rights: Mutex::default(),
            queue: Arc::default(),
        }
    }

    /// Runs a blocking wait that depends on another request's call to the store.
    pub(super) fn aside(&self, wait: impl FnOnce()) {
        self.store.aside(wait);
    }

    /// Returns whether another node's right to a record still holds: `until` is its end by that node's clock.
    pub(super) fn is_right_of_other(&self, record: &str, holder: &str, until: u64) -> bool {
        let mut rights = self.rights.lock().unwrap_or_else(PoisonError::into_inner);
        rights.holds(&format!("{record} {holder}"), until, self.lease)
    }

    pub(super) fn holds(&self) -> MutexGuard<'_, BTreeMap<ConversationKey, Arc<Mutex<Hold>>>> {
        // Every change of the map is a single call, so a panic leaves it consistent.
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
