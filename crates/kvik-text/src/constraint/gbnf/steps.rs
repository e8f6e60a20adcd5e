//! The cost of translating a grammar: the number of processed terms, symbols and pairs of characters.
//!
//! Grammars are hostile input, and the cost depends less on their length than on the references between rules.

use std::cell::Cell;

use super::GbnfError;

/// Maximum steps of one grammar: some nanoseconds each.
pub(super) const STEPS_MAX: usize = 100_000_000;

/// The number of steps taken, and its maximum.
#[derive(Debug)]
pub(super) struct Steps {
    taken: Cell<usize>,
    max: usize,
}

impl Steps {
    pub(super) fn at_most(max: usize) -> Steps {
        Steps { taken: Cell::new(0), max }
    }

    /// Takes steps, if they are left. They are taken before the work is done.
    pub(super) fn take(&self, steps: usize) -> Result<(), GbnfError> {
        let count = self.taken.get().saturating_add(steps);
        self.taken.set(count);
        if count > self.max {
            return Err(GbnfError::TooLarge { what: "steps of translation", count, max: self.max });
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken.get()
    }
}
