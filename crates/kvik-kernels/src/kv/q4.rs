//! Four-bit numbers in groups of 32 dimensions, each with a scale and a least value.
//!
//! ```text
//! K tile  [groups][16 dimension pairs][16 positions] bytes, then [groups] { [16] scale, [16] least }
//! V tile  [16 positions][groups][16] bytes,               then [16 positions][groups] { least, scale }
//! ```
//!
//! A byte holds two dimensions of one position: neighbours `2 i, 2 i + 1` in K, `i, i + 16` of the group in V.
//! Scale and least value are bf16. A number is `fma(code, scale, least)`.
//! Vectors are stored rotated, see [`rotate`].

use half::bf16;

use super::BLOCK_POSITIONS;
use super::tile::Tile;
use crate::f32x16::F32x16;

/// Dimensions that share a scale.
const GROUP: usize = 32;
/// Bytes of a group's codes for the 16 positions of a tile, and of its scales.
const CODES: usize = GROUP * BLOCK_POSITIONS / 2;
const SCALES: usize = 4 * BLOCK_POSITIONS;

pub(crate) struct Q4;

impl Tile for Q4 {
    const GROUP: usize = GROUP;
    const ROTATED: bool = true;
    /// Scale and least value of 16 positions.
    type Group<L: F32x16> = (L, L);

    fn bytes(rows: usize) -> usize {
        rows.div_ceil(GROUP) * (CODES + SCALES)
    }

    #[inline(always)]
    unsafe fn key_group<L: F32x16>(tile: *const u8, head_dim: usize, d: usize) -> (L, L) {
        let at = head_dim.div_ceil(GROUP) * CODES + d / GROUP * SCALES;
        // SAFETY: the scales of the group that holds `d`.
        unsafe {
            let scales = tile.add(at).cast::<u16>();
            (L::load_bf16(scales), L::load_bf16(scales.add(BLOCK_POSITIONS)))
        }
    }

    #[inline(always)]
    unsafe fn key<L: F32x16>(tile: *const u8, (scale, least): (L, L), d: usize) -> L {
        // SAFETY: the codes of dimension `d` share 16 bytes with its neighbour's.
        let code = unsafe { L::load_u4(Q4::key_at(tile, d), 4 * (d as u32 % 2)) };
        code.mul_add(scale, least)
    }

    #[inline(always)]
    unsafe fn value<L: F32x16>(tile: *const u8, dims: usize, position: usize, vector: usize) -> L {
        let groups = dims.div_ceil(GROUP);
        let at = position * groups + vector / 2;
        // SAFETY: the codes and the scale of the group that holds the vector.
        unsafe {
            let scale = tile.add(groups * CODES + 4 * at).cast::<u32>().read_unaligned();
            let code = L::load_u4(Q4::value_at(tile, dims, position, vector), 4 * (vector as u32 % 2));
            let least = L::splat(f32::from_bits(scale << 16));
            code.mul_add(L::splat(f32::from_bits(scale & 0xffff_0000)), least)
        }
    }

    #[inline(always)]
    fn key_at(tile: *const u8, d: usize) -> *const u8 {
        tile.wrapping_add(d / 2 * BLOCK_POSITIONS)
    }

    #[inline(always)]
    fn value_at(tile: *const u8, dims: usize, position: usize, vector: usize) -> *const u8 {
        tile.wrapping_add((position * dims.div_ceil(GROUP) + vector / 2) * BLOCK_POSITIONS)
    }

    unsafe fn write_key(tile: *mut u8, position: usize, key: &[f32]) {
        let scales = key.len().div_ceil(GROUP) * CODES;
        for (g, numbers) in key.chunks(GROUP).enumerate() {
            let group = Group::new(numbers);
            let codes = tile.wrapping_add(g * CODES + position);
            for i in 0..GROUP / 2 {
                let pair = group.code(2 * i) | group.code(2 * i + 1) << 4;
                // SAFETY: the byte of this position in the `i`-th pair of the group.
                unsafe { codes.add(i * BLOCK_POSITIONS).write(pair) };
            }
            let scales = tile.wrapping_add(scales + g * SCALES).cast::<u16>();
            // SAFETY: the group's scales.
            unsafe {
                scales.add(position).write(group.scale.to_bits());
                scales.add(BLOCK_POSITIONS + position).write(group.least.to_bits());
            }
        }
    }

    unsafe fn write_value(tile: *mut u8, dims: usize, position: usize, value: &[f32]) {
        let groups = dims.div_ceil(GROUP);
        for g in 0..groups {
            let numbers = value.get(g * GROUP..).unwrap_or(&[]);
            let group = Group::new(&numbers[..numbers.len().min(GROUP)]);
            let at = position * groups + g;
            let codes = tile.wrapping_add(at * BLOCK_POSITIONS);
            for i in 0..GROUP / 2 {
                let pair = group.code(i) | group.code(i + GROUP / 2) << 4;
                // SAFETY: 16 bytes for each position and group.
                unsafe { codes.add(i).write(pair) };
            }
            let scale = u32::from(group.scale.to_bits()) << 16 | u32::from(group.least.to_bits());
            // SAFETY: the scales follow the codes of all groups.
            unsafe { tile.add(groups * CODES + 4 * at).cast::<u32>().write_unaligned(scale) };
        }
    }
}

/// A group about to be stored.
struct Group<'a> {
    numbers: &'a [f32],
    scale: bf16,
    least: bf16,
}

impl Group<'_> {
    fn new(numbers: &[f32]) -> Group<'_> {
        let least = numbers.iter().copied().fold(f32::INFINITY, f32::min);
        let most = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if numbers.is_empty() {
            return Group { numbers, scale: bf16::ZERO, least: bf16::ZERO };
        }
        let least = bf16::from_f32(least);
        Group { numbers, scale: bf16::from_f32((most - least.to_f32()) / 15.0), least }
    }

    /// The code of the `i`-th number, against scale and least value as they are stored.
    fn code(&self, i: usize) -> u8 {
        let scale = self.scale.to_f32();
        match self.numbers.get(i) {
            Some(x) if scale > 0.0 => {
                ((x - self.least.to_f32()) / scale).round_ties_even().clamp(0.0, 15.0) as u8
            }
            _ => 0,
        }
    }
}

/// Turns a head vector by an orthogonal Hadamard matrix, which is its own inverse.
///
/// It spreads outliers over all dimensions, so that groups have a narrow range. Products of two turned
/// vectors are those of the vectors themselves. Where the length is no power of two, pieces of the
/// greatest power of two that divides it are turned one by one.
pub(crate) fn rotate(x: &mut [f32]) {
    let piece = 1 << x.len().trailing_zeros();
    let norm = 1.0 / (piece as f32).sqrt();
    for x in x.chunks_exact_mut(piece) {
        let mut half = 1;
        while half < piece {
            for pair in x.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        x.iter_mut().for_each(|x| *x *= norm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn rotation_is_its_own_inverse_and_keeps_products() {
        for len in [8, 24, 64, 80, 100, 128, 256] {
            let mut random = Random(len as u64);
            let (x, y): (Vec<f32>, Vec<f32>) = (0..len).map(|_| (random.float(), random.float())).unzip();
            let dot = |x: &[f32], y: &[f32]| -> f32 { x.iter().zip(y).map(|(x, y)| x * y).sum() };
            let (mut turned, mut other) = (x.clone(), y.clone());
            rotate(&mut turned);
            rotate(&mut other);
            assert!((dot(&turned, &other) - dot(&x, &y)).abs() < 1e-4);
            rotate(&mut turned);
            assert!(turned.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5), "{len}");
        }
    }

    #[test]
    fn rotation_spreads_an_outlier() {
        let mut x = [0.0; 64];
        x[5] = 8.0;
        rotate(&mut x);
        assert!(x.iter().all(|x| x.abs() == 1.0));
    }
}
