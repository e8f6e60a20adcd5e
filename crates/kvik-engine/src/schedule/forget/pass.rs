//! What a sequence does at a point, in pieces short enough for others to go on between them.
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

/// How far a pass is.
pub(in crate::schedule) enum Stage {
    /// The sequence repeats its prompt, piece by piece, in batches with others.
    Repeat {
        /// Pieces to go, the next one last.
        pieces: Vec<Piece>,
        /// Rows of the next piece that are computed.
        done: usize,
    },
    /// Facts are gathered: those of the first layers are there.
    Facts(Vec<LayerFacts>),
    /// It is decided what stays; blocks are wanted for it.
    Room(Decision),
    /// What stays is moved: the first `layers` layers are done.
    Move {
        /// What stays, as indices among what each head stored.
        decision: Decision,
        /// Where it goes.
        storage: Ragged,
        /// The new name of the sequence in the cache, which has the blocks.
        id: SeqId,
        /// Layers done.
        layers: usize,
    },
}
