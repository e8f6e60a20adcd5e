//! What a node removes from the store.

use kvik_cache::Identity;

use super::Line;

impl Line {
    /// Removes runs, also those that wait to be written. What a store that cannot be reached still has is removed when
    /// this is asked again.
    pub(super) fn forget(&mut self, ends: &[Identity]) {
        self.writes.retain(|offer| !ends.contains(&offer.end));
        for end in ends {
            self.written.remove(end);
            self.forgetting.insert(*end);
        }
        if self.is_cut_off() {
            return;
        }
        let mut depot = self.depot.lock().unwrap();
        for end in ends {
            depot.values.remove(end);
            self.forgetting.remove(end);
        }
    }

    /// Runs that are to be removed and may still be there.
    pub(crate) fn removals_left(&self) -> usize {
        self.forgetting.len()
    }

    /// Whether the store has one of these runs.
    pub(crate) fn has_any(&self, ends: &[Identity]) -> bool {
        let depot = self.depot.lock().unwrap();
        ends.iter().any(|end| depot.values.contains_key(end))
    }
}
