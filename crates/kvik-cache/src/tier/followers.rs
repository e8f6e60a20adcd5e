//! Followers in stored blocks: the continuations of earlier answers after a restart, and of those that RAM has
//! evicted. The tokens of a block are in its record, so nothing is read from disk.

use super::record::{SlotId, is_expired};
use super::residency::{Slot, Tier};
use crate::hash::Identity;
use crate::ids::{BlockId, Token};
use crate::tree::{BlockText, FollowerIndex, Followers, Link};

/// The content of the slots at a given time.
struct Text<'a> {
    slots: &'a [Slot],
    now_s: u64,
}

impl BlockText for Text<'_> {
    fn tokens(&self, block: BlockId) -> &[Token] {
        let record = self.slots.get(block.index()).and_then(|slot| slot.record.as_ref());
        let record = record.filter(|record| !is_expired(record, self.now_s));
        record.map_or(&[], |record| record.tokens.as_slice())
    }
}

impl Tier {
    /// Indexes blocks, including those already stored, by the tokens before them. This takes 128 to 192 bytes for
    /// each slot, and 52 for each slot that was ever used.
    pub fn index_followers(&mut self) {
        self.followers = u32::try_from(self.slots.len()).ok().and_then(FollowerIndex::new);
        let first = self.used().filter(|(_, record)| self.index.slot(&record.parent).is_none());
        let first = first.map(|(slot, _)| slot).collect();
        let mut slots = self.link_from(first);
        // The most recently used is found first.
        self.sort_by_use(&mut slots);
        slots.into_iter().for_each(|slot| self.note_text(slot));
    }

    /// Returns at most `most` tokens that followed the end of `tokens` in the namespace with this root: of the
    /// latest occurrences the one with the longest common context. Changes nothing.
    ///
    /// Dropped and expired tokens are not found, nor those of another namespace.
    pub fn followers(&self, root: &Identity, tokens: &[Token], most: usize, now_s: u64) -> Option<Followers> {
        self.followers.as_ref()?.find(*root, tokens, most, &Text { slots: &self.slots, now_s })
    }

    /// Notes blocks that were stored in slots, those that have not been noted; their descendants, unreachable since
    /// an earlier loss, become reachable again.
    pub(super) fn follow(&mut self, stored: &[SlotId]) {
        if self.followers.is_none() {
            return;
        }
        let is_new = |slot: &SlotId| self.slots[slot.index()].record.is_some() && !self.is_linked(*slot);
        let new: Vec<SlotId> = stored.iter().copied().filter(is_new).collect();
        // Descendants that were stored before them are linked as the beginnings of prefixes.
        new.iter().for_each(|&slot| self.unfollow(slot));
        let first = new.into_iter().filter(|&slot| self.is_reachable(slot)).collect();
        let slots = self.link_from(first);
        slots.into_iter().for_each(|slot| self.note_text(slot));
    }

    /// Notes that a block leaves its slot, which is reused: its descendants are unreachable without it. Behind one
    /// that is unreachable already, all are.
    pub(super) fn unfollow(&mut self, slot: SlotId) {
        let Some(mut followers) = self.followers.take() else { return };
        let mut linked = vec![slot];
        while let Some(slot) = linked.pop() {
            #[cfg(test)]
            self.count_visit();
            followers.remove([number(slot)]);
            let children = self.index.children(&self.record(slot).identity);
            linked.extend(children.filter(|&child| followers.get(number(child)).namespace.is_some()));
        }
        self.followers = Some(followers);
    }

    /// Links the given slots and those of all their descendants, and returns them, parents before children. Cycles,
    /// which a file may contain, are never reached.
    fn link_from(&mut self, mut slots: Vec<SlotId>) -> Vec<SlotId> {
        self.sort_by_use(&mut slots);
        let mut next = 0;
        while let Some(&slot) = slots.get(next).filter(|_| slots.len() <= self.slots.len()) {
            #[cfg(test)]
            self.count_visit();
            self.link(slot);
            let mut children: Vec<SlotId> = self.index.children(&self.record(slot).identity).collect();
            self.sort_by_use(&mut children);
            slots.append(&mut children);
            next += 1;
        }
        slots
    }

    /// Whether a block begins a prefix or follows a block that is linked.
    fn is_reachable(&self, slot: SlotId) -> bool {
        let before = self.index.slot(&self.record(slot).parent);
        before.is_none_or(|before| self.is_linked(before))
    }

    fn is_linked(&self, slot: SlotId) -> bool {
        self.followers.as_ref().is_some_and(|followers| followers.get(number(slot)).namespace.is_some())
    }

    #[cfg(test)]
    fn count_visit(&mut self) {
        self.visits += 1;
    }

    fn link(&mut self, slot: SlotId) {
        let parent = self.record(slot).parent;
        let before = self.index.slot(&parent).map(number);
        let Some(followers) = &mut self.followers else { return };
        let namespace = before.map_or(Some(parent), |before| followers.get(before).namespace);
        if let Some(namespace) = namespace {
            followers.link(namespace, before, number(slot));
        }
    }

    fn note_text(&mut self, slot: SlotId) {
        if let Some(followers) = &mut self.followers {
            // At time 0 nothing has expired.
            followers.note(number(slot), &Text { slots: &self.slots, now_s: 0 });
        }
    }

    fn sort_by_use(&self, slots: &mut [SlotId]) {
        slots.sort_by_key(|&slot| self.record(slot).use_.stamp);
    }

    /// Checks that each link of the index of followers is right or absent.
    pub(super) fn check_followers(&self) -> Result<(), String> {
        let Some(followers) = &self.followers else { return Ok(()) };
        for (index, slot) in (0..).zip(&self.slots) {
            let link = followers.get(BlockId(index));
            let Some(record) = slot.record.filter(|_| link.namespace.is_some()) else {
                if link == Link::NONE {
                    continue;
                }
                return Err(format!("slot {index} is followed as {link:?} and holds nothing"));
            };
            let before = self.index.slot(&record.parent).map(number);
            let namespace = before.map_or(Some(record.parent), |before| followers.get(before).namespace);
            if (link.before, link.namespace) != (before, namespace) {
                return Err(format!("slot {index} is followed as {link:?}, and {before:?} is before it"));
            }
        }
        Ok(())
    }
}

/// The number of a slot in the index of followers.
fn number(slot: SlotId) -> BlockId {
    BlockId(slot.0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{records, root};
    use super::super::{Placement, Record};
    use super::*;

    const OURS: u64 = 1;
    const THEIRS: u64 = 2;

    /// Stores a prompt.
    fn store(tier: &mut Tier, owner: u64, prompt: &[Token], expires_s: u64) {
        for record in records(owner, prompt, expires_s) {
            if let Placement::Write(slot) = tier.place(record, &root(owner as u8), 0) {
                tier.written(slot, true);
            }
        }
    }

    fn find(tier: &Tier, owner: u64, tokens: &[Token]) -> Vec<Token> {
        let found = tier.followers(&root(owner as u8), tokens, 30, 0);
        found.map_or_else(Vec::new, |found| found.tokens)
    }

    /// A restarted tier that finds the same slots, in any order.
    fn restarted(tier: &Tier) -> Tier {
        let mut found: Vec<(SlotId, Record)> = tier.used().map(|(slot, record)| (slot, *record)).collect();
        found.reverse();
        let (mut tier, surplus) = Tier::with(tier.slots.len() as u32, found);
        assert!(surplus.is_empty());
        tier.index_followers();
        tier.check().unwrap();
        tier
    }

    #[test]
    fn what_is_stored_is_found_again_after_a_restart_by_its_owner_alone() {
        let mut tier = Tier::new(20);
        tier.index_followers();
        let prompt: Vec<Token> = (0..50).collect();
        store(&mut tier, OURS, &prompt, 0);
        store(&mut tier, OURS, &[100, 101, 20, 21, 22, 23, 7, 7], 0);
        for tier in [&tier, &restarted(&tier)] {
            assert_eq!(find(tier, OURS, &prompt[..12]), prompt[12..42], "over the ends of blocks");
            assert_eq!(find(tier, OURS, &prompt[..24]), prompt[24..], "where most before it is the same");
            assert_eq!(find(tier, OURS, &[20, 21, 22, 23]), [7, 7], "what was said last");
            assert_eq!(find(tier, THEIRS, &prompt[..12]), []);
        }
        tier.remove(0, |record| record.tokens.as_slice().contains(&100));
        assert_eq!(find(&tier, OURS, &[20, 21, 22, 23]), prompt[24..]);
        assert_eq!(find(&tier, OURS, &[100, 101, 20, 21]), []);
    }

    #[test]
    fn what_has_outlived_its_time_is_not_found() {
        let mut tier = Tier::new(20);
        tier.index_followers();
        let prompt: Vec<Token> = (0..20).collect();
        store(&mut tier, OURS, &prompt, 100);
        let found = |now_s| tier.followers(&root(OURS as u8), &prompt[..5], 30, now_s).is_some();
        assert_eq!([found(99), found(100)], [true, false]);
    }

    /// A block that could not be read leaves its descendants behind, unreachable: its slot is reused by then.
    #[test]
    fn a_block_that_is_lost_takes_those_after_it_along() {
        let mut tier = Tier::new(20);
        tier.index_followers();
        let prompt: Vec<Token> = (0..64).collect();
        store(&mut tier, OURS, &prompt, 0);
        let slots = tier.find(&root(OURS as u8), &prompt, 0).slots;
        tier.pin_for_reading(&slots[..2]);
        assert!(tier.unpin_after_reading(slots[1], Some(false)));
        tier.check().unwrap();
        assert_eq!(find(&tier, OURS, &prompt[..5]), prompt[5..16]);
        store(&mut tier, THEIRS, &(100..120).collect::<Vec<Token>>(), 0);
        assert_eq!(find(&tier, OURS, &prompt[50..56]), [], "nothing is reached through a slot of others");
        store(&mut tier, OURS, &prompt, 0);
        tier.check().unwrap();
        assert_eq!(find(&tier, OURS, &prompt[50..56]), prompt[56..], "it is computed again");
        assert_eq!(find(&tier, OURS, &prompt[10..20]), prompt[20..50]);
    }
}
