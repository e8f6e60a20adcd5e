//! Where places are wanted when a sequence is admitted.
//!
//! Places are wanted where others will go on: at the end of a prompt, which is where its answer is retried; where a known
//! prefix had to be computed again because nothing was kept there, which is where the tree forks; at the end of an answer,
//! where the next turn begins; and for states, which no later one can stand in for, at doubling distances before the end
//! of the prompt.

use crate::beside::Beside;
use crate::ids::BLOCK_POSITIONS;
use crate::lifetime::Lifetime;

/// Tokens at the end of a prompt that the next turn may render otherwise: what begins an answer.
const OPENING_TOKENS: usize = 8;
/// Blocks from the end of a prompt to the first of the doubling distances.
const FIRST_DISTANCE: usize = 8;

/// What is known of a prompt when it is admitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// Tokens after which the sequence goes on.
    pub(super) reused: usize,
    /// Tokens that the tree has, though nothing was kept to go on behind them.
    pub(super) matched: usize,
    pub(super) prompt: usize,
}

/// Blocks in which places are wanted, ascending.
pub(super) fn marks(needs: &Beside, known: Known, lifetime: Lifetime) -> Vec<usize> {
    if needs.is_nothing() {
        return Vec::new();
    }
    let Known { reused, matched, prompt } = known;
    let mut marks = Vec::new();
    match needs.has_state() {
        // A state stands at the end of a block, which must not lie behind what others share.
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
    // What is pinned are whole blocks, and others may go on behind them.
    marks.extend(lifetime.pin.then_some(prompt / BLOCK_POSITIONS).and_then(|end| end.checked_sub(1)));
    marks.retain(|&index| (index + 1) * BLOCK_POSITIONS > reused);
    marks.sort_unstable();
    marks.dedup();
    marks
}
