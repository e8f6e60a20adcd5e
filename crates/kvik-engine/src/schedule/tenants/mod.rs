//! Tenants: whose prompts stand where, what part of RAM and disk they get, and which prompts they share.
//!
//! | module   | cares about                                   |
//! |----------|-----------------------------------------------|
//! | `part`   | what a tenant is given, as data               |
//! | `public` | prompts that tenants who keep apart may share |

mod part;
mod public;

use std::collections::{BTreeMap, HashSet};

use kvik_cache::tier::DiskShare;
use kvik_cache::{Cache, NamespaceId, Share, TenantId, Token};

use super::disk::Disk;
use super::namespaces::{NamespaceTable, Place, Sharers, disk_owner};
use super::ram::Ram;
use crate::api::KeptPrompt;
use crate::config::EngineConfig;
use public::PublicPrompts;

pub use part::TenantPart;

/// The tenants of an engine.
pub(super) struct Tenants {
    parts: BTreeMap<TenantId, TenantPart>,
    /// The weights of all owners together.
    weight: f64,
    pub(super) namespaces: NamespaceTable,
    /// Namespaces whose owner the cache knows: registering one again costs a walk of the tree.
    registered: HashSet<NamespaceId>,
    public: PublicPrompts,
    block_bytes: usize,
}

impl Tenants {
    /// Nobody is given a part.
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

    /// These parts hold from now on; other tenants own their prompts.
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

    /// The cache is a new one: no namespace is known to it.
    pub(super) fn reset(&mut self, cache: &mut Cache) {
        self.registered.clear();
        self.namespaces.clear();
        self.public.reset(&mut self.namespaces, cache);
    }

    /// Registers the owner of `namespace`, in which a tenant leaves prompts, with RAM and disk. Whether it was not
    /// registered before.
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

    /// An owner's part of RAM, of which `pinned_max` blocks may be pinned by all.
    fn ram_share(&self, part: &TenantPart, pinned_max: usize) -> Share {
        Share {
            tenant: part.owner,
            weight: part.owner_weight,
            quota_blocks: self.blocks(part.owner_ram_bytes),
            pinned_max: self.blocks(part.owner_pin_bytes).or_else(|| Some(self.by_weight(pinned_max, part))),
        }
    }

    /// The part of `blocks` that is an owner's by its weight; all where nobody else is known.
    fn by_weight(&self, blocks: usize, part: &TenantPart) -> usize {
        let others = (self.weight - part.owner_weight).max(0.0);
        (blocks as f64 * part.owner_weight / (part.owner_weight + others)) as usize
    }

    /// Whole blocks in `bytes`, one at least: without any a tenant could keep nothing at all.
    fn blocks(&self, bytes: Option<u64>) -> Option<usize> {
        let blocks = bytes? / self.block_bytes.max(1) as u64;
        Some(usize::try_from(blocks).unwrap_or(usize::MAX).max(1))
    }

    /// The namespace that a request shares: its tenant's own, or one derived from the longest public prompt that
    /// it begins with, when its tenant may. What a tenant had before a prompt became public stays its own:
    /// the request runs where more of its prompt is known.
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

    /// The place that [`shared_namespace`](Tenants::shared_namespace) would give, without making it.
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

    /// Forgets a namespace that the cache has dropped.
    pub(super) fn forget(&mut self, namespace: NamespaceId) {
        self.namespaces.remove(namespace);
        self.registered.remove(&namespace);
    }

    /// From now on these prompts are public.
    pub(super) fn set_public(&mut self, prompts: &[KeptPrompt], cache: &mut Cache) {
        self.public.set(prompts, &mut self.namespaces, cache);
    }

    /// Drops the namespaces derived from prompts that are public no longer, as soon as nobody uses them:
    /// nobody has blocks there, and no request `awaits` its turn to.
    pub(super) fn drop_retired(&mut self, awaits: impl Fn(NamespaceId) -> bool, cache: &mut Cache) {
        self.public.drop_retired(awaits, cache);
    }
}
