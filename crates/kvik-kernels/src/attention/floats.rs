//! Scores and values for keys and values stored as floats.
//!
//! A score is the FMA over ascending dimensions, in the lane of its position. A dimension of the output is the
//! FMA of p over ascending positions.

#![expect(clippy::needless_range_loop, reason = "register blocks are written as the matrices they are")]

use std::ops::Range;

use super::SPLIT;
use super::kernel::{ScoreCall, Seen, TILES, ValueCall};
use crate::f32x16::{F32x16, LANES};
use crate::kv::BLOCK_POSITIONS;
use crate::kv::tile::FloatTile;

/// Scores of all query rows, [`TILES`] tiles at a time.
///
/// # Safety
/// See [`AttentionKernels`](super::kernel::AttentionKernels); inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn scores<L: F32x16, T: FloatTile>(call: &ScoreCall<'_>) {
    for start in (0..call.tiles.len()).step_by(TILES) {
        let tiles = start..call.tiles.len().min(start + TILES);
        let mut query_row = 0;
        while query_row < call.q.len() {
            let tiles = tiles.clone();
            // SAFETY: the group is inside the query rows of the call.
            query_row += unsafe {
                match call.q.len() - query_row {
                    _ if const { !L::BLOCKED } => score_query_rows::<L, T, 1, 1>(call, query_row, tiles),
                    6.. => score_query_rows::<L, T, 6, 1>(call, query_row, tiles),
                    4.. => score_query_rows::<L, T, 4, 1>(call, query_row, tiles),
                    2.. => score_query_rows::<L, T, 2, 2>(call, query_row, tiles),
                    _ => score_query_rows::<L, T, 1, 4>(call, query_row, tiles),
                }
            };
        }
    }
}

/// Scores `M` query rows against those of `tiles` that they see, all four at once with wide registers and `N` at
/// a time with narrow ones; returns `M`.
#[inline(always)]
unsafe fn score_query_rows<L: F32x16, T: FloatTile, const M: usize, const N: usize>(
    call: &ScoreCall<'_>,
    query_row: usize,
    tiles: Range<usize>,
) -> usize {
    let seen = Seen::by_any(&call.seen[query_row..query_row + M]).blocks();
    let (mut tile, end) = (tiles.start.max(seen.start), tiles.end.min(seen.end));
    // SAFETY: `query_row + M` query rows exist, and `end` tiles.
    unsafe {
        if const { L::WIDE } {
            if tile + TILES <= end {
                score_tiles::<L, T, M, TILES>(call, query_row, tile);
                tile += TILES;
            }
        } else if const { N > 1 } {
            while tile + N <= end {
                score_tiles::<L, T, M, N>(call, query_row, tile);
                tile += N;
            }
        }
        while tile < end {
            score_tiles::<L, T, M, 1>(call, query_row, tile);
            tile += 1;
        }
    }
    M
}

#[inline(always)]
unsafe fn score_tiles<L: F32x16, T: FloatTile, const M: usize, const N: usize>(
    call: &ScoreCall<'_>,
    query_row: usize,
    tile: usize,
) {
    let mut q = [std::ptr::null(); M];
    q.copy_from_slice(&call.q[query_row..query_row + M]);
    let mut tiles = [std::ptr::null(); N];
    tiles.copy_from_slice(&call.tiles[tile..tile + N]);
    let next = call.next_tiles::<L, N>(query_row, tile, tiles);
    // SAFETY: `d` is inside the queries and the tiles, and the scores have a row of SPLIT for every query row.
    unsafe {
        let mut sums = [[L::splat(0.0); N]; M];
        for d in 0..call.head_dim {
            add_dimension::<L, T, M, N>(q, tiles, next, d, &mut sums);
        }
        for m in 0..M {
            for n in 0..N {
                sums[m][n].store(call.scores.add((query_row + m) * SPLIT + (tile + n) * BLOCK_POSITIONS));
            }
        }
    }
}

/// Adds the products of dimension `d` to the scores of `M` query rows against `N` tiles.
#[inline(always)]
unsafe fn add_dimension<L: F32x16, T: FloatTile, const M: usize, const N: usize>(
    q: [*const f32; M],
    tiles: [*const u8; N],
    next: [*const u8; N],
    d: usize,
    sums: &mut [[L; N]; M],
) {
    // SAFETY: `d` is inside the queries and the tiles.
    unsafe {
        let mut keys = [L::splat(0.0); N];
        for n in 0..N {
            L::prefetch(T::key_at(next[n], d));
            keys[n] = T::key(tiles[n], d);
        }
        for m in 0..M {
            let q = L::splat(*q[m].add(d));
            for n in 0..N {
                sums[m][n] = q.mul_add(keys[n], sums[m][n]);
            }
        }
    }
}

/// Weighted values, the positions of [`TILES`] tiles at a time; `out` accumulates the sums.
///
/// # Safety
/// See [`AttentionKernels`](super::kernel::AttentionKernels); inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn values<L: F32x16, T: FloatTile>(call: &ValueCall<'_>) {
    // SAFETY: the results of the query rows have `dims` numbers each; the rest is the caller's promise.
    unsafe {
        std::slice::from_raw_parts_mut(call.out, call.seen.len() * call.dims).fill(0.0);
        for start in (0..call.tiles.len() * BLOCK_POSITIONS).step_by(TILES * BLOCK_POSITIONS) {
            add_values::<L, T>(call, start..start + TILES * BLOCK_POSITIONS);
        }
    }
}

/// Adds the weighted values of `positions` to the sums of all query rows, as far as each row sees them.
///
/// # Safety
/// As [`values`]; `positions` are those of [`TILES`] tiles.
#[inline(always)]
pub(super) unsafe fn add_values<L: F32x16, T: FloatTile>(call: &ValueCall<'_>, positions: Range<usize>) {
    let mut query_row = 0;
    while query_row < call.seen.len() {
        let positions = positions.clone();
        // SAFETY: the group is inside the query rows of the call.
        query_row += unsafe {
            match call.seen.len() - query_row {
                _ if const { !L::BLOCKED } => value_query_rows::<L, T, 1, 1, 1>(call, query_row, positions),
                6.. => value_query_rows::<L, T, 6, 4, 1>(call, query_row, positions),
                4.. => value_query_rows::<L, T, 4, 4, 1>(call, query_row, positions),
                2.. => value_query_rows::<L, T, 2, 8, 2>(call, query_row, positions),
                _ => value_query_rows::<L, T, 1, 8, 4>(call, query_row, positions),
            }
        };
    }
}

/// Weights values for `M` query rows, `W` vectors at a time with wide registers and `N` with narrow ones;
/// returns `M`.
#[inline(always)]
unsafe fn value_query_rows<L: F32x16, T: FloatTile, const M: usize, const W: usize, const N: usize>(
    call: &ValueCall<'_>,
    query_row: usize,
    positions: Range<usize>,
) -> usize {
    let vectors = call.dims / LANES;
    let mut vector = 0;
    // SAFETY: `query_row + M` query rows exist, and `vectors` vectors.
    unsafe {
        if const { L::WIDE } {
            while vector + W <= vectors {
                value_vectors::<L, T, M, W>(call, query_row, vector, positions.clone());
                vector += W;
            }
        } else if const { N > 1 } {
            while vector + N <= vectors {
                value_vectors::<L, T, M, N>(call, query_row, vector, positions.clone());
                vector += N;
            }
        }
        while vector < vectors {
            value_vectors::<L, T, M, 1>(call, query_row, vector, positions.clone());
            vector += 1;
        }
    }
    M
}

#[inline(always)]
unsafe fn value_vectors<L: F32x16, T: FloatTile, const M: usize, const N: usize>(
    call: &ValueCall<'_>,
    query_row: usize,
    vector: usize,
    positions: Range<usize>,
) {
    let seen = &call.seen[query_row..query_row + M];
    let common = seen_by_all(seen, &positions);
    // SAFETY: the shapes of the call.
    unsafe {
        if const { M == 1 } {
            return gather::<L, T, M, N>(call, query_row, vector, common);
        }
        // Positions before and after those that all query rows see are added row by row.
        for (beyond, rest) in
            [positions.start..common.start, common.end..positions.end].into_iter().enumerate()
        {
            if beyond == 1 {
                gather::<L, T, M, N>(call, query_row, vector, common.clone());
            }
            for (m, seen) in seen.iter().enumerate() {
                let rest = rest.start.max(seen.start as usize)..rest.end.min(seen.end as usize);
                if !rest.is_empty() {
                    gather::<L, T, 1, N>(call, query_row + m, vector, rest);
                }
            }
        }
    }
}

/// The part of `positions` that all query rows see; an empty range within `positions` if there is none.
#[inline(always)]
fn seen_by_all(seen: &[Seen], positions: &Range<usize>) -> Range<usize> {
    let Range { mut start, mut end } = *positions;
    for seen in seen {
        start = start.max(seen.start as usize);
        end = end.min(seen.end as usize);
    }
    let start = start.min(positions.end);
    start..end.max(start)
}

/// Adds the values of `positions` to the sums in `out`, for `M` query rows that see them all.
#[inline(always)]
unsafe fn gather<L: F32x16, T: FloatTile, const M: usize, const N: usize>(
    call: &ValueCall<'_>,
    query_row: usize,
    vector: usize,
    positions: Range<usize>,
) {
    // SAFETY: the shapes of the call.
    unsafe {
        let out = call.out.add(query_row * call.dims + vector * LANES);
        let mut sums = [[L::splat(0.0); N]; M];
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = L::load(out.add(m * call.dims + n * LANES));
            }
        }
        add_positions::<L, T, M, N>(call, call.p.add(query_row * SPLIT), positions, vector, &mut sums);
        for m in 0..M {
            for n in 0..N {
                sums[m][n].store(out.add(m * call.dims + n * LANES));
            }
        }
    }
}

/// Adds the weighted values of `positions` to `sums`, for `M` query rows whose probabilities start at `p`.
#[inline(always)]
unsafe fn add_positions<L: F32x16, T: FloatTile, const M: usize, const N: usize>(
    call: &ValueCall<'_>,
    p: *const f32,
    positions: Range<usize>,
    vector: usize,
    sums: &mut [[L; N]; M],
) {
    let mut start = positions.start;
    while start < positions.end {
        let tile = call.tiles[start / BLOCK_POSITIONS];
        let next = call.tiles.get(start / BLOCK_POSITIONS + TILES).copied().unwrap_or(tile);
        let end = positions.end.min((start / BLOCK_POSITIONS + 1) * BLOCK_POSITIONS);
        for position in start..end {
            // SAFETY: the position is inside a tile of the call and inside the query rows' probabilities.
            unsafe {
                let mut values = [L::splat(0.0); N];
                for n in 0..N {
                    L::prefetch(T::value_at(next, call.dims, position % BLOCK_POSITIONS, vector + n));
                    values[n] = T::value(tile, call.dims, position % BLOCK_POSITIONS, vector + n);
                }
                for m in 0..M {
                    let p = L::splat(*p.add(m * SPLIT + position));
                    for n in 0..N {
                        sums[m][n] = p.mul_add(values[n], sums[m][n]);
                    }
                }
            }
        }
        start = end;
    }
}
