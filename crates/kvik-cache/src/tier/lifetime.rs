//! Uses of stored blocks: their heat, their time to live, and the sweep of expired ones.
//!
//! As in RAM, a use restarts the time to live of the whole prefix, and a prefix that several requests share gets
//! the longest time that any of them asks for. So no block outlives its parent, unless a file says so: then it is
//! swept with its parent.

use super::record::{Record, SlotId, Use, heat, is_expired, later};
use super::residency::Tier;
use crate::hash::Identity;
use crate::ids::{BLOCK_POSITIONS, Token};

/// Number of swept blocks remembered, so that a miss can be explained.
const SWEPT_MAX: usize = 1 << 14;
/// A time in the past, which marks a block to be swept with its parent.
const LONG_AGO_S: u64 = 1;

impl Tier {
    /// Notes a use of the prefix that ends with the block `identity`, with a time to live of `ttl_s` seconds from
    /// now, unlimited when `None`. Returns the use to be stored with the block.
    pub fn touch(&mut self, identity: &Identity, ttl_s: Option<u64>, now_s: u64) -> Option<(SlotId, Use)> {
        let slot = self.index.slot(identity)?;
        self.unrank(slot);
        let stamp = self.next_stamp();
        let use_ = self.use_again(slot, ttl_s, now_s)?;
        (use_.stamp, use_.heat) = (stamp, use_.heat + 1.0);
        let use_ = *use_;
        self.rank(slot);
        Some((slot, use_))
    }

    /// Extends the time to live of a block of a prefix that is used, to `ttl_s` seconds from now. Returns the use
    /// to be stored with it, if it had a limit.
    pub fn keep(&mut self, identity: &Identity, ttl_s: Option<u64>, now_s: u64) -> Option<(SlotId, Use)> {
        let slot = self.index.slot(identity)?;
        if self.record(slot).use_.expires_s == 0 {
            return None;
        }
        self.unrank(slot);
        let use_ = self.use_again(slot, ttl_s, now_s).copied();
        self.rank(slot);
        use_.map(|use_| (slot, use_))
    }

    /// Extends the time to live of a block and its ancestors, up to the first that is unlimited, as are those
    /// before it. Returns the uses to be stored with them, those of the first blocks first: behind a block that
    /// expires nothing is found.
    pub fn keep_path(&mut self, end: &Identity, ttl_s: Option<u64>, now_s: u64) -> Vec<(SlotId, Use)> {
        let (mut at, mut news) = (*end, Vec::new());
        // A file may contain a cycle of blocks.
        while news.len() < self.slots.len()
            && let Some((slot, use_)) = self.keep(&at, ttl_s, now_s)
        {
            at = self.record(slot).parent;
            news.push((slot, use_));
        }
        news.reverse();
        news
    }

    /// Extends the times to live of a block's ancestors to its own, if its parent has a shorter one: who asked for
    /// the block asked for them too. Returns the uses to be stored with them.
    pub fn keep_ancestors(&mut self, slot: SlotId, now_s: u64) -> Vec<(SlotId, Use)> {
        let Record { parent, use_, .. } = *self.record(slot);
        let own = use_.ttl_s();
        match self.index.slot(&parent).and_then(|slot| self.record(slot).use_.ttl_s()) {
            Some(before) if own.is_none_or(|own| own > before) => self.keep_path(&parent, own, now_s),
            _ => Vec::new(),
        }
    }

    /// Removes expired blocks and their descendants, and returns the slots to erase. Examines at most `blocks_max`
    /// blocks: the rest is swept the next time.
    pub fn sweep(&mut self, now_s: u64, blocks_max: usize) -> Vec<SlotId> {
        let mut swept = Vec::new();
        let mut left = blocks_max;
        while left > 0
            && let Some(&(_, slot)) = self.expiries.first().filter(|(expires_s, _)| *expires_s <= now_s)
        {
            let identity = self.record(slot).identity;
            let children: Vec<SlotId> = self.index.children(&identity).take(left).collect();
            left -= children.len();
            children.into_iter().for_each(|child| self.end_time(child));
            if left > 0 {
                left -= 1;
                self.remember_swept(identity);
                self.release(slot);
                swept.push(slot);
            }
        }
        self.totals.expired += swept.len() as u64;
        swept
    }

    /// The time of the next expiry, unless the block is used before.
    pub fn next_expiry_s(&self) -> Option<u64> {
        self.expiries.first().map(|&(expires_s, _)| expires_s)
    }

    /// Number of tokens of `rest` after the block `at` that were stored and have expired.
    pub(super) fn expired_after(&self, at: &Identity, rest: &[Token], now_s: u64) -> usize {
        let next = &rest[..rest.len().min(BLOCK_POSITIONS)];
        let swept = !next.is_empty() && self.swept.contains(&at.child(next));
        let past = |slot: SlotId| is_expired(self.record(slot), now_s);
        let past = self.index.closest(at, rest, past).map_or(0, |child| child.common);
        if swept { next.len() } else { past }
    }

    /// Restarts the time to live of a block that is not in the ranking at the moment.
    fn use_again(&mut self, slot: SlotId, ttl_s: Option<u64>, now_s: u64) -> Option<&mut Use> {
        let use_ = &mut self.slots[slot.index()].record.as_mut()?.use_;
        let own_ttl_s = use_.expires_s.saturating_sub(use_.at_s);
        let expires_s = ttl_s.map_or(0, |asked_s| now_s.saturating_add(asked_s.max(own_ttl_s)));
        if use_.expires_s != 0 {
            use_.expires_s = later(expires_s, use_.expires_s);
        }
        (use_.heat, use_.at_s) = (heat(use_, now_s), now_s.max(use_.at_s));
        Some(use_)
    }

    /// Expires a block with its parent; it is swept as soon as it is neither read nor written.
    fn end_time(&mut self, slot: SlotId) {
        self.unrank(slot);
        if let Some(record) = &mut self.slots[slot.index()].record {
            record.use_.expires_s = LONG_AGO_S;
        }
        self.rank(slot);
    }

    fn remember_swept(&mut self, identity: Identity) {
        if self.swept.len() >= SWEPT_MAX {
            self.swept.clear();
        }
        self.swept.insert(identity);
    }
}
