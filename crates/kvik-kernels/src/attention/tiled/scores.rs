//! Scores over q8 keys: sums run over dimensions, columns are positions.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::SPLIT;
use super::super::kernel::{ScoreCall, Seen, TILES, fetch};
use super::super::quantised::{Query, add_group, scores_from};
use super::{FOURS, QUERY_ROWS, STEP, split_bytes, whole_groups};
use crate::f32x16::F32x16;
use crate::i32x16::I32x16;
use crate::kv::BLOCK_POSITIONS;
use crate::kv::quantised::{Q8, groups, scales_at};
use crate::kv::tile::Tile;
use crate::lines::Line;
use crate::x86::amx::{Config, Tiles};

/// Registers: upper and lower bytes of queries, keys, the sums of both.
const UPPER: usize = 0;
const LOWER: usize = 1;
const KEYS: usize = 2;
const UPPER_SUMS: usize = 3;
const LOWER_SUMS: usize = 4;
const CONFIG: Config = Config::new(&[[QUERY_ROWS, STEP]; 5]);

/// Sums of a tile of keys: those of the upper bytes, then those of the lower.
type Sums = [[[i32; BLOCK_POSITIONS]; QUERY_ROWS]; 2];

/// Buffers for queries and keys in the layout of registers, padded with zeros to whole steps.
#[derive(Default)]
struct Room {
    /// `[steps][upper, lower][query rows]`
    queries: Vec<Line>,
    /// `[tiles][steps][fours]`
    keys: Vec<Line>,
}

thread_local! {
    static ROOM: Cell<Room> = const { Cell::new(Room { queries: Vec::new(), keys: Vec::new() }) };
}

/// Scores of all query rows.
///
/// # Safety
/// As [`quantised::scores`](super::super::quantised::scores), for keys in q8, and the machine has these units.
#[inline(always)]
pub(crate) unsafe fn scores<I: I32x16, T: Tiles>(call: &ScoreCall<'_>) {
    // Longer heads have several scales, which one product over all dimensions cannot apply.
    let full = if groups::<Q8>(call.head_dim) == 1 { whole_groups(call.q.len()) } else { 0 };
    // SAFETY: as the caller promises.
    unsafe {
        if full > 0 {
            let mut room = ROOM.take();
            score_groups::<I, T>(call, full, &mut room);
            ROOM.set(room);
        }
        scores_from::<I, Q8>(call, full);
    }
}

/// Scores of the first `full` query rows, which are whole groups.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn score_groups<I: I32x16, T: Tiles>(call: &ScoreCall<'_>, full: usize, room: &mut Room) {
    let steps = call.head_dim.div_ceil(STEP);
    room.queries.resize(steps * 2 * QUERY_ROWS, Line::ZERO);
    room.keys.resize(call.tiles.len() * steps * FOURS, Line::ZERO);
    for (tile, keys) in room.keys.chunks_exact_mut(steps * FOURS).enumerate() {
        // SAFETY: as the caller promises.
        unsafe { unpack_keys::<I::Floats>(call, tile, keys) };
    }
    // SAFETY: as the caller promises.
    unsafe {
        let mut units = T::configured(const { &CONFIG });
        for first in (0..full).step_by(QUERY_ROWS) {
            for row in 0..QUERY_ROWS {
                split_query(call, first + row, row, &mut room.queries);
            }
            score_group::<I, T>(call, first, room, &mut units);
        }
    }
}

/// Rearranges the keys of a tile as `[fours of dimensions][16 positions][4]`.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn unpack_keys<L: F32x16>(call: &ScoreCall<'_>, tile: usize, to: &mut [Line]) {
    let [next] = call.next_tiles::<L, 1>(0, tile, [call.tiles[tile]]);
    fetch::<L>(next, Q8::key_bytes(call.head_dim));
    let pairs = call.tiles[tile].cast::<[u16; BLOCK_POSITIONS]>();
    let pair_rows = call.head_dim.div_ceil(2);
    let pairs = |row: usize| match row < pair_rows {
        // SAFETY: the tile has `pair_rows` rows of 16 pairs of bytes.
        true => unsafe { pairs.add(row).read_unaligned() },
        false => [0; BLOCK_POSITIONS],
    };
    for (four, to) in to.iter_mut().enumerate() {
        to.pair_up([pairs(2 * four), pairs(2 * four + 1)]);
    }
}

/// Writes the bytes of a query to row `row` of the registers.
///
/// # Safety
/// As [`scores`]; the query row is one of the call.
#[inline(always)]
unsafe fn split_query(call: &ScoreCall<'_>, query_row: usize, row: usize, to: &mut [Line]) {
    // SAFETY: the query is that of the format, and has a number for each dimension.
    let numbers = unsafe {
        let query = Query::read::<Q8>(call.q[query_row], call.head_dim);
        std::slice::from_raw_parts(query.numbers, call.head_dim)
    };
    let (registers, _) = to.as_chunks_mut::<QUERY_ROWS>();
    for (registers, numbers) in registers.as_chunks_mut::<2>().0.iter_mut().zip(numbers.chunks(STEP)) {
        split_bytes(numbers, registers.each_mut().map(|register| &mut register[row]));
    }
}

/// Scores of a group of query rows against all tiles that at least one of them sees.
///
/// # Safety
/// As [`scores`]; the buffer holds these queries and all keys.
#[inline(always)]
unsafe fn score_group<I: I32x16, T: Tiles>(call: &ScoreCall<'_>, first: usize, room: &Room, units: &mut T) {
    let steps = call.head_dim.div_ceil(STEP);
    let Range { start, end } = Seen::by_any(&call.seen[first..first + QUERY_ROWS]).blocks();
    let mut sums = [const { MaybeUninit::<Sums>::uninit() }; TILES];
    for start in (start..end).step_by(TILES) {
        // SAFETY: the call has tiles for all visible positions; their sums are written before they are read.
        unsafe {
            for tile in start..end.min(start + TILES) {
                let keys = room.keys.as_ptr().add(tile * steps * FOURS);
                multiply(units, room.queries.as_ptr(), keys, steps, sums[tile - start].as_mut_ptr());
            }
            for tile in start..end.min(start + TILES) {
                scale::<I>(call, first, tile, sums[tile - start].assume_init_ref());
            }
        }
    }
}

/// Multiplies a group of queries by a tile of keys.
///
/// # Safety
/// Both have `steps` steps, and the registers are those of [`CONFIG`].
#[inline(always)]
unsafe fn multiply<T: Tiles>(
    units: &mut T,
    queries: *const Line,
    keys: *const Line,
    steps: usize,
    to: *mut Sums,
) {
    // SAFETY: as the caller promises; each row of a register is a line.
    unsafe {
        units.zero::<UPPER_SUMS>();
        units.zero::<LOWER_SUMS>();
        for step in 0..steps {
            let queries = queries.add(step * 2 * QUERY_ROWS);
            units.load::<UPPER>(queries.cast(), STEP);
            units.load::<LOWER>(queries.add(QUERY_ROWS).cast(), STEP);
            units.load::<KEYS>(keys.add(step * FOURS).cast(), STEP);
            units.dot::<UPPER_SUMS, UPPER, KEYS>();
            units.dot_unsigned::<LOWER_SUMS, LOWER, KEYS>();
        }
        let [upper, lower] = [0, 1].map(|i| to.cast::<u8>().wrapping_add(i * size_of::<Sums>() / 2));
        units.store::<UPPER_SUMS>(upper, STEP);
        units.store::<LOWER_SUMS>(lower, STEP);
    }
}

/// Converts the sums of a tile to scores.
///
/// # Safety
/// As [`scores`]; the query rows are of the call, and so is the tile.
#[inline(always)]
unsafe fn scale<I: I32x16>(call: &ScoreCall<'_>, first: usize, tile: usize, [upper, lower]: &Sums) {
    for row in 0..QUERY_ROWS {
        let mut sums = [0; BLOCK_POSITIONS];
        for (sum, (upper, lower)) in sums.iter_mut().zip(upper[row].iter().zip(&lower[row])) {
            *sum = upper * 256 + lower;
        }
        // SAFETY: the scales of the tile, and a row of SPLIT scores for each query row.
        unsafe {
            let query = Query::read::<Q8>(call.q[first + row], call.head_dim);
            let scales = scales_at::<Q8>(call.tiles[tile], call.head_dim, BLOCK_POSITIONS);
            let to = call.scores.add((first + row) * SPLIT + tile * BLOCK_POSITIONS);
            add_group::<I, Q8>(I::load(sums.as_ptr()), scales, query, 0, to);
            I::Floats::load(to).mul(I::Floats::splat(query.scale)).store(to);
        }
    }
}
