//! Space: whether blocks can be had, and what is evicted for them.
//!
//! The only place where blocks are evicted for others. A command first asks whether all the blocks it needs are
//! free or evictable; then [`make_room`](Cache::make_room) cannot fail.

use super::life::Cache;
use crate::admission::NoSpace;
use crate::evict::Cause;
use crate::ids::{BlockId, NamespaceId, NodeId, TenantId, blocks_for};
use crate::table::Table;
use crate::tree::{Victim, Walk};

impl Cache {
    /// Evicts until the tree holds at most `blocks`, or only what running sequences use.
    pub fn shrink(&mut self, blocks: usize) {
        while self.pool.shared() > blocks && self.radix.evictable() > 0 {
            self.evict((self.pool.shared() - blocks).min(self.radix.evictable()));
        }
    }

    /// The blocks that nobody holds: what they held is not read again.
    pub fn free_blocks(&self) -> &[BlockId] {
        self.pool.free_list()
    }

    /// As much of `walk` as can be reused by a sequence that needs `positions`.
    ///
    /// Blocks that the lease locks can no longer be evicted; neither can the block that is copied in part, until it
    /// is copied. When the space lacks that one block, the sequence does without the copy.
    ///
    /// The state with which it goes on cannot be evicted either, until it is copied. Where layers hold something beside
    /// blocks, a sequence for which the space lacks the one or the other begins from the start.
    pub(super) fn affordable(&self, walk: Walk, positions: usize) -> Result<Walk, NoSpace> {
        match self.affordable_blocks(walk, positions) {
            Err(_) if !self.needs().is_nothing() => {
                self.affordable_blocks(self.radix.shorten(walk, 0), positions)
            }
            afforded => afforded,
        }
    }

    fn affordable_blocks(&self, walk: Walk, positions: usize) -> Result<Walk, NoSpace> {
        let beside = self.needs().of_running(positions.max(walk.tokens));
        let needed = blocks_for(positions.max(walk.tokens)) - walk.whole_blocks() + beside;
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

    /// Blocks that are free or can be made so.
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

    /// Evicts until `needed` blocks are free, which can be had.
    pub(super) fn free_up(&mut self, needed: usize) {
        self.evict(needed.saturating_sub(self.pool.free()));
    }

    /// Evicts `count` blocks' worth or more; at least that much is evictable.
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

    /// Evicts of the first victim tenant that has something, about `count` blocks' worth; how many that was, none when
    /// nobody has anything.
    fn evict_fairly(&mut self, count: usize) -> Option<usize> {
        let claims = self.radix.shares.victim_tenants(self.radix.now, |tenant| self.owned_by(tenant));
        claims.iter().enumerate().find_map(|(index, claim)| {
            let count = claim.victims(count, claims.get(index + 1));
            self.evict_of(claim.tenant, count)
        })
    }

    /// Evicts every prefix that has outlived its time to live. No block outlives those before it, so nothing that
    /// follows is left.
    pub(super) fn drop_expired(&mut self) {
        while let Some(leaf) = self.radix.expired() {
            self.evict_from(leaf, usize::MAX, Cause::Expired);
        }
    }

    /// Evicts what a tenant has beyond its quota, as if `coming` blocks' worth were there already.
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

    /// Whether a tenant can have so much more without exceeding its quota.
    pub(super) fn fits_quota(&self, namespace: NamespaceId, coming: usize) -> bool {
        let stats = self.radix.shares.of(namespace);
        let tenant = stats.share.tenant;
        let Some(quota) = stats.share.quota_blocks else { return true };
        let evictable = stats.evictable + self.radix.places.evictable_of(tenant);
        stats.held() + self.owned_by(tenant) + coming <= quota + evictable
    }

    /// Evicts of a tenant what is next: blocks of a leaf, at most `count`, or a place. How many blocks' worth that was; none
    /// when there is nothing.
    fn evict_of(&mut self, tenant: TenantId, count: usize) -> Option<usize> {
        let cause = Cause::Evicted(self.radix.evictor.policy());
        // One at a time where places are: the one that goes with a block may free enough.
        let count = if self.needs().is_nothing() { count } else { count.min(1) };
        Some(match self.radix.victim(tenant)? {
            Victim::Leaf(leaf) => self.evict_from(leaf, count, cause),
            Victim::Place(place) => self.evict_place(place),
        })
    }

    /// Evicts blocks from the end of an unlocked leaf, at most `count`, with their places; returns how many blocks' worth
    /// that was.
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

    /// Blocks' worth of what a tenant's running sequences have outside the tree.
    pub(super) fn owned_by(&self, tenant: TenantId) -> usize {
        let owner = |table: &&Table| self.radix.owner(table.lease()) == tenant;
        self.sequences.values().filter(owner).map(|table| table.held(&self.radix)).sum()
    }
}

fn fits(needed: usize, available: usize) -> Result<(), NoSpace> {
    if needed <= available { Ok(()) } else { Err(NoSpace { needed, available }) }
}
