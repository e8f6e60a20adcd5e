//! An outline of the prefix tree for display: its heaviest nodes, and number and size of the others.
//!
//! ```text
//! scan, in slices ── size and parent of each node ── heaviest ── node, for each that is shown
//!    on the cache                                   without it        on the cache
//! ```
//!
//! The weight of a node is the tokens of its subtree, so a parent weighs more than its children: a best-first walk
//! from the roots yields the heaviest nodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::life::Cache;
use crate::ids::{BLOCK_POSITIONS, NamespaceId, NodeId, NodeName, TenantId, Token};
use crate::tree::Node;

/// Nodes visited in one call, which bounds the time that other callers wait.
const SLICE_NODES: usize = 1 << 12;
/// Nodes noted in all.
const NOTED_MAX: usize = 1 << 17;

/// A search for the outline of the tree, carried out in slices: other calls may use the cache between two of them.
/// Concurrent changes may or may not be reflected in the result.
#[derive(Debug)]
pub struct OutlineScan {
    /// The tenant whose nodes are searched; all when `None`. Nodes of other tenants are not counted at all.
    tenant: Option<TenantId>,
    /// Arena index at which the next slice begins.
    next: usize,
    noted: Vec<Noted>,
}

/// The facts of a node that the outline needs.
#[derive(Debug)]
struct Noted {
    name: NodeName,
    /// The node that it continues, even if another tenant owns that.
    parent: Option<NodeName>,
    start: usize,
    tokens: usize,
    /// Tie-breaker for nodes of equal weight: a hash of the prefix, so that other tenants cannot influence it.
    order: u64,
}

/// The heaviest nodes of the tree, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// The heaviest first; parents before children.
    pub nodes: Vec<OutlineNode>,
    /// Number of nodes, shown or not.
    pub nodes_total: usize,
    /// Tokens of all of them.
    pub tokens_total: usize,
    /// Whether there are nodes that are not shown.
    pub truncated: bool,
}

/// A node of an outline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutlineNode {
    /// Its name.
    pub name: NodeName,
    /// The node that it continues, if that is in the outline.
    pub parent: Option<NodeName>,
    /// Tokens before it.
    pub start: usize,
    /// Tokens of its own.
    pub tokens: usize,
    /// Tokens of its own and of all nodes below it.
    pub weight: usize,
    /// Nodes that continue it.
    pub children: usize,
    /// Descendants that are not in the outline and have no closer ancestor in it.
    pub folded_nodes: usize,
    /// Their tokens.
    pub folded_tokens: usize,
}

/// The present data of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The namespace whose sequences may share it.
    pub namespace: NamespaceId,
    /// The owning tenant.
    pub tenant: TenantId,
    /// Tokens before it.
    pub start: usize,
    /// How often it was reused, as far as is remembered.
    pub reuses: u32,
    /// When its last user left it, on the caller's clock; `None` while it is in use or pinned.
    pub last_use: Option<Duration>,
    /// Whether a running sequence or a derived namespace uses it; pins do not count.
    pub in_use: bool,
    /// True if a pin protects it.
    pub pinned: bool,
    /// Whether other nodes continue it, which are evicted before it.
    pub is_continued: bool,
    /// The highest priority requested for it that has not ended.
    pub priority: i8,
    /// When its time to live ends, unless it is used before; `None` for never, or while it is in use or pinned.
    pub expires: Option<Duration>,
}

impl OutlineScan {
    /// A search of the nodes of a tenant, or of all.
    pub fn new(tenant: Option<TenantId>) -> OutlineScan {
        OutlineScan { tenant, next: 0, noted: Vec::new() }
    }

    /// The outline of the noted nodes, with at most `limit` nodes; of the subtree of `under` if given, and `None`
    /// when that node was not noted.
    pub fn heaviest(self, limit: usize, under: Option<NodeName>) -> Option<Outline> {
        let is_cut_off = self.noted.len() >= NOTED_MAX;
        let forest = Forest::of(self.noted);
        let tops = match under {
            Some(name) => vec![*forest.places.get(&name)?],
            None => forest.tops.clone(),
        };
        let nodes = forest.outline(&tops, limit);
        let sum = |of: fn(&Sum) -> usize| tops.iter().map(|&top| of(&forest.sums[top])).sum();
        let (nodes_total, tokens_total) = (sum(|sum| sum.nodes), sum(|sum| sum.tokens));
        let truncated = is_cut_off || nodes.len() < nodes_total;
        Some(Outline { nodes, nodes_total, tokens_total, truncated })
    }
}

/// The noted nodes as a forest. Nodes are indices into `noted`.
struct Forest {
    noted: Vec<Noted>,
    places: FxHashMap<NodeName, usize>,
    /// Nodes whose parent was not noted.
    tops: Vec<usize>,
    children: Vec<Vec<usize>>,
    /// The sums over each subtree.
    sums: Vec<Sum>,
}

#[derive(Debug, Clone, Copy)]
struct Sum {
    nodes: usize,
    tokens: usize,
}

impl Forest {
    fn of(noted: Vec<Noted>) -> Forest {
        let places: FxHashMap<NodeName, usize> =
            noted.iter().enumerate().map(|(index, node)| (node.name, index)).collect();
        let mut sums: Vec<Sum> = noted.iter().map(|node| Sum { nodes: 1, tokens: node.tokens }).collect();
        let (mut tops, mut children) = (Vec::new(), vec![Vec::new(); noted.len()]);
        // Children start after their parents, so in this order each sum is complete before it is added.
        let mut last_first: Vec<usize> = (0..noted.len()).collect();
        last_first.sort_unstable_by_key(|&index| Reverse(noted[index].start));
        for index in last_first {
            let Some(&parent) = noted[index].parent.and_then(|parent| places.get(&parent)) else {
                tops.push(index);
                continue;
            };
            children[parent].push(index);
            let Sum { nodes, tokens } = sums[index];
            sums[parent].nodes += nodes;
            sums[parent].tokens += tokens;
        }
        Forest { noted, places, tops, children, sums }
    }

    /// The heaviest nodes at or below `tops`.
    fn outline(&self, tops: &[usize], limit: usize) -> Vec<OutlineNode> {
        let ranked = |index: usize| (self.sums[index].tokens, Reverse(self.noted[index].order), index);
        let mut seen: BinaryHeap<_> = tops.iter().map(|&top| (ranked(top), None)).collect();
        let mut nodes: Vec<OutlineNode> = Vec::new();
        while nodes.len() < limit
            && let Some(((.., index), above)) = seen.pop()
        {
            seen.extend(self.children[index].iter().map(|&child| (ranked(child), Some(nodes.len()))));
            let parent = above.map(|above: usize| {
                let (parent, Sum { nodes: below, tokens }) = (&mut nodes[above], self.sums[index]);
                parent.folded_nodes -= below;
                parent.folded_tokens -= tokens;
                parent.name
            });
            nodes.push(OutlineNode { parent, ..self.folded(index) });
        }
        nodes
    }

    /// A node with everything below it folded.
    fn folded(&self, index: usize) -> OutlineNode {
        let (&Noted { name, start, tokens, .. }, sum) = (&self.noted[index], self.sums[index]);
        OutlineNode {
            name,
            parent: None,
            start,
            tokens,
            weight: sum.tokens,
            children: self.children[index].len(),
            folded_nodes: sum.nodes - 1,
            folded_tokens: sum.tokens - tokens,
        }
    }
}

impl Cache {
    /// Notes the next slice of the tree and returns whether there is another one. Of a very large tree at most
    /// 131,072 nodes are noted.
    pub fn scan_outline(&self, scan: &mut OutlineScan) -> bool {
        let end = scan.next.saturating_add(SLICE_NODES);
        let slice = self.radix.arena.iter_from(scan.next).take_while(|(id, _)| id.index() < end);
        let room = NOTED_MAX - scan.noted.len();
        let noted = slice.filter_map(|(id, node)| self.note(id, node, scan.tenant)).take(room);
        scan.noted.extend(noted);
        scan.next = end;
        end < self.radix.arena.places() && scan.noted.len() < NOTED_MAX
    }

    fn note(&self, id: NodeId, node: &Node, tenant: Option<TenantId>) -> Option<Noted> {
        if node.is_root() || tenant.is_some_and(|tenant| self.radix.owner(id) != tenant) {
            return None;
        }
        let start = node.depth as usize * BLOCK_POSITIONS;
        Some(Noted {
            name: self.radix.arena.name(id),
            parent: self.radix.path_up(id).nth(1).map(|parent| self.radix.arena.name(parent)),
            start,
            tokens: self.radix.prefix_tokens(id) - start,
            order: self.radix.fingerprint_of(id).0.get(),
        })
    }

    /// The present data of a node; `None` when it is gone, or belongs to another tenant than `tenant`.
    pub fn node(&self, name: NodeName, tenant: Option<TenantId>) -> Option<NodeInfo> {
        let id = self.find_node(name, tenant)?;
        let node = &self.radix.arena[id];
        let unused = node.locks == 0;
        Some(NodeInfo {
            namespace: node.namespace,
            tenant: self.radix.owner(id),
            start: node.depth as usize * BLOCK_POSITIONS,
            reuses: node.life.reuses,
            last_use: unused.then_some(node.life.used_at),
            in_use: node.locks > node.pins,
            pinned: node.pins > 0,
            is_continued: !node.children.is_empty(),
            priority: node.priority(self.radix.now),
            expires: node.life.expires().filter(|_| unused),
        })
    }

    /// All tokens up to the end of a node; `None` when it is gone.
    pub fn node_prefix(&self, name: NodeName) -> Option<Vec<Token>> {
        self.find_node(name, None).map(|id| self.radix.prefix(id, usize::MAX))
    }

    /// The tokens of a node itself; `None` when it is gone.
    pub fn node_tokens(&self, name: NodeName) -> Option<Vec<Token>> {
        let blocks = self.radix.arena[self.find_node(name, None)?].blocks();
        Some(blocks.iter().flat_map(|&block| self.radix.labels.tokens(block)).copied().collect())
    }

    fn find_node(&self, name: NodeName, tenant: Option<TenantId>) -> Option<NodeId> {
        let id = self.radix.arena.named(name).filter(|&id| !self.radix.arena[id].is_root())?;
        tenant.is_none_or(|tenant| self.radix.owner(id) == tenant).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, CacheConfig, Lifetime, Namespaces, Policy, SeqId, Share};

    const NAMESPACES: Namespaces<'_> = Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None };

    /// A cache of two tenants, 0 and 1, with a namespace each.
    fn cache(blocks: usize) -> (Cache, [NamespaceId; 2]) {
        let mut cache =
            Cache::new(CacheConfig { blocks, policy: Policy::Lru, ghosts: 0, pinned_max: 8 }).unwrap();
        let namespaces = [0, 1].map(|number| {
            let namespace = cache.namespace(&NAMESPACES.shared([number; 16]));
            let tenant = TenantId(u32::from(number));
            let share = Share { tenant, weight: 1.0, quota_blocks: None, pinned_max: None };
            cache.set_share(namespace, share).unwrap();
            namespace
        });
        (cache, namespaces)
    }

    fn run(cache: &mut Cache, namespace: NamespaceId, prompt: &[Token]) {
        let (seq, reuse_max, lifetime) = (SeqId(1), prompt.len(), Lifetime::default());
        let admission = Admission { seq, namespace, prompt, reuse_max, positions: prompt.len(), lifetime };
        cache.admit(admission).unwrap();
        cache.finish(seq, prompt);
    }

    fn outline(cache: &Cache, tenant: Option<TenantId>, limit: usize) -> Outline {
        let mut scan = OutlineScan::new(tenant);
        while cache.scan_outline(&mut scan) {}
        scan.heaviest(limit, None).unwrap()
    }

    /// A prompt with a shared beginning of 32 tokens and an end of its own.
    fn prompt(user: Token, tokens: usize) -> Vec<Token> {
        (0..32).chain(1000 * user..).take(tokens).collect()
    }

    #[test]
    fn the_heaviest_are_shown_and_the_others_are_counted_where_they_hang() {
        let (mut cache, [namespace, _]) = cache(64);
        for (user, tokens) in [(1, 40), (2, 72), (3, 50)] {
            run(&mut cache, namespace, &prompt(user, tokens));
        }
        let outline = outline(&cache, None, 2);
        assert_eq!((outline.nodes_total, outline.tokens_total, outline.truncated), (4, 98, true));
        let [top, heaviest] = outline.nodes[..] else { panic!("two nodes: {outline:?}") };
        assert_eq!((top.parent, top.start, top.tokens, top.weight, top.children), (None, 0, 32, 98, 3));
        assert_eq!((top.folded_nodes, top.folded_tokens), (2, 26));
        assert_eq!((heaviest.parent, heaviest.start, heaviest.weight), (Some(top.name), 32, 40));
        assert_eq!(cache.node_prefix(heaviest.name), Some(prompt(2, 72)));
        assert_eq!(cache.node_tokens(heaviest.name), Some(prompt(2, 72)[32..].to_vec()));
        assert_eq!(
            OutlineScan::new(None).heaviest(9, Some(top.name)),
            None,
            "what was not found has no outline"
        );
    }

    #[test]
    fn the_name_of_a_node_that_is_gone_never_means_another_one() {
        let (mut cache, [namespace, other]) = cache(64);
        run(&mut cache, namespace, &prompt(1, 40));
        let names =
            |cache: &Cache| outline(cache, None, 9).nodes.iter().map(|node| node.name).collect::<Vec<_>>();
        let gone = names(&cache);
        cache.clear(None);
        run(&mut cache, other, &prompt(2, 40));
        assert!(
            names(&cache).iter().any(|new| gone.iter().any(|old| old.place == new.place)),
            "a place is reused"
        );
        for name in gone {
            assert_eq!((cache.node(name, None), cache.node_prefix(name)), (None, None));
        }
    }

    #[test]
    fn what_is_said_of_a_node_follows_its_life() {
        let (mut cache, [namespace, _]) = cache(64);
        cache.set_now(Duration::from_secs(5));
        run(&mut cache, namespace, &prompt(1, 48));
        let name = outline(&cache, None, 1).nodes[0].name;
        let node = cache.node(name, None).unwrap();
        assert_eq!(
            (node.last_use, node.in_use, node.is_continued),
            (Some(Duration::from_secs(5)), false, false)
        );
        assert_eq!((node.reuses, node.pinned, node.expires), (0, false, None));

        let (seq, prompt) = (SeqId(2), prompt(1, 48));
        assert_eq!(cache.lease(seq, namespace, &prompt), 48);
        let node = cache.node(name, None).unwrap();
        assert_eq!((node.last_use, node.in_use, node.pinned), (None, true, false));
        cache.abandon(seq);
        assert_eq!(cache.pin(namespace, &prompt), Ok(true));
        let node = cache.node(name, None).unwrap();
        assert_eq!((node.last_use, node.in_use, node.pinned), (None, false, true));
    }

    /// Everything that a tenant can see.
    fn told(cache: &Cache, tenant: TenantId) -> (Outline, Vec<NodeInfo>) {
        let outline = outline(cache, Some(tenant), 5);
        let infos = outline.nodes.iter().map(|node| cache.node(node.name, Some(tenant)).unwrap()).collect();
        (outline, infos)
    }

    #[test]
    fn a_tenant_is_told_nothing_of_another() {
        let (mut cache, [own, foreign]) = cache(512);
        for user in 1..9 {
            run(&mut cache, own, &prompt(user, 40 + user as usize));
        }
        let before = told(&cache, TenantId(0));
        for user in 1..30 {
            run(&mut cache, foreign, &prompt(user, 200));
        }
        assert_eq!(told(&cache, TenantId(0)), before);
        let foreign = outline(&cache, Some(TenantId(1)), usize::MAX).nodes;
        assert!(foreign.len() > 20 && outline(&cache, None, usize::MAX).nodes_total > foreign.len());
        for node in foreign {
            assert_eq!(cache.node(node.name, Some(TenantId(0))), None);
        }
    }

    /// A tenant that continues another tenant's public prompt sees its own nodes, without those above them; the
    /// owner of the prompt does not see its continuations.
    #[test]
    fn a_derived_namespace_is_shown_without_its_base() {
        let (mut cache, [base, _]) = cache(64);
        run(&mut cache, base, &prompt(0, 32));
        let derived = cache.derive_namespace(base, &prompt(0, 32), &NAMESPACES.shared([7; 16])).unwrap();
        let share = Share { tenant: TenantId(7), weight: 1.0, quota_blocks: None, pinned_max: None };
        cache.set_share(derived, share).unwrap();
        let public = told(&cache, TenantId(0));
        run(&mut cache, derived, &prompt(3, 50));
        let own = outline(&cache, Some(TenantId(7)), 9);
        assert_eq!((own.nodes_total, own.tokens_total), (1, 18));
        assert_eq!((own.nodes[0].start, own.nodes[0].parent), (32, None));
        assert_eq!(told(&cache, TenantId(0)), public);
        let all = outline(&cache, None, 9);
        assert_eq!((all.nodes[0].weight, all.nodes[1].parent), (50, Some(all.nodes[0].name)));
    }

    #[test]
    fn a_large_tree_is_noted_in_slices() {
        let (mut cache, [namespace, _]) = cache(120_000);
        for number in 0..100_000 {
            run(&mut cache, namespace, &[number / 300, number, number]);
        }
        let (mut scan, mut slices, mut longest) = (OutlineScan::new(None), 0, Duration::ZERO);
        let mut more = true;
        while more {
            let started = std::time::Instant::now();
            more = cache.scan_outline(&mut scan);
            (slices, longest) = (slices + 1, longest.max(started.elapsed()));
        }
        let started = std::time::Instant::now();
        let outline = scan.heaviest(400, None).unwrap();
        println!("{slices} slices, the longest {longest:?}; the outline after them {:?}", started.elapsed());
        assert_eq!((outline.nodes.len(), outline.nodes_total, outline.tokens_total), (400, 100_000, 300_000));
        assert!(slices >= 100_000 / SLICE_NODES, "{slices}");
    }
}
