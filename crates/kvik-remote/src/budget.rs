//! Chooses the values to be removed from a store that does not expire them by itself.

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::config::Budget;
use crate::names::{Key, OwnerTag};

/// The limits of a store.
#[derive(Debug, Clone)]
pub struct SweepRules {
    /// Time to live of a value after its last use.
    pub ttl: Duration,
    /// Maximum number of bytes of all values together.
    pub total_max: Option<u64>,
    /// Maximum number of bytes of each owner.
    pub owner_max: Option<u64>,
    /// Minimum time between two sweeps.
    pub every: Duration,
}

/// A value in a store.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// Its size.
    pub bytes: u64,
    /// Time since its last use.
    pub age: Duration,
}

impl SweepRules {
    /// The rules of a budget.
    pub fn new(budget: &Budget, ttl: Duration, every: Duration) -> SweepRules {
        SweepRules { ttl, total_max: budget.total, owner_max: budget.owner, every }
    }

    /// The values to remove: expired ones, then the least recently used ones beyond an owner's limit, then those
    /// beyond the total.
    pub fn surplus(&self, mut entries: Vec<Entry>) -> Vec<Key> {
        let mut leaving = Vec::new();
        entries.retain(|entry| keep(entry.age <= self.ttl, entry, &mut leaving));
        // The most recently used first: values beyond the limit are removed.
        entries.sort_unstable_by_key(|entry| (entry.age, entry.key));
        let mut used: FxHashMap<OwnerTag, u64> = FxHashMap::default();
        entries.retain(|entry| {
            let used = used.entry(entry.key.owner).or_default();
            keep(fits(used, entry.bytes, self.owner_max), entry, &mut leaving)
        });
        let mut used = 0;
        entries.retain(|entry| keep(fits(&mut used, entry.bytes, self.total_max), entry, &mut leaving));
        leaving
    }
}

fn keep(stays: bool, entry: &Entry, leaving: &mut Vec<Key>) -> bool {
    if !stays {
        leaving.push(entry.key);
    }
    stays
}

/// Returns whether `bytes` fit in addition to the used ones. A value that does not fit counts as well, so that no
/// older one takes its place.
fn fits(used: &mut u64, bytes: u64, max: Option<u64>) -> bool {
    *used = used.saturating_add(bytes);
    max.is_none_or(|max| *used <= max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let entry = (0..4_u8, 1..100_u64, 0..100_u64);
        prop::collection::vec(entry, 0..40).prop_map(|entries| {
            let entry = |(number, (owner, bytes, age)): (usize, (u8, u64, u64))| Entry {
                key: Key { owner: OwnerTag([owner; 8]), name: (number as u128).to_le_bytes() },
                bytes,
                age: Duration::from_secs(age),
            };
            entries.into_iter().enumerate().map(entry).collect()
        })
    }

    proptest! {
        #[test]
        fn what_stays_is_within_all_limits_and_more_recent_than_what_leaves(
            entries in entries(), total in 0..1000_u64, of_one in 0..300_u64,
        ) {
            let (ttl, total_max, owner_max) = (Duration::from_secs(80), Some(total), Some(of_one));
            let rules = SweepRules { ttl, total_max, owner_max, every: Duration::ZERO };
            let leaving = rules.surplus(entries.clone());
            let (gone, stays): (Vec<&Entry>, Vec<&Entry>) =
                entries.iter().partition(|entry| leaving.contains(&entry.key));
            prop_assert_eq!(gone.len(), leaving.len(), "each leaves once");
            prop_assert!(stays.iter().map(|entry| entry.bytes).sum::<u64>() <= total);
            for owner in 0..4 {
                let of = stays.iter().filter(|entry| entry.key.owner.0 == [owner; 8]);
                prop_assert!(of.map(|entry| entry.bytes).sum::<u64>() <= of_one);
            }
            prop_assert!(stays.iter().all(|entry| entry.age <= ttl));
            for gone in gone.iter().filter(|entry| entry.age <= ttl) {
                let newer = entries.iter().filter(|entry| entry.age <= gone.age);
                let own = newer.clone().filter(|entry| entry.key.owner == gone.key.owner);
                let is_over = own.map(|entry| entry.bytes).sum::<u64>() > of_one
                    || newer.map(|entry| entry.bytes).sum::<u64>() > total;
                prop_assert!(is_over, "{gone:?} left for nothing");
            }
        }
    }
}
