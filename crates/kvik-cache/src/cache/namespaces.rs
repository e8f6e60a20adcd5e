//! Namespaces: created when something is to be stored in them, only looked up otherwise, and dropped when they are
//! empty.
//!
//! Clients can create any number of them: the scale of an adapter is a number that a client writes. So empty ones
//! can be dropped, and their ids are not assigned again: the use of a stale id panics instead of reading another
//! namespace's blocks.

use super::life::Cache;
use crate::admission::Match;
use crate::explain::StopReason;
use crate::hash::{Fingerprint, Identity};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, NodeId, Token};
use crate::namespace::Namespace;

impl Cache {
    /// Returns the id of a namespace, the same for equal ones as long as it exists.
    pub fn namespace(&mut self, namespace: &Namespace) -> NamespaceId {
        let identity = Identity::root(namespace);
        if let Some(&known) = self.namespaces.get(&identity) {
            return known;
        }
        let root = self.new_root(Fingerprint::root(&identity));
        let id = self.radix.arena[root].namespace;
        self.namespaces.insert(identity, id);
        id
    }

    /// Returns the id of a namespace, if it exists.
    pub fn known_namespace(&self, namespace: &Namespace) -> Option<NamespaceId> {
        self.namespaces.get(&Identity::root(namespace)).copied()
    }

    /// Explains the miss of a prompt in a namespace that does not exist, as far as its evicted blocks are remembered.
    pub fn lookup_absent(&self, namespace: &Namespace, prompt: &[Token]) -> Match {
        if prompt.is_empty() {
            return Match { tokens: 0, stop: StopReason::Complete, evicted: None };
        }
        let new = Match { tokens: 0, stop: StopReason::FirstSeen, evicted: None };
        self.lookup_lost(&Identity::root(namespace), prompt, 0).unwrap_or(new)
    }

    /// Explains why no more than the first `known` of these tokens, which follow `root`, is cached: the next block was lost,
    /// as far as that is remembered. The known ones need not be cached, since a lower tier may have them.
    pub fn lookup_lost(&self, root: &Identity, tokens: &[Token], known: usize) -> Option<Match> {
        let (whole, rest) = tokens.split_at(known - known % BLOCK_POSITIONS);
        let blocks = whole.chunks(BLOCK_POSITIONS);
        let before = blocks.fold(Fingerprint::root(root), |before, block| before.child(block));
        let next = &rest[..rest.len().min(BLOCK_POSITIONS)];
        let (stop, evicted) = self.lost_after(before, next, known % BLOCK_POSITIONS)?;
        Some(Match { tokens: known, stop, evicted })
    }

    /// Drops the namespaces that are `unwanted`, except those with cached blocks or running sequences, and
    /// [derived](Cache::drop_derived) ones. Returns their ids.
    pub fn drop_namespaces(&mut self, unwanted: impl Fn(NamespaceId) -> bool) -> Vec<NamespaceId> {
        let is_empty = |root: &NodeId| {
            let node = &self.radix.arena[*root];
            node.locks == 0 && node.children.is_empty() && node.parent.is_none()
        };
        let empty = self.roots.iter().filter(|(id, root)| unwanted(**id) && is_empty(root));
        let empty: Vec<(NamespaceId, NodeId)> = empty.map(|(&id, &root)| (id, root)).collect();
        for (id, root) in &empty {
            self.radix.remove_root(*root);
            self.roots.remove(id);
        }
        self.namespaces.retain(|_, id| self.roots.contains_key(id));
        empty.into_iter().map(|(id, _)| id).collect()
    }

    /// Whether a namespace still exists.
    pub fn has_namespace(&self, namespace: NamespaceId) -> bool {
        self.roots.contains_key(&namespace)
    }

    /// Number of namespaces.
    pub fn namespaces(&self) -> usize {
        self.roots.len()
    }

    /// Adds the root of a new namespace.
    pub(super) fn new_root(&mut self, seed: Fingerprint) -> NodeId {
        let next = self.last_namespace.map_or(Some(0), |last| last.0.checked_add(1));
        let id = NamespaceId(next.expect("fewer namespaces than a process can make"));
        let root = self.radix.add_root(id, seed);
        self.last_namespace = Some(id);
        self.roots.insert(id, root);
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, CacheConfig, Lifetime, Namespaces, Policy, SeqId};

    /// Eight blocks: the second prompt takes all of them but one.
    #[test]
    fn what_was_lost_behind_tokens_that_are_not_cached_either_is_remembered() {
        let config = CacheConfig { blocks: 8, policy: Policy::Lru, ghosts: 1 << 12, pinned_max: 4 };
        let mut cache = Cache::new(config).unwrap();
        let own = Namespaces { model: [0; 32], kv_format: "f32/f32", adapter: None }.shared([0; 16]);
        let namespace = cache.namespace(&own);
        let prompts: [Vec<Token>; 2] = [(0..75).collect(), (1000..1112).collect()];
        for (seq, prompt) in (0..).map(SeqId).zip(&prompts) {
            let (positions, lifetime) = (prompt.len(), Lifetime::default());
            cache.admit(Admission { seq, namespace, prompt, reuse_max: 0, positions, lifetime }).unwrap();
            cache.finish(seq, prompt);
        }
        let (root, first) = (Identity::root(&own), &prompts[0]);
        assert!(cache.lookup(namespace, first).tokens <= 16);
        for known in [16, 32, 48, 64, 70] {
            let lost = cache.lookup_lost(&root, first, known).expect("it was evicted");
            assert_eq!((lost.tokens, lost.stop), (known, StopReason::Evicted));
            assert!(lost.evicted.is_some());
            let other: Vec<Token> = first[..known].iter().copied().chain([7; 16]).collect();
            assert_eq!(cache.lookup_lost(&root, &other, known), None);
        }
        assert_eq!(cache.lookup_lost(&root, first, first.len()), None);
        assert_eq!(cache.lookup_lost(&root.child(&[1]), first, 16), None);
    }

    #[test]
    fn an_empty_namespace_is_dropped_and_its_id_not_given_out_again() {
        let config = CacheConfig { blocks: 8, policy: Policy::Lru, ghosts: 8, pinned_max: 4 };
        let mut cache = Cache::new(config).unwrap();
        let of = |adapter: u8| {
            Namespaces { model: [0; 32], kv_format: "f32/f32", adapter: Some([adapter; 32]) }.shared([0; 16])
        };
        let prompt: Vec<u32> = (0..20).collect();
        let first = cache.namespace(&of(0));
        for adapter in 1..=200 {
            assert_eq!(cache.known_namespace(&of(adapter)), None);
            let namespace = cache.namespace(&of(adapter));
            assert_eq!(cache.known_namespace(&of(adapter)), Some(namespace));
            let admission = Admission {
                seq: SeqId(adapter.into()),
                namespace,
                prompt: &prompt,
                reuse_max: 0,
                positions: 20,
                lifetime: Lifetime::default(),
            };
            cache.admit(admission).unwrap();
            assert_eq!(cache.drop_namespaces(|id| id == namespace), [], "somebody runs in it");
            cache.finish(SeqId(adapter.into()), &prompt);
            assert_eq!(cache.drop_namespaces(|id| id == namespace), [], "something is cached in it");
            cache.clear(Some(namespace));
            assert!(cache.has_namespace(namespace));
            assert_eq!(cache.drop_namespaces(|id| id == namespace), [namespace]);
            assert!(!cache.has_namespace(namespace));
            assert_eq!(cache.drop_namespaces(|id| id == namespace), []);
            cache.check().unwrap();
            assert_eq!((cache.namespaces(), cache.stats().nodes), (1, 1));
        }
        assert_eq!(cache.namespace(&of(0)), first);
        assert_ne!(cache.namespace(&of(1)), NamespaceId(1));
    }
}
