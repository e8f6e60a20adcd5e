//! Views of the prefix tree: its outline, and its nodes one by one, in RAM and on disk.

use kvik_cache::{
    BLOCK_POSITIONS, Identity, NamespaceId, NodeInfo, NodeName, OutlineNode, OutlineScan, TenantId,
};
use rustc_hash::FxHashMap;

use super::prefixes::Prefixes;
use crate::api::{NodeView, TreeNode};

/// Maximum number of blocks whose identities are computed in one call, which bounds the delay of other requests.
const SLICE_BLOCKS: usize = 4096;
/// Maximum number of pins that are listed for one node.
const PINS_MAX: usize = 1000;

/// Nodes of an outline that are described in slices.
#[derive(Debug)]
pub(crate) struct Describing {
    tenant: Option<TenantId>,
    /// Remaining nodes, the next one last.
    left: Vec<OutlineNode>,
    described: Vec<TreeNode>,
    /// Ends of the described nodes.
    ends: FxHashMap<NodeName, End>,
}

/// The end of a node, as the disk knows it.
#[derive(Debug, Clone, Copy)]
struct End {
    namespace: NamespaceId,
    /// Number of tokens up to the end.
    tokens: usize,
    /// Identity of the last block.
    identity: Identity,
}

impl Describing {
    /// Starts with these nodes, each after its parent.
    pub(crate) fn new(mut nodes: Vec<OutlineNode>, tenant: Option<TenantId>) -> Describing {
        nodes.reverse();
        Describing { tenant, left: nodes, described: Vec::new(), ends: FxHashMap::default() }
    }

    pub(crate) fn described(self) -> Vec<TreeNode> {
        self.described
    }
}

impl Prefixes {
    /// Records a slice of the tree; returns whether there is another one.
    pub(crate) fn scan_outline(&self, scan: &mut OutlineScan) -> bool {
        self.ram.cache.scan_outline(scan)
    }

    /// Describes the next nodes; returns whether there are more. Nodes evicted in the meantime are left out.
    pub(crate) fn describe(&self, describing: &mut Describing) -> bool {
        let mut blocks = 0;
        while blocks < SLICE_BLOCKS
            && let Some(outline) = describing.left.pop()
        {
            // A node takes some time even if nothing is on disk.
            blocks += 1 + outline.tokens / BLOCK_POSITIONS;
            let Some(info) = self.ram.cache.node(outline.name, describing.tenant) else { continue };
            let before = outline.parent.and_then(|parent| describing.ends.get(&parent));
            let stored = self.stored(outline.name, &info, before);
            describing.ends.extend(stored.map(|(_, end)| (outline.name, end)));
            let disk_tokens = stored.map_or(0, |(tokens, _)| tokens);
            describing.described.push(TreeNode { outline, info, disk_tokens });
        }
        !describing.left.is_empty()
    }

    /// A node of a tenant, or of any tenant.
    pub(crate) fn node(&self, name: NodeName, tenant: Option<TenantId>) -> Option<NodeView> {
        let cache = &self.ram.cache;
        let info = cache.node(name, tenant)?;
        let prefix = cache.node_prefix(name)?;
        let is_part = self.tenants.namespaces.roots(info.namespace).is_part;
        Some(NodeView {
            tokens: prefix.len() - info.start,
            prefix: (!is_part).then_some(prefix),
            disk_tokens: self.stored(name, &info, None).map_or(0, |(tokens, _)| tokens),
            pins: cache.pins_through(name, PINS_MAX),
            policy: cache.policy(),
            now: cache.now(),
            info,
        })
    }

    /// How many tokens of a node are on disk, and where it ends there; `None` without a disk. `before` is the end of
    /// its parent.
    fn stored(&self, name: NodeName, info: &NodeInfo, before: Option<&End>) -> Option<(usize, End)> {
        if self.disk.is_absent() {
            return None;
        }
        let now = self.now();
        let own = self.ram.cache.node_tokens(name)?;
        let continued = before.filter(|end| (end.namespace, end.tokens) == (info.namespace, info.start));
        let mut identity = match continued {
            Some(end) => end.identity,
            None => {
                let roots = self.tenants.namespaces.roots(info.namespace);
                roots.identity_after(&self.ram.cache.node_prefix(name)?[..info.start])
            }
        };
        let mut tokens = 0;
        for block in own.chunks(BLOCK_POSITIONS) {
            identity = identity.child(block);
            tokens += if self.disk.holds(&identity, now) { block.len() } else { 0 };
        }
        Some((tokens, End { namespace: info.namespace, tokens: info.start + own.len(), identity }))
    }
}
