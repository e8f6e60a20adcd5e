//! The arithmetic of attention over one split, generic over lanes: with the scalar ones, the specification.
//!
//! A *line* is one query head of one row; the lines of a call read the same keys and values.
//! Per line, whatever lines stand beside it:
//!
//! 1. a score is the FMA over ascending dimensions, in the lane of its position, times the K scale;
//! 2. scores times `scale`; the maximum `m`; p = exp(s - m); the sum of p per lane over ascending
//!    blocks, then the tree of [`F32x16::sum`];
//! 3. a dimension of the output is the FMA of p (times the V scale) over ascending positions;
//! 4. splits fold in ascending order: m' = max(m, ms), a = exp(m - m'), b = exp(ms - m'),
//!    l' = fma(l, a, ls b), out' = fma(out, a, outs b); at the end out / l.
//!
//! Positions at or beyond a line's count are replaced in the scores and never read from V.

#![expect(clippy::needless_range_loop, reason = "register blocks are written as the matrices they are")]

use std::hint::assert_unchecked;
use std::ops::Range;

use super::SPLIT;
use crate::f32x16::{F32x16, LANES};
use crate::kv::BLOCK_POSITIONS;
use crate::kv::tile::Tile;

/// Scores of lines against the keys of a split.
pub(crate) struct ScoreCall<'a> {
    /// Query vectors, `[lines][head_dim]`.
    pub q: &'a [*const f32],
    /// Positions that each line attends to in this split, `[lines]`.
    pub counts: &'a [u32],
    /// K tiles of the split's blocks, enough for the largest count.
    pub tiles: &'a [*const u8],
    /// V tiles of the same blocks, which are read next.
    pub value_tiles: &'a [*const u8],
    pub head_dim: usize,
    /// `[lines][SPLIT]`: written for the blocks that a line's count touches.
    pub scores: *mut f32,
}

/// Values of a split weighted by probabilities.
pub(crate) struct ValueCall<'a> {
    /// `[lines][SPLIT]`; scaled in place where the format has scales.
    pub p: *mut f32,
    pub counts: &'a [u32],
    /// V tiles of the split's blocks.
    pub tiles: &'a [*const u8],
    /// Length of a row of a V tile.
    pub dims: usize,
    /// `[lines][dims]`.
    pub out: *mut f32,
}

/// What one split contributes to a line, and what a line has gathered so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Softmax {
    /// The greatest score.
    pub m: f32,
    /// The sum of exp(score - m).
    pub l: f32,
}

impl Softmax {
    /// Before the first split.
    pub(crate) const EMPTY: Softmax = Softmax { m: f32::NEG_INFINITY, l: 0.0 };
}

/// The functions of one instruction set for one pair of formats.
///
/// Their contract: pointers reach what the fields' shapes say, the machine has the instruction set.
#[derive(Clone, Copy)]
pub(crate) struct AttentionKernels {
    pub scores: unsafe fn(&ScoreCall<'_>),
    /// Turns the first `count` scores of a line into probabilities that still lack their common divisor.
    pub softmax: unsafe fn(scores: *mut f32, count: usize, scale: f32) -> Softmax,
    pub values: unsafe fn(&ValueCall<'_>),
    /// Folds a split's `[dims]` into those gathered so far.
    pub fold: unsafe fn(state: &mut Softmax, out: &mut [f32], split: Softmax, split_out: &[f32]),
    /// Divides `[dims]` by the sum.
    pub divide: unsafe fn(out: &mut [f32], l: f32),
}

/// Declares `kernels(k, v)` for one type of lanes, compiled with its target features.
macro_rules! attention_kernels {
    ($lanes:ty $(, $features:literal)?) => {
        /// The kernels for keys in format `k` and values in format `v`.
        pub(crate) fn kernels(
            k: $crate::kv::KvFormat,
            v: $crate::kv::KvFormat,
        ) -> $crate::attention::kernel::AttentionKernels {
            use $crate::attention::kernel::{self, AttentionKernels, ScoreCall, Softmax, ValueCall};
            use $crate::kv::tile::{Tile, with_tile};

            $(#[target_feature(enable = $features)])?
            unsafe fn scores<T: Tile>(call: &ScoreCall<'_>) {
                // SAFETY: the contract of `AttentionKernels`.
                unsafe { kernel::scores::<$lanes, T>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn softmax(scores: *mut f32, count: usize, scale: f32) -> Softmax {
                // SAFETY: as above.
                unsafe { kernel::softmax::<$lanes>(scores, count, scale) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn values<T: Tile>(call: &ValueCall<'_>) {
                // SAFETY: as above.
                unsafe { kernel::values::<$lanes, T>(call) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn fold(state: &mut Softmax, out: &mut [f32], split: Softmax, split_out: &[f32]) {
                // SAFETY: as above.
                unsafe { kernel::fold::<$lanes>(state, out, split, split_out) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn divide(out: &mut [f32], l: f32) {
                // SAFETY: as above.
                unsafe { kernel::divide::<$lanes>(out, l) }
            }
            AttentionKernels {
                scores: with_tile!(k, T => scores::<T>),
                softmax,
                values: with_tile!(v, T => values::<T>),
                fold,
                divide,
            }
        }
    };
}
pub(crate) use attention_kernels;

/// Step 1: four tiles at a time, which stay in the first-level cache while groups of lines pass over them.
///
/// # Safety
/// See [`AttentionKernels`]; inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn scores<L: F32x16, T: Tile>(call: &ScoreCall<'_>) {
    for start in (0..call.tiles.len()).step_by(TILES) {
        let tiles = start..call.tiles.len().min(start + TILES);
        let mut line = 0;
        while line < call.q.len() {
            let tiles = tiles.clone();
            // SAFETY: the group is inside the lines of the call.
            line += unsafe {
                match call.q.len() - line {
                    6.. => score_lines::<L, T, 6, 1>(call, line, tiles),
                    4.. => score_lines::<L, T, 4, 1>(call, line, tiles),
                    2.. => score_lines::<L, T, 2, 2>(call, line, tiles),
                    _ => score_lines::<L, T, 1, 4>(call, line, tiles),
                }
            };
        }
    }
}

/// Tiles that are worked on at a time.
const TILES: usize = 4;

/// Scores `M` lines against those of `tiles` that they touch, all four at once with wide registers
/// and `N` with narrow ones; returns `M`.
#[inline(always)]
unsafe fn score_lines<L: F32x16, T: Tile, const M: usize, const N: usize>(
    call: &ScoreCall<'_>,
    line: usize,
    tiles: Range<usize>,
) -> usize {
    let count = call.counts[line..line + M].iter().max().copied().unwrap_or(0) as usize;
    let end = tiles.end.min(count.div_ceil(BLOCK_POSITIONS));
    let mut tile = tiles.start;
    // SAFETY: `line + M` lines exist, and `end` tiles.
    unsafe {
        if L::WIDE && tile + TILES <= end {
            score_tiles::<L, T, M, TILES>(call, line, tile);
            tile += TILES;
        }
        while !L::WIDE && tile + N <= end {
            score_tiles::<L, T, M, N>(call, line, tile);
            tile += N;
        }
        while tile < end {
            score_tiles::<L, T, M, 1>(call, line, tile);
            tile += 1;
        }
    }
    M
}

#[inline(always)]
unsafe fn score_tiles<L: F32x16, T: Tile, const M: usize, const N: usize>(
    call: &ScoreCall<'_>,
    line: usize,
    tile: usize,
) {
    let mut q = [std::ptr::null(); M];
    q.copy_from_slice(&call.q[line..line + M]);
    let mut tiles = [std::ptr::null(); N];
    tiles.copy_from_slice(&call.tiles[tile..tile + N]);
    let next = next_tiles(call, line, tile, tiles);
    // SAFETY: `d` is inside the queries and the tiles, and the scores have a row of SPLIT for every line.
    unsafe {
        let mut sums = [[L::splat(0.0); N]; M];
        for start in (0..call.head_dim).step_by(T::GROUP) {
            let mut groups = [T::key_group::<L>(tiles[0], call.head_dim, start); N];
            for n in 1..N {
                groups[n] = T::key_group(tiles[n], call.head_dim, start);
            }
            let end = call.head_dim.min(start.saturating_add(T::GROUP));
            let mut d = start;
            while d + 2 <= end {
                // Formats that pack two dimensions into a byte then unpack it once.
                assert_unchecked(d.is_multiple_of(2));
                add_dimension::<L, T, M, N>(q, tiles, next, groups, d, &mut sums);
                add_dimension::<L, T, M, N>(q, tiles, next, groups, d + 1, &mut sums);
                d += 2;
            }
            if d < end {
                add_dimension::<L, T, M, N>(q, tiles, next, groups, d, &mut sums);
            }
        }
        for n in 0..N {
            let scales = T::scales::<L>(tiles[n], call.head_dim);
            for m in 0..M {
                let sum = if T::SCALED { sums[m][n].mul(scales) } else { sums[m][n] };
                sum.store(call.scores.add((line + m) * SPLIT + (tile + n) * BLOCK_POSITIONS));
            }
        }
    }
}

/// Adds the products of dimension `d` to the scores of `M` lines against `N` tiles.
#[inline(always)]
unsafe fn add_dimension<L: F32x16, T: Tile, const M: usize, const N: usize>(
    q: [*const f32; M],
    tiles: [*const u8; N],
    next: [*const u8; N],
    groups: [T::Group<L>; N],
    d: usize,
    sums: &mut [[L; N]; M],
) {
    // SAFETY: `d` is inside the queries and the tiles.
    unsafe {
        let mut keys = [L::splat(0.0); N];
        for n in 0..N {
            L::prefetch(T::key_at(next[n], d));
            keys[n] = T::key(tiles[n], groups[n], d);
        }
        for m in 0..M {
            let q = L::splat(*q[m].add(d));
            for n in 0..N {
                sums[m][n] = q.mul_add(keys[n], sums[m][n]);
            }
        }
    }
}

/// The tiles that are read after `tiles`, for the first lines to fetch while they compute: blocks are far
/// apart, and no prefetcher of the processor foresees the next one. Other lines find all in the cache.
#[inline(always)]
fn next_tiles<const N: usize>(
    call: &ScoreCall<'_>,
    line: usize,
    tile: usize,
    tiles: [*const u8; N],
) -> [*const u8; N] {
    let mut next = tiles;
    if line == 0 {
        for n in 0..N {
            let ahead = tile + TILES + n;
            let after = call.value_tiles.get(ahead.wrapping_sub(call.tiles.len()));
            next[n] = call.tiles.get(ahead).or(after).copied().unwrap_or(tiles[n]);
        }
    }
    next
}

/// Step 2.
///
/// # Safety
/// See [`AttentionKernels`]; inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn softmax<L: F32x16>(scores: *mut f32, count: usize, scale: f32) -> Softmax {
    // SAFETY: all blocks touched by `count` were written.
    unsafe {
        let nothing = L::splat(f32::NEG_INFINITY);
        let mut greatest = nothing;
        for start in (0..count).step_by(LANES) {
            let scaled = L::load(scores.add(start)).mul(L::splat(scale));
            let valid = scaled.first(count - start, nothing);
            valid.store(scores.add(start));
            greatest = greatest.max(valid);
        }
        let m = greatest.maximum();
        let mut sums = L::splat(0.0);
        for start in (0..count).step_by(LANES) {
            let p = L::load(scores.add(start)).sub(L::splat(m)).exp();
            p.store(scores.add(start));
            sums = sums.add(p);
        }
        Softmax { m, l: sums.sum() }
    }
}

/// Step 3: the positions of four tiles at a time, as in [`scores`]; `out` carries the sums from four to four.
///
/// # Safety
/// See [`AttentionKernels`]; inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn values<L: F32x16, T: Tile>(call: &ValueCall<'_>) {
    // SAFETY: the groups are inside the lines of the call, whose results have `dims` numbers each.
    unsafe {
        if T::SCALED {
            scale_probabilities::<L, T>(call);
        }
        std::slice::from_raw_parts_mut(call.out, call.counts.len() * call.dims).fill(0.0);
        for start in (0..call.tiles.len() * BLOCK_POSITIONS).step_by(TILES * BLOCK_POSITIONS) {
            let positions = start..start + TILES * BLOCK_POSITIONS;
            let mut line = 0;
            while line < call.counts.len() {
                let positions = positions.clone();
                line += match call.counts.len() - line {
                    6.. => value_lines::<L, T, 6, 4, 1>(call, line, positions),
                    4.. => value_lines::<L, T, 4, 4, 1>(call, line, positions),
                    2.. => value_lines::<L, T, 2, 8, 2>(call, line, positions),
                    _ => value_lines::<L, T, 1, 8, 4>(call, line, positions),
                };
            }
        }
    }
}

/// Multiplies each probability by the scale of its position, which then needs no multiplication per number.
#[inline(always)]
unsafe fn scale_probabilities<L: F32x16, T: Tile>(call: &ValueCall<'_>) {
    for (line, &count) in call.counts.iter().enumerate() {
        for (block, &tile) in call.tiles[..(count as usize).div_ceil(BLOCK_POSITIONS)].iter().enumerate() {
            // SAFETY: a line has a row of SPLIT, and each of its blocks a tile.
            unsafe {
                let p = call.p.add(line * SPLIT + block * BLOCK_POSITIONS);
                L::load(p).mul(T::scales(tile, call.dims)).store(p);
            }
        }
    }
}

/// Weighs values for `M` lines, `W` vectors at a time with wide registers and `N` with narrow ones; returns `M`.
#[inline(always)]
unsafe fn value_lines<L: F32x16, T: Tile, const M: usize, const W: usize, const N: usize>(
    call: &ValueCall<'_>,
    line: usize,
    positions: Range<usize>,
) -> usize {
    let vectors = call.dims / LANES;
    let mut vector = 0;
    // SAFETY: `line + M` lines exist, and `vectors` vectors.
    unsafe {
        if L::WIDE {
            while vector + W <= vectors {
                value_vectors::<L, T, M, W>(call, line, vector, positions.clone());
                vector += W;
            }
        } else {
            while vector + N <= vectors {
                value_vectors::<L, T, M, N>(call, line, vector, positions.clone());
                vector += N;
            }
        }
        while vector < vectors {
            value_vectors::<L, T, M, 1>(call, line, vector, positions.clone());
            vector += 1;
        }
    }
    M
}

#[inline(always)]
unsafe fn value_vectors<L: F32x16, T: Tile, const M: usize, const N: usize>(
    call: &ValueCall<'_>,
    line: usize,
    vector: usize,
    positions: Range<usize>,
) {
    let counts = &call.counts[line..line + M];
    let Range { start, end } = positions;
    let common = counts.iter().min().map_or(start, |&count| (count as usize).clamp(start, end));
    // SAFETY: the shapes of the call.
    unsafe {
        let p = call.p.add(line * SPLIT);
        let out = call.out.add(line * call.dims + vector * LANES);
        let mut sums = [[L::splat(0.0); N]; M];
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = L::load(out.add(m * call.dims + n * LANES));
            }
        }
        if N > 1 {
            // Vectors are taken N at a time, and formats that pack two of them then unpack them once.
            assert_unchecked(vector.is_multiple_of(2));
        }
        add_positions::<L, T, M, N>(call, p, start..common, vector, &mut sums);
        // Beyond the positions that all lines see, each goes its own way.
        for m in 0..M {
            let rest = common..(counts[m] as usize).min(end);
            if !rest.is_empty() {
                let mut sum = [sums[m]];
                add_positions::<L, T, 1, N>(call, p.add(m * SPLIT), rest, vector, &mut sum);
                sums[m] = sum[0];
            }
        }
        for m in 0..M {
            for n in 0..N {
                sums[m][n].store(out.add(m * call.dims + n * LANES));
            }
        }
    }
}

/// Adds the weighted values of `positions` to `sums`, for `M` lines whose probabilities start at `p`.
#[inline(always)]
unsafe fn add_positions<L: F32x16, T: Tile, const M: usize, const N: usize>(
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
            // SAFETY: the position is inside a tile of the call and inside the lines' rows.
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

/// Step 4.
///
/// # Safety
/// `out` and `split_out` have the same whole number of lanes; inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn fold<L: F32x16>(
    state: &mut Softmax,
    out: &mut [f32],
    split: Softmax,
    split_out: &[f32],
) {
    debug_assert!(out.len() == split_out.len() && out.len().is_multiple_of(LANES));
    let m = if state.m > split.m { state.m } else { split.m };
    // SAFETY: whole lanes of both slices.
    unsafe {
        let before = L::splat(state.m - m).exp();
        let here = L::splat(split.m - m).exp();
        let l = L::splat(state.l).mul_add(before, L::splat(split.l).mul(here));
        *state = Softmax { m, l: l.to_array()[0] };
        for start in (0..out.len()).step_by(LANES) {
            let to = out.as_mut_ptr().add(start);
            let added = L::load(split_out.as_ptr().add(start)).mul(here);
            L::load(to).mul_add(before, added).store(to);
        }
    }
}

/// The end of step 4.
///
/// # Safety
/// `out` has a whole number of lanes; inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn divide<L: F32x16>(out: &mut [f32], l: f32) {
    debug_assert!(out.len().is_multiple_of(LANES));
    for start in (0..out.len()).step_by(LANES) {
        // SAFETY: whole lanes of the slice.
        unsafe {
            let to = out.as_mut_ptr().add(start);
            L::load(to).div(L::splat(l)).store(to);
        }
    }
}
