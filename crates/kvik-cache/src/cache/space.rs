//! Space: whether blocks can be had, and what is evicted for them.
//!
//! The only place where blocks are evicted for others. A command first asks whether all the blocks it needs are
//! free or evictable; then [`make_room`](Cache::make_room) cannot fail.

use super::life::Cache;
use crate::admission::NoSpace;
use crate::evict::{Cause, TenantStats};
use crate::ids::{NamespaceId, NodeId, TenantId, blocks_for};
use crate::table::Table;
use crate::tree::Walk;

impl Cache {
    /// Evicts until the tree holds at most `blocks`, or only what running sequences use.
    pub fn shrink(&mut self, blocks: usize) {
        let excess = self.pool.shared().saturating_sub(blocks).min(self.radix.evictable());
        self.evict(excess);
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

    /// Evicts until `needed` blocks are free, which can be had: blocks first, places when there are no more of them. With
    /// a block goes the place that stands in it.
    pub(super) fn free_up(&mut self, needed: usize) {
        while self.pool.free() < needed {
            let missing = needed - self.pool.free();
            match self.radix.evictable().min(missing) {
                0 => self.evict_place(),
                count if self.needs().is_nothing() => self.evict(count),
                // One at a time: its place may free enough.
                _ => self.evict(1),
            }
        }
    }

    /// Evicts `count` blocks; at least that many are evictable.
    fn evict(&mut self, count: usize) {
        let mut left = count;
        while left > 0 {
            left -= match self.radix.shares.only_holder() {
                Some(tenant) => self.evict_of(tenant, left),
                None => self.evict_fairly(left),
            };
        }
    }

    /// Evicts blocks of the first victim tenant that has evictable ones, at most `count`; returns how many.
    fn evict_fairly(&mut self, count: usize) -> usize {
        let claims = self.radix.shares.victim_tenants(self.radix.now, |tenant| self.owned_by(tenant));
        let mut evicted = claims.iter().enumerate().map(|(index, claim)| {
            let count = claim.victims(count, claims.get(index + 1));
            self.evict_of(claim.tenant, count)
        });
        evicted.find(|&count| count > 0).expect("room is made only when enough is evictable")
    }

    /// Evicts every prefix that has outlived its time to live. No block outlives those before it, so nothing that
    /// follows is left.
    pub(super) fn drop_expired(&mut self) {
        while let Some(leaf) = self.radix.expired() {
            self.evict_from(leaf, usize::MAX, Cause::Expired);
        }
    }

    /// Evicts the blocks of a tenant beyond its quota, as if `coming` blocks were there already.
    pub(super) fn keep_quota(&mut self, namespace: NamespaceId, coming: usize) {
        let TenantStats { share, blocks, .. } = *self.radix.shares.of(namespace);
        let Some(quota) = share.quota_blocks else { return };
        let mut excess = (blocks + self.owned_by(share.tenant) + coming).saturating_sub(quota);
        while excess > 0 {
            match self.evict_of(share.tenant, excess) {
                0 => return,
                count => excess -= count,
            }
        }
    }

    /// Evicts blocks of a tenant's next victim, at most `count`; returns how many.
    fn evict_of(&mut self, tenant: TenantId, count: usize) -> usize {
        let cause = Cause::Evicted(self.radix.evictor.policy());
        let victim = self.radix.victim(tenant);
        victim.map_or(0, |leaf| self.evict_from(leaf, count, cause))
    }

    /// Evicts blocks from the end of an unlocked leaf, at most `count`; returns how many.
    fn evict_from(&mut self, leaf: NodeId, count: usize, cause: Cause) -> usize {
        let node = &self.radix.arena[leaf];
        let (namespace, count) = (node.namespace, count.min(node.blocks().len()));
        #[cfg(test)]
        self.note_evictions(leaf, count, cause);
        self.radix.evict(leaf, count, cause).release(&mut self.pool);
        self.totals.evicted += count as u64;
        self.radix.shares.of_mut(namespace).evicted += count as u64;
        count
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

    /// Blocks of a tenant's running sequences that are not in the tree.
    pub(super) fn owned_by(&self, tenant: TenantId) -> usize {
        let owner = |table: &&Table| self.radix.owner(table.lease()) == tenant;
        self.sequences.values().filter(owner).map(|table| table.owned().len()).sum()
    }
}

fn fits(needed: usize, available: usize) -> Result<(), NoSpace> {
    if needed <= available { Ok(()) } else { Err(NoSpace { needed, available }) }
}
