//! Looking into the cache, and dropping by hand what is seen there.

use std::cmp::Reverse;
use std::time::Duration;

use rustc_hash::FxHashSet;

use crate::cache::Cache;
use crate::ids::{NamespaceId, NodeId, TenantId, Token};
use crate::radix::Node;

/// Tokens of a prefix that are shown.
const HEAD_TOKENS: usize = 64;
/// Nodes that are looked at, which bounds the time: some ten milliseconds.
const NODES_MAX: usize = 1 << 17;

/// Which prefixes come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixOrder {
    /// Those with the most blocks of their own.
    Blocks,
    /// Those reused most often.
    Reuses,
}

/// A prefix in the cache: all tokens up to a place where uses of it part or end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixInfo {
    /// Who may share it.
    pub namespace: NamespaceId,
    /// Who it belongs to.
    pub tenant: TenantId,
    /// Its first tokens, at most 64.
    pub head: Vec<Token>,
    /// All its tokens.
    pub tokens: usize,
    /// Blocks that it has beyond the prefix it continues.
    pub blocks: usize,
    /// How often it was used again, as far as is remembered.
    pub reuses: u32,
    /// When its last user left it, on the caller's clock; none while it is in use or pinned.
    pub last_use: Option<Duration>,
    /// Whether a pin keeps it.
    pub pinned: bool,
    /// The highest priority asked for.
    pub priority: i8,
    /// When it outlives its time to live, unless it is used before; none for never, or while it is
    /// in use or pinned.
    pub expires: Option<Duration>,
}

impl Cache {
    /// The first prefixes in an order, at most `limit`. Of a very large tree only a part is looked
    /// at, the first 131,072 nodes.
    pub fn prefixes(&self, order: PrefixOrder, limit: usize) -> Vec<PrefixInfo> {
        let key = |node: &Node| match order {
            PrefixOrder::Blocks => (node.blocks.len() as u64, u64::from(node.life.reuses)),
            PrefixOrder::Reuses => (u64::from(node.life.reuses), node.blocks.len() as u64),
        };
        let nodes = self.radix.arena.iter().take(NODES_MAX).filter(|(_, node)| !node.is_root());
        let mut ranked: Vec<_> = nodes.map(|(id, node)| (Reverse(key(node)), id)).collect();
        if limit < ranked.len() {
            ranked.select_nth_unstable(limit);
            ranked.truncate(limit);
        }
        ranked.sort_unstable();
        let paths = self.pins.iter().flat_map(|&pin| self.radix.path_up(pin));
        let pinned: FxHashSet<NodeId> = paths.collect();
        ranked.into_iter().map(|(_, id)| self.prefix_info(id, pinned.contains(&id))).collect()
    }

    fn prefix_info(&self, id: NodeId, pinned: bool) -> PrefixInfo {
        let (radix, node) = (&self.radix, &self.radix.arena[id]);
        let unused = node.locks == 0;
        PrefixInfo {
            namespace: node.namespace,
            tenant: radix.owner(id),
            head: radix.prefix(id, HEAD_TOKENS),
            tokens: radix.prefix_tokens(id),
            blocks: node.blocks.len(),
            reuses: node.life.reuses,
            last_use: unused.then_some(node.life.used_at),
            pinned,
            priority: node.life.keep.priority,
            expires: node.life.expires().filter(|_| unused),
        }
    }

    /// Drops what is known of a prompt: all that follows its whole blocks, and of these as many as
    /// no other prefix shares. What is in use or pinned stays. Returns how many blocks were freed;
    /// none when not all its whole blocks are known. It is as if they had never been.
    pub fn evict_prefix(&mut self, namespace: NamespaceId, tokens: &[Token]) -> usize {
        let Some((node, blocks)) = self.whole_prefix(namespace, tokens) else { return 0 };
        let end = self.radix.cut(node, blocks);
        let mut next = self.radix.arena[end].parent;
        let mut count = self.drop_from(end);
        while let Some(id) = next.filter(|&id| self.radix.candidate(id).is_some()) {
            next = self.radix.arena[id].parent;
            count += self.drop_leaf(id);
        }
        count
    }

    /// Drops all of a namespace, or of all, that is neither in use nor pinned. Returns how many
    /// blocks were freed. It is as if they had never been.
    pub fn clear(&mut self, namespace: Option<NamespaceId>) -> usize {
        let roots = match namespace {
            Some(namespace) => vec![self.roots[namespace.index()]],
            None => self.roots.clone(),
        };
        roots.into_iter().map(|root| self.drop_from(root)).sum()
    }

    /// Drops a node and what follows it, as far as nobody uses it.
    fn drop_from(&mut self, top: NodeId) -> usize {
        let mut below = vec![top];
        let mut next = 0;
        while let Some(&id) = below.get(next) {
            below.extend(self.radix.arena[id].children.values());
            next += 1;
        }
        below.into_iter().rev().map(|id| self.drop_leaf(id)).sum()
    }

    /// Drops a node, if it is an unlocked leaf.
    fn drop_leaf(&mut self, id: NodeId) -> usize {
        let blocks = self.radix.candidate(id).map_or(0, |candidate| candidate.facts.blocks as usize);
        if blocks > 0 {
            self.radix.pop(id, blocks).into_iter().for_each(|block| self.pool.release(block));
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, CacheConfig, Namespace, Policy, Retain, SeqId};

    fn cache() -> (Cache, NamespaceId) {
        let mut cache = Cache::new(CacheConfig { blocks: 64, policy: Policy::Lru, ghosts: 64 }).unwrap();
        let kv_format = "f16/f16".to_owned();
        let namespace =
            cache.namespace(&Namespace { model: [0; 32], kv_format, adapter: None, salt: [0; 16] });
        (cache, namespace)
    }

    fn run(cache: &mut Cache, namespace: NamespaceId, prompt: &[Token], retain: Retain) {
        let (seq, reuse_max) = (SeqId(1), prompt.len());
        let admission = Admission { seq, namespace, prompt, reuse_max, positions: prompt.len(), retain };
        cache.admit(admission).unwrap();
        cache.finish(seq, prompt);
    }

    #[test]
    fn prefixes_tell_what_is_known_of_them() {
        let (mut cache, namespace) = cache();
        let ttl = Some(Duration::from_secs(60));
        cache.set_now(Duration::from_secs(5));
        let system: Vec<Token> = (0..96).collect();
        for user in 0..3 {
            let prompt: Vec<Token> = system.iter().copied().chain(1000 * user..1000 * user + 20).collect();
            run(&mut cache, namespace, &prompt, Retain { ttl, priority: 2, pin: false });
        }
        let first = &cache.prefixes(PrefixOrder::Reuses, 1)[0];
        assert_eq!((first.tokens, first.blocks, first.reuses), (96, 6, 2));
        assert_eq!(first.head, system[..64]);
        assert_eq!((first.last_use, first.priority), (Some(Duration::from_secs(5)), 2));
        assert_eq!(first.expires, Some(Duration::from_secs(65)));
        assert!(cache.pin(namespace, &system));
        let first = &cache.prefixes(PrefixOrder::Blocks, 9)[0];
        assert_eq!((first.pinned, first.last_use, first.expires), (true, None, None));
        assert_eq!(cache.prefixes(PrefixOrder::Blocks, 9).len(), 4);
    }

    #[test]
    fn a_prompt_is_dropped_and_what_others_share_stays() {
        let (mut cache, namespace) = cache();
        let prompt = |user: Token| (0..32).chain(1000 * user..1000 * user + 40).collect::<Vec<Token>>();
        for user in [1, 2] {
            run(&mut cache, namespace, &prompt(user), Retain::default());
        }
        assert_eq!(cache.evict_prefix(namespace, &prompt(1)), 3, "the tail goes with the whole blocks");
        assert_eq!(cache.lookup(namespace, &prompt(1)).tokens, 32);
        assert_eq!(cache.evict_prefix(namespace, &prompt(1)), 0);
        assert_eq!(cache.evict_prefix(namespace, &prompt(2)), 5);
        assert_eq!((cache.stats().shared, cache.clear(None)), (0, 0));
        cache.check().unwrap();
    }
}
