//! Commands on pins: prefixes that are never evicted, and the limits on them.
//!
//! A pin is a lease without a sequence: it locks its path, so it is never evicted. Pinned blocks are unavailable to
//! everyone else until they are unpinned, so this module enforces limits: for each tenant, and in all. A pin covers
//! whole blocks of its own namespace; in a derived namespace the blocks of the base belong to the base, and the
//! namespace locks them.

use super::life::Cache;
use crate::evict::TenantStats;
use crate::ids::{NamespaceId, NodeId, NodeName, PinId, TenantId, Token};
use crate::pins::{PinInfo, PinLimit, PinScope, Unpinned};

/// Tokens shown of a pinned prefix.
const SHOWN_TOKENS: usize = 64;

impl Cache {
    /// Pins the whole blocks of a cached prefix until they are unpinned; pinning twice has no further effect.
    /// Returns false, and pins nothing, when there is no whole block or not all are cached.
    ///
    /// # Errors
    /// When the tenant, or all tenants together, would exceed their limit.
    pub fn pin(&mut self, namespace: NamespaceId, tokens: &[Token]) -> Result<bool, PinLimit> {
        let Some((node, blocks)) = self.whole_prefix(namespace, tokens) else { return Ok(false) };
        self.check_pin_limits(namespace, self.unpinned_blocks(node, blocks))?;
        let node = self.radix.cut(node, blocks);
        if self.pins.add(node) {
            self.radix.pin_path(node);
            self.radix.hold_path(node);
            self.keep_places(node, true);
        }
        Ok(true)
    }

    /// Removes a pin set by [`pin`](Cache::pin); this counts as a use. Returns false when the whole blocks of
    /// `tokens` are not pinned.
    pub fn unpin(&mut self, namespace: NamespaceId, tokens: &[Token]) -> bool {
        let Some(node) = self.pinned_end(namespace, tokens) else { return false };
        self.remove_pins(&[node]);
        true
    }

    /// Removes every pin of a namespace that begins with the whole blocks of `tokens`, and returns how many there
    /// were. The blocks they covered become evictable.
    pub fn unpin_under(&mut self, namespace: NamespaceId, tokens: &[Token]) -> usize {
        let Some(top) = self.pinned_top(namespace, tokens) else { return 0 };
        let nodes = self.pins_from(top);
        self.remove_pins(&nodes);
        nodes.len()
    }

    /// Removes one pin, if it belongs to `tenant` or that is `None`; returns `None` when there is no such pin.
    pub fn unpin_one(&mut self, id: PinId, tenant: Option<TenantId>) -> Option<Unpinned> {
        let node = self.pins.node_of(id)?;
        if tenant.is_some_and(|tenant| self.radix.owner(node) != tenant) {
            return None;
        }
        let unpinned = self.unpinned(node);
        self.remove_pins(&[node]);
        Some(unpinned)
    }

    /// Removes all pins of a tenant, or of all.
    pub fn unpin_all(&mut self, tenant: Option<TenantId>) -> Vec<Unpinned> {
        let asked = |node: &NodeId| tenant.is_none_or(|tenant| self.radix.owner(*node) == tenant);
        let nodes: Vec<NodeId> = self.pins.nodes().filter(asked).collect();
        let unpinned = nodes.iter().map(|&node| self.unpinned(node)).collect();
        self.remove_pins(&nodes);
        unpinned
    }

    /// Returns whether exactly the whole blocks of `tokens` are pinned.
    pub fn is_pinned(&self, namespace: NamespaceId, tokens: &[Token]) -> bool {
        self.pinned_end(namespace, tokens).is_some()
    }

    /// Returns whether a pin begins with the whole blocks of `tokens`.
    pub fn is_pinned_under(&self, namespace: NamespaceId, tokens: &[Token]) -> bool {
        self.pinned_top(namespace, tokens).is_some_and(|top| self.radix.arena[top].pins > 0)
    }

    /// The pins of a tenant, or of all, oldest first, at most `limit`.
    pub fn pins(&self, tenant: Option<TenantId>, limit: usize) -> Vec<PinInfo> {
        let asked =
            |&(_, node): &(PinId, NodeId)| tenant.is_none_or(|tenant| self.radix.owner(node) == tenant);
        let mut pins: Vec<(PinId, NodeId)> = self.pins.all().filter(asked).collect();
        pins.sort_unstable();
        pins.into_iter().take(limit).map(|(id, node)| self.pin_info(id, node)).collect()
    }

    /// The pins that protect a node: those of prefixes that end with it or continue it. Oldest first, at most
    /// `limit`; none if the node is gone.
    pub fn pins_through(&self, node: NodeName, limit: usize) -> Vec<PinId> {
        let Some(node) = self.radix.arena.named(node) else { return Vec::new() };
        let ends = self.pins_from(node);
        let mut pins: Vec<PinId> = ends.into_iter().filter_map(|end| self.pins.at(end)).collect();
        pins.sort_unstable();
        pins.truncate(limit);
        pins
    }

    fn pin_info(&self, id: PinId, node: NodeId) -> PinInfo {
        PinInfo {
            id,
            namespace: self.radix.arena[node].namespace,
            tenant: self.radix.owner(node),
            first_tokens: self.radix.prefix(node, SHOWN_TOKENS),
            tokens: self.radix.prefix_tokens(node),
            blocks: self.radix.own_path(node).map(|id| self.radix.arena[id].blocks().len()).sum(),
        }
    }

    fn unpinned(&self, node: NodeId) -> Unpinned {
        let namespace = self.radix.arena[node].namespace;
        Unpinned { namespace, tokens: self.radix.prefix(node, usize::MAX) }
    }

    /// The node that ends with the whole blocks of `tokens`, if these are pinned.
    fn pinned_end(&self, namespace: NamespaceId, tokens: &[Token]) -> Option<NodeId> {
        // Every running sequence asks in every step, and the walk reads its whole prompt.
        if self.pins.is_empty() {
            return None;
        }
        let (node, blocks) = self.whole_prefix(namespace, tokens)?;
        let ends = blocks == self.radix.arena[node].blocks().len();
        (ends && self.pins.contains(node)).then_some(node)
    }

    /// The top of the subtree with the pins that begin with the whole blocks of `tokens`; of a derived namespace
    /// the root, when these are no longer than its base.
    fn pinned_top(&self, namespace: NamespaceId, tokens: &[Token]) -> Option<NodeId> {
        match self.is_in_base(namespace, tokens) {
            true => Some(self.roots[&namespace]),
            false => self.whole_prefix(namespace, tokens).map(|(node, _)| node),
        }
    }

    /// The ends of pins at a node and below it, parents before children.
    pub(crate) fn pins_from(&self, top: NodeId) -> Vec<NodeId> {
        let (mut open, mut found) = (vec![top], Vec::new());
        while let Some(id) = open.pop() {
            let node = &self.radix.arena[id];
            if node.pins == 0 {
                continue;
            }
            found.extend(self.pins.contains(id).then_some(id));
            open.extend(node.children.values().rev());
        }
        found
    }

    /// Removes the pins that end at these nodes.
    pub(crate) fn remove_pins(&mut self, nodes: &[NodeId]) {
        for &node in nodes {
            if self.pins.remove(node) {
                self.keep_places(node, false);
                self.radix.unpin_path(node);
                self.radix.release_path(node);
            }
        }
        let namespaces: Vec<NamespaceId> =
            nodes.iter().map(|&node| self.radix.arena[node].namespace).collect();
        self.drop_expired();
        namespaces.into_iter().for_each(|namespace| self.keep_quota(namespace, 0));
    }

    /// Blocks that a pin of the first `blocks` of a node, and of all before them, would add.
    fn unpinned_blocks(&self, node: NodeId, blocks: usize) -> usize {
        let before = self.radix.own_path(node).skip(1).map(|id| (id, self.radix.arena[id].blocks().len()));
        let path = std::iter::once((node, blocks)).chain(before);
        path.take_while(|&(id, _)| self.radix.arena[id].pins == 0).map(|(_, blocks)| blocks).sum()
    }

    /// Checks that `needed` more blocks may be pinned.
    fn check_pin_limits(&self, namespace: NamespaceId, needed: usize) -> Result<(), PinLimit> {
        let TenantStats { share, pinned, .. } = *self.radix.shares.of(namespace);
        let quota = share.quota_blocks.unwrap_or(usize::MAX);
        let tenants = share.pinned_max.unwrap_or(usize::MAX).min(quota);
        let of_tenant = PinLimit { needed, pinned, limit: tenants, scope: PinScope::Tenant };
        let (pinned, limit) = (self.radix.pinned(), self.pinned_max);
        let of_all = PinLimit { needed, pinned, limit, scope: PinScope::All };
        let reached = |limit: &PinLimit| needed > 0 && limit.pinned + needed > limit.limit;
        [of_tenant, of_all].into_iter().find(reached).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, CacheConfig, Lifetime, Namespace, Namespaces, Policy, SeqId, Share};

    fn named(salt: u8) -> Namespace {
        Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None }.shared([salt; 16])
    }

    /// A cache of 40 blocks, of which 10 may be pinned.
    fn cache() -> (Cache, NamespaceId) {
        let config = CacheConfig { blocks: 40, policy: Policy::Lru, ghosts: 64, pinned_max: 10 };
        let mut cache = Cache::new(config).unwrap();
        let namespace = cache.namespace(&named(0));
        (cache, namespace)
    }

    fn run(cache: &mut Cache, namespace: NamespaceId, prompt: &[Token]) {
        let (seq, reuse_max, positions) = (SeqId(1), prompt.len(), prompt.len());
        let lifetime = Lifetime::default();
        cache.admit(Admission { seq, namespace, prompt, reuse_max, positions, lifetime }).unwrap();
        cache.finish(seq, prompt);
        cache.check().unwrap();
    }

    fn tokens(from: Token, count: usize) -> Vec<Token> {
        (from..).take(count).collect()
    }

    #[test]
    fn the_pin_limit_holds_for_every_caller() {
        let (mut cache, namespace) = cache();
        let prompts = [0, 1000, 2000].map(|from| tokens(from, 100));
        prompts.iter().for_each(|prompt| run(&mut cache, namespace, prompt));
        assert_eq!(cache.pin(namespace, &prompts[0]), Ok(true));
        let limit = PinLimit { needed: 6, pinned: 6, limit: 10, scope: PinScope::All };
        assert_eq!(cache.pin(namespace, &prompts[1]), Err(limit));
        assert_eq!(cache.pin(namespace, &prompts[0]), Ok(true), "it adds nothing");
        assert_eq!(cache.pin(namespace, &prompts[0][..32]), Ok(true), "nor does its beginning");
        assert_eq!(cache.pin(namespace, &prompts[1][..64]), Ok(true), "four more fit");
        assert_eq!(cache.stats().pinned, 10);
        run(&mut cache, namespace, &tokens(9000, 30 * 16));
        assert_eq!(cache.lookup(namespace, &prompts[2]).tokens, 0, "what is not pinned made room");
        assert_eq!(cache.unpin_all(None).len(), 3);
        assert_eq!((cache.stats().pinned, cache.stats().evictable), (0, cache.stats().shared));
        cache.check().unwrap();
    }

    /// Routers read it as load: a node that only keeps pinned prompts is idle.
    #[test]
    fn what_is_only_pinned_or_continued_is_not_in_use() {
        let (mut cache, public) = cache();
        let base = tokens(0, 96);
        run(&mut cache, public, &base);
        cache.pin(public, &base).unwrap();
        let derived = cache.derive_namespace(public, &base, &named(1)).unwrap();
        let own = [base.clone(), tokens(500, 40)].concat();
        run(&mut cache, derived, &own);
        cache.pin(derived, &own).unwrap();
        let in_use = |cache: &Cache| (cache.stats().in_use, cache.stats().evictable);
        assert_eq!(in_use(&cache), (0, 1), "all but the last block is pinned");
        let (seq, reuse_max, positions) = (SeqId(1), 128, own.len());
        let (prompt, lifetime) = (&own[..], Lifetime::default());
        cache.admit(Admission { seq, namespace: derived, prompt, reuse_max, positions, lifetime }).unwrap();
        assert_eq!(cache.stats().in_use, 9, "a sequence uses the whole prompt");
        cache.check().unwrap();
        cache.finish(seq, &own);
        assert!(cache.unpin(public, &base));
        assert_eq!(in_use(&cache), (0, 1), "the derived namespace keeps it");
        assert_eq!(cache.unpin_all(None).len(), 1);
        assert!(cache.drop_derived(derived));
        assert_eq!(in_use(&cache), (0, 6));
        cache.check().unwrap();
    }

    /// A dropped namespace has no root to walk from, which shows that nobody walks.
    #[test]
    fn without_any_pin_no_prompt_is_walked() {
        let (mut cache, namespace) = cache();
        run(&mut cache, namespace, &tokens(0, 64));
        cache.pin(namespace, &tokens(0, 64)).unwrap();
        assert!(cache.is_pinned(namespace, &tokens(0, 70)) && !cache.is_pinned(namespace, &tokens(0, 48)));
        assert!(cache.unpin(namespace, &tokens(0, 64)));
        cache.clear(Some(namespace));
        assert_eq!(cache.drop_namespaces(|id| id == namespace).len(), 1);
        assert!(!cache.is_pinned(namespace, &tokens(0, 64)) && !cache.unpin(namespace, &tokens(0, 64)));
    }

    #[test]
    fn a_tenant_has_a_limit_of_its_own_within_its_quota() {
        let (mut cache, _) = cache();
        for (salt, quota_blocks, pinned_max, limit) in
            [(1, None, Some(3), 3), (2, Some(2), Some(3), 2), (3, Some(2), None, 2)]
        {
            let namespace = cache.namespace(&named(salt));
            let tenant = TenantId(u32::from(salt));
            cache
                .set_share(namespace, Share { tenant, weight: 1.0, quota_blocks: None, pinned_max })
                .unwrap();
            run(&mut cache, namespace, &tokens(0, 64));
            cache.set_share(namespace, Share { tenant, weight: 1.0, quota_blocks, pinned_max }).unwrap();
            let pinned = cache.pin(namespace, &tokens(0, limit * 16)).unwrap();
            assert!(pinned, "{limit} blocks");
            run(&mut cache, namespace, &tokens(500, 16));
            let refused = PinLimit { needed: 1, pinned: limit, limit, scope: PinScope::Tenant };
            let other = cache.pin(namespace, &tokens(500, 16));
            assert!(other == Err(refused) || other == Ok(false), "{other:?}");
        }
        assert_eq!(cache.unpin_all(Some(TenantId(1))).len(), 1);
        assert_eq!(cache.stats().pinned, 4, "those of the others stay");
        cache.check().unwrap();
    }

    #[test]
    fn all_pins_at_or_under_a_prompt_are_removed_with_it() {
        let (mut cache, namespace) = cache();
        let prompt = tokens(0, 80);
        let other = [tokens(0, 32), tokens(700, 32)].concat();
        for prompt in [&prompt, &other] {
            run(&mut cache, namespace, prompt);
            cache.pin(namespace, prompt).unwrap();
        }
        cache.pin(namespace, &prompt[..48]).unwrap();
        assert_eq!(cache.unpin_under(namespace, &prompt[..50]), 2, "itself and the longer one");
        assert!(cache.is_pinned(namespace, &other) && !cache.is_pinned_under(namespace, &prompt[..48]));
        assert!(cache.is_pinned_under(namespace, &prompt[..32]), "the other begins so too");
        assert_eq!(cache.unpin_under(namespace, &prompt[..16]), 1);
        assert_eq!(cache.stats().pinned, 0);
        cache.check().unwrap();
    }

    #[test]
    fn a_pin_in_a_derived_namespace_covers_its_own_blocks_and_ends_with_it() {
        let (mut cache, public) = cache();
        let base = tokens(0, 96);
        run(&mut cache, public, &base);
        cache.pin(public, &base).unwrap();
        let derived = cache.derive_namespace(public, &base, &named(1)).unwrap();
        let share = Share { tenant: TenantId(1), weight: 1.0, quota_blocks: None, pinned_max: Some(2) };
        cache.set_share(derived, share).unwrap();
        let own = [base.clone(), tokens(500, 40)].concat();
        run(&mut cache, derived, &own);
        assert_eq!(cache.pin(derived, &own), Ok(true), "two blocks of its own");
        assert_eq!((cache.stats().pinned, cache.pins(Some(TenantId(1)), 9)[0].blocks), (8, 2));
        assert_eq!(cache.unpin_under(derived, &base[..32]), 1, "what lies under a part of the base");
        assert_eq!(cache.pin(derived, &own), Ok(true));
        assert!(cache.unpin(public, &base));
        assert_eq!(cache.evict_prefix(public, &base), 0, "the derived namespace keeps it");
        assert!(cache.drop_derived(derived), "a pin that nobody can come to holds nothing");
        assert_eq!((cache.stats().pinned, cache.evict_prefix(public, &base)), (0, 6));
        cache.check().unwrap();
    }

    #[test]
    fn a_pin_is_shown_and_removed_by_its_name() {
        let (mut cache, namespace) = cache();
        run(&mut cache, namespace, &tokens(0, 100));
        cache.pin(namespace, &tokens(0, 100)).unwrap();
        let pin = cache.pins(None, 1).remove(0);
        assert_eq!((pin.tokens, pin.blocks, pin.first_tokens), (96, 6, tokens(0, 64)));
        assert_eq!(cache.unpin_one(pin.id, Some(TenantId(1))), None, "another tenant's");
        let unpinned = cache.unpin_one(pin.id, None).unwrap();
        assert_eq!(unpinned, Unpinned { namespace, tokens: tokens(0, 96) });
        cache.pin(namespace, &tokens(0, 100)).unwrap();
        assert_eq!(cache.unpin_one(pin.id, None), None, "the next one has another name");
        assert_eq!(cache.stats().pinned, 6);
    }

    #[test]
    fn a_continuation_of_a_public_prompt_leaves_no_mark_on_it() {
        let (mut cache, public) = cache();
        let base = tokens(0, 64);
        run(&mut cache, public, &base);
        let before = cache.prefixes(crate::PrefixOrder::Blocks, None, 1);
        let derived = cache.derive_namespace(public, &base, &named(1)).unwrap();
        let prompt = [base.clone(), tokens(500, 40)].concat();
        let lifetime = Lifetime { priority: 9, ..Lifetime::default() };
        for seq in [SeqId(1), SeqId(2), SeqId(3)] {
            let (namespace, prompt) = (derived, &prompt[..]);
            let admission = Admission { seq, namespace, prompt, reuse_max: 96, positions: 104, lifetime };
            cache.admit(admission).unwrap();
            cache.finish(seq, prompt);
        }
        let after = cache.prefixes(crate::PrefixOrder::Blocks, None, 1);
        assert_eq!((after[0].reuses, after[0].priority), (before[0].reuses, before[0].priority));
        cache.check().unwrap();
    }
}
