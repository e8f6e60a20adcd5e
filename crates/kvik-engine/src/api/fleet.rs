//! What nodes tell each other of what they use, as data.

use kvik_cache::{Identity, Token};

/// A prefix that was used, by names that all nodes understand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotPrefix {
    /// The root of its namespace: model, KV format, adapters and tenant.
    pub root: Identity,
    /// Its tokens, from the first on.
    pub tokens: Vec<Token>,
    /// How often it was used again.
    pub uses: u32,
}
