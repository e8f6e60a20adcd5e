//! Conversion of floats to pairs of bfloats, rounded half to even; subnormal numbers become zero.
//!
//! Plain integer loops that the compiler vectorises, so all variants agree.

use super::TALL;
use crate::Isa;
use crate::narrow::bfloat;

/// Columns rounded at a time before they are spread over the panel.
const PIECE: usize = 2 * PIECE_PAIRS;

/// Contiguous pairs of columns of a row in a tall panel: a row of a matrix register.
pub(crate) const PIECE_PAIRS: usize = 16;

/// Pairs that a row of `cols` columns takes in panels of that width; pairs past the last column are zero.
pub(crate) const fn row_pairs(cols: usize, width: usize) -> usize {
    if width == TALL { cols.div_ceil(2 * PIECE_PAIRS) * PIECE_PAIRS } else { cols.div_ceil(2) }
}

/// Index of a pair of a row in a panel.
pub(crate) const fn pair_index(width: usize, row: usize, pair: usize) -> usize {
    let piece = if width == TALL { PIECE_PAIRS } else { 1 };
    (pair / piece * width + row) * piece + pair % piece
}

/// Rounds one panel with room for `width` rows: `x` is `[rows][cols]`; other rows of the panel stay as they are.
pub(super) fn round(isa: Isa, x: &[f32], cols: usize, width: usize, out: &mut [u32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the features of `isa`.
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { round_avx512(x, cols, width, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 | Isa::AvxVnni => unsafe { round_avx2(x, cols, width, out) },
        _ => round_panel(x, cols, width, out),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn round_avx512(x: &[f32], cols: usize, width: usize, out: &mut [u32]) {
    round_panel(x, cols, width, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn round_avx2(x: &[f32], cols: usize, width: usize, out: &mut [u32]) {
    round_panel(x, cols, width, out);
}

#[inline(always)]
fn round_panel(x: &[f32], cols: usize, width: usize, out: &mut [u32]) {
    for (r, row) in x.chunks_exact(cols).enumerate() {
        let (pieces, rest) = row.as_chunks::<PIECE>();
        for (number, piece) in pieces.iter().enumerate() {
            place(round_piece(piece), width, r, number, out);
        }
        if !rest.is_empty() {
            let mut last = [0.0; PIECE];
            last[..rest.len()].copy_from_slice(rest);
            place(round_piece(&last), width, r, pieces.len(), out);
        }
    }
}

/// Writes the pairs of a piece of row `r` to their positions in a panel, without those past its end.
#[inline(always)]
pub(super) fn place(pairs: [u32; PIECE_PAIRS], width: usize, r: usize, piece: usize, out: &mut [u32]) {
    let to = &mut out[pair_index(width, r, piece * PIECE_PAIRS)..];
    match width {
        TALL => to[..PIECE_PAIRS].copy_from_slice(&pairs),
        _ => to.iter_mut().step_by(width).zip(pairs).for_each(|(to, pair)| *to = pair),
    }
}

#[inline(always)]
fn round_piece(x: &[f32; PIECE]) -> [u32; PIECE / 2] {
    let mut pairs = [0; PIECE / 2];
    for i in 0..PIECE / 2 {
        pairs[i] = bfloat(x[2 * i]) | bfloat(x[2 * i + 1]) << 16;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::testing::Random;

    #[test]
    fn every_variant_rounds_as_the_half_crate_does() {
        let mut random = Random(3);
        for (rows, cols) in [(1usize, 1usize), (2, 31), (4, 64), (8, 99), (16, 65)] {
            let x: Vec<f32> = (0..rows * cols).map(|_| f32::from_bits(random.bits() as u32)).collect();
            let bits = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
            let bits = |x: f32| u32::from(bf16::from_f32(bits(x)).to_bits());
            for isa in crate::testing::isas() {
                let pairs = row_pairs(cols, rows);
                let mut out = vec![u32::MAX; rows * pairs];
                round(isa, &x, cols, rows, &mut out);
                for (row, pair) in (0..rows).flat_map(|row| (0..pairs).map(move |pair| (row, pair))) {
                    let at = |col: usize| if col < cols { bits(x[row * cols + col]) } else { 0 };
                    let expect = at(2 * pair) | at(2 * pair + 1) << 16;
                    assert_eq!(out[pair_index(rows, row, pair)], expect, "{isa:?} row {row}, pair {pair}");
                }
            }
        }
    }
}
