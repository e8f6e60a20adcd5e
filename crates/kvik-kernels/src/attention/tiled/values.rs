//! Weighted values in q8: sums run over positions, columns are dimensions.
//!
//! Sums stay in registers for a whole split, which shares the scale of the weights.

use std::cell::Cell;
use std::ops::Range;

use super::super::kernel::{Seen, TILES, ValueCall, fetch};
use super::super::quantised::{Weights, add_values, begin_values, finish_values};
use super::{FOURS, QUERY_ROWS, STEP, split_bytes, whole_groups};
use crate::f32x16::{F32x16, LANES};
use crate::i32x16::I32x16;
use crate::kv::BLOCK_POSITIONS;
use crate::kv::quantised::{Q8, groups};
use crate::kv::tile::Tile;
use crate::lines::Line;
use crate::x86::amx::{Config, Tiles};

/// Registers: upper and lower bytes of weights, values of two vectors, the sums of both bytes for each.
const UPPER: usize = 0;
const LOWER: usize = 1;
const VALUES: [usize; VECTORS] = [2, 3];
const SUMS: [[usize; 2]; VECTORS] = [[4, 5], [6, 7]];
const CONFIG: Config = Config::new(&[[QUERY_ROWS, STEP]; 8]);

/// Vectors of dimensions processed at a time, which use each register of weights twice.
const VECTORS: usize = 2;
/// Tiles per step: their positions are the bytes of a row of weights.
const STEP_TILES: usize = STEP / BLOCK_POSITIONS;
/// Minimum tiles of a call for which the units are used. Reading two registers of sums takes 32 cycles however
/// few positions they sum, in which vectors weight half a tile for as many rows; with the rearrangement, by
/// operation count two tiles break even.
const TILES_FROM: usize = STEP_TILES;

/// Buffers for weights, values and sums in the layout of registers.
#[derive(Default)]
struct Room {
    /// `[groups of query rows][steps][upper, lower][query rows]`
    weights: Vec<Line>,
    /// `[steps][VECTORS][fours]`
    values: Vec<Line>,
    /// `[VECTORS][upper, lower][query rows]`
    sums: Vec<Line>,
}

thread_local! {
    static ROOM: Cell<Room> =
        const { Cell::new(Room { weights: Vec::new(), values: Vec::new(), sums: Vec::new() }) };
}

/// Weighted values of all query rows.
///
/// # Safety
/// As [`quantised::values`](super::super::quantised::values), for values in q8, and the machine has these units.
#[inline(always)]
pub(crate) unsafe fn values<I: I32x16, T: Tiles>(call: &ValueCall<'_>) {
    // Longer heads have several weights per position.
    let fits = groups::<Q8>(call.dims) == 1 && call.tiles.len() >= TILES_FROM;
    let full = if fits { whole_groups(call.seen.len()) } else { 0 };
    // SAFETY: as the caller promises.
    unsafe {
        begin_values::<I, Q8>(call, [BLOCK_POSITIONS, call.dims]);
        if full > 0 {
            let mut room = ROOM.take();
            weigh_groups::<I::Floats, T>(call, full, &mut room);
            ROOM.set(room);
        }
        for start in (0..call.tiles.len()).step_by(TILES) {
            let tiles = start..call.tiles.len().min(start + TILES);
            add_values::<I, Q8, Q8>(call, full, tiles);
        }
        finish_values::<I, Q8>(call);
    }
}

/// Computes the sums of the first `full` query rows, which are whole groups.
///
/// # Safety
/// As [`values`], and [`begin_values`] was called.
#[inline(always)]
unsafe fn weigh_groups<L: F32x16, T: Tiles>(call: &ValueCall<'_>, full: usize, room: &mut Room) {
    let steps = call.tiles.len().div_ceil(STEP_TILES);
    room.weights.resize(full * steps * 2, Line::ZERO);
    room.values.resize(steps * VECTORS * FOURS, Line::ZERO);
    room.sums.resize(VECTORS * 2 * QUERY_ROWS, Line::ZERO);
    let of_group = steps * 2 * QUERY_ROWS;
    for (group, weights) in room.weights.chunks_exact_mut(of_group).enumerate() {
        for row in 0..QUERY_ROWS {
            // SAFETY: as the caller promises; the row is one of the call's.
            unsafe { split_weights(call, group * QUERY_ROWS + row, row, weights) };
        }
    }
    // SAFETY: as the caller promises.
    unsafe {
        let mut units = T::configured(const { &CONFIG });
        for vector in (0..call.dims / LANES).step_by(VECTORS) {
            unpack_values::<L>(call, vector, &mut room.values);
            for first in (0..full).step_by(QUERY_ROWS) {
                let weights = room.weights.as_ptr().add(first * steps * 2);
                let steps = steps_of(&call.seen[first..first + QUERY_ROWS]);
                multiply(&mut units, weights, room.values.as_ptr(), steps, room.sums.as_mut_ptr());
                put_together(call, first, vector, &room.sums);
            }
        }
    }
}

/// The steps in which at least one of the query rows sees something.
fn steps_of(seen: &[Seen]) -> Range<usize> {
    let Range { start, end } = Seen::by_any(seen).blocks();
    start / STEP_TILES..end.div_ceil(STEP_TILES)
}

/// Writes the bytes of a query row's weights to row `row` of the registers.
///
/// # Safety
/// As [`weigh_groups`].
#[inline(always)]
unsafe fn split_weights(call: &ValueCall<'_>, query_row: usize, row: usize, to: &mut [Line]) {
    let weights = Weights::of::<Q8>(call, query_row).weights;
    // SAFETY: the weights of all positions of the call's tiles were written.
    let weights = unsafe { std::slice::from_raw_parts(weights, call.tiles.len() * BLOCK_POSITIONS) };
    let (registers, _) = to.as_chunks_mut::<QUERY_ROWS>();
    for (registers, weights) in registers.as_chunks_mut::<2>().0.iter_mut().zip(weights.chunks(STEP)) {
        split_bytes(weights, registers.each_mut().map(|register| &mut register[row]));
    }
}

/// Rearranges the values of all tiles for two vectors of dimensions, starting at `first`, as
/// `[steps][VECTORS][fours of positions][16 dimensions][4]`, with zeros for missing vectors and tiles.
/// With the first vectors it prefetches later tiles.
///
/// # Safety
/// As [`weigh_groups`].
#[inline(always)]
unsafe fn unpack_values<L: F32x16>(call: &ValueCall<'_>, first: usize, to: &mut [Line]) {
    /// Rows of pairs of positions per tile.
    const PAIRS: usize = BLOCK_POSITIONS / 2;
    for (i, to) in to.as_chunks_mut::<{ PAIRS / 2 }>().0.iter_mut().enumerate() {
        // `[steps][VECTORS][tiles of a step]`
        let tile = i / STEP_TILES / VECTORS * STEP_TILES + i % STEP_TILES;
        let vector = first + i / STEP_TILES % VECTORS;
        let Some(packed) = call.tiles.get(tile).filter(|_| vector * LANES < call.dims) else {
            to.fill(Line::ZERO);
            continue;
        };
        if vector == 0 {
            fetch::<L>(call.tiles.get(tile + TILES).copied().unwrap_or(*packed), Q8::value_bytes(call.dims));
        }
        let columns = packed.wrapping_add(vector * LANES * 2);
        for (four, to) in to.iter_mut().enumerate() {
            let row = columns.wrapping_add(2 * four * call.dims * 2).cast::<[u16; LANES]>();
            // SAFETY: two of the tile's rows of pairs of bytes, and 16 of their `dims` columns.
            let (a, b) = unsafe { (row.read_unaligned(), row.byte_add(call.dims * 2).read_unaligned()) };
            to.pair_up([a, b]);
        }
    }
}

/// Multiplies a group of query rows by both vectors of values, and writes the sums.
///
/// # Safety
/// Both have these steps, `to` has room for all sums, and the registers are those of [`CONFIG`].
#[inline(always)]
unsafe fn multiply<T: Tiles>(
    units: &mut T,
    weights: *const Line,
    values: *const Line,
    steps: Range<usize>,
    to: *mut Line,
) {
    // SAFETY: as the caller promises; each row of a register is a line.
    unsafe {
        units.zero::<{ SUMS[0][0] }>();
        units.zero::<{ SUMS[0][1] }>();
        units.zero::<{ SUMS[1][0] }>();
        units.zero::<{ SUMS[1][1] }>();
        for step in steps {
            let weights = weights.add(step * 2 * QUERY_ROWS);
            let values = values.add(step * VECTORS * FOURS);
            units.load::<UPPER>(weights.cast(), STEP);
            units.load::<{ VALUES[0] }>(values.cast(), STEP);
            units.dot::<{ SUMS[0][0] }, UPPER, { VALUES[0] }>();
            units.load::<LOWER>(weights.add(QUERY_ROWS).cast(), STEP);
            units.dot_unsigned::<{ SUMS[0][1] }, LOWER, { VALUES[0] }>();
            units.load::<{ VALUES[1] }>(values.add(FOURS).cast(), STEP);
            units.dot::<{ SUMS[1][0] }, UPPER, { VALUES[1] }>();
            units.dot_unsigned::<{ SUMS[1][1] }, LOWER, { VALUES[1] }>();
        }
        units.store::<{ SUMS[0][0] }>(to.cast(), STEP);
        units.store::<{ SUMS[0][1] }>(to.add(QUERY_ROWS).cast(), STEP);
        units.store::<{ SUMS[1][0] }>(to.add(2 * QUERY_ROWS).cast(), STEP);
        units.store::<{ SUMS[1][1] }>(to.add(3 * QUERY_ROWS).cast(), STEP);
    }
}

/// Combines the sums of both bytes and writes them to the results of the query rows.
///
/// # Safety
/// As [`weigh_groups`]; the query rows are of the call.
#[inline(always)]
unsafe fn put_together(call: &ValueCall<'_>, first: usize, vector: usize, sums: &[Line]) {
    let (registers, _) = sums.as_chunks::<QUERY_ROWS>();
    let vectors = call.dims / LANES - vector;
    for (n, [upper, lower]) in registers.as_chunks::<2>().0.iter().enumerate().take(vectors) {
        for (row, (upper, lower)) in upper.iter().zip(lower).enumerate() {
            let to = call.out.wrapping_add((first + row) * call.dims + (vector + n) * LANES);
            let mut together = [0; LANES];
            let bytes = upper.0.as_chunks::<4>().0.iter().zip(lower.0.as_chunks::<4>().0);
            for (sum, (upper, lower)) in together.iter_mut().zip(bytes) {
                *sum = i32::from_ne_bytes(*upper) * 256 + i32::from_ne_bytes(*lower);
            }
            // SAFETY: the results have `dims` numbers for each query row, as integers until all are added.
            unsafe { to.cast::<[i32; LANES]>().write_unaligned(together) };
        }
    }
}
