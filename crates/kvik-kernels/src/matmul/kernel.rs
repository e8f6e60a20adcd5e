//! The inner loops of a matrix product, written once over [`Lanes`]: `TILES` tiles of weights, or one if
//! registers are few, times one panel of inputs, with every output in a register from the first column to the
//! last.
//!
//! Keeps the order of `scalar::matmul`, lane by lane. Loops are explicit on purpose: a closure passed to the
//! standard library is compiled without the instruction set, and its intrinsics become calls.

#![allow(clippy::needless_range_loop, reason = "indices name the tile and the row of a register block")]
use crate::activations::{Activations, Panel};
use crate::lanes::Lanes;
use crate::matmul::formats::{Coded, Format};
use crate::matrix::{Matrix, TILE_ROWS, VECTOR};
use crate::outputs::Outputs;
use crate::quant::{BlockUnit, WeightType};

/// Tiles that a kernel computes together.
pub(crate) const TILES: usize = 2;

/// The outputs that a kernel computes: `TILES` tiles of the weights for some rows of a panel.
pub(crate) struct Target<'a> {
    pub(crate) weights: &'a Matrix,
    /// The last tile may repeat the one before it.
    pub(crate) tiles: [usize; TILES],
    /// Starts of those tiles.
    pub(crate) starts: [*const u8; TILES],
    pub(crate) x: &'a Activations,
    pub(crate) panel: Panel,
    /// The first row of the panel to compute.
    pub(crate) first: usize,
    /// Starts of the tiles that are computed after these, to be prefetched: once per group of tiles is enough.
    pub(crate) next: Option<[*const u8; TILES]>,
    pub(crate) out: Outputs,
}

/// Computes and stores all tiles of a target together or, if registers lack room for all sums, one by one.
macro_rules! by_tiles {
    ($per_output:literal, $sums:ident::<$($generic:ident),*>($lanes:ident, $target:ident, $($x:ident),*)) => {
        if const { TILES * R * $per_output > L::SUMS } {
            for t in 0..TILES {
                let next = $target.next.map(|next| [next[t]]);
                let acc = $sums::<$($generic,)* 1>($lanes, $target, [$target.starts[t]], next, $($x),*);
                store($lanes, $target, t, acc);
            }
        } else {
            let acc = $sums::<$($generic,)* TILES>($lanes, $target, $target.starts, $target.next, $($x),*);
            store($lanes, $target, 0, acc);
        }
    };
}

mod codes;
mod floats;
mod shorts;

pub(super) use codes::code_rows;
#[cfg(target_arch = "x86_64")]
pub(super) use codes::{Inputs, group_codes, inputs, load_min, load_scale, min_sums, prefetch_chunk};
pub(super) use floats::{float_rows, pair_rows};
pub(super) use shorts::short_rows;

/// Bytes of a tile of `weights` that is [unpacked](unpack_tiles).
pub(super) fn unpacked_bytes(weights: &Matrix) -> usize {
    match weights.weight_type() {
        WeightType::Q14_0 => weights.layout().low + weights.cols() / 2 * VECTOR,
        _ => weights.cols() * VECTOR,
    }
}

/// Unpacks `tiles` of `weights` to tiles of [`InnerLoop::Unpacked`](super::inner_loop::InnerLoop::Unpacked),
/// consecutive from `to`, and returns their starts. It prefetches nothing: the products do that, since they take
/// longer.
///
/// # Safety
/// The tiles are some of the weights, of type `F`, and `to` has room for [as many bytes](unpacked_bytes) for each.
#[inline(always)]
pub(super) unsafe fn unpack_tiles<L: Lanes, F: Format>(
    lanes: L,
    weights: &Matrix,
    tiles: [*const u8; TILES],
    to: *mut f32,
) -> [*const u8; TILES] {
    let mut starts = tiles;
    for t in 0..TILES {
        let to = to.wrapping_byte_add(t * unpacked_bytes(weights));
        starts[t] = to.cast();
        // SAFETY: as the caller promises.
        unsafe {
            match F::TYPE {
                WeightType::Q14_0 => shorts::unpack(lanes, weights, tiles[t], to),
                _ => floats::widen(lanes, tiles[t], weights.cols(), to),
            }
        }
    }
    starts
}

/// Writes the accumulators of the tiles from `first` on to their outputs in `[n, rows]`, without the padding of
/// the last tile and of the panel.
///
/// # Safety
/// As [`float_rows`].
#[inline(always)]
pub(super) unsafe fn store<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    target: &Target,
    first: usize,
    acc: [[L::Float; R]; T],
) {
    let rows = target.weights.rows();
    for t in 0..T {
        let start = target.tiles[first + t] * TILE_ROWS;
        for r in 0..R.min(target.panel.rows - target.first) {
            // SAFETY: the row is one of the inputs and `start` one of the outputs.
            let to = unsafe { target.out.at(target.panel.start + target.first + r, start) };
            if start + TILE_ROWS <= rows {
                // SAFETY: sixteen outputs are left.
                unsafe { lanes.store(acc[t][r], to) };
            } else {
                let mut values = [0.0; TILE_ROWS];
                // SAFETY: the array has sixteen elements, and `rows - start` outputs are left.
                unsafe {
                    lanes.store(acc[t][r], values.as_mut_ptr());
                    to.copy_from_nonoverlapping(values.as_ptr(), rows - start);
                }
            }
        }
    }
}

/// The scales of the values of a block.
///
/// # Safety
/// The tiles are of type `F` and have the block; their plane of scales begins at `plane`.
#[inline(always)]
pub(super) unsafe fn load_units<L: Lanes, F: Coded, const T: usize>(
    lanes: L,
    tiles: [*const u8; T],
    plane: usize,
    block: usize,
) -> [L::Float; T] {
    let at = plane + F::CODES.unit_at(block);
    if const { matches!(F::CODES.unit, BlockUnit::Half) } {
        // SAFETY: as the caller promises.
        return unsafe { load_halves(lanes, tiles, at) };
    }
    let mut units = [lanes.splat_f32(0.0); T];
    for t in 0..T {
        // SAFETY: as the caller promises.
        units[t] = unsafe { load_half_powers(lanes, tiles[t].add(at)) };
    }
    units
}

/// `2^(exponent - 128)` for sixteen bytes: the product of two powers of two of half the exponent each, which are
/// always normal; the product is exact.
///
/// # Safety
/// `from` is readable for sixteen bytes.
#[inline(always)]
unsafe fn load_half_powers<L: Lanes>(lanes: L, from: *const u8) -> L::Float {
    // SAFETY: as the caller promises.
    let exponents = unsafe { lanes.load_u8(from) };
    let lower = lanes.shift_right(exponents, 1);
    let upper = lanes.shift_right(lanes.add(exponents, lanes.splat(1)), 1);
    let power = |half, bias: i32| lanes.as_float(lanes.shift_left(lanes.add(half, lanes.splat(bias)), 23));
    lanes.mul_f32(power(lower, 63), power(upper, 63))
}

/// Loads the vectors at offset `at` of each tile and prefetches those of `next`.
///
/// # Safety
/// The tiles have vectors at that offset.
#[inline(always)]
unsafe fn load_vectors<L: Lanes, const T: usize>(
    lanes: L,
    tiles: [*const u8; T],
    next: Option<[*const u8; T]>,
    at: usize,
) -> [L::Int; T] {
    let mut vectors = [lanes.splat(0); T];
    for t in 0..T {
        if let Some(next) = next {
            lanes.prefetch(next[t].wrapping_add(at));
        }
        // SAFETY: as the caller promises.
        vectors[t] = unsafe { lanes.load(tiles[t].add(at)) };
    }
    vectors
}

/// # Safety
/// At `at`, each tile holds a half float for every row.
#[inline(always)]
pub(super) unsafe fn load_halves<L: Lanes, const T: usize>(
    lanes: L,
    tiles: [*const u8; T],
    at: usize,
) -> [L::Float; T] {
    let mut halves = [lanes.splat_f32(0.0); T];
    for t in 0..T {
        // SAFETY: as the caller promises.
        halves[t] = unsafe { lanes.load_f16(tiles[t].add(at)) };
    }
    halves
}

/// `acc = fma(d * dx, dot, acc)`.
///
/// # Safety
/// `scales` holds `R` values.
#[inline(always)]
pub(super) unsafe fn accumulate<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    acc: &mut [[L::Float; R]; T],
    d: [L::Float; T],
    dots: [[L::Int; R]; T],
    scales: *const f32,
) {
    for r in 0..R {
        // SAFETY: `r` is below `R`.
        let dx = lanes.splat_f32(unsafe { *scales.add(r) });
        for t in 0..T {
            acc[t][r] = lanes.fma(lanes.mul_f32(d[t], dx), lanes.to_float(dots[t][r]), acc[t][r]);
        }
    }
}
