//! Retention at work: a sequence that forgets, from what it observes to where it stores what it keeps.
//!
//! ```text
//!   forward ──▶ Observation ──┐
//!                             ├──▶ facts ──▶ decide ──▶ Decision ──▶ move ──▶ Ragged
//!   stored keys and values ───┘            (kvik-cache)
//! ```
//!
//! | module    | cares about                                                       |
//! |-----------|-------------------------------------------------------------------|
//! | `ragged`  | where each KV head stores what it kept: tiles of own blocks       |
//! | `sinks`   | the first keys of a stream, rotated anew from copies              |
//! | `repeat`  | the words with which a prompt is repeated                         |
//! | `stream`  | a text without end, read in constant memory                       |
//! | `lab`     | one prompt read once, then kept under many policies and compared  |

pub mod lab;
mod ragged;
pub mod repeat;
mod sinks;
pub mod stream;

pub use ragged::{Extent, Ragged, TailViews};
pub use sinks::Sinks;

use crate::model::batch::{Retainer, SequenceKv};
use kvik_cache::BLOCK_POSITIONS;

/// Moves what the heads of a layer keep, as indices among what they store in `from`, to the tiles of `to`. What
/// shared blocks hold stays where it is.
pub(crate) fn move_layer(
    retainer: &mut dyn Retainer,
    layer: usize,
    from: &SequenceKv<'_>,
    kept: &[Vec<u32>],
    to: &Ragged,
) {
    let shared = to.shared() * BLOCK_POSITIONS;
    let kept: Vec<&[u32]> = kept.iter().map(|kept| &kept[shared..]).collect();
    retainer.move_positions(layer, from, &kept, &to.tiles(layer));
}
