//! Identity of a block: its tokens, the tokens before it, and its namespace.
//!
//! Defines two chains over the blocks of a prompt, both starting from the namespace:
//! - [`Identity`], keyed BLAKE3 of 32 bytes. It never changes and may leave the process: two caches that
//!   agree on it hold the same keys and values. One compression a block.
//! - [`Fingerprint`], 64 bits, for the memory of evicted blocks inside one process. It is more than
//!   ten times cheaper, is stored for every block of the tree and only serves explanations and eviction policies.
//!
//! Neither ever replaces comparing tokens: every match in the tree compares them.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;

use rustc_hash::FxHasher;

use crate::ids::{BLOCK_POSITIONS, Token};
use crate::namespace::{Namespace, Scope};

/// Identifies a block for ever and everywhere: its tokens, all tokens before it, and its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub [u8; 32]);

/// Identifies a block within this process, for explanations and eviction policies only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint(pub(crate) NonZeroU64);

/// Separates these keys from every other use of BLAKE3; changing it orphans every stored block.
const NAMESPACE_CONTEXT: &str = "kvik 2026-11-20 block identity, namespace root v1";

/// Flag bits of a namespace, hashed into its root.
const HAS_ADAPTER: u8 = 1;
const IS_PRIVATE: u8 = 2;

impl Identity {
    /// The identity before the first block of a prompt.
    ///
    /// All lengths except that of the format, which comes last, are fixed, so that no two namespaces yield the same
    /// bytes.
    pub fn root(namespace: &Namespace) -> Identity {
        let mut hasher = blake3::Hasher::new_derive_key(NAMESPACE_CONTEXT);
        let mut flags = if namespace.adapter.is_some() { HAS_ADAPTER } else { 0 };
        flags |= if namespace.scope == Scope::Private { IS_PRIVATE } else { 0 };
        hasher.update(&namespace.model);
        hasher.update(&namespace.salt);
        hasher.update(&[flags]);
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
        Identity::root(namespace).blocks(tokens)
    }

    /// The identities of the blocks that hold `tokens` after this one, the last one possibly partial.
    pub fn blocks(self, tokens: &[Token]) -> impl Iterator<Item = Identity> {
        tokens.chunks(BLOCK_POSITIONS).scan(self, |parent, block| {
            *parent = parent.child(block);
            Some(*parent)
        })
    }
}

impl Fingerprint {
    /// A placeholder that stands for no block in particular.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::Namespaces;

    fn hex(identity: Identity) -> String {
        identity.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn full_namespace() -> Namespace {
        Namespace {
            model: std::array::from_fn(|index| index as u8),
            kv_format: "q8/q4".to_owned(),
            adapter: Some([7; 32]),
            salt: [1; 16],
            scope: Scope::Shared,
        }
    }

    fn plain_namespace() -> Namespace {
        Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None }.shared([0; 16])
    }

    /// Two whole blocks and a partial one.
    fn prompt() -> Vec<Token> {
        (0..16).chain(100..116).chain([u32::MAX, 5, 150_000]).collect()
    }

    /// Stored blocks are found by these: they must never change. Computed with another implementation (Python's
    /// `blake3` and `struct.pack`).
    #[test]
    fn identities_are_stable_for_ever() {
        let expected = [
            (
                plain_namespace(),
                [
                    "75ea42123faa6706b579bca761bbe7919ced2e81bd6fd2e786b6ed4001482648",
                    "c718548c0b08d0bc881010afb6de23cdf28898b6313d15a743c14f9baad31d7b",
                    "30e2aa3cb6f772c1ee10b5c40fde0a97eac9ad9363402874326fdbf8c6e89a47",
                    "69a9eacfe823036ac5a933334b4e436d0a6cee00eab8e481cee5822ee977cf93",
                ],
            ),
            (
                full_namespace(),
                [
                    "42e56ee93c7e796430e7297def1dae56538809314d5e3b6e065555708d3cafe3",
                    "a74a58006f2ac5282a89ce70f4efe17e362522972b8175b2a8aa75e3519b229c",
                    "d2e35aef2b3d99b0ee84a841101074aaf8990e7239fe1dc5c9e25d48d21318a2",
                    "ae8280c247e5610291d35d0254bbf50266c0901aadb94d6e97c83579a8356407",
                ],
            ),
        ];
        let prompt = prompt();
        for (namespace, identities) in expected {
            let root = Identity::root(&namespace);
            let chain = Identity::chain(&namespace, &prompt);
            let found: Vec<String> = std::iter::once(root).chain(chain).map(hex).collect();
            assert_eq!(found, identities);
        }
    }

    /// Identities in files of earlier versions: the root and a first block of a tenant's namespace, with the
    /// format's name as the server writes it.
    #[test]
    fn a_shared_namespace_is_found_in_files_of_earlier_versions() {
        let namespaces = Namespaces { model: [7; 32], kv_format: "q8/q4, layout 3, avx2", adapter: None };
        let root = Identity::root(&namespaces.shared([9; 16]));
        assert_eq!(hex(root), "ebccbdaf7b0315ef112f6f6a92ba458de4b5e4f72587cc30dc452c7863251ea3");
        let block = root.child(&(0..16).collect::<Vec<Token>>());
        assert_eq!(hex(block), "751899d6c5e6fea1c7a69b44e6a00c37cc536a71baca51fbfba936fd97a78115");
    }

    #[test]
    fn every_part_of_a_namespace_counts() {
        let base = full_namespace();
        let others = [
            Namespace { model: [9; 32], ..base.clone() },
            Namespace { kv_format: "q8/q8".to_owned(), ..base.clone() },
            Namespace { adapter: Some([8; 32]), ..base.clone() },
            Namespace { adapter: None, ..base.clone() },
            Namespace { adapter: Some([0; 32]), ..base.clone() },
            Namespace { salt: [2; 16], ..base.clone() },
            Namespace { scope: Scope::Private, ..base.clone() },
            Namespace { scope: Scope::Private, adapter: None, ..base.clone() },
        ];
        let roots: std::collections::HashSet<Identity> =
            std::iter::once(&base).chain(&others).map(Identity::root).collect();
        assert_eq!(roots.len(), 1 + others.len());
    }

    #[test]
    fn a_block_is_named_by_all_tokens_before_it() {
        let (prompt, namespace) = (prompt(), plain_namespace());
        let mut other = prompt.clone();
        other[3] += 1;
        let mut pairs = Identity::chain(&namespace, &prompt).zip(Identity::chain(&namespace, &other));
        assert!(pairs.all(|(a, b)| a != b));
    }

    #[test]
    fn fingerprints_differ_by_parent_tokens_and_length() {
        let root = Fingerprint::root(&Identity::root(&plain_namespace()));
        let other = Fingerprint::root(&Identity::root(&full_namespace()));
        let all = [root, other, root.child(&[0]), root.child(&[0, 0]), root.child(&[1]), other.child(&[0])];
        let distinct: std::collections::HashSet<Fingerprint> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
