//! Tenants: their namespaces, their shares of RAM and disk, and the prompts they share.
//!
//! | module   | cares about                                   |
//! |----------|-----------------------------------------------|
//! | `part`   | a tenant's share, as data                     |
//! | `public` | prompts that isolated tenants may share       |

mod part;
mod public;

use std::collections::{BTreeMap, HashSet};

use kvik_cache::tier::DiskShare;
use kvik_cache::{Cache, NamespaceId, Share, TenantId, Token};

use super::disk::Disk;
use super::namespaces::{NamespaceTable, Place, Sharers, disk_owner};
use super::ram::Ram;
use crate::api::PinnedPrompt;
use crate::config::EngineConfig;
use public::PublicPrompts;

pub use part::TenantPart;

/// The tenants of an engine.
pub(super) struct Tenants {
    parts: BTreeMap<TenantId, TenantPart>,
    /// The total weight of all owners.
    weight: f64,
    pub(super) namespaces: NamespaceTable,
    /// Namespaces whose owner is registered with the cache: registering one again would cost a walk of what it holds.
    registered: HashSet<NamespaceId>,
    public: PublicPrompts,
    block_bytes: usize,
}

impl Tenants {
    /// No tenant has a configured share.
    pub(super) fn new(config: &EngineConfig) -> Tenants {
        Tenants {
            parts: BTreeMap::new(),
            weight: 0.0,
            namespaces: NamespaceTable::new(config),
            registered: HashSet::new(),
            public: PublicPrompts::default(),
            block_bytes: config.block_bytes,
        }
    }

    /// Sets the shares; tenants not listed own their prompts.
    pub(super) fn set_parts(&mut self, parts: &[TenantPart]) {
        let owners: BTreeMap<TenantId, f64> =
            parts.iter().map(|part| (part.owner, part.owner_weight)).collect();
        self.weight = owners.values().sum();
        self.parts = parts.iter().map(|&part| (part.tenant, part)).collect();
        self.registered.clear();
    }

    /// The owner of a tenant's prompts.
    pub(super) fn owner(&self, tenant: TenantId) -> TenantId {
        self.parts.get(&tenant).map_or(tenant, |part| part.owner)
    }

    /// The owner of a tenant's prompts on disk.
    pub(super) fn disk_owner(&self, tenant: TenantId) -> u64 {
        disk_owner(self.parts.get(&tenant).map_or([0; 16], |part| part.salt))
    }

    /// Resets the state after the cache was replaced: no namespace is known to it.
    pub(super) fn reset(&mut self, cache: &mut Cache) {
        self.registered.clear();
        self.namespaces.clear();
        self.public.reset(&mut self.namespaces, cache);
    }

    /// Registers the owner of `namespace`, in which a tenant stores prompts, with RAM and disk. Returns whether it was
    /// not registered before.
    pub(super) fn register(
        &mut self,
        namespace: NamespaceId,
        (tenant, salt): (TenantId, [u8; 16]),
        ram: &mut Ram,
        disk: &mut Disk,
    ) -> bool {
        if !self.registered.insert(namespace) {
            return false;
        }
        let part = self.parts.get(&tenant).copied().unwrap_or(TenantPart::own(tenant));
        let share = self.ram_share(&part, ram.config.pinned_max);
        if let Err(error) = ram.cache.set_share(namespace, share) {
            tracing::warn!("the cache does not take the share of tenant {}: {error}", share.tenant.0);
        }
        let slots_max = self.blocks(part.owner_disk_bytes);
        disk.set_share(disk_owner(salt), DiskShare { weight: part.owner_weight, slots_max });
        true
    }

    /// An owner's share of RAM, of which `pinned_max` blocks may be pinned in total.
    fn ram_share(&self, part: &TenantPart, pinned_max: usize) -> Share {
        Share {
            tenant: part.owner,
            weight: part.owner_weight,
            quota_blocks: self.blocks(part.owner_ram_bytes),
            pinned_max: self.blocks(part.owner_pin_bytes).or_else(|| Some(self.by_weight(pinned_max, part))),
        }
    }

    /// An owner's share of `blocks` by its weight; all if it is the only one.
    fn by_weight(&self, blocks: usize, part: &TenantPart) -> usize {
        let others = (self.weight - part.owner_weight).max(0.0);
        (blocks as f64 * part.owner_weight / (part.owner_weight + others)) as usize
    }

    /// Number of whole blocks in `bytes`, at least one: without any a tenant could store nothing at all.
    fn blocks(&self, bytes: Option<u64>) -> Option<usize> {
        let blocks = bytes? / self.block_bytes.max(1) as u64;
        Some(usize::try_from(blocks).unwrap_or(usize::MAX).max(1))
    }

    /// The namespace that a request shares: its tenant's own, or, if the tenant may, one derived from the longest
    /// public prompt that it begins with. A prefix cached before a prompt became public stays in the tenant's own
    /// namespace: the request runs where more of its prompt is known.
    pub(super) fn shared_namespace(
        &mut self,
        (tenant, sharers): (TenantId, Sharers),
        prompt: &[Token],
        cache: &mut Cache,
    ) -> NamespaceId {
        let own = self.namespaces.shared(sharers, cache);
        if !self.parts.get(&tenant).is_some_and(|part| part.public) {
            return own;
        }
        let public = self.public.namespace(own, sharers, prompt, &mut self.namespaces, cache);
        let known = |namespace| cache.lookup(namespace, prompt).tokens;
        public.filter(|&public| known(public) >= known(own)).unwrap_or(own)
    }

    /// The place that [`shared_namespace`](Tenants::shared_namespace) would return, without creating it.
    pub(super) fn shared_place(
        &self,
        (tenant, sharers): (TenantId, Sharers),
        prompt: &[Token],
        cache: &Cache,
    ) -> Place {
        let own = self.namespaces.place(sharers, cache);
        if !self.parts.get(&tenant).is_some_and(|part| part.public) {
            return own;
        }
        let public = self.public.place(own.id, sharers, prompt, &self.namespaces, cache);
        let known = |place: &Place| place.lookup(prompt, cache).tokens;
        public.filter(|public| known(public) >= known(&own)).unwrap_or(own)
    }

    /// The namespaces of public prompts.
    pub(super) fn public_namespaces(&self) -> impl Iterator<Item = NamespaceId> {
        self.public.in_use()
    }

    /// Removes a namespace that the cache has dropped.
    pub(super) fn forget(&mut self, namespace: NamespaceId) {
        self.namespaces.remove(namespace);
        self.registered.remove(&namespace);
    }

    /// Makes these prompts public.
    pub(super) fn set_public(&mut self, prompts: &[PinnedPrompt], cache: &mut Cache) {
        self.public.set(prompts, &mut self.namespaces, cache);
    }

    /// Drops the namespaces derived from prompts that are no longer public, once they are unused: no sequence has
    /// blocks there, and no waiting request `awaits` them. Returns whether any was dropped.
    pub(super) fn drop_retired(&mut self, awaits: impl Fn(NamespaceId) -> bool, cache: &mut Cache) -> bool {
        self.public.drop_retired(awaits, cache)
    }
}
