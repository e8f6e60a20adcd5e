//! Prefixes that nodes report to each other, as data.

use kvik_cache::{Identity, Token};

/// A prefix that was used, in identifiers that all nodes understand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotPrefix {
    /// The root of its namespace: model, KV format, adapters and tenant.
    pub root: Identity,
    /// Its tokens from the beginning.
    pub tokens: Vec<Token>,
    /// Number of times it was used again.
    pub uses: u32,
}
