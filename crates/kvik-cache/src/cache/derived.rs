//! Derived namespaces: each continues a prefix of its base namespace, so that isolated tenants share a public
//! prompt without a copy.
//!
//! ```text
//! base      root ── [system prompt] ── [...]       the end of the prompt is locked while
//!                         │                        namespaces are derived from it
//! derived               root' ── [one tenant's conversations]
//! ```
//!
//! The root of a derived namespace is attached to the node where the prompt ends, but is not among its children: a
//! walk from the base's root never reaches it. A path upwards continues through it, so leases, locks and block
//! tables hold the base's blocks like any others.

use super::life::Cache;
use crate::hash::{Fingerprint, Identity};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, NodeId, Token, whole_blocks};
use crate::namespace::Namespace;
use crate::tree::PlaceId;

impl Cache {
    /// Returns the namespace that begins with the whole blocks of `tokens` as cached in `base`, the same for equal
    /// arguments; what follows them is private to it. `None` when there is no whole block, not all are cached, or
    /// no place is retained after them that the layers need to resume. `over` is the namespace that the prompts
    /// would have without the base: only its salt need differ.
    ///
    /// The prefix is never evicted while the derived namespace exists. Every prompt of the derived namespace must
    /// begin with it, see [`continues`](Cache::continues).
    pub fn derive_namespace(
        &mut self,
        base: NamespaceId,
        tokens: &[Token],
        over: &Namespace,
    ) -> Option<NamespaceId> {
        let (node, blocks) = self.whole_prefix(base, tokens)?;
        let base_tokens = self.whole_tokens(node, blocks);
        let identity = Identity::chain(over, &tokens[..base_tokens]).last()?;
        if let Some(&derived) = self.derived.get(&(base, identity)) {
            return Some(derived);
        }
        if !self.can_go_on_behind(node, blocks) {
            return None;
        }
        let end = self.radix.cut(node, blocks);
        let root = self.new_root(Fingerprint::root(&identity));
        self.radix.attach(root, end);
        self.keep_places(end, true);
        let derived = self.radix.arena[root].namespace;
        self.derived.insert((base, identity), derived);
        Some(derived)
    }

    /// The namespace that [`derive_namespace`](Cache::derive_namespace) would return, if it exists.
    pub fn known_derived(
        &self,
        base: NamespaceId,
        tokens: &[Token],
        over: &Namespace,
    ) -> Option<NamespaceId> {
        let identity = Identity::chain(over, whole_blocks(tokens)).last()?;
        self.derived.get(&(base, identity)).copied()
    }

    /// Drops a derived namespace with all its blocks, pinned or not, and detaches it from its base. Returns false,
    /// and does nothing, when it is not a derived namespace or some of it is in use.
    pub fn drop_derived(&mut self, derived: NamespaceId) -> bool {
        let root = self.roots[&derived];
        let node = &self.radix.arena[root];
        if node.locks > node.pins || !self.derived.values().any(|&known| known == derived) {
            return false;
        }
        let pins = self.pins_from(root);
        self.remove_pins(&pins);
        self.clear(Some(derived));
        let end = self.radix.arena[root].parent.expect("the root of a derived namespace is attached");
        self.keep_places(end, false);
        let base = self.radix.detach(root);
        self.drop_expired();
        self.keep_quota(base, 0);
        self.derived.retain(|_, known| *known != derived);
        true
    }

    /// Returns whether a prompt can run in a namespace: in a derived one it must begin with the base and be longer.
    pub fn continues(&self, namespace: NamespaceId, prompt: &[Token]) -> bool {
        let base = self.radix.base(self.roots[&namespace]);
        prompt.len() > base.len() && prompt.starts_with(&base) || base.is_empty()
    }

    /// Returns whether `tokens` has whole blocks and all of them are part of the base of a derived namespace.
    pub(super) fn is_in_base(&self, namespace: NamespaceId, tokens: &[Token]) -> bool {
        let whole = whole_blocks(tokens);
        !whole.is_empty() && self.radix.base(self.roots[&namespace]).starts_with(whole)
    }

    /// Returns whether a sequence can resume after the first `blocks` of a node: a place is there, or none is needed.
    fn can_go_on_behind(&self, node: NodeId, blocks: usize) -> bool {
        let block = self.radix.arena[node].blocks()[blocks - 1];
        let place = PlaceId { block, positions: BLOCK_POSITIONS as u8 };
        self.needs().is_nothing() || self.radix.places.get(place).is_some()
    }

    fn whole_tokens(&self, node: NodeId, blocks: usize) -> usize {
        (self.radix.arena[node].depth as usize + blocks) * BLOCK_POSITIONS
    }
}
