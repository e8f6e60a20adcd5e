//! Bfloats: the units read tiles of weights in their stored layout and keep every output, in the order of
//! `scalar::matmul`.
//!
//! Processing two tiles and two panels at a time uses each loaded register of inputs and weights twice.

use super::super::kernel::{TILES, Target};
use super::{SUMS, W, X};
use crate::activations::TALL;
use crate::activations::pairs::{PIECE_PAIRS, row_pairs};
use crate::lines::Line;
use crate::matrix::{TILE_ROWS, VECTOR};
use crate::x86::amx::Tiles;

/// Cache lines of a piece of weights or of a panel, and of the sums of a panel and a tile.
const PIECE: usize = 16;
/// Panels processed at a time.
const PANELS: usize = 2;

/// Computes and stores two tiles for all panels of `targets`.
///
/// # Safety
/// As [`pair_rows`](crate::matmul::kernel::pair_rows) for each target, which differ only in their panels; these
/// are tall. `units` has registers of 16 rows of 64 bytes.
#[inline(always)]
pub(super) unsafe fn compute<'a, T: Tiles>(
    units: &mut T,
    targets: impl Iterator<Item = Target<'a>> + Clone,
    work: &mut Vec<Line>,
) {
    let Some(first) = targets.clone().next() else { return };
    let pieces = row_pairs(first.weights.cols(), TALL) / PIECE_PAIRS;
    work.resize((TILES + 1) * PIECE, Line::ZERO);
    let (rest, sums) = work.split_at_mut(TILES * PIECE);
    // SAFETY: as the caller promises.
    let weights = unsafe { Weights::new(&first, pieces, rest) };
    let (mut panels, rounds) = (targets.clone(), targets.count().div_ceil(PANELS));
    for round in 0..rounds {
        let targets: [_; PANELS] = std::array::from_fn(|_| panels.next());
        let ahead = Ahead { next: first.next.unwrap_or(first.starts), round, rounds };
        // SAFETY: as the caller promises.
        unsafe { outputs(units, &weights, pieces, targets.each_ref().map(Option::as_ref), &ahead, sums) };
    }
}

/// The tiles to prefetch: each round fetches a share of the pieces of the next tiles.
struct Ahead {
    next: [*const u8; TILES],
    round: usize,
    rounds: usize,
}

impl Ahead {
    #[inline(always)]
    fn fetch(&self, piece: usize) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        if piece % self.rounds != self.round {
            return;
        }
        for tile in self.next {
            for line in 0..PIECE {
                // SAFETY: a prefetch reads nothing.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T1>(tile.wrapping_add((piece * PIECE + line) * VECTOR).cast())
                };
            }
        }
    }
}

/// Two tiles of weights in pieces.
struct Weights {
    tiles: [*const u8; TILES],
    /// Number of whole pieces of a tile.
    whole: usize,
    /// The last, partial piece of each tile, padded with zeros.
    rest: [*const u8; TILES],
}

impl Weights {
    /// # Safety
    /// As [`compute`]; `rest` has room for a piece of each tile, and outlives the value.
    unsafe fn new(target: &Target, pieces: usize, rest: &mut [Line]) -> Weights {
        let pairs = target.weights.cols().div_ceil(2);
        let whole = pairs / PIECE_PAIRS;
        rest.fill(Line::ZERO);
        for (tile, rest) in target.starts.iter().zip(rest.chunks_exact_mut(PIECE)).filter(|_| whole < pieces)
        {
            let left = (pairs - whole * PIECE_PAIRS) * VECTOR;
            // SAFETY: this many bytes of the tile follow its whole pieces.
            unsafe {
                let from = tile.add(whole * PIECE * VECTOR);
                rest.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, left);
            }
        }
        let start = |t: usize| rest[t * PIECE..].as_ptr().cast();
        Weights { tiles: target.starts, whole, rest: std::array::from_fn(start) }
    }

    #[inline(always)]
    fn piece(&self, tile: usize, piece: usize) -> *const u8 {
        match piece < self.whole {
            true => self.tiles[tile].wrapping_add(piece * PIECE * VECTOR),
            false => self.rest[tile],
        }
    }
}

/// Computes and stores two tiles for one or two panels.
///
/// # Safety
/// As [`compute`]; `sums` has room for those of a panel and a tile.
#[inline(always)]
unsafe fn outputs<T: Tiles>(
    units: &mut T,
    weights: &Weights,
    pieces: usize,
    targets: [Option<&Target>; PANELS],
    ahead: &Ahead,
    sums: &mut [Line],
) {
    let [Some(one), other] = targets else { return };
    let (x, others) = (inputs(one), other.map(inputs));
    // SAFETY: as the caller promises.
    unsafe {
        begin(units);
        for piece in 0..pieces {
            let at = piece * PIECE * VECTOR;
            ahead.fetch(piece);
            multiply(units, x.wrapping_add(at), [weights.piece(0, piece), weights.piece(1, piece)]);
            if let Some(x) = others {
                multiply_again(units, x.wrapping_add(at));
            }
        }
        store_sums::<T, { SUMS[0] }>(units, one, 0, sums);
        store_sums::<T, { SUMS[1] }>(units, one, 1, sums);
        if let Some(other) = other {
            store_sums::<T, { SUMS[2] }>(units, other, 0, sums);
            store_sums::<T, { SUMS[3] }>(units, other, 1, sums);
        }
    }
}

/// Start of a target's panel.
#[inline(always)]
fn inputs(target: &Target) -> *const u8 {
    let pairs = row_pairs(target.weights.cols(), TALL);
    target.x.pairs()[target.panel.start * pairs..].as_ptr().cast()
}

/// Zeroes all sums.
///
/// # Safety
/// As [`compute`].
#[inline(always)]
unsafe fn begin<T: Tiles>(units: &mut T) {
    // SAFETY: as the caller promises.
    unsafe {
        units.zero::<{ SUMS[0] }>();
        units.zero::<{ SUMS[1] }>();
        units.zero::<{ SUMS[2] }>();
        units.zero::<{ SUMS[3] }>();
    }
}

/// Multiplies a piece of the first panel with a piece of each tile.
///
/// # Safety
/// As [`outputs`]; `x` and `w` are such pieces.
#[inline(always)]
unsafe fn multiply<T: Tiles>(units: &mut T, x: *const u8, w: [*const u8; TILES]) {
    // SAFETY: as the caller promises.
    unsafe {
        units.load::<{ X[0] }>(x, VECTOR);
        units.load::<{ W[0] }>(w[0], VECTOR);
        units.dot_bf16::<{ SUMS[0] }, { X[0] }, { W[0] }>();
        units.load::<{ W[1] }>(w[1], VECTOR);
        units.dot_bf16::<{ SUMS[1] }, { X[0] }, { W[1] }>();
    }
}

/// Multiplies a piece of the second panel with the weights that [`multiply`] has loaded.
///
/// # Safety
/// As [`multiply`], which was called before.
#[inline(always)]
unsafe fn multiply_again<T: Tiles>(units: &mut T, x: *const u8) {
    // SAFETY: as the caller promises.
    unsafe {
        units.load::<{ X[1] }>(x, VECTOR);
        units.dot_bf16::<{ SUMS[2] }, { X[1] }, { W[0] }>();
        units.dot_bf16::<{ SUMS[3] }, { X[1] }, { W[1] }>();
    }
}

/// Writes the sums of a panel for tile `t` to its outputs, without the padding of either. `room` holds the sums
/// of one panel and tile.
///
/// # Safety
/// As [`compute`]; the sums are those of the target.
#[inline(always)]
unsafe fn store_sums<T: Tiles, const SUMS: usize>(
    units: &mut T,
    target: &Target,
    t: usize,
    room: &mut [Line],
) {
    let (rows, start) = (target.weights.rows(), target.tiles[t] * TILE_ROWS);
    // SAFETY: the panel's rows are among the inputs, and the tile has outputs from `start` on.
    unsafe {
        let to = target.out.at(target.panel.start, start);
        if target.panel.rows == TALL && start + TILE_ROWS <= rows {
            return units.store::<SUMS>(to.cast(), target.out.stride() * size_of::<f32>());
        }
        units.store::<SUMS>(room.as_mut_ptr().cast(), VECTOR);
        for (r, sums) in room[..target.panel.rows].iter().enumerate() {
            let len = TILE_ROWS.min(rows - start);
            to.add(r * target.out.stride()).copy_from_nonoverlapping(sums.0.as_ptr().cast(), len);
        }
    }
}
