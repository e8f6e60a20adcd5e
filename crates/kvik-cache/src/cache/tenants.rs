//! How the space is divided among tenants, and who ranks what each of them holds.

use super::life::{Cache, CacheError};
use crate::evict::{Policy, Share, TenantStats};
use crate::ids::NamespaceId;

impl Cache {
    /// Gives a namespace to a tenant, and says what is meant for that tenant.
    ///
    /// Costs time in proportion to the tree when the namespace changes hands.
    pub fn set_share(&mut self, namespace: NamespaceId, share: Share) -> Result<(), CacheError> {
        if !(share.weight.is_finite() && share.weight > 0.0) {
            return Err(CacheError::BadWeight(share.tenant));
        }
        self.radix.set_share(namespace, share);
        self.keep_quota(namespace, 0);
        Ok(())
    }

    /// Sets which part of its share a tenant keeps that has asked for nothing for ten minutes, when
    /// others need the room: 0 to 1; 0.5 unless it is set.
    pub fn set_share_floor(&mut self, floor: f64) {
        self.radix.shares.set_floor(floor);
    }

    /// The eviction policy that ranks now; under `auto`, the one that is followed.
    pub fn policy(&self) -> Policy {
        self.radix.evictor.policy()
    }

    /// What every tenant has and did.
    pub fn tenants(&self) -> &[TenantStats] {
        self.radix.shares.all()
    }
}
