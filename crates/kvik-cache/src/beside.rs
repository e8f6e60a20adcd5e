//! What layers hold of a sequence beside its blocks, and how much of the budget that takes.
//!
//! ```text
//! layers that see           hold of a sequence                   to go on at position p they need
//! all positions             the blocks                           all blocks before p
//! a window, a chunk         a part of each block, beside it      the parts of the blocks that p sees
//! what went before,         a state, which moves on with every   the state as it stood at p, to the position
//!   as a recurrence           position and cannot be cut back
//! ```
//!
//! Everything is counted in blocks: a block is the measure of the budget, and what stands beside blocks takes as many
//! of them from the pool as have its size, rounded up for each who holds it.

use crate::ids::{BLOCK_POSITIONS, blocks_for};

/// Positions before the block of a [place](crate::tree) at which a sequence can also go on: what follows a prompt in a
/// template often differs by some tokens from what was sent before.
const SLACK: usize = 32;

/// Which positions the layers with a window see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The last ones, a row's own among them. Of layers with different windows, the largest.
    Last(u32),
    /// Those of a row's own chunk up to itself.
    Chunk(u32),
}

/// Layers that see a window of the positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// What they see.
    pub reach: Reach,
    /// Bytes of their part of a block.
    pub part_bytes: usize,
    /// Positions of one sequence that one step stores at most.
    pub step_positions: usize,
}

/// What the layers of a model hold beside the blocks of all positions; nothing by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Beside {
    /// Bytes of a block, without the part of layers with windows.
    pub block_bytes: usize,
    /// Layers with windows, if there are any.
    pub windows: Option<Windows>,
    /// Bytes of the state of a sequence; 0 when no layer has one.
    pub state_bytes: usize,
}

impl Reach {
    /// The first position that the row at `position` sees.
    fn first_seen(self, position: usize) -> usize {
        match self {
            Reach::Last(positions) => (position + 1).saturating_sub(positions as usize),
            Reach::Chunk(positions) => position / positions as usize * positions as usize,
        }
    }

    /// Positions that a row sees at most.
    pub fn positions(self) -> usize {
        let (Reach::Last(positions) | Reach::Chunk(positions)) = self;
        positions as usize
    }
}

impl Beside {
    /// Whether blocks of all positions are all there is.
    pub fn is_nothing(&self) -> bool {
        self.windows.is_none() && self.state_bytes == 0
    }

    /// Whether a sequence has a state.
    pub(crate) fn has_state(&self) -> bool {
        self.state_bytes > 0
    }

    /// The first block whose windowed part the row at `position` reads.
    pub fn first_part(&self, position: usize) -> usize {
        self.windows.map_or(usize::MAX, |windows| windows.reach.first_seen(position) / BLOCK_POSITIONS)
    }

    /// The first part that a place in block `index` keeps, so that a sequence can go on anywhere in it.
    pub(crate) fn first_part_of_place(&self, index: usize) -> usize {
        self.first_part((index * BLOCK_POSITIONS).saturating_sub(SLACK))
    }

    /// Blocks' worth of what a running sequence with `positions` holds beside its blocks.
    pub fn of_running(&self, positions: usize) -> usize {
        let parts = self.windows.map_or(0, |windows| {
            let seen = windows.reach.positions() + windows.step_positions + SLACK + 2 * BLOCK_POSITIONS;
            blocks_for(positions).min(seen / BLOCK_POSITIONS + 2)
        });
        self.units(parts, usize::from(positions > 0))
    }

    /// What a sequence with so many positions takes of a pool: its blocks, and what it holds beside them.
    pub fn needed(&self, positions: usize) -> usize {
        blocks_for(positions) + self.of_running(positions)
    }

    /// Positions, in whole blocks, that one sequence can have in a pool of `blocks`.
    pub fn positions_that_fit(&self, blocks: usize) -> usize {
        let (mut fits, mut exceeds) = (0, blocks + 1);
        while exceeds - fits > 1 {
            let middle = fits.midpoint(exceeds);
            match self.needed(middle.saturating_mul(BLOCK_POSITIONS)) <= blocks {
                true => fits = middle,
                false => exceeds = middle,
            }
        }
        fits.saturating_mul(BLOCK_POSITIONS)
    }

    /// States that there may be at the same time with a pool of `blocks`, running ones and kept ones.
    pub fn states_max(&self, blocks: usize) -> usize {
        if self.has_state() { blocks / self.units(0, 1) } else { 0 }
    }

    /// Blocks' worth of so many windowed parts and states.
    pub(crate) fn units(&self, parts: usize, states: usize) -> usize {
        let part_bytes = self.windows.map_or(0, |windows| windows.part_bytes);
        let bytes = parts.saturating_mul(part_bytes).saturating_add(states.saturating_mul(self.state_bytes));
        bytes.div_ceil(self.block_bytes.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows { reach: Reach::Last(40), part_bytes: 250, step_positions: 32 };
    const BESIDE: Beside = Beside { block_bytes: 100, windows: Some(WINDOWS), state_bytes: 30 };

    #[test]
    fn a_row_reads_the_parts_of_its_window() {
        let first = |reach, position| {
            Beside { windows: Some(Windows { reach, ..WINDOWS }), ..BESIDE }.first_part(position)
        };
        assert_eq!([0, 39, 55, 56, 72].map(|position| first(Reach::Last(40), position)), [0, 0, 1, 1, 2]);
        assert_eq!([0, 47, 48, 95, 96].map(|position| first(Reach::Chunk(48), position)), [0, 0, 3, 3, 6]);
        assert_eq!(first(Reach::Last(1), 33), 2, "its own");
    }

    #[test]
    fn what_stands_beside_blocks_is_counted_in_blocks() {
        assert_eq!(Beside::default().of_running(1 << 20), 0);
        assert_eq!([0, 1, 17, 1 << 20].map(|positions| BESIDE.of_running(positions)), [0, 3, 6, 26]);
        assert_eq!(BESIDE.units(1, 1), 3);
        let fits = BESIDE.positions_that_fit(40);
        assert!(BESIDE.needed(fits) <= 40 && BESIDE.needed(fits + 16) > 40, "{fits}");
        assert_eq!(Beside::default().positions_that_fit(5), 80);
        assert_eq!(BESIDE.positions_that_fit(2), 0);
        let state = Beside { windows: None, ..BESIDE };
        assert_eq!([0, 1, 1000].map(|positions| state.of_running(positions)), [0, 1, 1]);
    }
}
