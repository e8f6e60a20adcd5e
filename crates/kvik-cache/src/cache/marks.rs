//! Marks: where a newly admitted sequence should add places.
//!
//! Places are useful where other sequences will resume: at the end of a prompt, where its answer is retried; where
//! the tree forks, which is where a cached prefix had to be recomputed because no place was there; at the end of an
//! answer, where the next turn begins; and for states, which a later one cannot replace, at doubling distances
//! before the end of the prompt.

use crate::auxiliary::AuxiliaryState;
use crate::ids::BLOCK_POSITIONS;
use crate::lifetime::Lifetime;

/// Tokens at the end of a prompt that the next turn may render differently: the opening of an answer.
const OPENING_TOKENS: usize = 8;
/// Blocks from the end of a prompt to the first of the doubling distances.
const FIRST_DISTANCE: usize = 8;

/// How much of a prompt is cached when it is admitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// Tokens after which the sequence resumes.
    pub(super) reused: usize,
    /// Tokens in the tree, whether or not a place allows resuming after them.
    pub(super) matched: usize,
    pub(super) prompt: usize,
}

/// Indices of the blocks in which places are wanted, ascending.
pub(super) fn marks(needs: &AuxiliaryState, known: Known, lifetime: Lifetime) -> Vec<usize> {
    if needs.is_nothing() {
        return Vec::new();
    }
    let Known { reused, matched, prompt } = known;
    let mut marks = Vec::new();
    match needs.has_state() {
        // A state belongs to the end of a block, which must not lie beyond the shared prefix.
        true => {
            let end = prompt.saturating_sub(OPENING_TOKENS) / BLOCK_POSITIONS;
            let distances = std::iter::successors(Some(FIRST_DISTANCE), |&blocks| blocks.checked_mul(2));
            let before = distances.map_while(|distance| end.checked_sub(distance));
            marks.extend(before.chain([end]).filter_map(|blocks| blocks.checked_sub(1)));
            marks.extend(
                (matched > reused).then_some(matched / BLOCK_POSITIONS).and_then(|end| end.checked_sub(1)),
            );
        }
        false => {
            marks.extend(prompt.checked_sub(1).map(|last| last / BLOCK_POSITIONS));
            marks.extend((matched > reused).then_some(matched / BLOCK_POSITIONS));
        }
    }
    // Pins cover whole blocks, and other sequences may resume after them.
    marks.extend(lifetime.pin.then_some(prompt / BLOCK_POSITIONS).and_then(|end| end.checked_sub(1)));
    marks.retain(|&index| (index + 1) * BLOCK_POSITIONS > reused);
    marks.sort_unstable();
    marks.dedup();
    marks
}
