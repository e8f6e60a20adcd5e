//! What is meant for each tenant: its part of the model's time, of the cache, and of the disk.

use std::collections::{BTreeMap, HashSet};

use kvik_cache::tier::DiskShare;
use kvik_cache::{NamespaceId, Share, TenantId};

use super::{Scheduler, disk};
use crate::api::Request;

/// A tenant's part of the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TenantPart {
    /// The tenant, as requests name it.
    pub tenant: TenantId,
    /// Its part of the model's time, beside the weights of the others; more than 0.
    pub weight: f64,
    /// Whom its cached prompts belong to: itself, or one tenant that stands for all who share.
    pub owner: TenantId,
    /// The owner's part of cache and disk when space is short; more than 0.
    pub owner_weight: f64,
    /// Memory that the owner's cached prompts take at most, bytes.
    pub owner_ram_bytes: Option<u64>,
    /// Disk that they take at most, bytes of keys and values.
    pub owner_disk_bytes: Option<u64>,
    /// Separates its prompts, as in its requests.
    pub salt: [u8; 16],
    /// Whether its requests may share public prompts.
    pub public: bool,
}

/// To whom namespaces belong.
#[derive(Debug, Default)]
pub(super) struct Owners {
    parts: BTreeMap<TenantId, TenantPart>,
    /// Namespaces whose owner the cache knows: telling it again costs a walk of the tree.
    told: HashSet<NamespaceId>,
}

impl Owners {
    /// The owners of these tenants' prompts; others own their own.
    pub(super) fn new(parts: &[TenantPart]) -> Owners {
        let parts = parts.iter().map(|&part| (part.tenant, part)).collect();
        Owners { parts, told: HashSet::new() }
    }

    /// The cache is a new one.
    pub(super) fn forget_told(&mut self) {
        self.told.clear();
    }

    /// Whether requests of a tenant may share public prompts.
    pub(super) fn is_public(&self, tenant: TenantId) -> bool {
        self.parts.get(&tenant).is_some_and(|part| part.public)
    }

    /// The part that a namespace of `tenant` counts to, the first time that it is asked for.
    fn untold(&mut self, namespace: NamespaceId, tenant: TenantId) -> Option<TenantPart> {
        self.told
            .insert(namespace)
            .then(|| self.parts.get(&tenant).copied().unwrap_or(TenantPart::own(tenant)))
    }
}

impl TenantPart {
    /// The part of a tenant of whom nothing was said.
    pub fn own(tenant: TenantId) -> TenantPart {
        let (owner_ram_bytes, owner_disk_bytes) = (None, None);
        TenantPart {
            tenant,
            weight: 1.0,
            owner: tenant,
            owner_weight: 1.0,
            owner_ram_bytes,
            owner_disk_bytes,
            salt: [0; 16],
            public: false,
        }
    }
}

impl Scheduler {
    /// Tells cache and disk to whom the prompts belong that `request` leaves in `namespace`.
    pub(super) fn settle_owner(&mut self, namespace: NamespaceId, request: &Request) {
        let Some(part) = self.owners.untold(namespace, request.tenant) else { return };
        let blocks = |bytes: Option<u64>| bytes.map(|bytes| blocks_in(bytes, self.config.block_bytes));
        let (tenant, weight) = (part.owner, part.owner_weight);
        let share = Share { tenant, weight, quota_blocks: blocks(part.owner_ram_bytes) };
        if let Err(error) = self.cache.set_share(namespace, share) {
            tracing::warn!("the cache does not take the share of tenant {}: {error}", tenant.0);
        }
        let share = DiskShare { weight, slots_max: blocks(part.owner_disk_bytes) };
        if let Some(disk) = &mut self.disk {
            disk.tier.set_share(disk::owner(request.salt), share);
        }
    }
}

/// Whole blocks in `bytes`, one at least: without any a tenant could keep nothing at all.
fn blocks_in(bytes: u64, block_bytes: usize) -> usize {
    usize::try_from(bytes / block_bytes.max(1) as u64).unwrap_or(usize::MAX).max(1)
}
