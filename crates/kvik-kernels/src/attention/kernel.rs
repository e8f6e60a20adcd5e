//! The arithmetic of attention over one split, generic over lanes: with scalar lanes, the specification.
//!
//! A *query row* is one query head of one row; the query rows of a call read the same keys and values.
//! For each query row, independently of the others:
//!
//! 1. scores, by [`floats`](super::floats) or [`quantised`](super::quantised);
//! 2. scores times `scale`, or with a soft cap `cap tanh(score (scale / cap))`; the maximum `m`; p = exp(s - m);
//!    the sum of p per lane over ascending blocks, then the tree of [`F32x16::sum`];
//! 3. values weighted by p, by [`floats`](super::floats) or [`quantised`](super::quantised), or if keys hold them
//!    by [`latent`](super::latent);
//! 4. splits fold in ascending order, from m = -inf, l = 0, or from m = sink, l = 1, and out = 0:
//!    m' = max(m, ms), a = exp(m - m'), b = exp(ms - m'), l' = fma(l, a, ls b), out' = fma(out, a, outs b);
//!    at the end out / l.
//!
//! Splits are at multiples of SPLIT stored positions, regardless of the positions that a query row sees. Splits
//! without a visible position are not folded. In the others, invisible positions are masked in the scores and have
//! weight zero, so it does not matter whether blocks outside the view are read.

use std::ops::Range;

use crate::f32x16::{F32x16, LANES};
use crate::kv::BLOCK_POSITIONS;
use crate::kv::rotate::rotate;

/// Tiles processed at a time: they stay in the first-level cache while all query rows pass over them.
pub(super) const TILES: usize = 4;

/// A call that computes the scores of query rows against the keys of a split.
pub(crate) struct ScoreCall<'a> {
    /// `[query_rows]`: each a query vector of `head_dim`, or for quantised keys the output of
    /// [`AttentionKernels::query`].
    pub q: &'a [*const f32],
    /// The visible positions of each query row, `[query_rows]`.
    pub seen: &'a [Seen],
    /// K tiles of consecutive blocks of the split, which include all visible positions.
    pub tiles: &'a [*const u8],
    /// V tiles of the same blocks, which are read next.
    pub value_tiles: &'a [*const u8],
    /// Range of the scales in a V tile: they are read before the rest of the tile.
    pub value_scales: Range<usize>,
    pub head_dim: usize,
    /// `[query_rows][SPLIT]`: written for the blocks that a query row sees a part of.
    pub scores: *mut f32,
}

/// The positions that a query row sees, relative to the first of a call's tiles; `0..0` if it sees none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub start: u32,
    pub end: u32,
}

impl Seen {
    pub(crate) const NOTHING: Seen = Seen { start: 0, end: 0 };

    #[inline(always)]
    pub(crate) fn positions(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The blocks with at least one visible position.
    #[inline(always)]
    pub(crate) fn blocks(self) -> Range<usize> {
        self.start as usize / BLOCK_POSITIONS..(self.end as usize).div_ceil(BLOCK_POSITIONS)
    }

    /// The range from the first position that any of the query rows sees to the last.
    #[inline(always)]
    pub(crate) fn by_any(rows: &[Seen]) -> Seen {
        let mut any = rows.first().copied().unwrap_or(Seen::NOTHING);
        for row in rows {
            any = Seen { start: any.start.min(row.start), end: any.end.max(row.end) };
        }
        any
    }
}

impl ScoreCall<'_> {
    /// The tiles to prefetch, which are read after `tiles`: blocks are far apart, so hardware prefetchers cannot
    /// predict the next one. Only the first query rows prefetch; the others find all tiles in the cache.
    #[inline(always)]
    pub(super) fn next_tiles<L: F32x16, const N: usize>(
        &self,
        query_row: usize,
        tile: usize,
        tiles: [*const u8; N],
    ) -> [*const u8; N] {
        let mut next = tiles;
        if query_row == 0 {
            for value_tile in &self.value_tiles[tile..tile + N] {
                fetch::<L>(value_tile.wrapping_add(self.value_scales.start), self.value_scales.len());
            }
            for (n, next) in next.iter_mut().enumerate() {
                let ahead = tile + TILES + n;
                let after = self.value_tiles.get(ahead.wrapping_sub(self.tiles.len()));
                *next = self.tiles.get(ahead).or(after).copied().unwrap_or(*next);
            }
        }
        next
    }
}

/// Prefetches the cache lines of `bytes` bytes at `start`.
#[inline(always)]
pub(super) fn fetch<L: F32x16>(start: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(CACHE_LINE) {
        // SAFETY: called from functions that are compiled for the lanes; a prefetch reads nothing.
        unsafe { L::prefetch(start.wrapping_add(at)) };
    }
}

/// Bytes per cache line.
const CACHE_LINE: usize = 64;

/// A call that sums the values of a split weighted by probabilities.
pub(crate) struct ValueCall<'a> {
    /// `[query_rows][SPLIT]`
    pub p: *const f32,
    /// As in [`ScoreCall`].
    pub seen: &'a [Seen],
    /// V tiles of the same blocks.
    pub tiles: &'a [*const u8],
    /// Number of blocks of the split before the first tile.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only sums of matrix units go by it")
    )]
    pub skipped: usize,
    /// Length of a row of a V tile.
    pub dims: usize,
    /// Length of a key: if keys hold the values, the tiles are K tiles.
    pub key_dim: usize,
    /// For quantised values: a buffer of `[query_rows]` times
    /// [`quantised::weight_bytes`](super::quantised::weight_bytes).
    pub room: *mut u8,
    /// If keys hold the values: a buffer of [`latent::turned_bytes`](super::latent::turned_bytes).
    pub turned: *mut u8,
    /// `[query_rows][dims]`.
    pub out: *mut f32,
}

/// The softmax state of a query row: the contribution of one split, or the accumulation so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Softmax {
    /// The maximum score.
    pub m: f32,
    /// The sum of exp(score - m).
    pub l: f32,
}

impl Softmax {
    /// The state of no positions.
    pub(crate) const EMPTY: Softmax = Softmax { m: f32::NEG_INFINITY, l: 0.0 };

    /// The state of a sink, which has a score and no value.
    pub(crate) fn of_sink(score: f32) -> Softmax {
        Softmax { m: score, l: 1.0 }
    }
}

/// The transformation of a score before the softmax.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scoring {
    pub scale: f32,
    pub softcap: Option<f32>,
}

/// The functions of one instruction set for one pair of formats.
///
/// Contract: pointers are valid for the shapes that the fields state, and the machine has the instruction set.
#[derive(Clone, Copy)]
pub(crate) struct AttentionKernels {
    /// Converts a query vector to the input of `scores`, if keys are quantised: see
    /// [`quantised::Query`](super::quantised::Query).
    pub query: unsafe fn(q: &[f32], to: &mut [f32]),
    pub scores: unsafe fn(&ScoreCall<'_>),
    /// Converts the scores of a query row that sees some position to probabilities without their common divisor;
    /// those of invisible positions in its blocks become 0.
    pub softmax: unsafe fn(scores: *mut f32, seen: Seen, scoring: Scoring) -> Softmax,
    pub values: unsafe fn(&ValueCall<'_>),
    /// Folds a split's `[dims]` into the accumulated ones.
    pub fold: unsafe fn(state: &mut Softmax, out: &mut [f32], split: Softmax, split_out: &[f32]),
    /// Divides `[dims]` by the sum. If values are quantised, the first elements, a prefix of rotated vectors of
    /// `rotated_dim`, are rotated back.
    pub finish: unsafe fn(out: &mut [f32], l: f32, rotated_dim: usize),
}

/// Step 2.
///
/// # Safety
/// See [`AttentionKernels`]; inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn softmax<L: F32x16>(scores: *mut f32, seen: Seen, scoring: Scoring) -> Softmax {
    // SAFETY: all visible blocks were written.
    unsafe {
        match scoring.softcap {
            None => {
                let scale = L::splat(scoring.scale);
                softmax_of(
                    scores,
                    seen,
                    #[inline(always)]
                    |score: L| score.mul(scale),
                )
            }
            Some(cap) => {
                let (scale, cap) = (L::splat(scoring.scale / cap), L::splat(cap));
                softmax_of(
                    scores,
                    seen,
                    #[inline(always)]
                    |score: L| score.mul(scale).tanh().mul(cap),
                )
            }
        }
    }
}

/// [`softmax`] of the scores transformed by `scored`.
#[inline(always)]
unsafe fn softmax_of<L: F32x16>(scores: *mut f32, seen: Seen, scored: impl Fn(L) -> L) -> Softmax {
    let (blocks, seen) = (seen.blocks(), seen.positions());
    // SAFETY: all visible blocks were written.
    unsafe {
        let nothing = L::splat(f32::NEG_INFINITY);
        let mut max = nothing;
        for block in blocks.clone().map(|block| block * LANES) {
            let valid = between(block, &seen, scored(L::load(scores.add(block))), nothing);
            valid.store(scores.add(block));
            max = max.max(valid);
        }
        let m = max.maximum();
        let mut sums = L::splat(0.0);
        for block in blocks.map(|block| block * LANES) {
            let p = L::load(scores.add(block)).sub(L::splat(m)).exp();
            p.store(scores.add(block));
            sums = sums.add(p);
        }
        Softmax { m, l: sums.sum() }
    }
}

/// `yes` in the lanes of the 16 positions from `block` on that are in `range`, else `no`.
#[inline(always)]
pub(super) fn between<L: F32x16>(block: usize, range: &Range<usize>, yes: L, no: L) -> L {
    if range.start <= block && block + LANES <= range.end {
        return yes;
    }
    let before_end = yes.first((range.end - block).min(LANES), no);
    no.first(range.start.saturating_sub(block), before_end)
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
pub(crate) unsafe fn finish<L: F32x16, const ROTATED: bool>(out: &mut [f32], l: f32, head_dim: usize) {
    // SAFETY: the caller's promise.
    unsafe { divide::<L>(out, l) };
    if ROTATED {
        rotate(&mut out[..head_dim]);
    }
}

/// Divides `out` by `l`.
///
/// # Safety
/// As [`finish`].
#[inline(always)]
pub(super) unsafe fn divide<L: F32x16>(out: &mut [f32], l: f32) {
    debug_assert!(out.len().is_multiple_of(LANES));
    for start in (0..out.len()).step_by(LANES) {
        // SAFETY: whole lanes of the slice.
        unsafe {
            let to = out.as_mut_ptr().add(start);
            L::load(to).div(L::splat(l)).store(to);
        }
    }
}
