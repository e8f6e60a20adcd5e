//! Bfloats: the units read tiles of weights as they lie and keep every output, in the order of `scalar::matmul`.
//!
//! Two tiles and two panels at a time use each register of inputs and weights twice. The columns are cut into spans
//! whose weights stay in the first-level cache while all panels go by; sums wait in memory meanwhile, as they are.

use super::super::kernel::{TILES, Target};
use super::{SUMS, W, X};
use crate::activations::TALL;
use crate::activations::pairs::{PIECE_PAIRS, row_pairs};
use crate::lines::Line;
use crate::matrix::{TILE_ROWS, VECTOR};
use crate::x86::amx::Tiles;

/// Pieces of 32 columns in a span: 32 KiB of two tiles.
const SPAN: usize = 16;
/// Lines of a piece, of weights or of a panel, and of the sums of a panel and a tile.
const PIECE: usize = 16;
/// Panels at a time.
const PANELS: usize = 2;

/// Computes and stores two tiles for all panels of `targets`.
///
/// # Safety
/// As [`pair_rows`](crate::matmul::kernel::pair_rows) for each target, which differ in their panels only; these
/// are tall. `units` has registers of 16 rows of 64 bytes.
#[inline(always)]
pub(super) unsafe fn compute<'a, T: Tiles>(
    units: &mut T,
    targets: impl Iterator<Item = Target<'a>> + Clone,
    work: &mut Vec<Line>,
) {
    let Some(first) = targets.clone().next() else { return };
    let pieces = row_pairs(first.weights.cols(), TALL) / PIECE_PAIRS;
    let sums = targets.clone().count().next_multiple_of(PANELS) * TILES * PIECE;
    work.resize(TILES * PIECE + sums, Line::ZERO);
    let (last, sums) = work.split_at_mut(TILES * PIECE);
    // SAFETY: as the caller promises.
    let weights = unsafe { Weights::new(&first, pieces, last) };
    for start in (0..pieces).step_by(SPAN) {
        let span = Span { start, end: pieces.min(start + SPAN), last: pieces };
        let (mut panels, mut sums) = (targets.clone(), sums.chunks_exact_mut(PANELS * TILES * PIECE));
        while let (Some(one), Some(sums)) = (panels.next(), sums.next()) {
            let other = panels.next();
            let next = first.next.filter(|_| one.panel == first.panel);
            // SAFETY: as the caller promises; the sums are those of these panels.
            unsafe { add_span(units, &weights, &span, [Some(&one), other.as_ref()], next, sums) };
        }
    }
}

/// Some of the pieces of the columns.
struct Span {
    start: usize,
    end: usize,
    /// Pieces of all columns.
    last: usize,
}

/// Two tiles of weights in pieces.
struct Weights {
    tiles: [*const u8; TILES],
    /// Whole pieces that a tile has.
    whole: usize,
    /// The piece behind those, filled up with zeros, for each tile.
    rest: [*const u8; TILES],
}

impl Weights {
    /// # Safety
    /// As [`compute`]; `rest` has room for a piece of each tile, and stays while the value is used.
    unsafe fn new(target: &Target, pieces: usize, rest: &mut [Line]) -> Weights {
        let pairs = target.weights.cols().div_ceil(2);
        let whole = pairs / PIECE_PAIRS;
        rest.fill(Line::ZERO);
        for (tile, rest) in target.starts.iter().zip(rest.chunks_exact_mut(PIECE)).filter(|_| whole < pieces) {
            let left = (pairs - whole * PIECE_PAIRS) * VECTOR;
            // SAFETY: so many bytes of the tile are behind its whole pieces.
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

/// Adds a span of columns to the sums of one or two panels; the last span stores them as outputs. Asks for `next`
/// meanwhile.
///
/// # Safety
/// As [`compute`]; `sums` has room for those of two panels and two tiles.
#[inline(always)]
unsafe fn add_span<T: Tiles>(
    units: &mut T,
    weights: &Weights,
    span: &Span,
    targets: [Option<&Target>; PANELS],
    next: Option<[*const u8; TILES]>,
    sums: &mut [Line],
) {
    let [Some(one), other] = targets else { return };
    // A panel that is not there is multiplied nowhere.
    let inputs = [one, other.unwrap_or(one)].map(inputs);
    // SAFETY: as the caller promises.
    unsafe {
        begin(units, span.start == 0, other.is_some(), sums.as_ptr().cast());
        for piece in span.start..span.end {
            let x = inputs.map(|x| x.wrapping_add(piece * PIECE * VECTOR));
            let w = [weights.piece(0, piece), weights.piece(1, piece)];
            fetch(next, piece);
            match other.is_some() {
                true => multiply_two(units, x, w),
                false => multiply_one(units, x[0], w),
            }
        }
        end(units, other.is_some(), sums.as_mut_ptr().cast());
    }
    if span.end == span.last {
        for (target, sums) in targets.into_iter().flatten().zip(sums.chunks_exact(TILES * PIECE)) {
            // SAFETY: as the caller promises.
            unsafe { store(target, sums) };
        }
    }
}

/// Where a target's panel begins.
#[inline(always)]
fn inputs(target: &Target) -> *const u8 {
    let pairs = row_pairs(target.weights.cols(), TALL);
    target.x.pairs()[target.panel.start * pairs..].as_ptr().cast()
}

/// Asks for a piece of the tiles that come next.
#[inline(always)]
fn fetch(next: Option<[*const u8; TILES]>, piece: usize) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    for tile in next.into_iter().flatten() {
        for line in 0..PIECE {
            // SAFETY: a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(tile.wrapping_add((piece * PIECE + line) * VECTOR).cast()) };
        }
    }
}

/// Zero sums, or those that wait at `from`: of the first panel, and with `both` of the second.
///
/// # Safety
/// As [`add_span`].
#[inline(always)]
unsafe fn begin<T: Tiles>(units: &mut T, zero: bool, both: bool, from: *const u8) {
    macro_rules! each {
        ($($number:literal),*) => {$(
            // SAFETY: as the caller promises.
            unsafe {
                match zero {
                    true => units.zero::<{ SUMS[$number] }>(),
                    false => units.load::<{ SUMS[$number] }>(from.add($number * PIECE * VECTOR), VECTOR),
                }
            }
        )*};
    }
    each!(0, 1);
    if both {
        each!(2, 3);
    }
}

/// Writes the sums where [`begin`] finds them.
///
/// # Safety
/// As [`add_span`].
#[inline(always)]
unsafe fn end<T: Tiles>(units: &mut T, both: bool, to: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        units.store::<{ SUMS[0] }>(to, VECTOR);
        units.store::<{ SUMS[1] }>(to.add(PIECE * VECTOR), VECTOR);
        if both {
            units.store::<{ SUMS[2] }>(to.add(2 * PIECE * VECTOR), VECTOR);
            units.store::<{ SUMS[3] }>(to.add(3 * PIECE * VECTOR), VECTOR);
        }
    }
}

/// # Safety
/// As [`add_span`]; `x` and `w` are a piece of each panel and tile.
#[inline(always)]
unsafe fn multiply_two<T: Tiles>(units: &mut T, x: [*const u8; PANELS], w: [*const u8; TILES]) {
    // SAFETY: as the caller promises.
    unsafe {
        units.load::<{ W[0] }>(w[0], VECTOR);
        units.load::<{ X[0] }>(x[0], VECTOR);
        units.dot_bf16::<{ SUMS[0] }, { X[0] }, { W[0] }>();
        units.load::<{ W[1] }>(w[1], VECTOR);
        units.dot_bf16::<{ SUMS[1] }, { X[0] }, { W[1] }>();
        units.load::<{ X[1] }>(x[1], VECTOR);
        units.dot_bf16::<{ SUMS[2] }, { X[1] }, { W[0] }>();
        units.dot_bf16::<{ SUMS[3] }, { X[1] }, { W[1] }>();
    }
}

/// # Safety
/// As [`multiply_two`].
#[inline(always)]
unsafe fn multiply_one<T: Tiles>(units: &mut T, x: *const u8, w: [*const u8; TILES]) {
    // SAFETY: as the caller promises.
    unsafe {
        units.load::<{ X[0] }>(x, VECTOR);
        units.load::<{ W[0] }>(w[0], VECTOR);
        units.dot_bf16::<{ SUMS[0] }, { X[0] }, { W[0] }>();
        units.load::<{ W[1] }>(w[1], VECTOR);
        units.dot_bf16::<{ SUMS[1] }, { X[0] }, { W[1] }>();
    }
}

/// Copies the sums of a panel to the outputs of two tiles, without the padding of either.
///
/// # Safety
/// As [`compute`]; the sums are those of the target.
unsafe fn store(target: &Target, sums: &[Line]) {
    let rows = target.weights.rows();
    for (tile, sums) in target.tiles.iter().zip(sums.chunks_exact(PIECE)) {
        let start = tile * TILE_ROWS;
        for (r, sums) in sums[..target.panel.rows].iter().enumerate() {
            // SAFETY: the row is one of the inputs, and so many outputs are left behind `start`.
            unsafe {
                let to = target.out.add((target.panel.start + r) * rows + start);
                to.copy_from_nonoverlapping(sums.0.as_ptr().cast(), TILE_ROWS.min(rows - start));
            }
        }
    }
}
