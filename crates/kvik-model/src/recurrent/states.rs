//! The rows of a batch that continue each state.

use std::ops::Range;

use kvik_kernels::StateRows;

use super::Tried;
use crate::batch::{Batch, SequenceState};

/// The rows of a batch that continue states.
#[derive(Default)]
pub(crate) struct BatchStates {
    sequences: Vec<Continued>,
}

/// Rows that continue one state.
struct Continued {
    rows: Range<usize>,
    certain: usize,
    live: u32,
    /// The cache position of the first row.
    first: u32,
    /// Slots of copies, by the number of rows that each includes.
    saves: Vec<(usize, u32)>,
}

impl BatchStates {
    /// The rows of a batch for a model with states.
    ///
    /// # Panics
    /// If a sequence has no state, or its rows are not adjacent.
    pub(crate) fn of(batch: &Batch<'_>) -> BatchStates {
        let mut sequences: Vec<Continued> = Vec::new();
        let mut start = 0;
        for rows in batch.rows.chunk_by(|a, b| a.sequence == b.sequence) {
            let (sequence, first) = (rows[0].sequence as usize, rows[0].cache_position);
            let state = batch.sequences[sequence].state.expect("a sequence of a model with states has one");
            sequences.push(Continued::new(state, start..start + rows.len(), first));
            start += rows.len();
        }
        BatchStates { sequences }
    }

    /// Discards earlier tentative rows of these states, and registers the new ones.
    pub(crate) fn begin(&self, tried: &mut Tried) {
        for Continued { rows, certain, live, first, .. } in &self.sequences {
            tried.take(*live);
            if *certain < rows.len() {
                tried.expect(*live, rows.len() - certain, first + *certain as u32);
            }
        }
    }

    /// The rows in the form that the kernels take.
    pub(crate) fn rows(&self) -> Vec<StateRows<'_>> {
        self.sequences.iter().map(Continued::rows).collect()
    }
}

impl Continued {
    fn rows(&self) -> StateRows<'_> {
        let Continued { rows, certain, live, saves, .. } = self;
        StateRows { rows: rows.clone(), certain: *certain, live: *live, saves }
    }

    /// `first` is the cache position of the first row.
    fn new(state: SequenceState<'_>, rows: Range<usize>, first: u32) -> Continued {
        let count = |positions: u32| positions.saturating_sub(first) as usize;
        Continued {
            certain: state.tentative.map_or(rows.len(), |position| count(position).min(rows.len())),
            live: state.live.0,
            first,
            saves: state.saves.iter().map(|&(positions, slot)| (count(positions), slot.0)).collect(),
            rows,
        }
    }
}
