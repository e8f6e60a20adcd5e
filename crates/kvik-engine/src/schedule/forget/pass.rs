//! The steps of a pass at a point, in pieces short enough for other sequences to run between them.
//!
//! ```text
//!   repeat ──▶ facts ──▶ room ──▶ move ──▶ done
//!   in batches  a layer   once     a layer
//! ```

use kvik_cache::SeqId;
use kvik_cache::retain::{Decision, LayerFacts};

use crate::retain::Ragged;
use crate::retain::repeat::Piece;

/// A pass over the stored positions of one sequence.
pub(in crate::schedule) struct Pass {
    pub(in crate::schedule) stage: Stage,
}

/// The progress of a pass.
pub(in crate::schedule) enum Stage {
    /// The sequence repeats its prompt, piece by piece, in batches with others.
    Repeat {
        /// Remaining pieces, the next one last.
        pieces: Vec<Piece>,
        /// Rows of the next piece that are computed.
        done: usize,
    },
    /// Facts are gathered: those of the first layers are there.
    Facts(Vec<LayerFacts>),
    /// The retained positions are decided; blocks are needed for them.
    Room(Decision),
    /// The retained positions are moved: the first `layers` layers are done.
    Move {
        /// The retained positions, as indices among what each head stored.
        decision: Decision,
        /// The storage to which they are moved.
        storage: Ragged,
        /// The new sequence in the cache, which owns the blocks.
        id: SeqId,
        /// Number of layers done.
        layers: usize,
    },
}
