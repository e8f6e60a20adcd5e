//! Space: whether enough blocks are available, and which ones are evicted to free them.
//!
//! The only place where blocks are evicted to make room. A command first checks that all the blocks it needs are
//! free or evictable; then [`make_room`](Cache::make_room) cannot fail.

use super::life::Cache;
use crate::admission::NoSpace;
use crate::evict::Cause;
use crate::ids::{BlockId, NamespaceId, NodeId, TenantId, blocks_for};
use crate::table::Table;
use crate::tree::{Victim, Walk};

impl Cache {
    /// Evicts until the tree holds at most `blocks`, or only blocks in use.
    pub fn shrink(&mut self, blocks: usize) {
        while self.pool.shared() > blocks && self.radix.evictable() > 0 {
            self.evict((self.pool.shared() - blocks).min(self.radix.evictable()));
        }
    }

    /// The free blocks: their content is not read again.
    pub fn free_blocks(&self) -> &[BlockId] {
        self.pool.free_list()
    }

    /// The part of `walk` that a sequence that needs `positions` can reuse.
    ///
    /// Blocks that the lease locks can no longer be evicted; neither can the block that is copied in part, until it
    /// is copied. If only the room for that block is missing, the sequence does without the copy.
    ///
    /// The state from which it resumes cannot be evicted either, until it is copied. Where layers hold auxiliary
    /// state, a sequence for which either does not fit starts from the beginning.
    pub(super) fn affordable(&self, walk: Walk, positions: usize) -> Result<Walk, NoSpace> {
        match self.affordable_blocks(walk, positions) {
            Err(_) if !self.needs().is_nothing() => {
                self.affordable_blocks(self.radix.shorten(walk, 0), positions)
            }
            afforded => afforded,
        }
    }

    fn affordable_blocks(&self, walk: Walk, positions: usize) -> Result<Walk, NoSpace> {
        let auxiliary = self.needs().of_running(positions.max(walk.tokens));
        let needed = blocks_for(positions.max(walk.tokens)) - walk.whole_blocks() + auxiliary;
        let place = self.place_at(&walk).and_then(|place| self.radix.places.get(place));
        let kept = place.filter(|place| place.keepers == 0).map_or(0, |place| place.units);
        let available = self.available() - self.radix.unlocked_blocks(&walk) - kept;
        let Some(partial) = walk.partial else {
            return fits(needed, available).map(|()| walk);
        };
        let held = usize::from(self.radix.arena[partial.node].locks == 0);
        if fits(needed + held, available).is_ok() {
            return Ok(walk);
        }
        let tokens = walk.tokens - partial.positions;
        if !self.needs().is_nothing() {
            return Err(NoSpace { needed: needed + held, available });
        }
        let needed = blocks_for(positions.max(tokens)) - walk.whole_blocks();
        fits(needed, available).map(|()| Walk { partial: None, tokens, ..walk })
    }

    /// Blocks that are free or evictable.
    pub(super) fn available(&self) -> usize {
        self.pool.free() + self.radix.evictable() + self.radix.places.evictable()
    }

    /// Evicts until `needed` blocks are free for a namespace, or changes nothing.
    pub(super) fn make_room(&mut self, needed: usize, namespace: NamespaceId) -> Result<(), NoSpace> {
        fits(needed, self.available()).inspect_err(|_| self.totals.refused += 1)?;
        self.keep_quota(namespace, needed);
        self.free_up(needed);
        Ok(())
    }

    /// Evicts until `needed` blocks are free; the caller has checked that they are available.
    pub(super) fn free_up(&mut self, needed: usize) {
        self.evict(needed.saturating_sub(self.pool.free()));
    }

    /// Evicts at least `count` blocks, counting places by the blocks withheld for them; that many must be evictable.
    fn evict(&mut self, count: usize) {
        let mut left = count;
        while left > 0 {
            let evicted = match self.radix.shares.only_holder() {
                Some(tenant) => self.evict_of(tenant, left),
                None => self.evict_fairly(left),
            };
            left = left.saturating_sub(evicted.expect("room is made only when enough is evictable"));
        }
    }

    /// Evicts about `count` blocks of the first victim tenant that has something evictable. Returns how many;
    /// `None` when no tenant has anything evictable.
    fn evict_fairly(&mut self, count: usize) -> Option<usize> {
        let claims = self.radix.shares.victim_tenants(self.radix.now, |tenant| self.owned_by(tenant));
        claims.iter().enumerate().find_map(|(index, claim)| {
            let count = claim.victims(count, claims.get(index + 1));
            self.evict_of(claim.tenant, count)
        })
    }

    /// Evicts every prefix whose time to live has ended. No block outlives those before it, so nothing that follows
    /// is left.
    pub(super) fn drop_expired(&mut self) {
        while let Some(leaf) = self.radix.expired() {
            self.evict_from(leaf, usize::MAX, Cause::Expired);
        }
    }

    /// Evicts what a tenant holds beyond its quota, as if `coming` more blocks were held already.
    pub(super) fn keep_quota(&mut self, namespace: NamespaceId, coming: usize) {
        let stats = self.radix.shares.of(namespace);
        let tenant = stats.share.tenant;
        let Some(quota) = stats.share.quota_blocks else { return };
        let mut excess = (stats.held() + self.owned_by(tenant) + coming).saturating_sub(quota);
        while excess > 0 {
            let Some(count) = self.evict_of(tenant, excess) else { return };
            excess = excess.saturating_sub(count);
        }
    }

    /// Returns whether a tenant can hold `coming` more blocks without exceeding its quota.
    pub(super) fn fits_quota(&self, namespace: NamespaceId, coming: usize) -> bool {
        let stats = self.radix.shares.of(namespace);
        let tenant = stats.share.tenant;
        let Some(quota) = stats.share.quota_blocks else { return true };
        let evictable = stats.evictable + self.radix.places.evictable_of(tenant);
        stats.held() + self.owned_by(tenant) + coming <= quota + evictable
    }

    /// Evicts the next victim of a tenant: blocks of a leaf, at most `count`, or a place. Returns how many blocks
    /// that frees; `None` when nothing is evictable.
    fn evict_of(&mut self, tenant: TenantId, count: usize) -> Option<usize> {
        let cause = Cause::Evicted(self.radix.evictor.policy());
        // Block by block where there are places: a place that is evicted with its block may free enough.
        let count = if self.needs().is_nothing() { count } else { count.min(1) };
        Some(match self.radix.victim(tenant)? {
            Victim::Leaf(leaf) => self.evict_from(leaf, count, cause),
            Victim::Place(place) => self.evict_place(place),
        })
    }

    /// Evicts blocks from the end of an unlocked leaf, at most `count`, with their places; returns how many blocks
    /// that frees.
    fn evict_from(&mut self, leaf: NodeId, count: usize, cause: Cause) -> usize {
        let node = &self.radix.arena[leaf];
        let (namespace, count) = (node.namespace, count.min(node.blocks().len()));
        #[cfg(test)]
        self.note_evictions(leaf, count, cause);
        let dropped = self.radix.evict(leaf, count, cause);
        let freed = dropped.blocks_worth();
        dropped.release(&mut self.pool);
        self.totals.evicted += count as u64;
        self.radix.shares.of_mut(namespace).evicted += count as u64;
        freed
    }

    #[cfg(test)]
    fn note_evictions(&mut self, leaf: NodeId, count: usize, cause: Cause) {
        let node = &self.radix.arena[leaf];
        let prefix = self.radix.prefix(leaf, usize::MAX);
        for blocks in (1..=node.end_depth() as usize).rev().take(count) {
            let end = prefix.len().min(blocks * crate::ids::BLOCK_POSITIONS);
            self.told.push(super::life::Told::Evicted(node.namespace, prefix[..end].to_vec(), cause));
        }
    }

    /// Blocks that a tenant's running sequences hold outside the tree.
    pub(super) fn owned_by(&self, tenant: TenantId) -> usize {
        let owner = |table: &&Table| self.radix.owner(table.lease()) == tenant;
        self.sequences.values().filter(owner).map(|table| table.held(&self.radix)).sum()
    }
}

fn fits(needed: usize, available: usize) -> Result<(), NoSpace> {
    if needed <= available { Ok(()) } else { Err(NoSpace { needed, available }) }
}
