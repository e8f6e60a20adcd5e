//! Uses of stored blocks: how warm they are, how long they stay without another use, and the sweep of those whose
//! time to live has ended.
//!
//! As in RAM, a use begins the time to live of the whole prefix anew, and a prefix that several have asked for
//! stays as long as the most patient of them wants. So no block outlives what comes before it, unless a file
//! says so: then it is swept with that.

use super::record::{SlotId, Use};
use super::residency::{Tier, heat, is_expired, later};
use crate::hash::Identity;
use crate::ids::{BLOCK_POSITIONS, Token};

/// Swept blocks remembered, so that a miss can be explained.
const SWEPT_MAX: usize = 1 << 14;
/// What is past at any time: when a block is to be swept with what comes before it.
const LONG_AGO_S: u64 = 1;

impl Tier {
    /// The prefix that ends with the block `identity` was used by somebody who wants it kept for `ttl_s`
    /// seconds after that, for ever when `None`: what to note beside the stored block.
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

    /// A block is part of a prefix that is used by somebody who wants it kept for `ttl_s` seconds after that:
    /// what to note beside it, when that is news.
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

    /// The same for a block and all before it, up to the first that is for ever, as those before it are.
    pub fn keep_path(&mut self, end: &Identity, ttl_s: Option<u64>, now_s: u64) -> Vec<(SlotId, Use)> {
        let (mut at, mut news) = (*end, Vec::new());
        // A file may name blocks that come before each other.
        while news.len() < self.slots.len()
            && let Some((slot, use_)) = self.keep(&at, ttl_s, now_s)
        {
            at = self.record(slot).parent;
            news.push((slot, use_));
        }
        news
    }

    /// Takes out blocks that have outlived their time, and those that come after them; slots to erase. Looks
    /// at no more than `blocks_max` blocks: the rest is swept the next time.
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

    /// When there will be something to sweep, unless it is used before.
    pub fn next_expiry_s(&self) -> Option<u64> {
        self.expiries.first().map(|&(expires_s, _)| expires_s)
    }

    /// Tokens of `rest` after the block `at` that were there and have outlived their time.
    pub(super) fn expired_after(&self, at: &Identity, rest: &[Token], now_s: u64) -> usize {
        let next = &rest[..rest.len().min(BLOCK_POSITIONS)];
        let swept = !next.is_empty() && self.swept.contains(&at.child(next));
        let past = |slot: SlotId| is_expired(self.record(slot), now_s);
        let past = self.index.closest(at, rest, past).map_or(0, |child| child.common);
        if swept { next.len() } else { past }
    }

    /// Begins the time to live of a block that is not ranked anew.
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

    /// Ends the time of a block with that of the block before it, as soon as nobody reads or writes it.
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
