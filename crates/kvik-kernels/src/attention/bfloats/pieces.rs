//! The tiles and positions of values that are summed together.

use std::ops::Range;

use super::super::kernel::{Seen, ValueCall};
use crate::kv::BLOCK_POSITIONS;

/// Tiles per piece.
pub(super) const PIECE_TILES: usize = 2;

/// The part of `positions` in tile number `tile`, relative to its first position.
#[inline(always)]
pub(super) fn of_tile(positions: &Range<usize>, tile: usize) -> Range<usize> {
    let first = tile * BLOCK_POSITIONS;
    let inside = |position: usize| position.clamp(first, first + BLOCK_POSITIONS) - first;
    inside(positions.start)..inside(positions.end)
}

/// The pieces that contain tiles of a call, and the offset of its first tile in the first piece.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    pub(super) count: usize,
    /// Tiles of the first piece before the first of the call.
    missing: usize,
}

impl Pieces {
    #[inline(always)]
    pub(super) fn of(call: &ValueCall<'_>) -> Pieces {
        let missing = call.skipped % PIECE_TILES;
        Pieces { count: (missing + call.tiles.len()).div_ceil(PIECE_TILES), missing }
    }

    /// The tile of the call in half `half` of a piece; negative before the first.
    #[inline(always)]
    pub(super) fn tile(self, piece: usize, half: usize) -> isize {
        (piece * PIECE_TILES + half) as isize - self.missing as isize
    }

    /// The piece, and its half, that contains a tile of the call.
    #[inline(always)]
    pub(super) fn place(self, tile: usize) -> (usize, usize) {
        ((tile + self.missing) / PIECE_TILES, (tile + self.missing) % PIECE_TILES)
    }

    /// The pieces that contain positions of `seen`.
    #[inline(always)]
    pub(super) fn seen(self, seen: Seen) -> Range<usize> {
        let Range { start, end } = seen.blocks();
        (start + self.missing) / PIECE_TILES..(end + self.missing).div_ceil(PIECE_TILES)
    }
}
