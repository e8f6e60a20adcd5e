//! The experts of gpt-oss, whose checkpoints store them in another order than GGUF does: rows of gate and up alternate,
//! scales stand apart from their blocks, and in a block two numbers that follow one another share a byte.

use kvik_kernels::WeightType;
use safetensors::Dtype;

use super::HfError;

/// Numbers of a block.
const BLOCK: usize = 32;
/// Bytes of a block without its scale.
const BLOCK_BYTES: usize = BLOCK / 2;

/// A tensor as the file has it.
pub(super) struct Stored<'a> {
    /// Its name in the file.
    pub(super) name: &'a str,
    pub(super) dtype: Dtype,
    pub(super) shape: &'a [usize],
    pub(super) data: &'a [u8],
}

/// A tensor of the model, made of one or two of the file.
#[derive(Debug, PartialEq)]
pub(super) struct Repacked {
    /// GGUF's name in the layer.
    pub(super) part: &'static str,
    pub(super) ty: WeightType,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) data: Vec<u8>,
}

/// Weights of all experts, `blocks` `[experts, rows, blocks of a row, 16]` with `scales` `[experts, rows, blocks of a
/// row]`. Of two `parts` the rows alternate.
pub(super) fn weights(
    parts: &[&'static str],
    blocks: &Stored<'_>,
    scales: &Stored<'_>,
) -> Result<Vec<Repacked>, HfError> {
    for stored in [blocks, scales] {
        if stored.dtype != Dtype::U8 {
            return Err(unsupported(stored));
        }
    }
    let [experts, rows, in_row, BLOCK_BYTES] = *blocks.shape else { return Err(bad_shape(blocks)) };
    if scales.shape != [experts, rows, in_row] || blocks.shape.contains(&0) {
        return Err(bad_shape(scales));
    }
    let all = experts * rows;
    let row = |row: usize| {
        let blocks =
            blocks.data[row * in_row * BLOCK_BYTES..][..in_row * BLOCK_BYTES].chunks_exact(BLOCK_BYTES);
        let scales = &scales.data[row * in_row..][..in_row];
        scales.iter().zip(blocks).flat_map(|(&scale, block)| std::iter::once(scale).chain(in_order(block)))
    };
    let repacked = |(part, rows): (&'static str, Vec<usize>)| Repacked {
        part,
        ty: WeightType::Mxfp4,
        rows: rows.len(),
        cols: in_row * BLOCK,
        data: rows.into_iter().flat_map(row).collect(),
    };
    Ok(alternating(parts, all, blocks)?.into_iter().map(repacked).collect())
}

/// Biases of all experts, `[experts, rows]`. Of two `parts` the rows alternate.
pub(super) fn biases(parts: &[&'static str], bias: &Stored<'_>) -> Result<Vec<Repacked>, HfError> {
    let (ty, bytes) = match bias.dtype {
        Dtype::F32 => (WeightType::F32, 4),
        Dtype::F16 => (WeightType::F16, 2),
        Dtype::BF16 => (WeightType::Bf16, 2),
        _ => return Err(unsupported(bias)),
    };
    let [experts, rows] = *bias.shape else { return Err(bad_shape(bias)) };
    if bias.shape.contains(&0) {
        return Err(bad_shape(bias));
    }
    let value = |row: usize| bias.data[row * bytes..(row + 1) * bytes].iter().copied();
    let repacked = |(part, rows): (&'static str, Vec<usize>)| Repacked {
        part,
        ty,
        rows: experts,
        cols: rows.len() / experts,
        data: rows.into_iter().flat_map(value).collect(),
    };
    Ok(alternating(parts, experts * rows, bias)?.into_iter().map(repacked).collect())
}

/// The rows of each part.
fn alternating(
    parts: &[&'static str],
    rows: usize,
    stored: &Stored<'_>,
) -> Result<Vec<(&'static str, Vec<usize>)>, HfError> {
    // An expert has as many rows of one as of the other, and is a whole number of pairs.
    if !stored.shape[1].is_multiple_of(parts.len()) {
        return Err(bad_shape(stored));
    }
    let of_part = |(index, &part)| (part, (index..rows).step_by(parts.len()).collect());
    Ok(parts.iter().enumerate().map(of_part).collect())
}

/// The bytes of a block as GGUF has them: the first half of the numbers in the lower bits, the second in the upper.
fn in_order(block: &[u8]) -> [u8; BLOCK_BYTES] {
    let number = |index: usize| block[index / 2] >> (index % 2 * 4) & 0xf;
    std::array::from_fn(|index| number(index) | number(index + BLOCK / 2) << 4)
}

fn unsupported(stored: &Stored<'_>) -> HfError {
    HfError::UnsupportedType { tensor: stored.name.to_owned(), dtype: format!("{:?}", stored.dtype) }
}

fn bad_shape(stored: &Stored<'_>) -> HfError {
    HfError::BadShape { tensor: stored.name.to_owned(), shape: stored.shape.to_vec() }
}
