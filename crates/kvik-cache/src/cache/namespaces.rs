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
        let seed = Fingerprint::root(&Identity::root(namespace));
        let lost = self.lost_after(seed, &prompt[..prompt.len().min(BLOCK_POSITIONS)], 0);
        let (stop, evicted) = match lost {
            _ if prompt.is_empty() => (StopReason::Complete, None),
            Some(reason) => reason,
            None => (StopReason::FirstSeen, None),
        };
        Match { tokens: 0, stop, evicted }
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
