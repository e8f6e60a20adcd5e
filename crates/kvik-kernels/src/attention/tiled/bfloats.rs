//! Attention over bfloats on matrix units. They have an order of their own, so here they compute all rows:
//!
//! 1. Numbers of a query are rounded to bfloats. A score sums over dimensions, zeros behind the last.
//! 2. Probabilities are rounded to bfloats where they weigh values; their sum `l` is of those not rounded. A dimension of
//!    the output sums over all positions of the split; those that the query row does not see are zeros. The result is
//!    that plus 0.
//!
//! To sum is, over every 32 products, ascending, from zero: `even` and `odd` run over theirs, from zero, as
//! `fma(a, b, even)`, and `sum = sum + (even + odd)`. To round is to the next bfloat, half to even. In all of it, a number
//! that is too small to be normal is a zero of its sign.
//!
//! Pieces of 32 positions begin where the split does, whatever tiles a call has, and what a row does not see adds zeros:
//! so its sums do not depend on its company but for the sign of a zero, which adding 0 makes positive.
//! Only 0 times what is no finite number would tell: `values::weigh` sees to it.
//!
//! By count 16 query rows, 16 positions and heads of 128 take the units 64 cycles for scores and 64 for values, and
//! vectors that multiply floats 1,024 each. Not measured.

#[cfg(test)]
pub(in crate::attention) mod specification;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use values::{latents, values};

use std::cell::Cell;
use std::ops::Range;

use super::super::SPLIT;
use super::super::kernel::{ScoreCall, Seen};
use super::{QUERY_ROWS, pair_up};
use crate::f32x16::{F32x16, LANES};
use crate::kv::BLOCK_POSITIONS;
use crate::lines::Line;
use crate::x86::amx::{Bfloats, Config, Tiles};

/// The registers: query rows, two of columns in turns, sums.
const ROWS: usize = 0;
const COLUMNS: [usize; 2] = [1, 2];
const SUMS: [usize; MATRICES] = [4, 5, 6, 7];
const CONFIG: Config = Config::new(&[[QUERY_ROWS, size_of::<Line>()]; 8]);

/// Matrices of columns at a time: tiles of keys, or vectors of values. A product takes its sums 52 cycles, and its
/// units 16.
const MATRICES: usize = 4;
/// Bfloats of a row of a register.
const PIECE: usize = size_of::<Line>() / 2;
/// Rows of a register of columns: pairs of what is summed.
const PAIRS: usize = PIECE / 2;

/// Operands and sums as the registers take them.
#[derive(Default)]
struct Room {
    /// `[groups of query rows][pieces][query rows]`
    rows: Vec<Line>,
    /// `[pieces][MATRICES][pairs]`
    columns: Vec<Line>,
    /// `[query rows][MATRICES]`
    sums: Vec<Line>,
}

thread_local! {
    static ROOM: Cell<Room> =
        const { Cell::new(Room { rows: Vec::new(), columns: Vec::new(), sums: Vec::new() }) };
}

impl Room {
    /// Makes room for `query_rows` and `pieces`. What it held stays: rows that are no query rows add to nobody's sums.
    fn grow(&mut self, query_rows: usize, pieces: usize) {
        let grow = |lines: &mut Vec<Line>, needed: usize| lines.resize(lines.len().max(needed), Line::ZERO);
        grow(&mut self.rows, query_rows.next_multiple_of(QUERY_ROWS) * pieces);
        grow(&mut self.columns, pieces * MATRICES * PAIRS);
        grow(&mut self.sums, QUERY_ROWS * MATRICES);
    }

    /// Where so many pieces of columns stand, each `[MATRICES][pairs]`.
    fn pieces(&mut self, count: usize) -> impl Iterator<Item = &mut [[Line; PAIRS]; MATRICES]> {
        self.columns.as_chunks_mut().0.as_chunks_mut().0[..count].iter_mut()
    }

    /// The piece of a query row, of so many.
    fn piece(&mut self, query_row: usize, piece: usize, pieces: usize) -> &mut Line {
        &mut self.rows[(query_row / QUERY_ROWS * pieces + piece) * QUERY_ROWS + query_row % QUERY_ROWS]
    }

    /// Where `row` of the sums begins, of one matrix after the other.
    fn sums_of(&self, row: usize) -> *const f32 {
        self.sums[row * MATRICES..].as_ptr().cast()
    }
}

/// Scores of all query rows over keys in bfloats.
///
/// # Safety
/// As [`floats::scores`](super::super::floats::scores), and the machine has these units.
#[inline(always)]
pub(crate) unsafe fn scores<L: F32x16, T: Tiles + Bfloats>(call: &ScoreCall<'_>) {
    let mut room = ROOM.take();
    let pieces = call.head_dim.div_ceil(PIECE);
    room.grow(call.q.len(), pieces);
    // SAFETY: as the caller promises.
    unsafe {
        for query_row in 0..call.q.len() {
            round_query::<T>(call, query_row, pieces, &mut room);
        }
        let mut units = T::configured(const { &CONFIG });
        for start in (0..call.tiles.len()).step_by(MATRICES) {
            let tiles = start..call.tiles.len().min(start + MATRICES);
            for tile in tiles.clone() {
                pair_keys::<L>(call, tile, tile - start, &mut room);
            }
            for first in (0..call.q.len()).step_by(QUERY_ROWS) {
                score_group::<L, T>(call, first, tiles.clone(), &mut units, &mut room);
            }
        }
    }
    ROOM.set(room);
}

/// Rounds a query to its row of the registers.
///
/// # Safety
/// As [`scores`]; the query row is one of the call.
#[inline(always)]
unsafe fn round_query<T: Bfloats>(call: &ScoreCall<'_>, query_row: usize, pieces: usize, room: &mut Room) {
    // SAFETY: a query has a number for each dimension.
    let q = unsafe { std::slice::from_raw_parts(call.q[query_row], call.head_dim) };
    for (piece, numbers) in q.chunks(PIECE).enumerate() {
        let mut padded = [0.0; PIECE];
        let numbers = match numbers.first_chunk::<PIECE>() {
            Some(numbers) => numbers,
            None => {
                padded[..numbers.len()].copy_from_slice(numbers);
                &padded
            }
        };
        let to = room.piece(query_row, piece, pieces);
        // SAFETY: the machine is that of the units; a piece is two vectors of numbers and a line of bfloats.
        unsafe {
            T::round(numbers.as_ptr(), to.0.as_mut_ptr().cast());
            T::round(numbers[LANES..].as_ptr(), to.0[size_of::<Line>() / 2..].as_mut_ptr().cast());
        }
    }
}

/// Puts the keys of a tile in pairs of dimensions, `[pairs][16 positions][2]` in each piece, as matrix `n` of four.
/// Asks for a later tile meanwhile.
///
/// # Safety
/// As [`scores`]; the room is that of the call.
#[inline(always)]
unsafe fn pair_keys<L: F32x16>(call: &ScoreCall<'_>, tile: usize, n: usize, room: &mut Room) {
    let [next] = call.next_tiles::<L, 1>(0, tile, [call.tiles[tile]]);
    let keys = call.tiles[tile].cast::<[u16; BLOCK_POSITIONS]>();
    for (piece, to) in room.pieces(call.head_dim.div_ceil(PIECE)).enumerate() {
        for (pair, to) in to[n].iter_mut().enumerate() {
            let mut rows = [[0; BLOCK_POSITIONS]; 2];
            for (i, row) in rows.iter_mut().enumerate() {
                let d = piece * PIECE + 2 * pair + i;
                if d < call.head_dim {
                    // SAFETY: the tile has a row of 16 numbers for each dimension.
                    *row = unsafe { keys.add(d).read_unaligned() };
                }
            }
            // SAFETY: a prefetch reads nothing. Two rows are a line of the cache.
            unsafe { L::prefetch(next.wrapping_add((piece * PAIRS + pair) * size_of::<Line>())) };
            pair_up(rows[0], rows[1], to);
        }
    }
}

/// Scores a group of query rows, the first of them `first`, against `tiles`, whose keys are in the room.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn score_group<L: F32x16, T: Tiles>(
    call: &ScoreCall<'_>,
    first: usize,
    tiles: Range<usize>,
    units: &mut T,
    room: &mut Room,
) {
    let query_rows = first..call.q.len().min(first + QUERY_ROWS);
    let seen = Seen::by_any(&call.seen[query_rows.clone()]).blocks();
    if seen.end <= tiles.start || tiles.end <= seen.start {
        return;
    }
    let pieces = call.head_dim.div_ceil(PIECE);
    let to = call.scores.wrapping_add(first * SPLIT + tiles.start * BLOCK_POSITIONS);
    // SAFETY: as the caller promises; the scores have a row of SPLIT for each query row.
    unsafe {
        if query_rows.len() == QUERY_ROWS {
            return multiply(units, room, first, (0..pieces, pieces), tiles.len(), (to, SPLIT));
        }
        let sums = (room.sums.as_mut_ptr().cast(), MATRICES * LANES);
        multiply(units, room, first, (0..pieces, pieces), tiles.len(), sums);
        for row in 0..query_rows.len() {
            for n in 0..tiles.len() {
                let at = n * BLOCK_POSITIONS;
                L::load(room.sums_of(row).add(at)).store(to.add(row * SPLIT + at));
            }
        }
    }
}

/// Multiplies `pieces` of a group of query rows, of so many in all, with the first `count` matrices in the room, and
/// writes the sums to `to`: rows `stride` numbers apart, 16 numbers for each matrix.
///
/// # Safety
/// The room holds the operands, `to` has room, and the registers are those of [`CONFIG`].
#[inline(always)]
unsafe fn multiply<T: Tiles>(
    units: &mut T,
    room: &Room,
    first: usize,
    (pieces, all): (Range<usize>, usize),
    count: usize,
    (to, stride): (*mut f32, usize),
) {
    const LINE: usize = size_of::<Line>();
    macro_rules! each {
        ($($n:literal $turn:literal),*) => {
            // SAFETY: as the caller promises; each row of a register is a line.
            unsafe {
                $(units.zero::<{ SUMS[$n] }>();)*
                for piece in pieces {
                    let rows = room.rows.as_ptr().add((first * all) + piece * QUERY_ROWS);
                    let columns = room.columns.as_ptr().add(piece * MATRICES * PAIRS);
                    units.load::<ROWS>(rows.cast(), LINE);
                    $(if $n < count {
                        units.load::<{ COLUMNS[$turn] }>(columns.add($n * PAIRS).cast(), LINE);
                        units.dot_bf16::<{ SUMS[$n] }, ROWS, { COLUMNS[$turn] }>();
                    })*
                }
                $(if $n < count {
                    let to = to.add($n * LANES).cast();
                    units.store::<{ SUMS[$n] }>(to, stride * size_of::<f32>());
                })*
            }
        };
    }
    each!(0 0, 1 1, 2 0, 3 1);
}
