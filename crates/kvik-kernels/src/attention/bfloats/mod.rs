//! Attention over bfloats on machines that multiply them, on matrix units or in vectors. Their products have an
//! order of their own, so they compute all rows:
//!
//! 1. Query elements are rounded to bfloats. A score sums over dimensions, padded with zeros up to a whole
//!    piece of 32.
//! 2. Probabilities are rounded to bfloats as weights of values; their sum `l` is of the unrounded ones. A
//!    dimension of the output sums over all positions of the split, with zeros for those that the query row does
//!    not see. The result is the sum plus 0.
//!
//! Sums start at zero:
//! - on matrix units, over every 32 products, ascending: `even` and `odd` accumulate theirs, from zero, as
//!   `fma(a, b, even)`, and `sum = sum + (even + odd)`;
//! - in vectors, over every pair of products, ascending, the odd one first: `sum = fma(a, b, sum)`.
//!
//! Rounding is to the nearest bfloat, half to even. In all of it, a subnormal number counts as a zero of its sign.
//!
//! Pieces of 32 positions are aligned to the split, regardless of a call's tiles, and invisible positions add zeros:
//! so a row's sums do not depend on the other rows except for the sign of a zero, which adding 0 makes positive.
//! Only 0 times an infinity or NaN would make a difference: `values::weigh` handles it.
//!
//! A call pairs keys and values up once for all its query rows; [`few`] rows do so in registers. Vectors multiply
//! twice as many bfloats as floats per cycle. By operation count, 16 query rows, 16 positions and heads of 128
//! take matrix units 64 cycles for scores and 64 for values, and vectors that multiply floats 1,024 each; this is
//! not measured.

mod few;
mod pieces;
mod products;
#[cfg(test)]
pub(in crate::attention) mod specification;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use products::{Products, Units, Vectors};
pub(crate) use values::{latents, values};

use std::cell::Cell;
use std::ops::Range;

use super::SPLIT;
use super::kernel::{ScoreCall, Seen};
use crate::f32x16::{BfloatLanes, LANES};
use crate::kv::BLOCK_POSITIONS;
use crate::lines::Line;
use products::Operands;

/// Declares `kernels(layer)`: those of `$others`, except over bfloats, which `$products` multiplies with
/// lanes of `$floats`.
macro_rules! bfloat_kernels {
    ($floats:ty, $products:ty, $others:path $(, $features:literal)?) => {
        /// The kernels for the layer's formats.
        pub(in crate::attention) fn kernels(layer: &$crate::kv::KvLayer) -> $crate::attention::kernel::AttentionKernels {
            use $crate::attention::kernel::{AttentionKernels, ScoreCall, ValueCall};
            use $crate::kv::{KvFormat, KvValues};

            $(#[target_feature(enable = $features)])?
            unsafe fn scores(call: &ScoreCall<'_>) {
                // SAFETY: the contract of `AttentionKernels`.
                unsafe { $crate::attention::bfloats::scores::<$floats, $products>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn values(call: &ValueCall<'_>) {
                // SAFETY: as above.
                unsafe { $crate::attention::bfloats::values::<$floats, $products>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn latents(call: &ValueCall<'_>) {
                // SAFETY: as above.
                unsafe { $crate::attention::bfloats::latents::<$floats, $products>(call) }
            }
            let others = $others(layer);
            AttentionKernels {
                scores: if layer.k == KvFormat::Bf16 { scores } else { others.scores },
                values: match (layer.values, layer.k, layer.v) {
                    (KvValues::Stored, _, KvFormat::Bf16) => values,
                    (KvValues::OfKeys, KvFormat::Bf16, _) => latents,
                    _ => others.values,
                },
                ..others
            }
        }
    };
}
pub(crate) use bfloat_kernels;

/// Query rows of a group, the rows of a matrix register.
const QUERY_ROWS: usize = 16;
/// Matrices of columns processed at a time: tiles of keys, or vectors of values.
const MATRICES: usize = 4;
/// Bfloats per line.
const PIECE: usize = size_of::<Line>() / 2;
/// Lines of a piece of columns: pairs of summed elements.
const PAIRS: usize = PIECE / 2;

/// Buffers for operands in the layout of products.
#[derive(Default)]
struct Room {
    /// `[groups of query rows][pieces][query rows]`
    rows: Vec<Line>,
    /// `[pieces][MATRICES][pairs]`
    columns: Vec<Line>,
}

thread_local! {
    static ROOM: Cell<Room> = const { Cell::new(Room { rows: Vec::new(), columns: Vec::new() }) };
}

impl Room {
    /// Makes room for `query_rows` and `pieces`. Old contents stay: padding rows do not affect any sums.
    fn grow(&mut self, query_rows: usize, pieces: usize) {
        let grow = |lines: &mut Vec<Line>, needed: usize| lines.resize(lines.len().max(needed), Line::ZERO);
        grow(&mut self.rows, query_rows.next_multiple_of(QUERY_ROWS) * pieces);
        grow(&mut self.columns, pieces * MATRICES * PAIRS);
    }

    /// The first `count` pieces of columns, each `[MATRICES][pairs]`.
    fn pieces(&mut self, count: usize) -> impl Iterator<Item = &mut [[Line; PAIRS]; MATRICES]> {
        self.columns.as_chunks_mut().0.as_chunks_mut().0[..count].iter_mut()
    }

    /// The piece `piece` of a query row, of `pieces`.
    fn piece(&mut self, query_row: usize, piece: usize, pieces: usize) -> &mut Line {
        &mut self.rows[(query_row / QUERY_ROWS * pieces + piece) * QUERY_ROWS + query_row % QUERY_ROWS]
    }

    /// `pieces` of `query_rows`, of `all` pieces, and the first `count` matrices.
    fn operands(
        &self,
        query_rows: Range<usize>,
        (pieces, all): (Range<usize>, usize),
        count: usize,
    ) -> Operands<'_> {
        let rows = &self.rows[query_rows.start * all..][pieces.start * QUERY_ROWS..];
        let columns = &self.columns[pieces.start * MATRICES * PAIRS..];
        Operands { rows, query_rows: query_rows.len(), columns, pieces: pieces.len(), count }
    }
}

/// Scores of all query rows over keys in bfloats.
///
/// # Safety
/// As [`floats::scores`](super::floats::scores), and the machine has these products.
#[inline(always)]
pub(crate) unsafe fn scores<L: BfloatLanes, P: Products>(call: &ScoreCall<'_>) {
    let mut room = ROOM.take();
    let pieces = call.head_dim.div_ceil(PIECE);
    room.grow(call.q.len(), pieces);
    // SAFETY: as the caller promises.
    unsafe {
        for query_row in 0..call.q.len() {
            round_query::<L>(call, query_row, pieces, &mut room);
        }
        match call.q.len() <= P::FEW && call.head_dim.is_multiple_of(2) {
            true => few::scores::<L>(call, &room),
            false => score_groups::<L, P>(call, &mut room),
        }
    }
    ROOM.set(room);
}

/// Scores of the query rows in the buffer.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn score_groups<L: BfloatLanes, P: Products>(call: &ScoreCall<'_>, room: &mut Room) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut products = P::begin();
        for start in (0..call.tiles.len()).step_by(MATRICES) {
            let tiles = start..call.tiles.len().min(start + MATRICES);
            for tile in tiles.clone() {
                pair_keys::<L>(call, tile, tile - start, room);
            }
            for first in (0..call.q.len()).step_by(QUERY_ROWS) {
                score_group::<P>(call, first, tiles.clone(), &mut products, room);
            }
        }
    }
}

/// Rounds a query to its row of the buffer.
///
/// # Safety
/// As [`scores`]; the query row is one of the call.
#[inline(always)]
unsafe fn round_query<L: BfloatLanes>(
    call: &ScoreCall<'_>,
    query_row: usize,
    pieces: usize,
    room: &mut Room,
) {
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
        // SAFETY: the machine has these lanes; a piece is two vectors of numbers and a line of bfloats.
        unsafe {
            L::load(numbers.as_ptr()).store_bf16(to.0.as_mut_ptr().cast());
            L::load(numbers[LANES..].as_ptr()).store_bf16(to.0[size_of::<Line>() / 2..].as_mut_ptr().cast());
        }
    }
}

/// Stores the keys of a tile in pairs of dimensions, `[pairs][16 positions][2]` in each piece, as matrix `n` of
/// four, and prefetches a later tile.
///
/// # Safety
/// As [`scores`]; the buffer is that of the call.
#[inline(always)]
unsafe fn pair_keys<L: BfloatLanes>(call: &ScoreCall<'_>, tile: usize, n: usize, room: &mut Room) {
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
            // SAFETY: a prefetch reads nothing. Two rows are a cache line.
            unsafe { L::prefetch(next.wrapping_add((piece * PAIRS + pair) * size_of::<Line>())) };
            to.pair_up(rows);
        }
    }
}

/// Scores a group of query rows, starting at `first`, against `tiles`, whose keys are in the buffer.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn score_group<P: Products>(
    call: &ScoreCall<'_>,
    first: usize,
    tiles: Range<usize>,
    products: &mut P,
    room: &Room,
) {
    let query_rows = first..call.q.len().min(first + QUERY_ROWS);
    let seen = Seen::by_any(&call.seen[query_rows.clone()]).blocks();
    if seen.end <= tiles.start || tiles.end <= seen.start {
        return;
    }
    let pieces = call.head_dim.div_ceil(PIECE);
    let to = call.scores.wrapping_add(first * SPLIT + tiles.start * BLOCK_POSITIONS);
    let operands = room.operands(query_rows, (0..pieces, pieces), tiles.len());
    // SAFETY: as the caller promises; the scores have a row of SPLIT for each query row.
    unsafe { products.multiply(&operands, to, SPLIT) };
}
