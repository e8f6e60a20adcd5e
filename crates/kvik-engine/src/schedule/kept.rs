//! Pinned prompts, and what else is known of one: finding and releasing them, and their pins.

use std::iter::once;
use std::time::Duration;

use kvik_cache::retain::Retention;
use kvik_cache::{
    BLOCK_POSITIONS, Cache, DeletedPrompts, Identity, NamespaceId, PinInfo, PrefixInfo, PrefixScan, TenantId,
    Token, Unpinned, whole_blocks,
};

use super::Scheduler;
use super::namespaces::{Roots, Sharers, disk_owner};
use super::prefixes::Prefixes;
use super::sequence::Sequence;
use crate::api::{Cached, Evicted, PinnedPrompt, Probe, Request, Unpin};

/// What is asked about prompts between two steps. What an open request would undo, it no longer does.
impl Scheduler {
    /// Makes these prompts public. They must be cached, or none of their blocks is shared.
    pub fn set_public(&mut self, prompts: &[PinnedPrompt]) {
        self.prefixes.tenants.set_public(prompts, &mut self.prefixes.ram.cache);
        self.drop_retired();
    }

    /// The match that `request` would find if it were admitted now. The only change is that expired blocks are evicted,
    /// as in every step.
    pub fn probe(&mut self, request: &Request) -> Probe {
        self.prefixes.probe(request, &self.jobs.running, &self.config)
    }

    /// Unpins exactly this prompt, and drops its blocks that no request uses; where something pinned begins with its whole
    /// blocks, only those that nothing else continues. Returns the number of RAM blocks dropped.
    pub fn release(&mut self, tokens: &[Token], salt: [u8; 16]) -> usize {
        let whole = whole_blocks(tokens);
        self.withdraw_pins(salt, |sequence| {
            sequence.kept_prefix().is_none() && whole_blocks(sequence.prompt()) == whole
        });
        self.prefixes.release(tokens, salt)
    }

    /// Unpins and drops the compressed form of a prompt, in RAM and on disk; returns the number of RAM blocks dropped.
    pub fn release_part(&mut self, prompt: &PinnedPrompt, retention: &Retention) -> usize {
        let (prefix, own) = (whole_blocks(&prompt.tokens), self.prefixes.of_prefix(retention));
        self.withdraw_pins(prompt.salt, |sequence| {
            let same = sequence.forgetting.as_ref().is_some_and(|it| it.retention == own);
            same && sequence.kept_prefix() == Some(prefix.len()) && sequence.tokens.starts_with(prefix)
        });
        self.prefixes.release_part(prompt, retention)
    }

    /// Removes every pin of a prompt and of those that continue it, and drops their blocks that no request uses.
    pub fn evict(&mut self, tokens: &[Token], salt: [u8; 16]) -> Evicted {
        let whole = whole_blocks(tokens);
        self.withdraw_pins(salt, |sequence| !whole.is_empty() && sequence.prompt().starts_with(whole));
        self.prefixes.evict(tokens, salt)
    }

    /// Withdraws the pending pins of open requests for these prompts: a pin that was removed must not return.
    fn withdraw_pins(&mut self, salt: [u8; 16], withdraws: impl Fn(&Sequence) -> bool) {
        let namespaces = self.prefixes.tenants.namespaces.all_of(salt);
        for sequence in self.jobs.sharing_in(&namespaces) {
            sequence.lifetime.pin &= !withdraws(sequence);
        }
    }

    /// Drops these prompts of a tenant and everything that continues them, except what other prompts share. Returns how
    /// much of it is still there: in use, being read or written, or not erased yet. May be repeated. Open requests that
    /// compute a deleted prompt count: they are to end, and hold blocks until then.
    pub fn forget_deleted(&mut self, salt: [u8; 16], prompts: &DeletedPrompts, asks_store: bool) -> usize {
        let namespaces = self.prefixes.tenants.namespaces.all_of(salt);
        let deleted = (&namespaces[..], prompts);
        self.idle.forget_deleted(deleted, &mut self.jobs, &mut self.prefixes.ram.cache);
        let theirs = self.jobs.sharing_in(&namespaces);
        let computes = |sequence: &&mut Sequence| {
            prompts.mine().iter().any(|prompt| sequence.tokens.starts_with(prompt))
        };
        theirs.filter(computes).count() + self.prefixes.forget_deleted(salt, prompts, asks_store)
    }
}

impl Prefixes {
    /// How much of a prompt a request of its tenant would find in RAM, and how much more on disk.
    pub fn cached(&self, prompt: &PinnedPrompt) -> Cached {
        if let Some(retention) = &prompt.retention {
            return self.cached_part(prompt, retention);
        }
        let (tokens, cache) = (&prompt.tokens, &self.ram.cache);
        let place = self.tenants.shared_place((prompt.tenant, Sharers::of_kept(prompt)), tokens, cache);
        let ram = place.lookup(tokens, cache).tokens;
        let pinned = place.id.is_some_and(|id| cache.is_pinned(id, tokens));
        let disk = self.disk.tokens_after(&place.roots, tokens, ram, self.now());
        Cached { tokens: tokens.len(), ram, disk, pinned }
    }

    /// Unpins exactly this prompt, and drops its blocks that no request uses; where something pinned begins with its whole
    /// blocks, only those that nothing else continues.
    fn release(&mut self, tokens: &[Token], salt: [u8; 16]) -> usize {
        let mut blocks = 0;
        let whole = whole_blocks(tokens);
        let namespaces = self.tenants.namespaces.all_of(salt);
        self.disk.give_up(&mut self.ram, |namespace, copied| {
            namespaces.contains(&namespace) && whole.starts_with(copied)
        });
        for namespace in namespaces {
            self.ram.cache.unpin(namespace, tokens);
            blocks += match self.ram.cache.is_pinned_under(namespace, tokens) {
                true => self.drop_from_memory(namespace, tokens, Cache::evict_chain),
                false => self.drop_from_memory(namespace, tokens, Cache::evict_prefix),
            };
        }
        for roots in self.all_roots(salt, once(tokens)) {
            self.disk.release(&roots, tokens);
        }
        blocks
    }

    /// Removes every pin of a prompt and of those that continue it, and drops their blocks that no request uses.
    fn evict(&mut self, tokens: &[Token], salt: [u8; 16]) -> Evicted {
        let mut evicted = Evicted { blocks: 0, pins: 0 };
        let whole = whole_blocks(tokens);
        let namespaces = self.tenants.namespaces.all_of(salt);
        self.disk.give_up(&mut self.ram, |namespace, copied| {
            namespaces.contains(&namespace) && !whole.is_empty() && copied.starts_with(whole)
        });
        for namespace in namespaces {
            evicted.pins += self.ram.cache.unpin_under(namespace, tokens);
            evicted.blocks += self.drop_from_memory(namespace, tokens, Cache::evict_prefix);
        }
        for roots in self.all_roots(salt, once(tokens)) {
            self.disk.forget(&roots, tokens);
            let begun = roots.identity_after(tokens);
            for part in self.kept_parts.beginning_with(&begun, whole.len() / BLOCK_POSITIONS) {
                let Evicted { blocks, pins } = self.drop_part(&part);
                evicted = Evicted { blocks: evicted.blocks + blocks, pins: evicted.pins + pins };
            }
        }
        if !whole.is_empty() {
            self.drop_unlisted_parts(salt);
        }
        evicted
    }

    /// Drops blocks of a prompt in a namespace with this command of the cache, also those of the draft model; returns the
    /// number of the model's own.
    fn drop_from_memory(
        &mut self,
        namespace: NamespaceId,
        tokens: &[Token],
        evict: fn(&mut Cache, NamespaceId, &[Token]) -> usize,
    ) -> usize {
        if let Some(model) = &mut self.draft_model {
            model.evict(namespace, tokens, evict);
        }
        evict(&mut self.ram.cache, namespace, tokens)
    }

    /// Drops the compressed prefixes of a tenant on disk that this process has not used: they do not record how their
    /// prompts begin, which may be as one that is dropped.
    pub(super) fn drop_unlisted_parts(&mut self, salt: [u8; 16]) {
        let is_listed = |prefix: &Identity| !self.kept_parts.of(prefix).is_empty();
        self.disk.forget_parts(disk_owner(salt), is_listed);
    }

    /// The pins of one tenant or of all, oldest first.
    pub fn pins(&self, tenant: Option<TenantId>, limit: usize) -> Vec<PinInfo> {
        self.ram.cache.pins(tenant.map(|tenant| self.owner(tenant)), limit)
    }

    /// Removes pins of one tenant, or of all, in RAM and on disk; returns how many there were in RAM.
    pub fn unpin(&mut self, which: Unpin, tenant: Option<TenantId>) -> usize {
        let owner = tenant.map(|tenant| self.tenants.owner(tenant));
        let unpinned = match which {
            Unpin::All => self.ram.cache.unpin_all(owner),
            Unpin::One(id) => self.ram.cache.unpin_one(id, owner).into_iter().collect(),
        };
        for Unpinned { namespace, tokens } in &unpinned {
            let roots = self.tenants.namespaces.roots(*namespace);
            self.disk.pin(&roots.identity_after(tokens), false);
        }
        if which == Unpin::All {
            self.disk.unpin_all(tenant.map(|tenant| self.tenants.disk_owner(tenant)));
        }
        unpinned.len()
    }

    /// The roots of all namespaces in which requests with this salt have run, and of what is on disk of these prompts,
    /// without duplicates.
    pub(super) fn all_roots<'a>(
        &self,
        salt: [u8; 16],
        prompts: impl Iterator<Item = &'a [Token]>,
    ) -> Vec<Roots> {
        let table = &self.tenants.namespaces;
        let mut roots: Vec<Roots> = table.all_of(salt).into_iter().map(|id| *table.roots(id)).collect();
        // The disk may hold blocks from before the start, also with adapters that no request has named since.
        let plain = table.place(Sharers::plain(salt), &self.ram.cache).roots;
        let stored = self.disk.roots_of(&plain, prompts).into_iter();
        roots.extend(stored.map(|identity| Roots { identity, ..plain }));
        roots.push(plain);
        roots.sort_unstable_by_key(|roots| roots.identity);
        roots.dedup_by_key(|roots| roots.identity);
        roots
    }

    /// Drops everything that is neither in use nor pinned, of one tenant or of all; returns the blocks of RAM and of
    /// the disk.
    pub fn clear(&mut self, salt: Option<[u8; 16]>) -> (usize, usize) {
        let disk = self.disk.clear(salt.map(disk_owner), self.now());
        let namespaces = &self.tenants.namespaces;
        let Some(salt) = salt else {
            self.disk.give_up(&mut self.ram, |_, _| true);
            if let Some(model) = &mut self.draft_model {
                model.clear(None);
            }
            return (self.ram.cache.clear(None), disk);
        };
        let mut mine = namespaces.all_of(salt);
        mine.extend(namespaces.all_kept(salt));
        self.disk.give_up(&mut self.ram, |namespace, _| mine.contains(&namespace));
        if let Some(model) = &mut self.draft_model {
            mine.iter().for_each(|&namespace| model.clear(Some(namespace)));
        }
        let cache = &mut self.ram.cache;
        (mine.into_iter().map(|namespace| cache.clear(Some(namespace))).sum(), disk)
    }

    /// Scans a slice of the prefixes in RAM; returns whether there is another one.
    pub(crate) fn scan(&self, scan: &mut PrefixScan) -> bool {
        self.ram.cache.scan(scan)
    }

    /// The prefixes that a scan has found, and the current time on the same clock.
    pub(crate) fn scanned(&self, scan: PrefixScan) -> (Vec<PrefixInfo>, Duration) {
        (self.ram.cache.scanned(scan), self.ram.cache.now())
    }

    /// The tenant that owns the prompts of a tenant.
    pub(crate) fn owner(&self, tenant: TenantId) -> TenantId {
        self.tenants.owner(tenant)
    }
}
