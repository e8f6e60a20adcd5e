//! Quantisation of floats to blocks, as llama.cpp's reference quantisers do it, for converting models while
//! loading.

use half::{bf16, f16};

use super::{ShortBlock, WeightType};
use crate::vectorised;

/// Quantises whole blocks of `x` into the layout of `ty`.
///
/// # Panics
/// If `ty` is not one of F32, F16, BF16, Q8_0, Q4_0 and Q14_0, or `out` does not have the length that `x` needs.
pub fn quantize(ty: WeightType, x: &[f32], out: &mut [u8]) {
    assert_eq!(Some(out.len()), ty.row_bytes(x.len()), "{} blocks for {} values", ty.name(), x.len());
    vectorised(
        #[inline(always)]
        || quantize_blocks(ty, x, out),
    );
}

#[inline(always)]
fn quantize_blocks(ty: WeightType, x: &[f32], out: &mut [u8]) {
    let blocks = x.chunks_exact(ty.block_len()).zip(out.chunks_exact_mut(ty.block_bytes()));
    match ty {
        // A loop, because a closure would be compiled without the target features of the surrounding function.
        WeightType::Q14_0 => {
            for (x, out) in blocks {
                ShortBlock::quantize(x).write(out);
            }
        }
        WeightType::Q8_0 => {
            for (x, out) in blocks {
                quantize_q8_0(x, out);
            }
        }
        WeightType::F32 => blocks.for_each(|(x, out)| out.copy_from_slice(&x[0].to_le_bytes())),
        WeightType::F16 => {
            blocks.for_each(|(x, out)| out.copy_from_slice(&f16::from_f32(x[0]).to_le_bytes()))
        }
        WeightType::Bf16 => {
            blocks.for_each(|(x, out)| out.copy_from_slice(&bf16::from_f32(x[0]).to_le_bytes()))
        }
        WeightType::Q4_0 => blocks.for_each(|(x, out)| quantize_q4_0(x, out)),
        other => panic!("kvik reads {} but does not write it", other.name()),
    }
}

#[inline(always)]
fn quantize_q8_0(x: &[f32], out: &mut [u8]) {
    let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    out[2..].iter_mut().zip(x).for_each(|(q, x)| *q = (x * inverse).round() as i8 as u8);
}

/// Quantises a block so that the value of the largest magnitude becomes -8 exactly, regardless of its sign.
fn quantize_q4_0(x: &[f32], out: &mut [u8]) {
    let largest = x.iter().fold(0.0f32, |largest, x| if x.abs() > largest.abs() { *x } else { largest });
    let d = largest / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let code = |x: f32| ((x * inverse + 8.5) as u8).min(15);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let (low, high) = x.split_at(16);
    let pairs = low.iter().zip(high);
    out[2..].iter_mut().zip(pairs).for_each(|(q, (low, high))| *q = code(*low) | code(*high) << 4);
}
