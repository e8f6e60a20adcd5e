//! The specification of a matrix product, one output value at a time.
//!
//! Every value is one `f32` accumulator over the columns in ascending order:
//! - F32 and F16 weights: `acc = fma(w, x, acc)` for every column;
//! - bfloat weights, with inputs rounded to bfloats half to even: for every pair of columns, the odd one first,
//!   `acc = fma(w, x, acc)`, where each subnormal `w` and each subnormal new `acc` becomes a zero of its sign.
//!   This is `vdpbf16ps` as Zen 5 computes it (20 million random sums); no other processor was tested. Machines
//!   without it keep subnormal numbers, and equal it wherever none occurs. On matrix units, for every 32 columns,
//!   `even` and `odd` accumulate their columns from zero, as `fma(w, x, even)`, and `acc = acc + (even + odd)`.
//!   This is `tdpbf16ps` as a Xeon 6 computes it (12 million random sums), for all rows of that instruction set;
//! - 14-bit values: for every 32 columns, with the exact integer `dot = Σ w · x`, `acc = fma(d · dx, dot, acc)`,
//!   where `dx` is the input's scale divided by the square of the maximum quantised value;
//! - quantised values: for every block of the weights, with exact integers `dot = Σ scale · Σ level · code` and
//!   `sum = Σ min · Σ code` over its sub-blocks, `acc = fma(d · dx, dot, acc)` and, if the type has mins,
//!   `acc = fma(m · dx, sum, acc)`, where `dx` is the scale of the input's block.
//!
//! The order depends on nothing else: not on the number of rows, their panels, the tiles or the threads.

use crate::activations::pairs::{PIECE_PAIRS, pair_index, row_pairs};
use crate::activations::{Activations, Panel, code_index};
use crate::matrix::{Matrix, TILE_ROWS, TileRef, element_index, lane_cols};
use crate::narrow::flush;
use crate::outputs::Outputs;
use crate::quant::{Block, Codes, ShortBlock, WeightType, dequantize};

/// Computes the outputs of tile `tile` for every row of `panel`.
///
/// # Safety
/// The tile and the panel exist, and no other thread uses their outputs.
pub(crate) unsafe fn tile(weights: &Matrix, tile: usize, x: &Activations, panel: Panel, out: Outputs) {
    for r in 0..panel.rows {
        for row in 0..TILE_ROWS.min(weights.rows() - tile * TILE_ROWS) {
            let value = match weights.weight_type().codes() {
                Some(codes) => dot_codes(weights, &codes, tile, row, x, panel, r),
                None if weights.weight_type() == WeightType::Bf16 && x.in_pieces() => {
                    dot_pieces(weights, tile, row, x, panel, r)
                }
                None if weights.weight_type() == WeightType::Bf16 => {
                    dot_pairs(weights, tile, row, x, panel, r)
                }
                None if weights.weight_type() == WeightType::Q14_0 => {
                    dot_shorts(weights, tile, row, x, panel, r)
                }
                None => dot_floats(weights, tile, row, x, panel, r),
            };
            // SAFETY: as the caller promises.
            unsafe { *out.at(panel.start + r, tile * TILE_ROWS + row) = value };
        }
    }
}

fn dot_floats(weights: &Matrix, tile: usize, row: usize, x: &Activations, panel: Panel, r: usize) -> f32 {
    let (ty, tile) = (weights.weight_type(), weights.tile(tile));
    let x = &x.floats()[panel.start * weights.cols()..];
    let w = |k| element(ty, tile, element_index(lane_cols(ty), row, k));
    (0..weights.cols()).fold(0.0f32, |acc, k| w(k).mul_add(x[k * panel.width + r], acc))
}

fn dot_pairs(weights: &Matrix, tile: usize, row: usize, x: &Activations, panel: Panel, r: usize) -> f32 {
    let (ty, tile, pairs) = (weights.weight_type(), weights.tile(tile), weights.cols().div_ceil(2));
    let x = &x.pairs()[panel.start * pairs..];
    let w = |k| flush(element(ty, tile, element_index(lane_cols(ty), row, k)));
    (0..pairs).fold(0.0f32, |acc, pair| {
        let x = x[pair * panel.width + r];
        let (even, odd) = (f32::from_bits(x << 16), f32::from_bits(x & 0xffff_0000));
        let acc = flush(w(pair * 2 + 1).mul_add(odd, acc));
        flush(w(pair * 2).mul_add(even, acc))
    })
}

fn dot_pieces(weights: &Matrix, tile: usize, row: usize, x: &Activations, panel: Panel, r: usize) -> f32 {
    let (cols, tile) = (weights.cols(), weights.tile(tile));
    let pairs = row_pairs(cols, panel.width);
    let x = &x.pairs()[panel.start * pairs..];
    let w = |k| match k < cols {
        true => flush(element(WeightType::Bf16, tile, element_index(lane_cols(WeightType::Bf16), row, k))),
        false => 0.0,
    };
    (0..pairs).step_by(PIECE_PAIRS).fold(0.0f32, |acc, first| {
        let [even, odd] = (first..first + PIECE_PAIRS).fold([0.0f32; 2], |sums, pair| {
            let x = x[pair_index(panel.width, r, pair)];
            let x = [f32::from_bits(x << 16), f32::from_bits(x & 0xffff_0000)];
            std::array::from_fn(|i| flush(w(pair * 2 + i).mul_add(x[i], sums[i])))
        });
        flush(acc + flush(even + odd))
    })
}

fn dot_shorts(weights: &Matrix, tile: usize, row: usize, x: &Activations, panel: Panel, r: usize) -> f32 {
    let cols = weights.cols();
    let (x, start) = (x.shorts(), panel.start * cols);
    (0..cols / ShortBlock::LEN).fold(0.0f32, |acc, number| {
        let block = weights.short_block(tile * TILE_ROWS + row, number);
        let dot: i32 = (0..ShortBlock::LEN)
            .map(|i| {
                let (pair, half) = ((number * ShortBlock::LEN + i) / 2, i % 2);
                let code = (x.pairs[start / 2 + pair * panel.width + r] >> (16 * half)) as i16;
                i32::from(block.codes[i]) * i32::from(code)
            })
            .sum();
        let dx = x.scales[start / ShortBlock::LEN + number * panel.width + r];
        (block.d.to_f32() * dx).mul_add(dot as f32, acc)
    })
}

fn element(ty: WeightType, tile: &[u8], index: usize) -> f32 {
    let mut value = 0.0;
    let width = ty.block_bytes();
    dequantize(ty, &tile[index * width..][..width], std::slice::from_mut(&mut value));
    value
}

fn dot_codes(
    weights: &Matrix,
    codes: &Codes,
    tile: usize,
    row: usize,
    x: &Activations,
    panel: Panel,
    r: usize,
) -> f32 {
    let cols = weights.cols();
    let tile = TileRef { codes, layout: weights.layout(), bytes: weights.tile(tile) };
    let x = x.quantised(codes.block_len);
    let x_codes = &x.codes[panel.start * cols..];
    let x_scales = &x.scales[panel.start * cols / codes.block_len..];
    let mut block = Block::default();
    let mut acc = 0.0f32;
    for number in 0..cols / codes.block_len {
        tile.read(row, number, &mut block);
        let (mut dot, mut sum) = (0i32, 0i32);
        for index in 0..codes.block_len {
            let (sub, col) = (index / codes.sub_len, number * codes.block_len + index);
            let code = i32::from(x_codes[code_index(codes.block_len, panel.width, r, col)]);
            dot += i32::from(block.scales[sub]) * codes.level(block.codes[index]) * code;
            sum += i32::from(block.mins[sub]) * code;
        }
        let dx = x_scales[number * panel.width + r];
        acc = (codes.unit(&block) * dx).mul_add(dot as f32, acc);
        if codes.has_min {
            acc = (block.m.to_f32() * dx).mul_add(sum as f32, acc);
        }
    }
    acc
}
