//! Weighted values in bfloats, stored separately or as a prefix of keys.

use std::ops::Range;

use super::super::SPLIT;
use super::super::kernel::{Seen, TILES, ValueCall};
use super::pieces::{PIECE_TILES, Pieces, of_tile};
use super::{MATRICES, PAIRS, Products, QUERY_ROWS, ROOM, Room, few};
use crate::f32x16::{BfloatLanes, F32x16, LANES};
use crate::kv::BLOCK_POSITIONS;
use crate::lines::Line;

/// Mask of a bfloat without its sign, and the bits of infinity, from which on numbers are not finite.
const MAGNITUDE: u16 = 0x7fff;
const INFINITY: u16 = 0x7f80;

/// Weighted values stored separately from keys.
///
/// # Safety
/// As [`floats::values`](super::super::floats::values), and the machine has these products.
#[inline(always)]
pub(crate) unsafe fn values<L: BfloatLanes, P: Products>(call: &ValueCall<'_>) {
    // SAFETY: as the caller promises.
    unsafe { weigh::<L, P, Stored>(call) }
}

/// Weighted values that are a prefix of keys.
///
/// # Safety
/// As [`latent::float_values`](super::super::latent::float_values), and the machine has these products.
#[inline(always)]
pub(crate) unsafe fn latents<L: BfloatLanes, P: Products>(call: &ValueCall<'_>) {
    // SAFETY: as the caller promises.
    unsafe { weigh::<L, P, OfKeys>(call) }
}

/// Reading of the values of tiles.
pub(super) trait Values {
    /// Whether tiles hold values only, stored separately from keys.
    const BESIDE_KEYS: bool;

    /// Stores 16 dimensions of two tiles, of `vector`, in pairs of positions, `[pairs][16 dimensions][2]`, with
    /// zeros for positions that are not in `seen`, relative to the first of the call's tiles, and for missing
    /// tiles.
    ///
    /// # Safety
    /// The tiles are tiles of the call, numbered from `first`, which may be -1.
    unsafe fn pair<L: F32x16>(
        call: &ValueCall<'_>,
        first: isize,
        vector: usize,
        seen: &Range<usize>,
        to: &mut [Line; PAIRS],
    );

    /// The maximum magnitude at `positions`, as bits masked by [`MAGNITUDE`].
    ///
    /// # Safety
    /// The tile is one of the call, and `positions` are some of its 16.
    unsafe fn max(call: &ValueCall<'_>, tile: *const u8, positions: Range<usize>) -> u16;
}

/// Weighted values of all query rows.
///
/// Positions that only some query rows see are multiplied by 0 for the others. If such a value is not finite, the
/// product would not be 0: then each query row is computed by itself, with zeros for the positions that it does
/// not see.
///
/// # Safety
/// As [`values`] or [`latents`].
#[inline(always)]
pub(super) unsafe fn weigh<L: BfloatLanes, P: Products, V: Values>(call: &ValueCall<'_>) {
    let mut room = ROOM.take();
    // SAFETY: as the caller promises; the query rows of each call are some of this one.
    unsafe {
        let together = if can_share::<V>(call) { call.seen.len() } else { 1 };
        for (i, seen) in call.seen.chunks(together.max(1)).enumerate() {
            let (p, out) = (call.p.add(i * together * SPLIT), call.out.add(i * together * call.dims));
            weigh_rows::<L, P, V>(&ValueCall { p, out, seen, ..*call }, &mut room);
        }
    }
    ROOM.set(room);
}

/// Whether all values that only some query rows see are finite.
///
/// # Safety
/// As [`weigh`].
#[inline(always)]
unsafe fn can_share<V: Values>(call: &ValueCall<'_>) -> bool {
    let any = Seen::by_any(call.seen);
    if call.seen.iter().all(|&seen| seen == any) {
        return true;
    }
    for (tile, positions) in
        call.tiles.iter().enumerate().map(|(tile, at)| (at, of_tile(&any.positions(), tile)))
    {
        // SAFETY: as the caller promises.
        if unsafe { V::max(call, *tile, positions) } >= INFINITY {
            return false;
        }
    }
    true
}

/// Weighted values of query rows that share their operands.
///
/// # Safety
/// As [`weigh`].
#[inline(always)]
unsafe fn weigh_rows<L: BfloatLanes, P: Products, V: Values>(call: &ValueCall<'_>, room: &mut Room) {
    let (query_rows, pieces) = (call.seen.len(), Pieces::of(call));
    room.grow(query_rows, pieces.count);
    let seen = Seen::by_any(call.seen).positions();
    // SAFETY: as the caller promises.
    unsafe {
        for query_row in 0..query_rows {
            round_weights::<L>(call, query_row, pieces, room);
        }
        if V::BESIDE_KEYS && query_rows <= P::FEW {
            return few::values::<L>(call, room);
        }
        let mut products = P::begin();
        let vectors = call.dims / LANES;
        for vector in (0..vectors).step_by(MATRICES) {
            let vectors = vector..vectors.min(vector + MATRICES);
            for (piece, to) in room.pieces(pieces.count).enumerate() {
                for (vector, to) in vectors.clone().zip(to) {
                    V::pair::<L>(call, pieces.tile(piece, 0), vector, &seen, to);
                }
            }
            for first in (0..query_rows).step_by(QUERY_ROWS) {
                weigh_group::<L, P>(call, first, vectors.clone(), pieces, &mut products, room);
            }
        }
    }
}

/// Rounds the probabilities of a query row to its row of the buffer, with zeros for invisible blocks.
///
/// # Safety
/// As [`weigh`]; the query row is one of the call.
#[inline(always)]
unsafe fn round_weights<L: BfloatLanes>(
    call: &ValueCall<'_>,
    query_row: usize,
    pieces: Pieces,
    room: &mut Room,
) {
    let blocks = call.seen[query_row].blocks();
    let p = call.p.wrapping_add(query_row * SPLIT);
    for piece in 0..pieces.count {
        let to = room.piece(query_row, piece, pieces.count);
        for (half, to) in to.0.as_chunks_mut::<{ size_of::<Line>() / PIECE_TILES }>().0.iter_mut().enumerate()
        {
            let tile = pieces.tile(piece, half);
            match tile >= 0 && blocks.contains(&(tile as usize)) {
                // SAFETY: the probabilities of a visible block; the half of a line has room for 16 bfloats.
                true => unsafe {
                    L::load(p.add(tile as usize * BLOCK_POSITIONS)).store_bf16(to.as_mut_ptr().cast());
                },
                false => to.fill(0),
            }
        }
    }
}

/// Weights `vectors` of dimensions, whose values are in the buffer, for a group of query rows, starting at
/// `first`.
///
/// # Safety
/// As [`weigh`].
#[inline(always)]
unsafe fn weigh_group<L: BfloatLanes, P: Products>(
    call: &ValueCall<'_>,
    first: usize,
    vectors: Range<usize>,
    pieces: Pieces,
    products: &mut P,
    room: &Room,
) {
    let query_rows = first..call.seen.len().min(first + QUERY_ROWS);
    let seen = pieces.seen(Seen::by_any(&call.seen[query_rows.clone()]));
    let to = call.out.wrapping_add(first * call.dims + vectors.start * LANES);
    let operands = room.operands(query_rows.clone(), (seen, pieces.count), vectors.len());
    // SAFETY: as the caller promises; the results have `dims` numbers for each query row.
    unsafe {
        products.multiply(&operands, to, call.dims);
        let zero = L::splat(0.0);
        for row in 0..query_rows.len() {
            for n in 0..vectors.len() {
                let sums = to.add(row * call.dims + n * LANES);
                L::load(sums).add(zero).store(sums);
            }
        }
    }
}

/// V tiles: `[16 positions][dims]`.
struct Stored;

impl Values for Stored {
    const BESIDE_KEYS: bool = true;

    #[inline(always)]
    unsafe fn pair<L: F32x16>(
        call: &ValueCall<'_>,
        first: isize,
        vector: usize,
        seen: &Range<usize>,
        to: &mut [Line; PAIRS],
    ) {
        for (half, to) in to.as_chunks_mut::<{ PAIRS / PIECE_TILES }>().0.iter_mut().enumerate() {
            let number = first + half as isize;
            let Some(&tile) = call.tiles.get(number as usize) else {
                to.fill(Line::ZERO);
                continue;
            };
            let next = call.tiles.get(number as usize + TILES).copied().unwrap_or(tile);
            let seen = of_tile(seen, number as usize);
            for (pair, to) in to.iter_mut().enumerate() {
                let mut rows = [[0; LANES]; 2];
                for (position, row) in (2 * pair..).zip(&mut rows) {
                    let at = (position * call.dims + vector * LANES) * size_of::<u16>();
                    // SAFETY: 16 of the `dims` numbers of a position of the tile. A prefetch reads nothing.
                    unsafe {
                        L::prefetch(next.wrapping_add(at));
                        if seen.contains(&position) {
                            *row = tile.add(at).cast::<[u16; LANES]>().read_unaligned();
                        }
                    }
                }
                to.pair_up(rows);
            }
        }
    }

    #[inline(always)]
    unsafe fn max(call: &ValueCall<'_>, tile: *const u8, positions: Range<usize>) -> u16 {
        let (start, len) = (positions.start * call.dims, positions.len() * call.dims);
        // SAFETY: the tile has `dims` numbers for each position.
        let numbers = unsafe { std::slice::from_raw_parts(tile.cast::<u16>().add(start), len) };
        numbers.iter().fold(0, |max, number| max.max(number & MAGNITUDE))
    }
}

/// K tiles: `[key_dim][16 positions]`, whose first `dims` dimensions are the values, padded with zeros.
struct OfKeys;

impl Values for OfKeys {
    const BESIDE_KEYS: bool = false;

    #[inline(always)]
    unsafe fn pair<L: F32x16>(
        call: &ValueCall<'_>,
        first: isize,
        vector: usize,
        seen: &Range<usize>,
        to: &mut [Line; PAIRS],
    ) {
        let mut pairs = [[[0_u8; 32]; PIECE_TILES]; LANES];
        for half in 0..PIECE_TILES {
            let Some(&tile) = call.tiles.get((first + half as isize) as usize) else { continue };
            let rows = call.key_dim.saturating_sub(vector * LANES).min(LANES);
            for (i, pairs) in pairs[..rows].iter_mut().enumerate() {
                // SAFETY: the tile has a row of 16 numbers for each of its dimensions.
                pairs[half] = unsafe { tile.cast::<[u8; 32]>().add(vector * LANES + i).read() };
            }
        }
        // SAFETY: the machine has these lanes; a dimension has 16 pairs of positions, a pair 16 dimensions.
        unsafe {
            let mut vectors = [L::splat(0.0); LANES];
            for i in 0..LANES {
                vectors[i] = L::load(pairs[i].as_ptr().cast());
            }
            L::transpose(&mut vectors);
            for i in 0..LANES {
                vectors[i].store(to[i].0.as_mut_ptr().cast());
            }
        }
        hide(first, seen, to);
    }

    #[inline(always)]
    unsafe fn max(call: &ValueCall<'_>, tile: *const u8, positions: Range<usize>) -> u16 {
        let mut max = [0; BLOCK_POSITIONS];
        for d in 0..call.dims.min(call.key_dim) {
            // SAFETY: the tile has a row of 16 numbers for each of its dimensions.
            let row = unsafe { tile.cast::<[u16; BLOCK_POSITIONS]>().add(d).read_unaligned() };
            for (max, number) in max.iter_mut().zip(row) {
                *max = (*max).max(number & MAGNITUDE);
            }
        }
        max[positions].iter().copied().fold(0, u16::max)
    }
}

/// Zeroes the positions that are not in `seen` in pairs of positions of two tiles, numbered from `first`.
#[inline(always)]
fn hide(first: isize, seen: &Range<usize>, to: &mut [Line; PAIRS]) {
    for (pair, to) in to.iter_mut().enumerate() {
        let position = first * BLOCK_POSITIONS as isize + 2 * pair as isize;
        let hidden = [position, position + 1].map(|at| at < 0 || !seen.contains(&(at as usize)));
        if hidden == [false; 2] {
            continue;
        }
        for number in to.0.as_chunks_mut::<4>().0 {
            for (half, _) in
                number.as_chunks_mut::<2>().0.iter_mut().zip(hidden).filter(|(_, hidden)| *hidden)
            {
                *half = [0; 2];
            }
        }
    }
}
