//! Scores over q8 keys on matrix units, for sixteen query rows at a time.
//!
//! A query number has 16 bits: 256 times a signed byte plus an unsigned one, each of which is multiplied with the
//! keys by itself. Sums are exact, so scores equal those of `quantised` to the bit, which also computes the query
//! rows that are left over.
//!
//! Keys stand in pairs of dimensions, the units take them in fours: a call rearranges its keys once for all its
//! query rows, of which a prompt has 96.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::SPLIT;
use super::kernel::{ScoreCall, Seen, TILES, fetch};
use super::quantised::{Query, add_group, scores_from};
use crate::f32x16::F32x16;
use crate::i32x16::I32x16;
use crate::kv::BLOCK_POSITIONS;
use crate::kv::quantised::{Q8, groups, scales_at};
use crate::kv::tile::Tile;
use crate::lines::Line;
use crate::x86::amx::{Config, Tiles};

/// Query rows of a product: the rows of a register.
const QUERY_ROWS: usize = 16;
/// Query rows of a call from which the units are used. With 96, as prompts have, they are 8% faster on a Xeon 6;
/// 32 rows, of sequences that share a prompt, took a third longer than without them.
const ROWS_FROM: usize = 64;
/// Dimensions of a product: the bytes of a row.
const STEP: usize = 64;
/// Rows of a register of keys, four dimensions of 16 positions each.
const FOURS: usize = STEP / 4;

/// The registers: upper and lower bytes of queries, keys, the sums of both.
const UPPER: usize = 0;
const LOWER: usize = 1;
const KEYS: usize = 2;
const UPPER_SUMS: usize = 3;
const LOWER_SUMS: usize = 4;
const CONFIG: Config = Config::new(&[[QUERY_ROWS, STEP]; 5]);

/// Sums of a tile of keys: those of the upper bytes, then those of the lower.
type Sums = [[[i32; BLOCK_POSITIONS]; QUERY_ROWS]; 2];

/// Queries and keys as the registers take them; zeros stand in for dimensions up to whole steps.
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
/// As [`quantised::scores`](super::quantised::scores), for keys in q8, and the machine has these units.
#[inline(always)]
pub(super) unsafe fn scores<I: I32x16, T: Tiles>(call: &ScoreCall<'_>) {
    // Longer heads have several scales, which a product over all dimensions does not tell apart.
    let fits = call.q.len() >= ROWS_FROM && groups::<Q8>(call.head_dim) == 1;
    let full = if fits { call.q.len() / QUERY_ROWS * QUERY_ROWS } else { 0 };
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
    let pairs = call.tiles[tile].cast::<[u8; 2]>();
    let pair_rows = call.head_dim.div_ceil(2);
    for (four, to) in to.iter_mut().enumerate() {
        let mut rows = [[[0; 2]; BLOCK_POSITIONS]; 2];
        for (i, row) in rows.iter_mut().enumerate().filter(|(i, _)| four * 2 + i < pair_rows) {
            // SAFETY: the tile has so many rows of 16 pairs.
            *row = unsafe { pairs.add((four * 2 + i) * BLOCK_POSITIONS).cast::<[[u8; 2]; 16]>().read() };
        }
        for (position, to) in to.0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let ([a, b], [c, d]) = (rows[0][position], rows[1][position]);
            *to = [a, b, c, d];
        }
    }
}

/// Writes the bytes of a query as row `row` of the registers.
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
    for (registers, numbers) in registers.chunks_exact_mut(2).zip(numbers.chunks(STEP)) {
        let mut padded = [0; STEP];
        padded[..numbers.len()].copy_from_slice(numbers);
        registers[0][row].0 = padded.map(|number: i16| (number >> 8) as u8);
        registers[1][row].0 = padded.map(|number| number as u8);
    }
}

/// Scores of a group of query rows against all tiles that one of them touches.
///
/// # Safety
/// As [`scores`]; the room holds these queries and all keys.
#[inline(always)]
unsafe fn score_group<I: I32x16, T: Tiles>(call: &ScoreCall<'_>, first: usize, room: &Room, units: &mut T) {
    let steps = call.head_dim.div_ceil(STEP);
    let Range { start, end } = Seen::by_any(&call.seen[first..first + QUERY_ROWS]).blocks();
    let mut sums = [const { MaybeUninit::<Sums>::uninit() }; TILES];
    for start in (start..end).step_by(TILES) {
        // SAFETY: the call has tiles for all that is seen; their sums are written before they are read.
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

/// Multiplies a group of queries with a tile of keys.
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

/// Makes scores of the sums of a tile.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::attention::variants;
    use crate::kv::{KvFormat, KvLayer};
    use crate::testing::Random;
    use crate::x86::amx::Emulated;
    use crate::{Isa, attention::kernel::AttentionKernels};

    /// Random keys and queries, some of which see nothing.
    struct Case {
        head_dim: usize,
        /// `[tiles]`, of f32 so that scales are aligned as in the arena.
        tiles: Vec<Vec<f32>>,
        queries: Vec<Vec<f32>>,
        seen: Vec<Seen>,
    }

    impl Case {
        fn new(head_dim: usize, tiles: usize, query_rows: usize, seed: u64) -> Case {
            let mut random = Random(seed);
            let values = head_dim.div_ceil(2) * BLOCK_POSITIONS * 2 / 4;
            let scales = groups::<Q8>(head_dim) * BLOCK_POSITIONS;
            let mut tile = || -> Vec<f32> {
                let value = |_| f32::from_bits(random.bits() as u32);
                let values: Vec<f32> = (0..values).map(value).collect();
                values.into_iter().chain((0..scales).map(|_| random.float())).collect()
            };
            let tiles: Vec<Vec<f32>> = (0..tiles).map(|_| tile()).collect();
            let positions = (tiles.len() * BLOCK_POSITIONS) as u64;
            let mut seen = || {
                let [a, b] = [0, 1].map(|_| (random.bits() % (positions + 1)) as u32);
                let (start, end) =
                    if random.bits().is_multiple_of(2) { (0, b) } else { (a.min(b), a.max(b)) };
                if start < end { Seen { start, end } } else { Seen::NOTHING }
            };
            let seen = (0..query_rows).map(|_| seen()).collect();
            let mut query = || -> Vec<f32> {
                let q: Vec<f32> = (0..head_dim).map(|_| random.float()).collect();
                let mut to = vec![0.0; super::super::quantised::query_len(KvFormat::Q8, head_dim)];
                // SAFETY: the room is that of the format.
                unsafe { (kernels(Isa::Scalar).query)(&q, &mut to) };
                to
            };
            let queries = (0..query_rows).map(|_| query()).collect();
            Case { head_dim, tiles, queries, seen }
        }

        /// The bits of all scores that query rows touch.
        fn scores(&self, scores: unsafe fn(&ScoreCall<'_>)) -> Vec<u32> {
            let tiles: Vec<*const u8> = self.tiles.iter().map(|tile| tile.as_ptr().cast()).collect();
            let q: Vec<*const f32> = self.queries.iter().map(|query| query.as_ptr()).collect();
            let mut out = vec![f32::NAN; q.len() * SPLIT];
            let call = ScoreCall {
                q: &q,
                seen: &self.seen,
                tiles: &tiles,
                value_tiles: &tiles,
                value_scales: 0..0,
                head_dim: self.head_dim,
                scores: out.as_mut_ptr(),
            };
            // SAFETY: all shapes are those of the call, and the machine has the instructions.
            unsafe { scores(&call) };
            let rows = out.chunks_exact(SPLIT).zip(&self.seen);
            let touched = |(row, seen): (&[f32], &Seen)| {
                let blocks = seen.blocks();
                row[blocks.start * BLOCK_POSITIONS..blocks.end * BLOCK_POSITIONS].to_vec()
            };
            rows.flat_map(touched).map(f32::to_bits).collect()
        }
    }

    fn kernels(isa: Isa) -> AttentionKernels {
        variants::kernels(isa, &KvLayer::full(1, 64, KvFormat::Q8, KvFormat::Q8))
    }

    unsafe fn emulated(call: &ScoreCall<'_>) {
        // SAFETY: the caller's promise.
        unsafe { scores::<crate::scalar::i32x16::ScalarSums, Emulated>(call) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn emulated_avx512(call: &ScoreCall<'_>) {
        // SAFETY: the caller's promise.
        unsafe { scores::<crate::x86::i32x16_avx512::Avx512Sums, Emulated>(call) }
    }

    fn check(scores: unsafe fn(&ScoreCall<'_>)) {
        let shapes =
            (prop_oneof![1..=256_usize, Just(512), Just(576)], 1..=16_usize, 1..=120_usize, any::<u64>());
        proptest!(ProptestConfig::with_cases(100), |((head_dim, tiles, query_rows, seed) in shapes)| {
            let case = Case::new(head_dim, tiles, query_rows, seed);
            prop_assert_eq!(case.scores(scores), case.scores(kernels(Isa::Scalar).scores));
        });
    }

    #[test]
    fn matrix_units_score_as_the_specification_does() {
        check(emulated);
    }

    #[test]
    fn matrix_units_beside_avx512_score_as_the_specification_does() {
        match Isa::available().contains(&Isa::Avx512) {
            true => check(emulated_avx512),
            false => kvik_testing::skip("this machine has no avx512"),
        }
    }
}
