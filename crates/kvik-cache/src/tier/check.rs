//! Whether the tier is as it says: the invariants of `residency`, which tests check after every step.

use super::residency::{State, Tier};

impl Tier {
    /// Checks the invariants; the message states the violated one.
    pub fn check(&self) -> Result<(), String> {
        let (mut ranked, mut listed) = (0, 0);
        for (slot, record) in self.used() {
            let state = self.slots[slot.index()].state;
            let leaf = !self.index.has_children(&record.identity);
            let evictable = state == State::Stored && leaf && !record.pinned;
            let key = (record.owner, record.use_.stamp, slot);
            let is_ranked = self.ranks.leaves().any(|ranked| ranked == key);
            if self.index.slot(&record.identity) != Some(slot) {
                return Err(format!("{slot:?} is not found by its identity"));
            }
            if evictable != is_ranked {
                return Err(format!("{slot:?} ({state:?}, leaf: {leaf}) is ranked: {is_ranked}"));
            }
            let ends = state == State::Stored && !record.pinned && record.use_.expires_s != 0;
            if ends != self.expiries.contains(&(record.use_.expires_s, slot)) {
                return Err(format!("{slot:?} ({state:?}) is not listed as its time to live wants it"));
            }
            ranked += usize::from(is_ranked);
            listed += usize::from(ends);
        }
        let (leaves, used) = (self.ranks.leaves().count(), self.used().count());
        if leaves != ranked || self.expiries.len() != listed {
            let times = self.expiries.len();
            return Err(format!(
                "{leaves} leaves and {times} times are listed, {ranked} and {listed} are there"
            ));
        }
        let dropped = self.slots.iter().filter(|slot| slot.state == State::Dropped).count();
        if used + dropped + self.free.len() != self.slots.len() || dropped != self.dropping() {
            return Err(format!("{used} slots in use and {} free ones are not all", self.free.len()));
        }
        self.check_followers()
    }
}
