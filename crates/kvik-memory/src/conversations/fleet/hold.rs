//! Records in the store that a node holds while it changes a conversation.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::record::{NameClaim, SharedConversation};

/// Records in the store that a node holds while it changes a conversation.
#[derive(Default)]
pub(in crate::conversations) struct Hold {
    /// Version of the conversation's record, and the record with this node's lease.
    pub(in crate::conversations) lease: Option<(u64, SharedConversation)>,
    /// Version of a name's record, and the claim of this node on the name.
    pub(in crate::conversations) claim: Option<(u64, NameClaim)>,
    /// True once the holder has made a change; the writer of the change ends the hold.
    pub(in crate::conversations) is_written: bool,
}

/// Locks a hold. A panic leaves it consistent.
pub(in crate::conversations) fn lock(hold: &Mutex<Hold>) -> MutexGuard<'_, Hold> {
    hold.lock().unwrap_or_else(PoisonError::into_inner)
}
