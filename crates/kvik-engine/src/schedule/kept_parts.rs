//! The compressed prefixes that this process has made or read: an index, so that they are found without reading the
//! cache entries. Bounded; an entry that was dropped is found as after a restart.

use std::sync::Arc;

use kvik_cache::retain::Retention;
use kvik_cache::{Identity, NamespaceId, Token};
use rustc_hash::FxHashMap;

use super::forget::kept;
use super::namespaces::content_key;

/// Maximum number of entries: some hundred bytes each.
const PARTS_MAX: usize = 4096;
/// Maximum number of blocks of all their prefixes: 8 bytes each.
const CHAINS_MAX: usize = 1 << 21;

/// The name of a compressed prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct KeptName {
    /// The namespace of its policy.
    pub(super) namespace: NamespaceId,
    /// The identity of the exact prefix.
    pub(super) identity: Identity,
    /// Number of tokens of the prefix.
    pub(super) tokens: usize,
}

/// The compressed prefixes that are listed.
#[derive(Debug, Default)]
pub(super) struct CompressedPrefixes {
    /// By the identity of the prefix: one entry for each policy.
    parts: FxHashMap<Identity, Vec<CompressedPrefix>>,
    count: usize,
    /// Number of blocks of their prefixes.
    chained: usize,
    /// Number of uses so far.
    uses: u64,
}

/// A compressed prefix.
#[derive(Debug, Clone)]
pub(super) struct CompressedPrefix {
    pub(super) name: KeptName,
    pub(super) retention: Retention,
    /// Number of its blocks in the cache, including those with the bitmap of retained positions.
    pub(super) blocks: usize,
    /// The first 8 bytes of the identity of each block of the exact prefix, to find prefixes that begin alike.
    chain: Arc<[u64]>,
    /// The number of its last use.
    used: u64,
}

impl KeptName {
    /// The tokens that stand for its first `blocks` blocks in its namespace.
    pub(super) fn key(&self, blocks: usize) -> Vec<Token> {
        kept::key(&self.identity, blocks)
    }
}

impl CompressedPrefixes {
    /// Records a use of the compressed prefix `name` with `blocks` blocks. If there are too many entries, the least
    /// recently used ones are dropped.
    pub(super) fn note(&mut self, name: KeptName, retention: Retention, blocks: usize, chain: Arc<[u64]>) {
        self.remove(&name);
        self.uses += 1;
        self.chained += chain.len();
        let part = CompressedPrefix { name, retention, blocks, chain, used: self.uses };
        self.parts.entry(name.identity).or_default().push(part);
        self.count += 1;
        while self.count > PARTS_MAX || self.chained > CHAINS_MAX {
            let oldest = self.parts.values().flatten().min_by_key(|part| part.used).map(|part| part.name);
            let Some(oldest) = oldest else { return };
            self.remove(&oldest);
        }
    }

    /// The first 8 bytes of the identity of each block of a prefix.
    pub(super) fn chain(identities: impl Iterator<Item = Identity>) -> Arc<[u64]> {
        identities.map(|identity| content_key(&identity)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The compressed prefixes that begin with `blocks` blocks, of which `identity` is the last.
    pub(super) fn beginning_with(&self, identity: &Identity, blocks: usize) -> Vec<KeptName> {
        let Some(last) = blocks.checked_sub(1) else { return Vec::new() };
        let begins = |part: &&CompressedPrefix| part.chain.get(last) == Some(&content_key(identity));
        self.parts.values().flatten().filter(begins).map(|part| part.name).collect()
    }

    /// Number of blocks of a compressed prefix.
    pub(super) fn blocks(&self, name: &KeptName) -> Option<usize> {
        self.of(&name.identity).iter().find(|part| part.name == *name).map(|part| part.blocks)
    }

    /// The compressed forms of one prefix, under all policies.
    pub(super) fn of(&self, identity: &Identity) -> &[CompressedPrefix] {
        self.parts.get(identity).map_or(&[], Vec::as_slice)
    }

    /// The namespaces of the compressed prefixes.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = NamespaceId> {
        self.parts.values().flatten().map(|part| part.name.namespace)
    }

    pub(super) fn remove(&mut self, name: &KeptName) {
        let Some(parts) = self.parts.get_mut(&name.identity) else { return };
        let before = parts.len();
        let removed: usize =
            parts.iter().filter(|part| part.name == *name).map(|part| part.chain.len()).sum();
        parts.retain(|part| part.name != *name);
        self.count -= before - parts.len();
        self.chained -= removed;
        if parts.is_empty() {
            self.parts.remove(&name.identity);
        }
    }

    /// Drops all entries: ids hold in one cache only.
    pub(super) fn clear(&mut self) {
        (self.parts, self.count, self.chained) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use kvik_cache::{Cache, CacheConfig, Namespaces, Policy};

    use super::*;

    #[test]
    fn the_least_recently_used_part_is_no_longer_listed() {
        let config = CacheConfig { blocks: 1, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let namespaces = Namespaces { model: [0; 32], kv_format: "f32/f32", adapter: None };
        let namespace = Cache::new(config).unwrap().namespace(&namespaces.kept([0; 16], "keydiff:0.5"));
        let name = |index: usize| KeptName { namespace, identity: Identity([0; 32]), tokens: 16 * index };
        let mut parts = CompressedPrefixes::default();
        let retention = "keydiff:0.5".parse().unwrap();
        (1..=PARTS_MAX).for_each(|index| parts.note(name(index), retention, index, [].into()));
        parts.note(name(1), retention, 7, [].into());
        parts.note(name(PARTS_MAX + 1), retention, 9, [].into());
        let known = [1, 2, 3, PARTS_MAX + 1].map(|index| parts.blocks(&name(index)));
        assert_eq!(known, [Some(7), None, Some(3), Some(9)]);
        assert_eq!(parts.of(&Identity([0; 32])).len(), PARTS_MAX);
        parts.note(name(2), retention, 1, vec![0; CHAINS_MAX].into());
        assert_eq!(parts.of(&Identity([0; 32])).len(), PARTS_MAX, "those without blocks take no room");
        parts.note(name(3), retention, 1, [0].into());
        assert_eq!((parts.blocks(&name(2)), parts.chained, parts.count), (None, 1, 1));
    }
}
