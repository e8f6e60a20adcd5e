//! What is found in the tier: the stored part of a prompt, and prefixes that are worth loading. Changes nothing.

use super::record::{Record, SlotId, heat, is_expired};
use super::residency::{Slot, State, Tier};
use crate::hash::Identity;
use crate::ids::{BLOCK_POSITIONS, Token};

/// The stored part of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The blocks, in order; the last one may match in part.
    pub slots: Vec<SlotId>,
    /// Matching tokens.
    pub tokens: usize,
    /// Tokens that would match if no block had expired.
    pub expired: usize,
}

/// A stored prefix from the first block on.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    /// Expected uses during the half-life of its heat, at the recent rate; infinite when it is pinned.
    pub expected_uses: f64,
    /// The namespace's root.
    pub root: Identity,
    /// Its blocks, in order.
    pub slots: Vec<SlotId>,
    /// Its tokens.
    pub tokens: Vec<Token>,
}

impl Tier {
    /// Finds the stored blocks that continue the block `parent` with `rest`. Changes nothing.
    pub fn find(&self, parent: &Identity, mut rest: &[Token], now_s: u64) -> Found {
        let (mut at, mut found) = (*parent, Found::default());
        loop {
            let readable = |slot: SlotId| self.is_readable(slot, now_s);
            let Some(child) = self.index.closest(&at, rest, readable) else {
                found.expired = found.tokens + self.expired_after(&at, rest, now_s);
                return found;
            };
            found.slots.push(child.slot);
            found.tokens += child.common;
            rest = &rest[child.common..];
            at = self.record(child.slot).identity;
            if child.common < BLOCK_POSITIONS {
                return found;
            }
        }
    }

    /// The block `identity` and all its descendants, parents before children; empty if it is not stored.
    pub fn under(&self, identity: &Identity) -> Vec<Identity> {
        let mut under: Vec<Identity> = self.index.slot(identity).map(|_| *identity).into_iter().collect();
        let mut next = 0;
        while let Some(&at) = under.get(next).filter(|_| under.len() <= self.slots.len()) {
            under.extend(self.index.children(&at).map(|slot| self.record(slot).identity));
            next += 1;
        }
        under
    }

    /// The children of a block, or of the root of a namespace.
    pub fn after(&self, identity: &Identity) -> Vec<SlotId> {
        self.index.children(identity).collect()
    }

    /// The parents of an owner's blocks that are not stored themselves: roots of namespaces.
    pub fn roots(&self, owner: u64) -> Vec<Identity> {
        let own = self.used().map(|(_, record)| record).filter(|record| record.owner == owner);
        let mut roots: Vec<Identity> = own.map(|record| record.parent).collect();
        roots.retain(|parent| self.index.slot(parent).is_none());
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    /// Whole prefixes worth loading into RAM, pinned ones first, then the hottest, at most `blocks` in all.
    pub fn warmest(&self, blocks: usize, now_s: u64) -> Vec<Chain> {
        let mut ends: Vec<(bool, f32, u64, SlotId)> = self
            .used()
            .filter(|&(slot, _)| self.is_readable(slot, now_s))
            .map(|(slot, record)| (record.pinned, heat(&record.use_, now_s), record.use_.stamp, slot))
            .filter(|&(pinned, heat, ..)| pinned || heat > 0.0)
            .collect();
        ends.sort_by(|a, b| (b.0.cmp(&a.0)).then(b.1.total_cmp(&a.1)).then(b.2.cmp(&a.2)));
        let mut taken = vec![false; self.slots.len()];
        let mut left = blocks;
        let mut chains = Vec::new();
        for (.., end) in ends {
            // A chain is walked from its end to its root.
            if left == 0 || taken[end.index()] {
                continue;
            }
            let Some(chain) = self.chain(end, now_s) else { continue };
            let new = chain.slots.iter().filter(|slot| !taken[slot.index()]).count();
            if new <= left {
                left -= new;
                chain.slots.iter().for_each(|slot| taken[slot.index()] = true);
                chains.push(chain);
            }
        }
        chains
    }

    /// The prefix that ends in `end`, if all of it is readable.
    fn chain(&self, end: SlotId, now_s: u64) -> Option<Chain> {
        let mut slots = vec![end];
        let mut root = self.record(end).parent;
        while let Some(slot) = self.index.slot(&root) {
            // A file may contain a cycle of blocks.
            if !self.is_readable(slot, now_s) || slots.len() > self.slots.len() {
                return None;
            }
            slots.push(slot);
            root = self.record(slot).parent;
        }
        slots.reverse();
        let tokens = slots.iter().flat_map(|&slot| self.record(slot).tokens.as_slice()).copied().collect();
        let Record { pinned, use_, .. } = self.record(end);
        let expected_uses =
            if *pinned { f64::INFINITY } else { f64::from(heat(use_, now_s)) * std::f64::consts::LN_2 };
        Some(Chain { expected_uses, root, slots, tokens })
    }

    fn is_readable(&self, slot: SlotId, now_s: u64) -> bool {
        let Slot { record, state } = &self.slots[slot.index()];
        let sound = matches!(state, State::Stored | State::Reading { damaged: false, .. });
        sound && record.as_ref().is_some_and(|record| !is_expired(record, now_s))
    }
}
