//! The work of writing a grammar, counted: terms, symbols and pairs of characters that are looked at.
//!
//! Grammars are hostile input, and what takes long is not their length but how their rules refer to each other.

use std::cell::Cell;

use super::GbnfError;

/// Maximum steps of one grammar: some nanoseconds each.
pub(super) const STEPS_MAX: usize = 100_000_000;

/// Steps taken, and how many there may be.
#[derive(Debug)]
pub(super) struct Steps {
    taken: Cell<usize>,
    max: usize,
}

impl Steps {
    pub(super) fn at_most(max: usize) -> Steps {
        Steps { taken: Cell::new(0), max }
    }

    /// Takes so many, if they are left. They are taken before the work is done.
    pub(super) fn take(&self, steps: usize) -> Result<(), GbnfError> {
        let count = self.taken.get().saturating_add(steps);
        self.taken.set(count);
        if count > self.max {
            return Err(GbnfError::TooLarge { what: "steps of writing it", count, max: self.max });
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken.get()
    }
}
