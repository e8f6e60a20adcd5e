//! Scores and values for quantised keys and values: integer sums, scaled afterwards.
//!
//! 1. A query is rotated and rounded to 16 bits, its maximum magnitude to 32767. Per group of dimensions,
//!    the sum s of products with the quantised values is exact; a score is the FMA over ascending groups of
//!    s times the group's scale, and of the sum of the group's query numbers times its minimum;
//!    all times the query's scale.
//! 2. The weight of a position, per group of dimensions, is p times the group's scale, rounded to 16 bits,
//!    the maximum of the split to 32767. The sum of weights times quantised values is exact; times the weights'
//!    scale, plus the sum of p times the minima (per lane over ascending blocks, then the tree of
//!    [`F32x16::sum`]), it is a dimension of the output.
//!
//! If the maximum is so small that no finite factor scales it to 32767 (below 1e-34), all are 0: see
//! [`factor_to`].
//!
//! Sixteen bits are precise enough: their error is 1/256 of that of 8-bit values.

#![expect(clippy::needless_range_loop, reason = "register blocks are written as the matrices they are")]

use std::ops::Range;

use super::SPLIT;
use super::kernel::{ScoreCall, Seen, TILES, ValueCall, between, fetch};
use crate::f32x16::{F32x16, LANES, ROUND};
use crate::i32x16::I32x16;
use crate::kv::quantised::{Quantised, groups, scales_at};
use crate::kv::rotate::rotate;
use crate::kv::tiles::with_tile;
use crate::kv::{BLOCK_POSITIONS, HEAD_DIM_MAX, HeadRoom, KvFormat, factor_to, max_magnitude};

/// The 16-bit value that represents the maximum magnitude.
const MAGNITUDE_MAX: f32 = 32767.0;

/// A query vector, quantised for quantised keys.
///
/// ```text
/// [scale] [groups] { sum of the group's numbers } [head_dim, rounded up to whole words] 16-bit numbers
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Query {
    pub(super) scale: f32,
    sums: *const f32,
    pub(super) numbers: *const i16,
}

impl Query {
    /// Length of a query in floats.
    fn len<C: Quantised>(head_dim: usize) -> usize {
        1 + groups::<C>(head_dim) + head_dim.next_multiple_of(C::ROWS) / 2
    }

    /// # Safety
    /// `from` points to the output of [`Query::write`] for this format and dimension.
    #[inline(always)]
    pub(super) unsafe fn read<C: Quantised>(from: *const f32, head_dim: usize) -> Query {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = from.add(1);
            Query { scale: *from, sums, numbers: sums.add(groups::<C>(head_dim)).cast() }
        }
    }

    /// Writes `q` to `to`, which has [`query_len`] elements.
    #[inline(always)]
    pub(crate) fn write<C: Quantised>(q: &[f32], to: &mut [f32]) {
        let mut room = HeadRoom::new();
        let rotated = room.copy(q);
        rotate(rotated);
        let max = max_magnitude(rotated);
        let factor = factor_to(MAGNITUDE_MAX, max);
        // Padding up to whole words is zero.
        let mut numbers = [0; HEAD_DIM_MAX];
        for (number, x) in numbers.iter_mut().zip(rotated.iter()) {
            *number = round(x * factor);
        }
        let (head, packed) = to.split_at_mut(1 + groups::<C>(q.len()));
        head[0] = max / MAGNITUDE_MAX;
        for (sum, group) in head[1..].iter_mut().zip(numbers[..q.len()].chunks(C::GROUP)) {
            *sum = group.iter().map(|&number| i32::from(number)).sum::<i32>() as f32;
        }
        for (pair, numbers) in packed.iter_mut().zip(numbers.as_chunks::<2>().0) {
            let ([a, b], [c, d]) = (numbers[0].to_ne_bytes(), numbers[1].to_ne_bytes());
            *pair = f32::from_ne_bytes([a, b, c, d]);
        }
    }
}

/// Length of a query vector in floats for keys in `format`, 0 if they are not quantised.
pub(super) fn query_len(format: KvFormat, head_dim: usize) -> usize {
    with_tile!(format, T => 0, C => Query::len::<C>(head_dim))
}

/// `x`, which is at most [`MAGNITUDE_MAX`] in magnitude, rounded half to even.
#[inline(always)]
fn round(x: f32) -> i16 {
    (x + ROUND).to_bits() as i16
}

/// Scores of all query rows, [`TILES`] tiles at a time; unpacking leaves fewer registers for query rows.
///
/// # Safety
/// See [`AttentionKernels`](super::kernel::AttentionKernels); inlined into a function with the features of `I`.
#[inline(always)]
pub(crate) unsafe fn scores<I: I32x16, C: Quantised>(call: &ScoreCall<'_>) {
    // SAFETY: as the caller promises.
    unsafe { scores_from::<I, C>(call, 0) }
}

/// [`scores`] of the query rows from `first` on.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
pub(super) unsafe fn scores_from<I: I32x16, C: Quantised>(call: &ScoreCall<'_>, first: usize) {
    for start in (0..call.tiles.len()).step_by(TILES) {
        let tiles = start..call.tiles.len().min(start + TILES);
        let mut query_row = first;
        while query_row < call.q.len() {
            let tiles = tiles.clone();
            // SAFETY: the group is inside the query rows of the call.
            query_row += unsafe {
                match call.q.len() - query_row {
                    _ if const { !I::Floats::BLOCKED } => {
                        score_query_rows::<I, C, 1, 1>(call, query_row, tiles)
                    }
                    6.. if const { C::ROWS == 2 || I::Floats::WIDE } => {
                        score_query_rows::<I, C, 6, 1>(call, query_row, tiles)
                    }
                    4.. => score_query_rows::<I, C, 4, 1>(call, query_row, tiles),
                    2.. if const { C::ROWS == 2 } => score_query_rows::<I, C, 2, 2>(call, query_row, tiles),
                    2.. => score_query_rows::<I, C, 2, 1>(call, query_row, tiles),
                    _ if const { C::ROWS == 2 } => score_query_rows::<I, C, 1, 4>(call, query_row, tiles),
                    _ => score_query_rows::<I, C, 1, 2>(call, query_row, tiles),
                }
            };
        }
    }
}

/// Scores `M` query rows against those of `tiles` that they see, all four at once with wide registers and `N` at
/// a time with narrow ones; returns `M`.
#[inline(always)]
unsafe fn score_query_rows<I: I32x16, C: Quantised, const M: usize, const N: usize>(
    call: &ScoreCall<'_>,
    query_row: usize,
    tiles: Range<usize>,
) -> usize {
    let seen = Seen::by_any(&call.seen[query_row..query_row + M]).blocks();
    let (mut tile, end) = (tiles.start.max(seen.start), tiles.end.min(seen.end));
    // SAFETY: `query_row + M` query rows exist, and `end` tiles.
    unsafe {
        if const { I::Floats::WIDE } {
            if tile + TILES <= end {
                score_tiles::<I, C, M, TILES>(call, query_row, tile);
                tile += TILES;
            }
        } else if const { N > 1 } {
            while tile + N <= end {
                score_tiles::<I, C, M, N>(call, query_row, tile);
                tile += N;
            }
        }
        while tile < end {
            score_tiles::<I, C, M, 1>(call, query_row, tile);
            tile += 1;
        }
    }
    M
}

#[inline(always)]
unsafe fn score_tiles<I: I32x16, C: Quantised, const M: usize, const N: usize>(
    call: &ScoreCall<'_>,
    query_row: usize,
    tile: usize,
) {
    let head_dim = call.head_dim;
    let mut tiles = [std::ptr::null(); N];
    tiles.copy_from_slice(&call.tiles[tile..tile + N]);
    let next = call.next_tiles::<I::Floats, N>(query_row, tile, tiles);
    let stride = BLOCK_POSITIONS * C::WORD;
    if query_row == 0 {
        for next in next {
            fetch::<I::Floats>(
                scales_at::<C>(next, head_dim, BLOCK_POSITIONS),
                groups::<C>(head_dim) * C::SCALES,
            );
        }
    }
    // SAFETY: the queries are those of the format, every word of a group is inside the tiles,
    // and the scores have a row of SPLIT for every query row.
    unsafe {
        let mut queries = [Query::read::<C>(call.q[query_row], head_dim); M];
        let mut numbers = [queries[0].numbers; M];
        for m in 1..M {
            queries[m] = Query::read::<C>(call.q[query_row + m], head_dim);
            numbers[m] = queries[m].numbers;
        }
        let to = call.scores.add(query_row * SPLIT + tile * BLOCK_POSITIONS);
        for g in 0..groups::<C>(head_dim) {
            let dims = (head_dim - g * C::GROUP).min(C::GROUP);
            let mut sums = [[I::zero(); N]; M];
            let words = Words { packed: tiles, next, stride, count: dims.div_ceil(C::ROWS) };
            add_words::<I, C, M, N>(numbers, words.after(g * (C::GROUP / C::ROWS)), &mut sums);
            for m in 0..M {
                numbers[m] = numbers[m].wrapping_add(C::GROUP);
            }
            for n in 0..N {
                let scales = scales_at::<C>(tiles[n], head_dim, BLOCK_POSITIONS).add(g * C::SCALES);
                for m in 0..M {
                    let to = to.add(m * SPLIT + n * BLOCK_POSITIONS);
                    add_group::<I, C>(sums[m][n], scales, queries[m], g, to);
                    if g + 1 == groups::<C>(head_dim) {
                        I::Floats::load(to).mul(I::Floats::splat(queries[m].scale)).store(to);
                    }
                }
            }
        }
    }
}

/// Adds the contribution of group `g` to 16 scores at `to`; the first group initialises them.
#[inline(always)]
pub(super) unsafe fn add_group<I: I32x16, C: Quantised>(
    sums: I,
    scales: *const u8,
    query: Query,
    g: usize,
    to: *mut f32,
) {
    // SAFETY: the scales of the group, 16 scores, and as many sums of the query as groups.
    unsafe {
        let (sums, scale) = (sums.to_floats(), C::scale::<I::Floats>(scales));
        let mut scores = if g == 0 { sums.mul(scale) } else { sums.mul_add(scale, I::Floats::load(to)) };
        if C::HAS_MIN {
            let sum = I::Floats::splat(*query.sums.add(g));
            scores = C::min::<I::Floats>(scales).mul_add(sum, scores);
        }
        scores.store(to);
    }
}

/// Words of 16 columns at `N` places, each the start of a column of words.
#[derive(Clone, Copy)]
struct Words<const N: usize> {
    packed: [*const u8; N],
    /// The addresses to prefetch.
    next: [*const u8; N],
    /// Bytes from one word to the next below it.
    stride: usize,
    count: usize,
}

impl<const N: usize> Words<N> {
    /// The words after the first `skipped`.
    #[inline(always)]
    fn after(mut self, skipped: usize) -> Words<N> {
        for n in 0..N {
            self.packed[n] = self.packed[n].wrapping_add(skipped * self.stride);
            self.next[n] = self.next[n].wrapping_add(skipped * self.stride);
        }
        self
    }
}

/// Adds to `sums[m][n]` the products of the quantised values at `n` with the numbers at `x[m]`, one for each row.
#[inline(always)]
unsafe fn add_words<I: I32x16, C: Quantised, const M: usize, const N: usize>(
    x: [*const i16; M],
    words: Words<N>,
    sums: &mut [[I; N]; M],
) {
    for w in 0..words.count {
        // SAFETY: the caller's promise: `count` words, and as many numbers as they have rows.
        unsafe {
            let mut packed = [C::words::<I>(words.packed[0].add(w * words.stride)); N];
            for n in 0..N {
                I::Floats::prefetch(words.next[n].wrapping_add(w * words.stride));
                packed[n] = C::words::<I>(words.packed[n].add(w * words.stride));
            }
            for i in 0..C::ROWS / 2 {
                for m in 0..M {
                    let x = I::splat_pair(x[m].add(w * C::ROWS + 2 * i));
                    for n in 0..N {
                        sums[m][n] = sums[m][n].add_products(C::pairs::<I>(packed[n], i), x);
                    }
                }
            }
        }
    }
}

/// The weights of a query row, quantised for quantised values.
///
/// ```text
/// [groups] { scale, minimum } [groups][SPLIT] 16-bit weights
/// ```
#[derive(Clone, Copy)]
pub(super) struct Weights {
    groups: *mut [f32; 2],
    pub(super) weights: *mut i16,
}

/// Bytes of the weights of a query row for values in `format`, 0 if they are not quantised.
pub(super) fn weight_bytes(format: KvFormat, dims: usize) -> usize {
    with_tile!(format, T => 0, C => Weights::bytes::<C>(dims))
}

/// The range of the scales in a V tile in `format`, empty if it is not quantised.
pub(super) fn value_scales(format: KvFormat, dims: usize) -> Range<usize> {
    with_tile!(format, T => 0..0, C => {
        let start = scales_at::<C>(std::ptr::null(), BLOCK_POSITIONS, dims).addr();
        start..start + groups::<C>(dims) * C::SCALES
    })
}

impl Weights {
    fn bytes<C: Quantised>(dims: usize) -> usize {
        groups::<C>(dims) * (size_of::<[f32; 2]>() + SPLIT * size_of::<i16>())
    }

    /// The weights of `query_row`.
    #[inline(always)]
    pub(super) fn of<C: Quantised>(call: &ValueCall<'_>, query_row: usize) -> Weights {
        let start = call.room.wrapping_add(query_row * Weights::bytes::<C>(call.dims));
        let groups_bytes = groups::<C>(call.dims) * size_of::<[f32; 2]>();
        Weights { groups: start.cast(), weights: start.wrapping_add(groups_bytes).cast() }
    }
}

/// Weighted values, [`TILES`] tiles at a time; `out` accumulates the sums, as integers until all are added.
///
/// # Safety
/// See [`AttentionKernels`](super::kernel::AttentionKernels); inlined into a function with the features of `I`.
#[inline(always)]
pub(crate) unsafe fn values<I: I32x16, C: Quantised>(call: &ValueCall<'_>) {
    // SAFETY: the tiles are V tiles of the format.
    unsafe {
        begin_values::<I, C>(call, [BLOCK_POSITIONS, call.dims]);
        for start in (0..call.tiles.len()).step_by(TILES) {
            add_values::<I, C, C>(call, 0, start..call.tiles.len().min(start + TILES));
        }
        finish_values::<I, C>(call);
    }
}

/// Computes the weights of all query rows and zeroes the sums; the scales, in format `C`, follow `shape` rows
/// and columns.
///
/// # Safety
/// As [`values`].
#[inline(always)]
pub(super) unsafe fn begin_values<I: I32x16, C: Quantised>(call: &ValueCall<'_>, shape: [usize; 2]) {
    for query_row in 0..call.seen.len() {
        for g in 0..groups::<C>(call.dims) {
            // SAFETY: the group is one of the tiles.
            unsafe { weigh::<I, C>(call, shape, query_row, g) };
        }
    }
    // SAFETY: the results have `dims` numbers for each query row.
    unsafe { std::slice::from_raw_parts_mut(call.out, call.seen.len() * call.dims) }.fill(0.0);
}

/// Adds the positions of `tiles`, at most [`TILES`], for the query rows from `first` on; values are in words of
/// `W` and groups of `C`.
///
/// # Safety
/// As [`values`], and [`begin_values`] was called.
#[inline(always)]
pub(super) unsafe fn add_values<I: I32x16, W: Quantised, C: Quantised>(
    call: &ValueCall<'_>,
    first: usize,
    tiles: Range<usize>,
) {
    let query_rows = call.seen.len();
    let mut query_row = first;
    while query_row < query_rows {
        let tiles = tiles.clone();
        // SAFETY: the query rows are those of the call.
        query_row += unsafe {
            match query_rows - query_row {
                _ if const { !I::Floats::BLOCKED } => {
                    value_query_rows::<I, W, C, 1, 1>(call, query_row, tiles)
                }
                6.. if const { W::ROWS == 2 || I::Floats::WIDE } => {
                    value_query_rows::<I, W, C, 6, 1>(call, query_row, tiles)
                }
                4.. => value_query_rows::<I, W, C, 4, 1>(call, query_row, tiles),
                2.. if const { W::ROWS == 2 } => value_query_rows::<I, W, C, 2, 2>(call, query_row, tiles),
                2.. => value_query_rows::<I, W, C, 2, 1>(call, query_row, tiles),
                _ if const { W::ROWS == 2 && C::GROUP >= 4 * LANES } => {
                    value_query_rows::<I, W, C, 1, 4>(call, query_row, tiles)
                }
                _ => value_query_rows::<I, W, C, 1, 2>(call, query_row, tiles),
            }
        };
    }
}

/// Computes the weights of a query row for group `g`, 0 for positions that it does not see.
#[inline(always)]
unsafe fn weigh<I: I32x16, C: Quantised>(
    call: &ValueCall<'_>,
    [rows, columns]: [usize; 2],
    query_row: usize,
    g: usize,
) {
    let (seen, weights) = (call.seen[query_row], Weights::of::<C>(call, query_row));
    let (blocks, seen) = (seen.blocks(), seen.positions());
    let mut weighted = [0.0; SPLIT];
    // SAFETY: a query row has a row of SPLIT, each of its blocks a tile, and the tile scales for the group.
    unsafe {
        let nothing = I::Floats::splat(0.0);
        let (mut max, mut min) = (nothing, nothing);
        for block in blocks {
            let (tile, start) = (call.tiles[block], block * LANES);
            let scales = scales_at::<C>(tile, rows, columns).add(g * C::SCALES);
            let p = I::Floats::load(call.p.add(query_row * SPLIT + start));
            // Scales of invisible positions may have any value.
            let weight = between(start, &seen, p.mul(C::scale(scales)), nothing);
            let offset = if C::HAS_MIN { p.mul(C::min(scales)) } else { nothing };
            let offset = between(start, &seen, offset, nothing);
            weight.store(weighted.as_mut_ptr().add(start));
            max = weight.max(max);
            min = offset.add(min);
        }
        let max = max.maximum();
        let factor = factor_to(MAGNITUDE_MAX, max);
        *weights.groups.add(g) = [max / MAGNITUDE_MAX, if C::HAS_MIN { min.sum() } else { 0.0 }];
        let to = weights.weights.add(g * SPLIT);
        for start in (0..call.tiles.len() * BLOCK_POSITIONS).step_by(LANES) {
            let weight = I::Floats::load(weighted.as_ptr().add(start));
            weight.mul(I::Floats::splat(factor)).store_i16(to.add(start));
        }
    }
}

/// Adds the positions of `tiles` for `M` query rows, several vectors at a time; returns `M`.
#[inline(always)]
unsafe fn value_query_rows<I: I32x16, W: Quantised, C: Quantised, const M: usize, const N: usize>(
    call: &ValueCall<'_>,
    query_row: usize,
    tiles: Range<usize>,
) -> usize {
    let seen = Seen::by_any(&call.seen[query_row..query_row + M]).blocks();
    let tiles = tiles.start.max(seen.start)..tiles.end.min(seen.end);
    let vectors = call.dims / LANES;
    let mut vector = 0;
    // Vectors computed together share their weights.
    // SAFETY: `query_row + M` query rows exist, and `vectors` vectors.
    unsafe {
        if const { I::Floats::WIDE && C::GROUP >= 4 * LANES } {
            while vector + 4 <= vectors {
                value_vectors::<I, W, C, M, 4>(call, query_row, vector, tiles.clone());
                vector += 4;
            }
        }
        if const { I::Floats::WIDE } {
            while vector + 2 <= vectors {
                value_vectors::<I, W, C, M, 2>(call, query_row, vector, tiles.clone());
                vector += 2;
            }
        } else if const { N > 1 } {
            while vector + N <= vectors {
                value_vectors::<I, W, C, M, N>(call, query_row, vector, tiles.clone());
                vector += N;
            }
        }
        while vector < vectors {
            value_vectors::<I, W, C, M, 1>(call, query_row, vector, tiles.clone());
            vector += 1;
        }
    }
    M
}

#[inline(always)]
unsafe fn value_vectors<I: I32x16, W: Quantised, C: Quantised, const M: usize, const N: usize>(
    call: &ValueCall<'_>,
    query_row: usize,
    vector: usize,
    tiles: Range<usize>,
) {
    let group = vector * LANES / C::GROUP;
    // SAFETY: the shapes of the call.
    unsafe {
        let out = call.out.cast::<i32>().add(query_row * call.dims + vector * LANES);
        let mut weights = [std::ptr::null(); M];
        let mut sums = [[I::zero(); N]; M];
        for m in 0..M {
            weights[m] = Weights::of::<C>(call, query_row + m).weights.add(group * SPLIT).cast_const();
            for n in 0..N {
                sums[m][n] = I::load(out.add(m * call.dims + n * LANES));
            }
        }
        for tile in tiles {
            let packed = call.tiles[tile];
            let next =
                if query_row == 0 { call.tiles.get(tile + TILES).copied().unwrap_or(packed) } else { packed };
            let mut words = Words {
                packed: [packed; N],
                next: [next; N],
                stride: call.dims * W::WORD,
                count: BLOCK_POSITIONS / W::ROWS,
            };
            let mut numbers = weights;
            for n in 0..N {
                words.packed[n] = packed.wrapping_add((vector + n) * LANES * W::WORD);
                words.next[n] = next.wrapping_add((vector + n) * LANES * W::WORD);
            }
            for m in 0..M {
                numbers[m] = weights[m].add(tile * BLOCK_POSITIONS);
            }
            add_words::<I, W, M, N>(numbers, words, &mut sums);
        }
        for m in 0..M {
            for n in 0..N {
                sums[m][n].store(out.add(m * call.dims + n * LANES));
            }
        }
    }
}

/// Converts the sums of all query rows to their output.
///
/// # Safety
/// As [`values`], and all tiles were added.
#[inline(always)]
pub(super) unsafe fn finish_values<I: I32x16, C: Quantised>(call: &ValueCall<'_>) {
    for query_row in 0..call.seen.len() {
        let weights = Weights::of::<C>(call, query_row);
        for vector in 0..call.dims / LANES {
            // SAFETY: the shapes of the call.
            unsafe {
                let [scale, min] = *weights.groups.add(vector * LANES / C::GROUP);
                let out = call.out.add(query_row * call.dims + vector * LANES);
                let sums = I::load(out.cast()).to_floats();
                sums.mul_add(I::Floats::splat(scale), I::Floats::splat(min)).store(out);
            }
        }
    }
}
