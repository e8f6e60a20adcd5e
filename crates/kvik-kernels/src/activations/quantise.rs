//! Quantisation of floats to bytes with a scale per block, one panel at a time.
//!
//! `scale = max |x| / 127` over a block; values are rounded half to even. Written as plain loops that the compiler
//! vectorises; every step is exact or has a single rounding, so all variants agree.

use super::{HALF, code_index};
use crate::Isa;
use crate::matrix::CHUNK;
use crate::quant::{ROUNDER, largest};

/// The maximum quantised value: without -128 the range is symmetric.
const BYTE_MAX: f32 = 127.0;

/// A panel being written; see `activations` for the shapes.
pub(super) struct PanelMut<'a> {
    /// Rows that the panel has room for.
    pub(super) width: usize,
    pub(super) codes: &'a mut [i8],
    pub(super) scales: &'a mut [f32],
    pub(super) sums: &'a mut [i32],
    pub(super) half_sums: &'a mut [i32],
}

impl PanelMut<'_> {
    /// Quantises the rows of `x`, `[rows][cols]`, with one scale per `BLOCK` columns; other rows of the panel
    /// stay as they are.
    pub(super) fn quantise<const BLOCK: usize>(&mut self, isa: Isa, x: &[f32], cols: usize) {
        match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the features of `isa`.
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { quantise_avx512::<BLOCK>(self, x, cols) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 | Isa::AvxVnni => unsafe { quantise_avx2::<BLOCK>(self, x, cols) },
            _ => quantise::<BLOCK>(self, x, cols),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn quantise_avx512<const BLOCK: usize>(panel: &mut PanelMut, x: &[f32], cols: usize) {
    quantise::<BLOCK>(panel, x, cols);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantise_avx2<const BLOCK: usize>(panel: &mut PanelMut, x: &[f32], cols: usize) {
    quantise::<BLOCK>(panel, x, cols);
}

#[inline(always)]
fn quantise<const BLOCK: usize>(panel: &mut PanelMut, x: &[f32], cols: usize) {
    for (r, row) in x.chunks_exact(cols).enumerate() {
        for (block, x) in row.chunks_exact(BLOCK).enumerate() {
            let (scale, inverse) = scale_of(largest(x), BYTE_MAX);
            panel.scales[block * panel.width + r] = scale;
            for (part, x) in x.as_chunks::<CHUNK>().0.iter().enumerate() {
                quantise_chunk::<BLOCK>(panel, block * (BLOCK / CHUNK) + part, r, x, inverse);
            }
        }
    }
}

#[inline(always)]
fn quantise_chunk<const BLOCK: usize>(
    panel: &mut PanelMut,
    chunk: usize,
    r: usize,
    x: &[f32; CHUNK],
    inverse: f32,
) {
    let mut codes = [0i8; CHUNK];
    for i in 0..CHUNK {
        codes[i] = code_of(x[i] * inverse, BYTE_MAX) as i8;
    }
    panel.codes[code_index(BLOCK, panel.width, r, chunk * CHUNK)..][..CHUNK].copy_from_slice(&codes);
    let (first, second) = (sum(&codes[..HALF]), sum(&codes[HALF..]));
    panel.sums[chunk * panel.width + r] = first + second;
    if BLOCK == 256 {
        panel.half_sums[chunk * 2 * panel.width + r] = first;
        panel.half_sums[(chunk * 2 + 1) * panel.width + r] = second;
    }
}

#[inline(always)]
fn sum(codes: &[i8]) -> i32 {
    codes.iter().map(|code| i32::from(*code)).sum()
}

/// The scale of a block whose quantised values go up to `max`, and its inverse. A zero or subnormal scale becomes
/// zero; an infinite or NaN scale is returned unchanged, with inverse zero.
#[inline(always)]
pub(super) fn scale_of(largest: f32, max: f32) -> (f32, f32) {
    let scale = largest / max;
    match scale.is_normal() {
        true => (scale, 1.0 / scale),
        false if scale.is_finite() => (0.0, 0.0),
        false => (scale, 0.0),
    }
}

/// `x` rounded half to even and limited to `max`; NaN becomes `-max`.
#[inline(always)]
pub(super) fn code_of(x: f32, max: f32) -> i16 {
    let above = if x > -max { x } else { -max };
    let limited = if above < max { above } else { max };
    (limited + ROUNDER).to_bits() as i16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Quantised values, scales, sums and half sums of `x`, `[rows][cols]`.
    fn quantised<const BLOCK: usize>(
        isa: Isa,
        x: &[f32],
        rows: usize,
    ) -> (Vec<i8>, Vec<u32>, Vec<i32>, Vec<i32>) {
        let halves = if BLOCK == 256 { x.len() / HALF } else { 0 };
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0f32; x.len() / BLOCK]);
        let (mut sums, mut half_sums) = (vec![0; x.len() / CHUNK], vec![0; halves]);
        let mut panel = PanelMut {
            width: rows,
            codes: &mut codes,
            scales: &mut scales,
            sums: &mut sums,
            half_sums: &mut half_sums,
        };
        panel.quantise::<BLOCK>(isa, x, x.len() / rows);
        (codes, scales.into_iter().map(f32::to_bits).collect(), sums, half_sums)
    }

    #[test]
    fn every_variant_gives_the_same_codes() {
        let mut random = Random(11);
        let extremes = [0.0, -0.0, 1e-44, 2e-38, 3e38, f32::INFINITY, 0.5, 126.5];
        for rows in [1, 2, 4, 8] {
            let x: Vec<f32> = (0..rows * 1024)
                .map(|i| match random.bits() % 64 {
                    rare @ 0..8 if i % 512 > 255 => extremes[rare as usize],
                    _ => random.float() * 10.0,
                })
                .collect();
            for isa in crate::testing::isas() {
                assert_eq!(quantised::<32>(isa, &x, rows), quantised::<32>(Isa::Scalar, &x, rows), "{isa:?}");
                assert_eq!(
                    quantised::<256>(isa, &x, rows),
                    quantised::<256>(Isa::Scalar, &x, rows),
                    "{isa:?}"
                );
            }
        }
    }

    #[test]
    fn codes_round_half_to_even_within_a_byte() {
        let check = |x: f32, expect: i16| assert_eq!(code_of(x, BYTE_MAX), expect, "{x}");
        check(0.0, 0);
        check(0.5, 0);
        check(1.5, 2);
        check(-2.5, -2);
        check(126.6, 127);
        check(-127.4, -127);
        check(f32::INFINITY, 127);
        check(f32::NEG_INFINITY, -127);
        check(f32::NAN, -127);
    }

    #[test]
    fn scales_of_extreme_blocks_are_defined() {
        assert_eq!(scale_of(127.0, BYTE_MAX), (1.0, 1.0));
        assert_eq!(scale_of(0.0, BYTE_MAX), (0.0, 0.0));
        assert_eq!(scale_of(1e-44, BYTE_MAX), (0.0, 0.0));
        assert_eq!(scale_of(f32::INFINITY, BYTE_MAX), (f32::INFINITY, 0.0));
        assert!(scale_of(largest(&[1.0, f32::NAN, 2.0]), BYTE_MAX).0.is_nan());
        assert_eq!(largest(&[-3.0; 32]), 3.0);
    }
}
