//! Which unlocked prefix goes when space is short.
//!
//! A policy ranks the *unlocked nodes* of the prefix tree, one file a policy. The tree tells it
//! when a node becomes evictable or ceases to be and when a node is split; the policy answers
//! [`victim`](Evictor::victim), always a leaf. Blocks then go one by one from that leaf's end.
//! A policy never changes the tree, and never sees a node that somebody uses.
//!
//! To add one: a file beside `lru.rs` with the same four methods, a variant in [`Policy`] and in
//! [`Evictor`], and its row in the replay table.

mod ghosts;
mod lru;

use std::str::FromStr;

pub(crate) use ghosts::Ghosts;
pub(crate) use lru::Lru;

use crate::ids::NodeId;

/// Which eviction policy a cache uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Policy {
    /// The block goes whose last use is longest ago.
    #[default]
    Lru,
}

impl Policy {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
        }
    }
}

/// The policy's name is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown eviction policy `{0}`; known: lru")]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        match name {
            "lru" => Ok(Policy::Lru),
            other => Err(UnknownPolicy(other.to_owned())),
        }
    }
}

/// The state of the chosen policy.
#[derive(Debug)]
pub(crate) enum Evictor {
    Lru(Lru),
}

impl Evictor {
    pub(crate) fn new(policy: Policy) -> Evictor {
        match policy {
            Policy::Lru => Evictor::Lru(Lru::default()),
        }
    }

    /// The last user of `node` has left, just now.
    pub(crate) fn insert(&mut self, node: NodeId) {
        match self {
            Evictor::Lru(lru) => lru.insert(node),
        }
    }

    /// `node` is used again, or is gone.
    pub(crate) fn remove(&mut self, node: NodeId) {
        match self {
            Evictor::Lru(lru) => lru.remove(node),
        }
    }

    /// The evictable node `lower` has been split; its head is now the new node `upper`.
    pub(crate) fn split(&mut self, upper: NodeId, lower: NodeId) {
        match self {
            Evictor::Lru(lru) => lru.split(upper, lower),
        }
    }

    /// The leaf whose last block goes next.
    pub(crate) fn victim(&self) -> Option<NodeId> {
        match self {
            Evictor::Lru(lru) => lru.victim(),
        }
    }
}
