//! What is meant for each tenant: its part of the model's time, of the cache, and of the disk.

use std::collections::{BTreeMap, HashSet};

use kvik_cache::tier::DiskShare;
use kvik_cache::{NamespaceId, Share, TenantId};

use super::{Scheduler, disk};

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
    /// Memory that the owner's pins keep at most, bytes; its part by weight of what may be pinned in all
    /// when `None`.
    pub owner_pin_bytes: Option<u64>,
    /// Whether its requests may share public prompts.
    pub public: bool,
}

/// To whom namespaces belong.
#[derive(Debug, Default)]
pub(super) struct Owners {
    parts: BTreeMap<TenantId, TenantPart>,
    /// The weights of all owners together.
    weight: f64,
    /// Namespaces whose owner the cache knows: telling it again costs a walk of the tree.
    told: HashSet<NamespaceId>,
}

impl Owners {
    /// The owners of these tenants' prompts; others own their own.
    pub(super) fn new(parts: &[TenantPart]) -> Owners {
        let owners: BTreeMap<TenantId, f64> =
            parts.iter().map(|part| (part.owner, part.owner_weight)).collect();
        let parts = parts.iter().map(|&part| (part.tenant, part)).collect();
        Owners { parts, weight: owners.values().sum(), told: HashSet::new() }
    }

    /// Who owns the prompts of a tenant.
    pub(super) fn owner(&self, tenant: TenantId) -> TenantId {
        self.parts.get(&tenant).map_or(tenant, |part| part.owner)
    }

    /// What separates the prompts of a tenant.
    pub(super) fn salt(&self, tenant: TenantId) -> [u8; 16] {
        self.parts.get(&tenant).map_or([0; 16], |part| part.salt)
    }

    /// The part of `blocks` that is an owner's by its weight; all where nobody else is known.
    fn by_weight(&self, blocks: usize, part: &TenantPart) -> usize {
        let others = (self.weight - part.owner_weight).max(0.0);
        (blocks as f64 * part.owner_weight / (part.owner_weight + others)) as usize
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
            owner_pin_bytes: None,
            salt: [0; 16],
            public: false,
        }
    }
}

impl Scheduler {
    /// Tells cache and disk to whom the prompts belong that a tenant leaves in `namespace`.
    pub(super) fn settle_owner(&mut self, namespace: NamespaceId, tenant: TenantId, salt: [u8; 16]) {
        let Some(part) = self.owners.untold(namespace, tenant) else { return };
        let blocks = |bytes: Option<u64>| bytes.map(|bytes| blocks_in(bytes, self.config.block_bytes));
        let (tenant, weight) = (part.owner, part.owner_weight);
        let pins = blocks(part.owner_pin_bytes);
        let pins = pins.unwrap_or_else(|| self.owners.by_weight(self.cache_config.pinned_max, &part));
        let share =
            Share { tenant, weight, quota_blocks: blocks(part.owner_ram_bytes), pinned_max: Some(pins) };
        if let Err(error) = self.cache.set_share(namespace, share) {
            tracing::warn!("the cache does not take the share of tenant {}: {error}", tenant.0);
        }
        let share = DiskShare { weight, slots_max: blocks(part.owner_disk_bytes) };
        if let Some(disk) = &mut self.disk {
            disk.tier.set_share(disk::owner(salt), share);
        }
    }
}

/// Whole blocks in `bytes`, one at least: without any a tenant could keep nothing at all.
fn blocks_in(bytes: u64, block_bytes: usize) -> usize {
    usize::try_from(bytes / block_bytes.max(1) as u64).unwrap_or(usize::MAX).max(1)
}
