//! Slots that another process writes: their content is observed and not decided here.
//!
//! As long as a tier only observes, nothing is placed in it: its slots are free, stored or being read. A slot that is
//! being read keeps its record, so its observation has to wait.

use std::collections::BTreeSet;

use super::record::{Record, SlotId};
use super::residency::{State, Tier};
use crate::hash::Identity;
use crate::ids::Token;

/// The content of a slot as another process has left it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observed {
    /// The slot.
    pub slot: SlotId,
    /// Its block, if it holds one.
    pub record: Option<Record>,
}

impl Tier {
    /// Replaces the records of slots by those that were observed, in order. Returns the observations that have to wait
    /// because a slot is being read. Slots that this tier does not have, or is writing itself, stay as they are.
    pub fn observe(&mut self, observed: impl IntoIterator<Item = Observed>) -> Vec<Observed> {
        let mut changed = BTreeSet::new();
        let mut waiting: Vec<Observed> = observed.into_iter().collect();
        waiting.retain(|observed| !self.observe_slot(observed, &mut changed));
        // All at once: those that follow each other may have been observed in any order.
        self.follow(&changed.iter().copied().collect::<Vec<SlotId>>());
        self.free.retain(|slot| !changed.contains(slot));
        let free = changed.into_iter().rev().filter(|slot| self.slots[slot.index()].state == State::Free);
        self.free.extend(free);
        waiting
    }

    /// The root of the namespace of the block in a slot, and all tokens up to its end; `None` if the slot is empty.
    pub fn path(&self, slot: SlotId) -> Option<(Identity, Vec<Token>)> {
        let mut path = vec![self.slots.get(slot.index())?.record.as_ref()?];
        let mut root = path[0].parent;
        while let Some(before) = self.index.slot(&root) {
            // A file may contain a cycle of blocks.
            if path.len() > self.slots.len() {
                return None;
            }
            path.push(self.record(before));
            root = self.record(before).parent;
        }
        let tokens = path.iter().rev().flat_map(|record| record.tokens.as_slice()).copied().collect();
        Some((root, tokens))
    }

    /// The slot of the block before the one in a slot.
    pub fn before(&self, slot: SlotId) -> Option<SlotId> {
        let record = self.slots.get(slot.index())?.record.as_ref()?;
        self.index.slot(&record.parent)
    }

    /// Returns whether an observation needs no more attention.
    fn observe_slot(&mut self, observed: &Observed, changed: &mut BTreeSet<SlotId>) -> bool {
        let &Observed { slot, record } = observed;
        match self.slots.get(slot.index()).map(|slot| slot.state) {
            None | Some(State::Writing | State::Dropped) => return true,
            Some(State::Reading { .. }) => return false,
            Some(State::Free | State::Stored) => {}
        }
        // The same block in another slot was moved from there.
        let moved = record.and_then(|record| self.index.slot(&record.identity)).filter(|&from| from != slot);
        if moved.is_some_and(|from| self.slots[from.index()].state != State::Stored) {
            return false;
        }
        changed.extend(moved.into_iter().chain([slot]));
        let emptied = if record.is_none() { Some(slot) } else { moved };
        if let Some(emptied) = emptied {
            self.forget(emptied);
        }
        if let Some(record) = record {
            self.hold(slot, record, State::Stored);
            self.stamp = self.stamp.max(record.use_.stamp);
            self.rank(slot);
            if let Some(parent) = self.index.slot(&record.parent) {
                // It is no leaf any more.
                self.unrank(parent);
                self.rank(parent);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::tier::record::{BlockTokens, Use};

    const SLOTS: u32 = 12;

    /// Block `number` of a tree in which each block follows that of half its number.
    fn record(number: u32) -> Record {
        let parent = if number < 2 { Identity([9; 32]) } else { record(number / 2).identity };
        let tokens: Vec<Token> = (0..16).map(|at| number * 100 + at).collect();
        Record {
            identity: parent.child(&tokens),
            parent,
            owner: u64::from(number % 3),
            content_key: 0,
            tokens: BlockTokens::new(&tokens).unwrap(),
            pinned: number.is_multiple_of(5),
            lacks_part: false,
            use_: Use {
                stamp: u64::from(number),
                heat: 1.0,
                at_s: 1,
                expires_s: u64::from(number % 4) * 100,
            },
        }
    }

    fn held(tier: &Tier) -> BTreeMap<SlotId, Identity> {
        tier.used().map(|(slot, record)| (slot, record.identity)).collect()
    }

    /// Random contents of slots are observed beside a map. A block that was seen in a new slot has left the old one.
    #[test]
    fn a_tier_holds_what_was_observed_last() {
        let (mut tier, mut twin) = (Tier::new(SLOTS), BTreeMap::<SlotId, Identity>::new());
        tier.index_followers();
        let mut random = 7_u64;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        let (mut waited, mut waiting) = (0, Vec::new());
        for _ in 0..4000 {
            let mut batch = waiting;
            let reads: Vec<SlotId> = tier.used().map(|(slot, _)| slot).take(below(3) as usize).collect();
            tier.pin_for_reading(&reads);
            for _ in 0..=below(4) {
                let number = below(40) as u32;
                let record = (below(3) > 0).then(|| record(number));
                batch.push(Observed { slot: SlotId(below(u64::from(SLOTS) + 2) as u32), record });
            }
            waiting = tier.observe(batch);
            waited += waiting.len();
            tier.check().unwrap();
            reads.iter().for_each(|&slot| assert!(!tier.unpin_after_reading(slot, Some(true))));
            tier.check().unwrap();
        }
        assert!(waited > 100, "some had to wait: {waited}");
        tier.observe(waiting);
        for slot in (0..SLOTS).map(SlotId) {
            let record = (below(2) > 0).then(|| record(below(40) as u32));
            assert!(tier.observe([Observed { slot, record }]).is_empty());
            twin.remove(&slot);
            if let Some(record) = record {
                twin.retain(|_, identity| *identity != record.identity);
                twin.insert(slot, record.identity);
            }
        }
        assert_eq!(held(&tier), twin);
        assert_eq!(tier.stats().used, twin.len());
        tier.check().unwrap();
    }

    #[test]
    fn the_path_of_a_block_begins_at_the_root_of_its_namespace() {
        let mut tier = Tier::new(SLOTS);
        let slots = [(0, 9), (4, 4), (2, 2), (3, 1)];
        tier.observe(
            slots.map(|(slot, number)| Observed { slot: SlotId(slot), record: Some(record(number)) }),
        );
        let (root, tokens) = tier.path(SlotId(0)).unwrap();
        assert_eq!(root, Identity([9; 32]));
        let expected: Vec<Token> =
            [1, 2, 4, 9].iter().flat_map(|number| (0..16).map(move |at| number * 100 + at)).collect();
        assert_eq!(tokens, expected);
        assert_eq!((tier.path(SlotId(1)), tier.path(SlotId(99))), (None, None));
        assert_eq!([0, 3, 1, 99].map(|slot| tier.before(SlotId(slot))), [Some(SlotId(4)), None, None, None]);
        tier.observe([Observed { slot: SlotId(2), record: None }]);
        assert_eq!(tier.path(SlotId(0)).unwrap().0, record(2).identity, "the rest is not there");
    }
}
