//! The mapping from rows of a batch to states.

use std::ops::Range;

use super::StateArena;

/// Rows of a batch that continue the state of one sequence.
#[derive(Debug, Clone)]
pub struct StateRows<'a> {
    /// The rows, in the order of their positions.
    pub rows: Range<usize>,
    /// Number of committed rows. The others are speculative: they are computed on a copy of the state, which
    /// is dropped.
    pub certain: usize,
    /// The slot whose state they continue; afterwards it holds the state after the last committed row.
    pub live: u32,
    /// Slots that receive the state after the given number of rows, ascending, all within the committed ones.
    pub saves: &'a [(usize, u32)],
}

/// Checks that tasks of different sequences write different slots.
///
/// # Panics
/// If rows or slots do not exist, a slot is named twice, or a copy after an uncommitted row is requested.
pub(super) fn check(arena: &StateArena, sequences: &[StateRows<'_>], n: usize) {
    let mut slots = Vec::with_capacity(sequences.len());
    for StateRows { rows, certain, live, saves } in sequences {
        assert!(rows.start <= rows.end && rows.end <= n, "rows {rows:?} of {n}");
        assert!(*certain <= rows.len(), "{certain} certain rows of {}", rows.len());
        let counts = || saves.iter().map(|&(count, _)| count);
        assert!(counts().is_sorted(), "copies of a state are ascending");
        assert!(counts().all(|count| (1..=*certain).contains(&count)), "a copy behind no certain row");
        slots.push(*live);
        slots.extend(saves.iter().map(|&(_, slot)| slot));
    }
    slots.sort_unstable();
    assert!(slots.windows(2).all(|pair| pair[0] != pair[1]), "a state is named twice in a batch");
    let last = slots.last().map_or(0, |&slot| slot as usize + 1);
    assert!(last <= arena.slots(), "state {} of {}", last.saturating_sub(1), arena.slots());
}
