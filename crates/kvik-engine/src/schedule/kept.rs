//! Looking for kept prompts, and taking back what is pinned.

use std::time::Duration;

use kvik_cache::{
    BLOCK_POSITIONS, NamespaceId, PinInfo, PrefixInfo, PrefixScan, TenantId, Token, Unpinned, whole_blocks,
};

use super::Scheduler;
use super::disk::{self, Roots, owner};
use super::sequence::Sharing;
use crate::api::{Cached, Evicted, KeptPrompt, Unpin};

impl Scheduler {
    /// The namespace that requests with this salt share.
    pub(super) fn namespace(&mut self, salt: [u8; 16]) -> NamespaceId {
        let namespace = self.config.namespaces().shared(salt);
        let id = self.cache.namespace(&namespace);
        self.roots.entry(id).or_insert_with(|| Roots::of(&namespace));
        id
    }

    /// The namespaces that requests with this salt may have run in: their own, and those derived from public prompts.
    fn namespaces_of(&mut self, salt: [u8; 16]) -> Vec<NamespaceId> {
        let own = self.namespace(salt);
        let identity = self.roots[&own].identity;
        let same = self.roots.iter().filter(|(_, roots)| roots.identity == identity);
        let mut namespaces: Vec<NamespaceId> = same.map(|(&id, _)| id).collect();
        namespaces.sort_unstable();
        namespaces
    }

    /// How much of a prompt a request of its tenant would find in RAM, and how much more on disk.
    pub fn cached(&mut self, prompt: &KeptPrompt) -> Cached {
        let tokens = &prompt.tokens;
        let namespace = self.shared_namespace(prompt.tenant, prompt.salt, tokens);
        let ram = self.cache.lookup(namespace, tokens).tokens;
        let disk = self.on_disk(namespace, tokens, ram);
        let pinned = self.cache.is_pinned(namespace, tokens);
        Cached { tokens: tokens.len(), ram, disk, pinned }
    }

    /// Tokens after the first `ram` that could be loaded.
    pub(super) fn on_disk(&self, namespace: NamespaceId, tokens: &[Token], ram: usize) -> usize {
        let Some(disk) = &self.disk else { return 0 };
        let whole = ram - ram % BLOCK_POSITIONS;
        let parent = self.roots[&namespace].identity_after(&tokens[..whole]);
        let found = disk.tier.find(&parent, &tokens[whole..], disk.wall_s(self.now()));
        (whole + found.tokens).saturating_sub(ram)
    }

    /// Unpins exactly this prompt, and drops what nobody else uses of it unless something pinned goes on
    /// from it; how many blocks of RAM that is.
    pub fn let_go(&mut self, tokens: &[Token], salt: [u8; 16]) -> usize {
        let mut blocks = 0;
        let whole = whole_blocks(tokens);
        self.give_up_pins(salt, |prompt| whole_blocks(prompt) == whole);
        for namespace in self.namespaces_of(salt) {
            self.cache.unpin(namespace, tokens);
            if !self.cache.is_pinned_under(namespace, tokens) {
                blocks += self.cache.evict_prefix(namespace, tokens);
            }
        }
        let roots = self.own_roots(salt);
        if let Some(disk) = &mut self.disk {
            disk.release(&roots, tokens);
        }
        blocks
    }

    /// Requests that are under way pin these prompts no more: who took a pin back does not find it again.
    fn give_up_pins(&mut self, salt: [u8; 16], gives_up: impl Fn(&[Token]) -> bool) {
        let namespaces = self.namespaces_of(salt);
        for sequence in self.queue.sequences_mut().chain(self.running.iter_mut()) {
            let theirs = matches!(sequence.sharing, Sharing::Namespace(id) if namespaces.contains(&id));
            sequence.retain.pin &= !(theirs && gives_up(sequence.prompt()));
        }
    }

    /// Takes back every pin that lies at or under a prompt, and drops what nobody uses of that.
    pub fn evict(&mut self, tokens: &[Token], salt: [u8; 16]) -> Evicted {
        let mut evicted = Evicted { blocks: 0, pins: 0 };
        let whole = whole_blocks(tokens);
        self.give_up_pins(salt, |prompt| !whole.is_empty() && prompt.starts_with(whole));
        for namespace in self.namespaces_of(salt) {
            evicted.pins += self.cache.unpin_under(namespace, tokens);
            evicted.blocks += self.cache.evict_prefix(namespace, tokens);
        }
        let roots = self.own_roots(salt);
        if let Some(disk) = &mut self.disk {
            disk.forget(&roots, tokens);
        }
        evicted
    }

    /// Takes back pins, of one tenant or whoever's they are, in RAM and on disk; how many there were in RAM.
    pub fn unpin(&mut self, which: Unpin, tenant: Option<TenantId>) -> usize {
        let owner = tenant.map(|tenant| self.owners.owner(tenant));
        let unpinned = match which {
            Unpin::All => self.cache.unpin_all(owner),
            Unpin::One(id) => self.cache.unpin_one(id, owner).into_iter().collect(),
        };
        let disk_owner = tenant.map(|tenant| disk::owner(self.owners.salt(tenant)));
        let Some(disk) = &mut self.disk else { return unpinned.len() };
        for Unpinned { namespace, tokens } in &unpinned {
            disk.pin(&self.roots[namespace].identity_after(tokens), false);
        }
        if which == Unpin::All {
            disk.unpin_all(disk_owner);
        }
        unpinned.len()
    }

    /// The pins of one tenant or of all, oldest first.
    pub fn pins(&self, tenant: Option<TenantId>, limit: usize) -> Vec<PinInfo> {
        self.cache.pins(tenant.map(|tenant| self.owners.owner(tenant)), limit)
    }

    fn own_roots(&mut self, salt: [u8; 16]) -> Roots {
        let own = self.namespace(salt);
        self.roots[&own]
    }

    /// Drops all that is neither in use nor pinned, of one tenant or of all; blocks of RAM and of the disk.
    pub fn clear(&mut self, salt: Option<[u8; 16]>) -> (usize, usize) {
        let namespace = salt.map(|salt| self.namespace(salt));
        let now = self.now();
        let disk = self.disk.as_mut().map_or(0, |disk| disk.clear(salt.map(owner), now));
        (self.cache.clear(namespace), disk)
    }

    /// Looks at a slice of what is in RAM; whether there is another one.
    pub(crate) fn scan(&self, scan: &mut PrefixScan) -> bool {
        self.cache.scan(scan)
    }

    /// What a search has found, and the time by the same clock as theirs.
    pub(crate) fn scanned(&self, scan: PrefixScan) -> (Vec<PrefixInfo>, Duration) {
        (self.cache.scanned(scan), self.now())
    }

    /// Who owns the prompts of a tenant.
    pub(crate) fn owner(&self, tenant: TenantId) -> TenantId {
        self.owners.owner(tenant)
    }
}
