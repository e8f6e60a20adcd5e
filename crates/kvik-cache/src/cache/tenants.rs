//! How the space is divided among tenants, and the ranking policy.

use super::life::{Cache, CacheError};
use crate::evict::{Policy, Share, TenantStats};
use crate::ids::NamespaceId;

impl Cache {
    /// Assigns a namespace to a tenant, and sets that tenant's share.
    ///
    /// Takes time proportional to the tree when the namespace changes its owner.
    pub fn set_share(&mut self, namespace: NamespaceId, share: Share) -> Result<(), CacheError> {
        if !(share.weight.is_finite() && share.weight > 0.0) {
            return Err(CacheError::BadWeight(share.tenant));
        }
        self.radix.set_share(namespace, share);
        self.keep_quota(namespace, 0);
        Ok(())
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
