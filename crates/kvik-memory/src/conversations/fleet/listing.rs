//! The last listing of the store: the latest changes of all conversations.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::conversations::head::ConversationKey;

/// Ids of a tenant's conversations, with the stamps that are listed for each.
pub(in crate::conversations) type Changes = BTreeMap<String, Vec<u64>>;

/// Last listing of the store.
#[derive(Default)]
pub(in crate::conversations) struct Listing {
    pub(in crate::conversations) read: Option<Instant>,
    /// Changes by the tag of the tenant.
    pub(in crate::conversations) of: BTreeMap<String, Changes>,
    /// Deleted conversations, with the stamps of their deletions.
    pub(in crate::conversations) gone: BTreeMap<ConversationKey, u64>,
}
