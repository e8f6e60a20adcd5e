//! How the space is divided among tenants, and the ranking policy.

use super::life::{Cache, CacheError};
use crate::evict::{Policy, Share, TenantStats};
use crate::ids::NamespaceId;

impl Cache {
    /// Assigns a namespace to a tenant, and sets that tenant's share.
    ///
    /// Takes time proportional to what is cached of the namespace when it changes its owner.
    pub fn set_share(&mut self, namespace: NamespaceId, share: Share) -> Result<(), CacheError> {
        if !(share.weight.is_finite() && share.weight > 0.0) {
            return Err(CacheError::BadWeight(share.tenant));
        }
        self.radix.set_share(self.roots[&namespace], share);
        self.keep_quota(namespace, 0);
        Ok(())
    }

    /// Takes back the shares of all tenants but tenant 0: what is cached of those whose share is not
    /// [set](Cache::set_share) again makes way for others.
    pub fn withdraw_shares(&mut self) {
        self.radix.shares.withdraw();
    }

    /// Sets the part of its share, 0 to 1, that a tenant without a request for ten minutes keeps when others need
    /// the room. The default is 0.5.
    pub fn set_share_floor(&mut self, floor: f64) {
        self.radix.shares.set_floor(floor);
    }

    /// The current eviction policy; under `auto`, the one that is followed.
    pub fn policy(&self) -> Policy {
        self.radix.evictor.policy()
    }

    /// Holdings and counters of every tenant.
    pub fn tenants(&self) -> &[TenantStats] {
        self.radix.shares.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, CacheConfig, Lifetime, Namespaces, SeqId, TenantId, Token};

    /// A node elsewhere that says to be of a namespace would be found by a walk of the whole tree.
    #[test]
    fn nothing_but_the_namespace_that_changes_its_owner_is_walked() {
        let config = CacheConfig { blocks: 64, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let mut cache = Cache::new(config).unwrap();
        let named =
            |salt| Namespaces { model: [0; 32], kv_format: "f32/f32", adapter: None }.shared([salt; 16]);
        let [full, empty] = [1, 2].map(|salt| cache.namespace(&named(salt)));
        let prompt: Vec<Token> = (0..64).collect();
        let (seq, lifetime) = (SeqId(1), Lifetime::default());
        let admission =
            Admission { seq, namespace: full, prompt: &prompt, reuse_max: 0, positions: 64, lifetime };
        cache.admit(admission).unwrap();
        cache.finish(seq, &prompt);
        let share = |tenant| Share { tenant, weight: 1.0, quota_blocks: None, pinned_max: None };
        let (node, _) = cache.whole_prefix(full, &prompt).unwrap();
        cache.radix.arena[node].namespace = empty;
        cache.set_share(empty, share(TenantId(2))).unwrap();
        cache.radix.arena[node].namespace = full;
        cache.set_share(full, share(TenantId(1))).unwrap();
        let blocks: Vec<(TenantId, usize)> =
            cache.tenants().iter().map(|stats| (stats.share.tenant, stats.blocks)).collect();
        assert_eq!(blocks, [(TenantId(0), 0), (TenantId(2), 0), (TenantId(1), 4)]);
        cache.check().unwrap();
    }
}
