//! Identity of a block: which tokens it holds, after which tokens, in which namespace.
//!
//! Owns two chains over the blocks of a prompt, both starting from the namespace:
//! - [`Identity`], keyed BLAKE3 of 32 bytes. It is stable for ever and is what may leave the
//!   process: two caches that agree on it hold the same keys and values. One compression a block.
//! - [`Fingerprint`], 64 bits, for the memory of evicted blocks inside one process. It is some
//!   fifteen times cheaper, is kept for every block of the tree and decides nothing but a message.
//!
//! Neither ever stands in for comparing tokens: every match in the tree compares them.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;

use rustc_hash::FxHasher;

use crate::ids::{BLOCK_POSITIONS, Token};

/// What must be equal for two sequences to share keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Digest of the model's weights and configuration.
    pub model: [u8; 32],
    /// Name of the KV format, keys and values, as `q8/q4`.
    pub kv_format: String,
    /// Digest of the adapter on top of the model, when there is one.
    pub adapter: Option<[u8; 32]>,
    /// Separates tenants; zero when there are none. Comes from the server, never from a client.
    pub salt: [u8; 16],
}

/// Names a block for ever and everywhere: its tokens, all tokens before it, and its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity(pub [u8; 32]);

/// Names a block within this process, for explanations only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint(pub(crate) NonZeroU64);

/// Separates these keys from every other use of BLAKE3; changing it orphans every stored block.
const NAMESPACE_CONTEXT: &str = "kvik 2026-11-20 block identity, namespace root v1";

impl Identity {
    /// The identity before the first block of a prompt.
    ///
    /// The lengths are fixed or written out, so that no two namespaces give the same bytes.
    pub fn root(namespace: &Namespace) -> Identity {
        let mut hasher = blake3::Hasher::new_derive_key(NAMESPACE_CONTEXT);
        hasher.update(&namespace.model);
        hasher.update(&namespace.salt);
        hasher.update(&[u8::from(namespace.adapter.is_some())]);
        hasher.update(&namespace.adapter.unwrap_or_default());
        hasher.update(namespace.kv_format.as_bytes());
        Identity(*hasher.finalize().as_bytes())
    }

    /// The identity of the block that holds `tokens` (at most 16) after this one.
    pub fn child(&self, tokens: &[Token]) -> Identity {
        debug_assert!(tokens.len() <= BLOCK_POSITIONS);
        let mut bytes = [0; BLOCK_POSITIONS * size_of::<Token>()];
        for (bytes, token) in bytes.chunks_exact_mut(size_of::<Token>()).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        Identity(*blake3::keyed_hash(&self.0, &bytes[..size_of_val(tokens)]).as_bytes())
    }

    /// The identities of the blocks of a prompt, the last one possibly partial.
    pub fn chain(namespace: &Namespace, tokens: &[Token]) -> impl Iterator<Item = Identity> {
        tokens.chunks(BLOCK_POSITIONS).scan(Identity::root(namespace), |parent, block| {
            *parent = parent.child(block);
            Some(*parent)
        })
    }
}

impl Fingerprint {
    /// The fingerprint of no block in particular.
    pub(crate) const UNUSED: Fingerprint = Fingerprint(NonZeroU64::MIN);

    /// The fingerprint before the first block of a prompt.
    pub(crate) fn root(identity: &Identity) -> Fingerprint {
        let mut hasher = FxHasher::default();
        identity.0.hash(&mut hasher);
        Fingerprint::from(&hasher)
    }

    /// The fingerprint of the block that holds `tokens` after this one.
    pub(crate) fn child(self, tokens: &[Token]) -> Fingerprint {
        let mut hasher = FxHasher::default();
        hasher.write_u64(self.0.get());
        tokens.hash(&mut hasher);
        Fingerprint::from(&hasher)
    }

    fn from(hasher: &FxHasher) -> Fingerprint {
        Fingerprint(NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN))
    }
}
