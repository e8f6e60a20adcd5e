//! Namespaces that continue a prefix of another one, so that tenants who keep apart can share a
//! public prompt without a copy.
//!
//! ```text
//! public   root ── [system prompt] ── [...]        the end of the prompt is locked while
//!                        │                         there are grafts on it
//! graft                root' ── [one tenant's conversations]
//! ```
//!
//! The root of a graft stands below the node where the prompt ends, but is none of its children:
//! who looks from the public root never comes to it. A path goes on up through it, so leases,
//! locks and block tables hold the public blocks like any others.

use crate::cache::Cache;
use crate::hash::{Fingerprint, Identity};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, NodeId, Token, whole_blocks};
use crate::namespace::Namespace;

impl Cache {
    /// A namespace of its own that begins with the whole blocks of `tokens` as `base` has them,
    /// the same for equal arguments; nobody else sees what follows. None when there is no whole
    /// block or not all are known. `over` tells who is apart: only its salt need differ.
    ///
    /// The prefix is never evicted while the graft lives. Its prompts must begin with it, see
    /// [`continues`](Cache::continues).
    pub fn derive_namespace(
        &mut self,
        base: NamespaceId,
        tokens: &[Token],
        over: &Namespace,
    ) -> Option<NamespaceId> {
        let (node, blocks) = self.whole_prefix(base, tokens)?;
        let base_tokens = self.whole_tokens(node, blocks);
        let identity = Identity::chain(over, &tokens[..base_tokens]).last()?;
        if let Some(&graft) = self.grafts.get(&(base, identity)) {
            return Some(graft);
        }
        let end = self.radix.cut(node, blocks);
        let root = self.new_root(Fingerprint::root(&identity));
        self.radix.hang(root, end);
        let graft = self.radix.arena[root].namespace;
        self.grafts.insert((base, identity), graft);
        Some(graft)
    }

    /// Ends a graft: drops what it holds, pinned or not, and lets go of its base: nobody can come to
    /// it any more. False, and nothing is done, when it is none, or something of it is in use.
    pub fn drop_derived(&mut self, graft: NamespaceId) -> bool {
        let root = self.roots[graft.index()];
        let node = &self.radix.arena[root];
        if node.locks > node.pins || !self.grafts.values().any(|&known| known == graft) {
            return false;
        }
        let pins = self.pins_from(root);
        self.take_back(&pins);
        self.clear(Some(graft));
        let base = self.radix.unhang(root);
        self.drop_expired();
        self.keep_quota(base, 0);
        self.grafts.retain(|_, known| *known != graft);
        true
    }

    /// Whether a prompt can run in a namespace: in a graft it must begin with the base, and go on.
    pub fn continues(&self, namespace: NamespaceId, prompt: &[Token]) -> bool {
        let base = self.radix.base(self.roots[namespace.index()]);
        prompt.len() > base.len() && prompt.starts_with(&base) || base.is_empty()
    }

    /// Whether the whole blocks of `tokens`, and there are some, are no more than what a graft
    /// continues.
    pub(crate) fn is_in_base(&self, namespace: NamespaceId, tokens: &[Token]) -> bool {
        let whole = whole_blocks(tokens);
        !whole.is_empty() && self.radix.base(self.roots[namespace.index()]).starts_with(whole)
    }

    fn whole_tokens(&self, node: NodeId, blocks: usize) -> usize {
        (self.radix.arena[node].depth as usize + blocks) * BLOCK_POSITIONS
    }
}
