//! Products of few query rows in vectors, as in decoding: keys and values are paired up in registers, since
//! writing the pairs to memory first takes longer than reading the operands.

use super::super::SPLIT;
use super::super::kernel::{ScoreCall, Seen, TILES, ValueCall};
use super::pieces::{Pieces, of_tile};
use super::products::{Sums, block};
use super::{PAIRS, PIECE, QUERY_ROWS, Room};
use crate::f32x16::{BfloatLanes, LANES};
use crate::kv::BLOCK_POSITIONS;
use crate::lines::Line;

/// Bytes of a row of 16 bfloats.
const ROW: usize = LANES * size_of::<u16>();
/// Pairs of positions of a tile.
const TILE_PAIRS: usize = BLOCK_POSITIONS / 2;
/// Zeros that replace positions that no query row sees, for up to 8 vectors.
static NOTHING: Nothing = Nothing([0; 8 * ROW]);

#[repr(align(64))]
struct Nothing([u8; 8 * ROW]);

/// Scores of the query rows in the buffer. Keys have an even number of dimensions.
///
/// # Safety
/// As [`scores`](super::scores), in vectors.
#[inline(always)]
pub(super) unsafe fn scores<L: BfloatLanes>(call: &ScoreCall<'_>, room: &Room) {
    let mut tile = 0;
    while tile < call.tiles.len() {
        tile += block!(call.tiles.len() - tile, N of 4 2 1 => {
            let mut row = 0;
            while row < call.q.len() {
                // SAFETY: as the caller promises.
                row += unsafe { block!(call.q.len() - row, R of 4 2 1 => score_block::<L, R, N>(call, row, tile, room)) };
            }
            N
        });
    }
}

/// Scores of `R` query rows over `N` tiles.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn score_block<L: BfloatLanes, const R: usize, const N: usize>(
    call: &ScoreCall<'_>,
    row: usize,
    tile: usize,
    room: &Room,
) -> usize {
    let seen = Seen::by_any(&call.seen[row..row + R]).blocks();
    if seen.end <= tile || tile + N <= seen.start {
        return R;
    }
    let tiles: [*const u8; N] = std::array::from_fn(|n| call.tiles[tile + n]);
    let next = call.next_tiles::<L, N>(row, tile, tiles);
    // SAFETY: as the caller promises: a tile has a row of 16 numbers for each dimension. A prefetch reads nothing.
    unsafe {
        let mut sums = Sums::<L, R, N>::zero();
        for first in (0..call.head_dim / 2).step_by(PAIRS) {
            let rows = room.rows.as_ptr().add(first / PAIRS * QUERY_ROWS + row);
            let keys = |pair: usize| {
                let at = (first + pair) * 2 * ROW;
                move |n: usize| {
                    L::prefetch(next[n].wrapping_add(at));
                    L::pair_up(tiles[n].add(at).cast(), tiles[n].add(at + ROW).cast())
                }
            };
            sums.add(rows.cast(), PAIRS.min(call.head_dim / 2 - first), keys);
        }
        // Adds zero, as padding zeros after the last dimension do.
        let sums = if call.head_dim.is_multiple_of(PIECE) { sums } else { sums.plus_zero() };
        sums.store(call.scores.add(row * SPLIT + tile * BLOCK_POSITIONS), SPLIT);
    }
    R
}

/// Weighted values, stored separately from keys, of the query rows in the buffer, which share their operands.
///
/// # Safety
/// As [`values`](super::values()), in vectors.
#[inline(always)]
pub(super) unsafe fn values<L: BfloatLanes>(call: &ValueCall<'_>, room: &Room) {
    let mut row = 0;
    while row < call.seen.len() {
        row += block!(call.seen.len() - row, R of 2 1 => {
            let (mut vector, vectors) = (0, call.dims / LANES);
            while vector < vectors {
                // SAFETY: as the caller promises.
                vector += unsafe {
                    block!(vectors - vector, N of 8 4 2 1 => weigh_block::<L, R, N>(call, row, vector, room))
                };
            }
            R
        });
    }
}

/// Weights `N` vectors of dimensions for `R` query rows.
///
/// Rows are read in order, as hardware prefetchers expect: alternating between two of them takes twice as long
/// when they come from memory. So whole lines are paired up, whose pairs come out in another order.
///
/// # Safety
/// As [`values`]. `N` is even, or 1.
#[inline(always)]
unsafe fn weigh_block<L: BfloatLanes, const R: usize, const N: usize>(
    call: &ValueCall<'_>,
    row: usize,
    vector: usize,
    room: &Room,
) -> usize {
    let (pieces, seen) = (Pieces::of(call), Seen::by_any(&call.seen[row..row + R]));
    // SAFETY: as the caller promises: a tile has a row of `dims` numbers for each position. A prefetch reads nothing.
    unsafe {
        let mut sums = Sums::<L, R, N>::zero();
        for number in seen.blocks() {
            let tile = call.tiles[number].wrapping_add(vector * ROW);
            let next = call.tiles.get(number + TILES).map_or(tile, |next| next.wrapping_add(vector * ROW));
            let (seen, bytes) = (of_tile(&seen.positions(), number), call.dims * size_of::<u16>());
            let values = |pair: usize| {
                let row = |position: usize| match seen.contains(&position) {
                    true => tile.wrapping_add(position * bytes),
                    false => NOTHING.0.as_ptr(),
                };
                let [lower, upper] = [row(2 * pair), row(2 * pair + 1)];
                let mut lines = [L::splat(0.0); N];
                for n in (0..N - N % 2).step_by(2) {
                    lines[n] = L::load(lower.add(n * ROW).cast());
                }
                move |n: usize| {
                    // Twice per line, because processors drop some prefetches if there are many.
                    L::prefetch(next.wrapping_add(2 * pair * bytes + n * ROW));
                    L::prefetch(next.wrapping_add((2 * pair + 1) * bytes + n * ROW));
                    match N {
                        1 => L::pair_up(lower.cast(), upper.cast()),
                        _ if n.is_multiple_of(2) => lines[n].pair_first(L::load(upper.add(n * ROW).cast())),
                        _ => lines[n - 1].pair_second(L::load(upper.add((n - 1) * ROW).cast())),
                    }
                }
            };
            sums.add(weights_of(room, row, pieces, number), TILE_PAIRS, values);
        }
        if N > 1 {
            sums.order_lines();
        }
        sums.plus_zero().store(call.out.add(row * call.dims + vector * LANES), call.dims);
    }
    N
}

/// Address of the probabilities of a query row for a tile.
#[inline(always)]
fn weights_of(room: &Room, row: usize, pieces: Pieces, tile: usize) -> *const f32 {
    let (piece, half) = pieces.place(tile);
    let line: *const Line = &room.rows[piece * QUERY_ROWS + row];
    line.cast::<f32>().wrapping_add(half * TILE_PAIRS)
}
