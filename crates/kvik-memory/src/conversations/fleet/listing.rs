//! Which changes of which conversations the store listed last.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::conversations::head::ConversationKey;

/// The ids of a tenant's conversations, with the changes that were noted of each.
pub(in crate::conversations) type Changes = BTreeMap<String, Vec<u64>>;

/// What the store listed last.
#[derive(Default)]
pub(in crate::conversations) struct Listing {
    pub(in crate::conversations) read: Option<Instant>,
    /// By the tag of their tenant.
    pub(in crate::conversations) of: BTreeMap<String, Changes>,
    /// Those that are deleted, and by which change.
    pub(in crate::conversations) gone: BTreeMap<ConversationKey, u64>,
}
