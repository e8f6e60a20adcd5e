//! What a node holds of a conversation while it changes it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::record::{NameClaim, SharedConversation};

/// What a node has of the store while it changes a conversation.
#[derive(Default)]
pub(in crate::conversations) struct Hold {
    /// The lease, in this version of the conversation.
    pub(in crate::conversations) lease: Option<(u64, SharedConversation)>,
    /// A name that it is to have, in this version of the name's record.
    pub(in crate::conversations) claim: Option<(u64, NameClaim)>,
    /// It has ended with a change, which is about to be written.
    pub(in crate::conversations) is_written: bool,
}

/// Whoever panics with it in hand leaves it whole.
pub(in crate::conversations) fn lock(hold: &Mutex<Hold>) -> MutexGuard<'_, Hold> {
    hold.lock().unwrap_or_else(PoisonError::into_inner)
}
