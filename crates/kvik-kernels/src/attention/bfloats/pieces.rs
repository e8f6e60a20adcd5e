//! Which tiles and positions of values are summed together.

use std::ops::Range;

use super::super::kernel::{Seen, ValueCall};
use crate::kv::BLOCK_POSITIONS;

/// Tiles whose positions are a piece.
pub(super) const PIECE_TILES: usize = 2;

/// Those of `positions` that tile number `tile` has, counted from its first.
#[inline(always)]
pub(super) fn of_tile(positions: &Range<usize>, tile: usize) -> Range<usize> {
    let first = tile * BLOCK_POSITIONS;
    let inside = |position: usize| position.clamp(first, first + BLOCK_POSITIONS) - first;
    inside(positions.start)..inside(positions.end)
}

/// The pieces that a call has tiles of, and the first of its tiles, counted from the first piece of them.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    pub(super) count: usize,
    /// Tiles of the first piece that are before the first of the call.
    missing: usize,
}

impl Pieces {
    #[inline(always)]
    pub(super) fn of(call: &ValueCall<'_>) -> Pieces {
        let missing = call.skipped % PIECE_TILES;
        Pieces { count: (missing + call.tiles.len()).div_ceil(PIECE_TILES), missing }
    }

    /// The tile of the call in half `half` of a piece; -1 before the first.
    #[inline(always)]
    pub(super) fn tile(self, piece: usize, half: usize) -> isize {
        (piece * PIECE_TILES + half) as isize - self.missing as isize
    }

    /// The piece and the half of it that a tile of the call is.
    #[inline(always)]
    pub(super) fn place(self, tile: usize) -> (usize, usize) {
        ((tile + self.missing) / PIECE_TILES, (tile + self.missing) % PIECE_TILES)
    }

    /// The pieces that `seen` has something of.
    #[inline(always)]
    pub(super) fn seen(self, seen: Seen) -> Range<usize> {
        let Range { start, end } = seen.blocks();
        (start + self.missing) / PIECE_TILES..(end + self.missing).div_ceil(PIECE_TILES)
    }
}
