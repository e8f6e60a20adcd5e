//! Records of a conversation in the store of a fleet, and their names.
//!
//! ```text
//! conversation          T.ID                  head, segments and lease: each version follows the one that was read
//! conversation-said     T.ID.GENERATION.PART  messages of a segment: written once
//! conversation-name     T.HASH                the conversation that has a name
//! conversation-changed  T.ID.STAMP            the newest change of a conversation, for listings
//! ```
//!
//! T is a hash of the tenant, so that no name of one tenant leads to records of another. The implementation of the
//! store encrypts names.

use serde::{Deserialize, Serialize};

use crate::conversations::head::{ConversationHead, ConversationKey, is_known_id};
use crate::hex;

pub(in crate::conversations) const CONVERSATION: &str = "conversation";
pub(in crate::conversations) const SAID: &str = "conversation-said";
pub(in crate::conversations) const NAME: &str = "conversation-name";
pub(in crate::conversations) const CHANGED: &str = "conversation-changed";

/// A conversation's record in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::conversations) struct SharedConversation {
    pub(in crate::conversations) state: SharedState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::conversations) lease: Option<Lease>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::conversations) enum SharedState {
    Kept(Content),
    /// Mark of a deletion, so that a node with an old copy does not restore it.
    Deleted {
        /// Identity of the change.
        stamp: u64,
        /// Unix seconds, by the clock of the node that deleted it; not before the last change.
        at: u64,
    },
}

/// Head and segments of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::conversations) struct Content {
    pub(in crate::conversations) head: ConversationHead,
    /// The system messages as one segment, if there are any, then the other messages in order.
    pub(in crate::conversations) segments: Vec<Segment>,
}

/// Messages that form one value in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::conversations) struct Segment {
    /// Random: a segment is never overwritten, so the segments of a head exist until the head is replaced.
    pub(in crate::conversations) generation: u64,
    /// Hash of the bytes.
    pub(in crate::conversations) hash: SegmentHash,
    pub(in crate::conversations) messages: usize,
    pub(in crate::conversations) bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(in crate::conversations) struct SegmentHash(pub(in crate::conversations) [u8; 16]);

/// The right to change a conversation, until a point in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::conversations) struct Lease {
    /// Identity of the node's process.
    pub(in crate::conversations) holder: u64,
    /// Unix milliseconds.
    pub(in crate::conversations) until: u64,
}

/// Mapping of a name to a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::conversations) struct NameClaim {
    pub(in crate::conversations) name: String,
    /// Id of the conversation; empty once the name is free.
    pub(in crate::conversations) id: String,
    /// End of the time for which the claim also counts if the conversation was never written with this name; of a free
    /// name, the time since which it is free. Unix milliseconds.
    pub(in crate::conversations) until: u64,
}

impl SharedConversation {
    /// The content, unless the conversation is deleted.
    pub(in crate::conversations) fn content(&self) -> Option<&Content> {
        match &self.state {
            SharedState::Kept(content) => Some(content),
            SharedState::Deleted { .. } => None,
        }
    }

    /// Identity of the newest change, which may be the deletion.
    pub(in crate::conversations) fn stamp(&self) -> u64 {
        match &self.state {
            SharedState::Kept(content) => content.head.stamp,
            SharedState::Deleted { stamp, .. } => *stamp,
        }
    }

    /// The lease of a node other than `holder`, which may have lapsed.
    pub(in crate::conversations) fn lease_of_other(&self, holder: u64) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.holder != holder)
    }
}

impl SegmentHash {
    pub(in crate::conversations) fn of(bytes: &[u8]) -> SegmentHash {
        let mut hash = [0; 16];
        blake3::Hasher::new().update(bytes).finalize_xof().fill(&mut hash);
        SegmentHash(hash)
    }
}

impl From<SegmentHash> for String {
    fn from(hash: SegmentHash) -> String {
        hex::written(hash.0)
    }
}

impl TryFrom<String> for SegmentHash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<SegmentHash, &'static str> {
        hex::read(&text).map(SegmentHash).ok_or("a hash has 32 hexadecimal digits")
    }
}

/// Hash that represents a tenant in names.
pub(in crate::conversations) fn tenant_tag(tenant: &str) -> String {
    let hash = blake3::derive_key("kvik 2026 tenant of shared conversations", tenant.as_bytes());
    hex::written(&hash[..16])
}

pub(in crate::conversations) fn conversation_name(key: &ConversationKey) -> String {
    format!("{}.{}", tenant_tag(&key.tenant), key.id)
}

/// Name of one part of a segment.
pub(in crate::conversations) fn said_name(key: &ConversationKey, generation: u64, part: usize) -> String {
    format!("{}.{generation:016x}.{part}", conversation_name(key))
}

pub(in crate::conversations) fn changed_name(key: &ConversationKey, stamp: u64) -> String {
    format!("{}.{stamp:016x}", conversation_name(key))
}

pub(in crate::conversations) fn name_name(tenant: &str, name: &str) -> String {
    let hash = blake3::derive_key("kvik 2026 name of a shared conversation", name.as_bytes());
    format!("{}.{}", tenant_tag(tenant), hex::written(hash))
}

/// Splits a name into the tenant's tag, the conversation's id, and the rest.
pub(in crate::conversations) fn parsed(name: &str) -> Option<(&str, &str, Option<&str>)> {
    let (tenant, rest) = name.split_once('.')?;
    let (id, rest) = rest.split_once('.').map_or((rest, None), |(id, rest)| (id, Some(rest)));
    is_known_id(id).then_some((tenant, id, rest))
}
