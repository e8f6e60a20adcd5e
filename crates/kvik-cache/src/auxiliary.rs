//! The auxiliary state that layers hold for a sequence in addition to its blocks, and its share of the budget.
//!
//! ```text
//! layers that see           hold of a sequence                   to resume at position p they need
//! all positions             the blocks                           all blocks before p
//! a window, a chunk         a part of each block, in addition    the parts of the blocks that p sees
//! all before, as a          a state, which advances with every   the state as of p, to the position
//!   recurrence              position and cannot be rewound
//! ```
//!
//! The unit of the budget is the block. Auxiliary state withholds from the pool as many blocks as have its size,
//! rounded up for each holder.

use crate::ids::{BLOCK_POSITIONS, blocks_for};

/// Positions before the block of a [place](crate::tree) at which a sequence can resume as well: the text that a
/// template appends to a prompt often differs by some tokens from the previous request.
const SLACK: usize = 32;

/// The positions that layers with a window see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The last positions, including the row's own. Of layers with different windows, the largest.
    Last(u32),
    /// The positions of the row's own chunk, up to and including the row.
    Chunk(u32),
}

/// Layers that see a window of the positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// The positions that they see.
    pub reach: Reach,
    /// Bytes of their part of a block.
    pub part_bytes: usize,
    /// Maximum number of positions of one sequence that one step stores.
    pub step_positions: usize,
}

/// The sizes of the auxiliary state that a model's layers hold; none by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AuxiliaryState {
    /// Bytes of a block, without the windowed part.
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

    /// Maximum number of positions that a row sees.
    pub fn positions(self) -> usize {
        let (Reach::Last(positions) | Reach::Chunk(positions)) = self;
        positions as usize
    }
}

impl AuxiliaryState {
    /// Returns whether the model needs nothing but blocks of all positions.
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

    /// The first part that a place in block `index` retains, so that a sequence can resume anywhere in the block.
    pub(crate) fn first_part_of_place(&self, index: usize) -> usize {
        self.first_part((index * BLOCK_POSITIONS).saturating_sub(SLACK))
    }

    /// Auxiliary state of a running sequence with `positions`, in blocks.
    pub fn of_running(&self, positions: usize) -> usize {
        let parts = self.windows.map_or(0, |windows| {
            let seen = windows.reach.positions() + windows.step_positions + SLACK + 2 * BLOCK_POSITIONS;
            blocks_for(positions).min(seen / BLOCK_POSITIONS + 2)
        });
        self.units(parts, usize::from(positions > 0))
    }

    /// Blocks that a sequence of `positions` takes from a pool, auxiliary state included.
    pub fn needed(&self, positions: usize) -> usize {
        blocks_for(positions) + self.of_running(positions)
    }

    /// Maximum number of positions, in whole blocks, of one sequence in a pool of `blocks`.
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

    /// Maximum number of simultaneous states, of running sequences and of places, with a pool of `blocks`.
    pub fn states_max(&self, blocks: usize) -> usize {
        if self.has_state() { blocks / self.units(0, 1) } else { 0 }
    }

    /// The size of `parts` windowed parts and `states` states, in blocks.
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
    const BESIDE: AuxiliaryState =
        AuxiliaryState { block_bytes: 100, windows: Some(WINDOWS), state_bytes: 30 };

    #[test]
    fn a_row_reads_the_parts_of_its_window() {
        let first = |reach, position| {
            AuxiliaryState { windows: Some(Windows { reach, ..WINDOWS }), ..BESIDE }.first_part(position)
        };
        assert_eq!([0, 39, 55, 56, 72].map(|position| first(Reach::Last(40), position)), [0, 0, 1, 1, 2]);
        assert_eq!([0, 47, 48, 95, 96].map(|position| first(Reach::Chunk(48), position)), [0, 0, 3, 3, 6]);
        assert_eq!(first(Reach::Last(1), 33), 2, "its own");
    }

    #[test]
    fn what_stands_beside_blocks_is_counted_in_blocks() {
        assert_eq!(AuxiliaryState::default().of_running(1 << 20), 0);
        assert_eq!([0, 1, 17, 1 << 20].map(|positions| BESIDE.of_running(positions)), [0, 3, 6, 26]);
        assert_eq!(BESIDE.units(1, 1), 3);
        let fits = BESIDE.positions_that_fit(40);
        assert!(BESIDE.needed(fits) <= 40 && BESIDE.needed(fits + 16) > 40, "{fits}");
        assert_eq!(AuxiliaryState::default().positions_that_fit(5), 80);
        assert_eq!(BESIDE.positions_that_fit(2), 0);
        let state = AuxiliaryState { windows: None, ..BESIDE };
        assert_eq!([0, 1, 1000].map(|positions| state.of_running(positions)), [0, 1, 1]);
    }
}
