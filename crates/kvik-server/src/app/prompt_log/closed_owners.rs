//! The owners that were deleted last: nothing is noted for them any more.

use std::collections::{BTreeSet, VecDeque};

/// The files of the owners that were deleted last.
#[derive(Default)]
pub(super) struct ClosedOwners {
    files: BTreeSet<String>,
    /// Oldest first.
    order: VecDeque<String>,
}

impl ClosedOwners {
    pub(super) fn contains(&self, file: &str) -> bool {
        self.files.contains(file)
    }

    /// Adds a file; beyond `max` of them the oldest is forgotten.
    pub(super) fn insert(&mut self, file: String, max: usize) {
        if !self.files.insert(file.clone()) {
            return;
        }
        self.order.push_back(file);
        if self.order.len() > max
            && let Some(oldest) = self.order.pop_front()
        {
            self.files.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_deleted_owners_the_oldest_are_forgotten() {
        let mut closed = ClosedOwners::default();
        for file in ["a", "b", "a", "c"] {
            closed.insert(file.to_owned(), 2);
        }
        assert_eq!(closed.files.iter().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(closed.order, ["b", "c"]);
    }
}
