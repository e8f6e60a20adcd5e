//! What is meant for each tenant: its part of the model's time, and of the cache.

use std::collections::{BTreeMap, HashSet};

use kvik_cache::{Cache, NamespaceId, Share, TenantId};

/// A tenant's part of the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TenantPart {
    /// The tenant, as requests name it.
    pub tenant: TenantId,
    /// Its part of the model's time, beside the weights of the others; more than 0.
    pub weight: f64,
    /// Whom its cached prompts belong to: itself, or one tenant that stands for all who share.
    pub owner: TenantId,
    /// The owner's part of the cache when space is short; more than 0.
    pub owner_weight: f64,
    /// Memory that the owner's cached prompts take at most, bytes.
    pub owner_bytes: Option<u64>,
    /// Separates its prompts, as in its requests.
    pub salt: [u8; 16],
    /// Disk that the owner's cached prompts take at most, bytes.
    pub disk_bytes: Option<u64>,
}

/// To whom namespaces belong.
#[derive(Debug, Default)]
pub(super) struct Owners {
    shares: BTreeMap<TenantId, Share>,
    /// Namespaces whose owner the cache knows: telling it again costs a walk of the tree.
    told: HashSet<NamespaceId>,
}

impl Owners {
    /// The owners of these tenants' prompts; others own their own.
    pub(super) fn new(parts: &[TenantPart], block_bytes: usize) -> Owners {
        let share = |part: &TenantPart| Share {
            tenant: part.owner,
            weight: part.owner_weight,
            quota_blocks: part.owner_bytes.map(|bytes| blocks_in(bytes, block_bytes)),
        };
        let shares = parts.iter().map(|part| (part.tenant, share(part))).collect();
        Owners { shares, told: HashSet::new() }
    }

    /// Tells the cache to whom the prompts belong that a tenant leaves in `namespace`.
    pub(super) fn tell(&mut self, cache: &mut Cache, namespace: NamespaceId, tenant: TenantId) {
        if !self.told.insert(namespace) {
            return;
        }
        let own = Share { tenant, weight: 1.0, quota_blocks: None };
        let share = self.shares.get(&tenant).copied().unwrap_or(own);
        if let Err(error) = cache.set_share(namespace, share) {
            tracing::warn!("the cache does not take the share of tenant {}: {error}", tenant.0);
        }
    }

    /// The cache is a new one.
    pub(super) fn forget_told(&mut self) {
        self.told.clear();
    }
}

/// Whole blocks in `bytes`, one at least: without any a tenant could keep nothing at all.
fn blocks_in(bytes: u64, block_bytes: usize) -> usize {
    usize::try_from(bytes / block_bytes.max(1) as u64).unwrap_or(usize::MAX).max(1)
}
