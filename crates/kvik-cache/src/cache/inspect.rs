//! Inspection of the cache, and manual eviction of prefixes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::life::Cache;
use crate::ids::{NamespaceId, NodeId, TenantId, Token};
use crate::tree::{Node, PartialMatch};

/// Tokens shown of a prefix.
const SHOWN_TOKENS: usize = 64;
/// Nodes visited in one call, which bounds the time that other callers wait: about a millisecond.
const SLICE_NODES: usize = 1 << 14;
/// Nodes visited in all.
const NODES_MAX: usize = 1 << 17;

/// Sort order of prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixOrder {
    /// Most blocks of their own first.
    Blocks,
    /// Most often reused first.
    Reuses,
}

/// A prefix in the cache: all tokens up to the end of a tree node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixInfo {
    /// The namespace whose sequences may share it.
    pub namespace: NamespaceId,
    /// The owning tenant.
    pub tenant: TenantId,
    /// Its first tokens, at most 64.
    pub first_tokens: Vec<Token>,
    /// All its tokens.
    pub tokens: usize,
    /// Blocks in addition to those of the prefix it continues.
    pub blocks: usize,
    /// How often it was reused, as far as is remembered.
    pub reuses: u32,
    /// When its last user left it, on the caller's clock; `None` while it is in use or pinned.
    pub last_use: Option<Duration>,
    /// True if a pin protects it.
    pub pinned: bool,
    /// The highest priority requested for it that has not ended.
    pub priority: i8,
    /// When its time to live ends, unless it is used before; `None` for never, or while it is in use or pinned.
    pub expires: Option<Duration>,
}

/// A search for the first prefixes in an order, carried out in slices: other calls may use the cache between two of
/// them. Concurrent changes may or may not be reflected in the result.
#[derive(Debug)]
pub struct PrefixScan {
    order: PrefixOrder,
    /// The tenant whose prefixes are searched; all when `None`.
    tenant: Option<TenantId>,
    limit: usize,
    /// Arena index at which the next slice begins.
    next: usize,
    /// The best so far, as a min-heap.
    best: BinaryHeap<Reverse<Ranked>>,
}

/// A node with its sort key: higher is better; ties are broken in favour of the lower arena index.
type Ranked = ((u64, u64), Reverse<NodeId>);

impl PrefixScan {
    /// A search for the first `limit` prefixes of a tenant, or of all tenants.
    pub fn new(order: PrefixOrder, tenant: Option<TenantId>, limit: usize) -> PrefixScan {
        PrefixScan { order, tenant, limit, next: 0, best: BinaryHeap::new() }
    }

    fn note(&mut self, id: NodeId, node: &Node) {
        let (blocks, reuses) = (node.blocks().len() as u64, u64::from(node.life.reuses));
        let key = match self.order {
            PrefixOrder::Blocks => (blocks, reuses),
            PrefixOrder::Reuses => (reuses, blocks),
        };
        let ranked = (key, Reverse(id));
        if self.best.len() < self.limit {
            self.best.push(Reverse(ranked));
        } else if let Some(mut least) = self.best.peek_mut().filter(|least| least.0 < ranked) {
            *least = Reverse(ranked);
        }
    }
}

impl Cache {
    /// Visits the next slice of the tree and returns whether there is another one. Of a very large tree only the
    /// first 131,072 nodes are visited.
    pub fn scan(&self, scan: &mut PrefixScan) -> bool {
        let end = scan.next.saturating_add(SLICE_NODES).min(NODES_MAX);
        let wanted = |id: NodeId| scan.tenant.is_none_or(|tenant| self.radix.owner(id) == tenant);
        let slice = self.radix.arena.iter_from(scan.next).take_while(|(id, _)| id.index() < end);
        let found: Vec<(NodeId, &Node)> = slice.filter(|&(id, node)| !node.is_root() && wanted(id)).collect();
        found.into_iter().for_each(|(id, node)| scan.note(id, node));
        scan.next = end;
        scan.limit > 0 && end < self.radix.arena.places().min(NODES_MAX)
    }

    /// The result of a search, best first.
    pub fn scanned(&self, scan: PrefixScan) -> Vec<PrefixInfo> {
        self.best(scan).map(|(id, _)| self.prefix_info(id)).collect()
    }

    /// Like [`scanned`](Cache::scanned), without prefixes that have a time to live, each in full: its namespace,
    /// its tokens and how often it was reused. The result may outlive the cache, which a prefix with a time to live
    /// must not.
    pub fn scanned_whole(&self, scan: PrefixScan) -> Vec<(NamespaceId, Vec<Token>, u32)> {
        let lasting = self.best(scan).filter(|(_, node)| node.life.keep.ttl.is_none());
        let whole = |(id, node): (NodeId, &Node)| {
            (node.namespace, self.radix.prefix(id, usize::MAX), node.life.reuses)
        };
        lasting.map(whole).collect()
    }

    /// The nodes of a search that still exist and still belong to its tenant, best first.
    fn best(&self, scan: PrefixScan) -> impl Iterator<Item = (NodeId, &Node)> {
        let best = scan.best.into_sorted_vec().into_iter().map(|Reverse((_, Reverse(id)))| id);
        let still = best.filter_map(|id| Some((id, self.radix.arena.get(id)?)));
        let mine = move |id: NodeId| scan.tenant.is_none_or(|tenant| self.radix.owner(id) == tenant);
        still.filter(move |&(id, node)| !node.is_root() && mine(id))
    }

    /// The first `limit` prefixes of a tenant, or of all, in an order, by a search of all slices.
    pub fn prefixes(&self, order: PrefixOrder, tenant: Option<TenantId>, limit: usize) -> Vec<PrefixInfo> {
        let mut scan = PrefixScan::new(order, tenant, limit);
        while self.scan(&mut scan) {}
        self.scanned(scan)
    }

    fn prefix_info(&self, id: NodeId) -> PrefixInfo {
        let (radix, node) = (&self.radix, &self.radix.arena[id]);
        let unused = node.locks == 0;
        PrefixInfo {
            namespace: node.namespace,
            tenant: radix.owner(id),
            first_tokens: radix.prefix(id, SHOWN_TOKENS),
            tokens: radix.prefix_tokens(id),
            blocks: node.blocks().len(),
            reuses: node.life.reuses,
            last_use: unused.then_some(node.life.used_at),
            pinned: node.pins > 0,
            priority: node.priority(radix.now),
            expires: node.life.expires().filter(|_| unused),
        }
    }

    /// Evicts a prompt: everything that follows its whole blocks, and those of its blocks that no other prefix
    /// shares; only the latter when not all its whole blocks are cached, or it has none. Blocks in use or pinned
    /// remain. Returns how many blocks were freed. Leaves no ghosts. In a derived namespace, a prompt that is no longer
    /// than the base evicts everything but the base.
    pub fn evict_prefix(&mut self, namespace: NamespaceId, tokens: &[Token]) -> usize {
        if self.is_in_base(namespace, tokens) {
            return self.clear(Some(namespace));
        }
        let Some((node, blocks)) = self.whole_prefix(namespace, tokens) else {
            return self.evict_chain(namespace, tokens);
        };
        let end = self.radix.cut(node, blocks);
        let before = self.radix.arena[end].parent;
        self.drop_from(end) + self.drop_upwards(before)
    }

    /// Evicts the cached blocks of a prompt from the last one on, which may be partial, until one is in use or pinned
    /// or another prefix continues it. Returns how many blocks were freed. Leaves no ghosts.
    pub fn evict_chain(&mut self, namespace: NamespaceId, tokens: &[Token]) -> usize {
        let last = self.cached_end(namespace, tokens);
        self.drop_upwards(last)
    }

    /// The node that ends with the cached part of a prompt; `None` if a block follows that differs from the prompt or
    /// goes on behind it.
    fn cached_end(&self, namespace: NamespaceId, tokens: &[Token]) -> Option<NodeId> {
        let walk = self.radix.walk(self.roots[&namespace], tokens);
        let (node, blocks) = match walk.partial {
            Some(PartialMatch { node, index, positions }) => {
                let block = self.radix.arena[node].blocks()[index];
                (self.radix.labels.count(block) == positions).then_some((node, index + 1))?
            }
            None => (walk.node, walk.blocks),
        };
        (blocks == self.radix.arena[node].blocks().len()).then_some(node)
    }

    /// Evicts everything in a namespace, or in all, that is neither in use nor pinned. Returns how many blocks were
    /// freed. Leaves no ghosts.
    pub fn clear(&mut self, namespace: Option<NamespaceId>) -> usize {
        let roots = match namespace {
            Some(namespace) => vec![self.roots[&namespace]],
            None => self.roots.values().copied().collect(),
        };
        roots.into_iter().map(|root| self.drop_from(root)).sum()
    }

    /// Drops a node and its descendants, as far as they are not in use.
    fn drop_from(&mut self, top: NodeId) -> usize {
        let mut below = vec![top];
        let mut next = 0;
        while let Some(&id) = below.get(next) {
            below.extend(self.radix.arena[id].children.values());
            next += 1;
        }
        below.into_iter().rev().map(|id| self.drop_leaf(id)).sum()
    }

    /// Drops a node and those before it, as far as nothing that remains follows them and they are not in use.
    fn drop_upwards(&mut self, mut last: Option<NodeId>) -> usize {
        let mut count = 0;
        while let Some(id) = last.filter(|&id| self.radix.candidate(id).is_some()) {
            last = self.radix.arena[id].parent;
            count += self.drop_leaf(id);
        }
        count
    }

    /// Drops a node if it is an unlocked leaf. Returns how many blocks were freed.
    pub(super) fn drop_leaf(&mut self, id: NodeId) -> usize {
        let blocks = self.radix.candidate(id).map_or(0, |candidate| candidate.facts.blocks as usize);
        if blocks > 0 {
            self.radix.pop(id, blocks).release(&mut self.pool);
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, CacheConfig, Lifetime, Namespaces, Policy, SeqId, Share};

    const NAMESPACES: Namespaces<'_> = Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None };

    fn cache() -> (Cache, NamespaceId) {
        let mut cache =
            Cache::new(CacheConfig { blocks: 64, policy: Policy::Lru, ghosts: 64, pinned_max: 32 }).unwrap();
        let namespace = cache.namespace(&NAMESPACES.shared([0; 16]));
        (cache, namespace)
    }

    fn run(cache: &mut Cache, namespace: NamespaceId, prompt: &[Token], lifetime: Lifetime) {
        let (seq, reuse_max) = (SeqId(1), prompt.len());
        let admission = Admission { seq, namespace, prompt, reuse_max, positions: prompt.len(), lifetime };
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
            run(&mut cache, namespace, &prompt, Lifetime { ttl, priority: 2, ..Lifetime::default() });
        }
        let first = &cache.prefixes(PrefixOrder::Reuses, None, 1)[0];
        assert_eq!((first.tokens, first.blocks, first.reuses), (96, 6, 2));
        assert_eq!(first.first_tokens, system[..64]);
        assert_eq!((first.last_use, first.priority), (Some(Duration::from_secs(5)), 2));
        assert_eq!(first.expires, Some(Duration::from_secs(65)));
        assert_eq!(cache.pin(namespace, &system), Ok(true));
        let first = &cache.prefixes(PrefixOrder::Blocks, None, 9)[0];
        assert_eq!((first.pinned, first.last_use, first.expires), (true, None, None));
        assert_eq!(cache.prefixes(PrefixOrder::Blocks, None, 9).len(), 4);
    }

    #[test]
    fn a_search_goes_on_while_the_tree_changes_and_shows_one_tenant_its_own() {
        let config = CacheConfig { blocks: 40_000, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let mut cache = Cache::new(config).unwrap();
        let namespaces = [0, 1].map(|salt| {
            let namespace = cache.namespace(&NAMESPACES.shared([salt; 16]));
            let share = Share {
                tenant: TenantId(u32::from(salt)),
                weight: 1.0,
                quota_blocks: None,
                pinned_max: None,
            };
            cache.set_share(namespace, share).unwrap();
            namespace
        });
        // Each prompt has a node; the second tenant has a few among many, the longest last.
        for number in 0..20_000 {
            let blocks = if number % 1000 == 999 { 1 + number as usize / 1000 } else { 1 };
            let namespace = namespaces[usize::from(blocks > 1)];
            let prompt: Vec<Token> = (number * 100..).take(blocks * 16).collect();
            run(&mut cache, namespace, &prompt, Lifetime::default());
        }
        let mut scan = PrefixScan::new(PrefixOrder::Blocks, Some(TenantId(1)), 3);
        let mut slices = 1;
        while cache.scan(&mut scan) {
            slices += 1;
            let evicted = cache.evict_prefix(namespaces[1], &(1999 * 100..).take(32).collect::<Vec<Token>>());
            assert!(evicted == 2 || evicted == 0);
        }
        assert!(slices >= 2, "{slices} slices of at most {SLICE_NODES} nodes");
        let blocks = |found: Vec<PrefixInfo>| found.iter().map(|prefix| prefix.blocks).collect::<Vec<_>>();
        assert_eq!(blocks(cache.scanned(scan)), [20, 19, 18]);
        assert_eq!(cache.prefixes(PrefixOrder::Blocks, Some(TenantId(1)), 99).len(), 18);
        assert_eq!(cache.prefixes(PrefixOrder::Blocks, None, 2)[0].tenant, TenantId(1));
        assert_eq!(cache.prefixes(PrefixOrder::Blocks, None, 0), []);

        let mut gone = PrefixScan::new(PrefixOrder::Blocks, Some(TenantId(1)), 3);
        while cache.scan(&mut gone) {}
        cache.clear(None);
        assert_eq!(cache.scanned(gone), [], "what is gone is not shown");
    }

    #[test]
    fn a_prompt_is_dropped_and_what_others_share_stays() {
        let (mut cache, namespace) = cache();
        let prompt = |user: Token| (0..32).chain(1000 * user..1000 * user + 40).collect::<Vec<Token>>();
        for user in [1, 2] {
            run(&mut cache, namespace, &prompt(user), Lifetime::default());
        }
        assert_eq!(cache.evict_prefix(namespace, &prompt(1)), 3, "the tail is dropped with the whole blocks");
        assert_eq!(cache.lookup(namespace, &prompt(1)).tokens, 32);
        assert_eq!(cache.evict_prefix(namespace, &prompt(1)), 0);
        assert_eq!(cache.evict_prefix(namespace, &prompt(2)), 5);
        assert_eq!((cache.stats().shared, cache.clear(None)), (0, 0));
        cache.check().unwrap();
    }

    #[test]
    fn a_prompt_is_dropped_from_where_its_cached_part_ends() {
        let (mut cache, namespace) = cache();
        let first = |count: Token| (0..count).collect::<Vec<Token>>();
        run(&mut cache, namespace, &first(10), Lifetime::default());
        assert_eq!(cache.evict_prefix(namespace, &first(9)), 0, "its block goes on behind this prompt");
        assert_eq!(cache.evict_prefix(namespace, &first(10)), 1, "it has no whole block");
        run(&mut cache, namespace, &first(160), Lifetime::default());
        cache.shrink(6);
        assert_eq!(cache.lookup(namespace, &first(160)).tokens, 96);
        assert_eq!(cache.evict_prefix(namespace, &first(160)), 6, "its end was evicted before");
        assert_eq!((cache.stats().shared, cache.lookup(namespace, &first(160)).tokens), (0, 0));
        cache.check().unwrap();
    }

    #[test]
    fn the_end_of_a_prompt_is_dropped_where_a_pinned_one_has_its_beginning() {
        let (mut cache, namespace) = cache();
        let (one, other): (Vec<Token>, Vec<Token>) = ((0..70).collect(), (0..64).chain(500..550).collect());
        for prompt in [&one, &other] {
            run(&mut cache, namespace, prompt, Lifetime::default());
        }
        assert_eq!(cache.pin(namespace, &other), Ok(true));
        assert_eq!(cache.evict_chain(namespace, &one), 1);
        let left = [&one, &other].map(|prompt| cache.lookup(namespace, prompt).tokens);
        assert_eq!(left, [64, 114], "also the last block of the other, which no pin covers");
        assert_eq!(cache.evict_chain(namespace, &other), 1);
        cache.check().unwrap();
    }
}
