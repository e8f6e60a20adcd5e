//! Unpins and drops stored blocks, and removes expired ones.

use std::time::Duration;

use kvik_cache::tier::Record;
use kvik_cache::{Identity, Token};
use rustc_hash::FxHashSet;

use super::Disk;
use crate::schedule::forget::kept;
use crate::schedule::namespaces::Roots;

/// Maximum number of blocks that one step checks for expiry, and of those that it evicts to keep shares.
const SWEEP_MAX: usize = 64;

impl Disk {
    /// Drops expired blocks, and those of owners that hold more than their share, a few in every step.
    pub(crate) fn sweep(&mut self, now: Duration) {
        let expired = self.tier.sweep(self.wall_s(now), SWEEP_MAX);
        expired.into_iter().for_each(|slot| self.store.erase(slot));
        if self.exceeds_share() {
            let evicted = self.tier.keep_shares(SWEEP_MAX);
            evicted.into_iter().for_each(|slot| self.store.evict(slot));
        }
    }

    /// Whether [`sweep`](Disk::sweep) has something to drop of owners that hold more than their share. Not before the store
    /// has removed the blocks of the last step: writes and deletions would wait behind all of them.
    pub(crate) fn exceeds_share(&self) -> bool {
        self.tier.exceeds_share() && self.writes() && self.store.evicting() == 0
    }

    /// Frees unused transfer buffers.
    pub(crate) fn release_buffers(&mut self) {
        self.store.trim();
    }

    /// Pins a block against eviction, or unpins it; the pin survives a restart.
    pub(crate) fn pin(&mut self, identity: &Identity, pinned: bool) {
        if let Some(slot) = self.tier.pin(identity, pinned) {
            self.store.pin(slot, pinned);
        }
    }

    /// Drops all blocks that are neither pinned nor in use, of one tenant or of all; returns how many. None of a disk that
    /// another process writes.
    pub(crate) fn clear(&mut self, owner: Option<u64>, now: Duration) -> usize {
        if !self.writes() {
            return 0;
        }
        let drops = |record: &Record| !record.pinned && owner.is_none_or(|owner| record.owner == owner);
        let slots = self.tier.remove(self.wall_s(now), drops);
        slots.iter().for_each(|&slot| self.store.erase(slot));
        slots.len()
    }

    /// The roots of every stored prompt of this tenant that has the first block of one of these, whatever model or format
    /// it was computed with.
    pub(crate) fn roots_of<'a>(
        &self,
        roots: &Roots,
        prompts: impl Iterator<Item = &'a [Token]>,
    ) -> Vec<Identity> {
        let first: FxHashSet<u64> = prompts.map(|tokens| roots.first_content_key(tokens)).collect();
        let used = self.tier.used().map(|(_, record)| record);
        let begins = used.filter(|record| record.owner == roots.owner && first.contains(&record.content_key));
        begins.map(|record| record.parent).collect()
    }

    /// Unpins exactly this prompt, and drops those of its blocks that nothing else continues.
    pub(crate) fn release(&mut self, roots: &Roots, tokens: &[Token]) {
        self.pin(&roots.identity_after(tokens), false);
        self.drop_chain(roots, tokens);
    }

    /// Unpins and drops a prompt, everything that continues it, and those blocks before its end that nothing else
    /// continues.
    pub(crate) fn forget(&mut self, roots: &Roots, tokens: &[Token]) {
        let end = roots.identity_after(tokens);
        // A prompt without a whole block names nothing; it must not match everything.
        if end != roots.identity {
            self.forget_from(&end);
        }
        self.drop_chain(roots, tokens);
    }

    /// Unpins and drops a tenant's retained prefixes, except those that are `listed`.
    pub(crate) fn forget_parts(&mut self, owner: u64, listed: impl Fn(&Identity) -> bool) {
        let is_unlisted = |record: &&Record| {
            record.owner == owner
                && kept::named(record.tokens.as_slice()).is_some_and(|prefix| !listed(&prefix))
        };
        let used = self.tier.used().map(|(_, record)| record);
        let parts: Vec<Identity> = used.filter(is_unlisted).map(|record| record.identity).collect();
        parts.iter().for_each(|first| self.forget_from(first));
    }

    /// Unpins and drops a block and everything that continues it.
    fn forget_from(&mut self, block: &Identity) {
        for identity in self.tier.under(block).iter().rev() {
            self.pin(identity, false);
            self.drop_leaf(identity);
        }
    }

    /// Unpins all blocks of one tenant, or of all.
    pub(crate) fn unpin_all(&mut self, owner: Option<u64>) {
        let used = self.tier.used().map(|(_, record)| record);
        let pinned = used.filter(|record| record.pinned && owner.is_none_or(|owner| record.owner == owner));
        let pinned: Vec<Identity> = pinned.map(|record| record.identity).collect();
        pinned.iter().for_each(|identity| self.pin(identity, false));
    }

    /// Drops blocks of a prompt from its end on, until one is pinned or something continues it.
    fn drop_chain(&mut self, roots: &Roots, tokens: &[Token]) {
        let chain: Vec<Identity> = roots.identity.blocks(tokens).collect();
        chain.iter().rev().for_each(|identity| self.drop_leaf(identity));
    }

    fn drop_leaf(&mut self, identity: &Identity) {
        if let Some(slot) = self.tier.drop_leaf(identity) {
            self.store.erase(slot);
        }
    }
}
