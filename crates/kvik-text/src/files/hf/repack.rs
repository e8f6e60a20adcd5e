//! Conversion of gpt-oss' experts, whose layout differs from GGUF's: rows of gate and up alternate, scales are
//! separate from blocks, and adjacent numbers of a block share a byte.

use kvik_kernels::WeightType;
use safetensors::Dtype;

use super::HfError;

/// Numbers per block.
const BLOCK: usize = 32;
/// Bytes of a block without its scale.
const BLOCK_BYTES: usize = BLOCK / 2;

/// A tensor as stored in the file.
pub(super) struct Stored<'a> {
    /// Its name in the file.
    pub(super) name: &'a str,
    pub(super) dtype: Dtype,
    pub(super) shape: &'a [usize],
    pub(super) data: &'a [u8],
}

/// A tensor of the model, converted from one or two of the file.
#[derive(Debug, PartialEq)]
pub(super) struct Repacked {
    /// GGUF's name in the layer.
    pub(super) part: &'static str,
    pub(super) ty: WeightType,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) data: Vec<u8>,
}

/// Weights of all experts: `blocks` is `[experts, rows, blocks of a row, 16]`, `scales`
/// `[experts, rows, blocks of a row]`. The rows of two `parts` alternate.
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

/// Biases of all experts, `[experts, rows]`. The rows of two `parts` alternate.
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
    // An expert has the same number of rows of each part.
    if !stored.shape[1].is_multiple_of(parts.len()) {
        return Err(bad_shape(stored));
    }
    let of_part = |(index, &part)| (part, (index..rows).step_by(parts.len()).collect());
    Ok(parts.iter().enumerate().map(of_part).collect())
}

/// The bytes of a block in GGUF's order: the first half of the numbers in the lower bits, the second in the upper.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stored<'a>(dtype: Dtype, shape: &'a [usize], data: &'a [u8]) -> Stored<'a> {
        Stored { name: "x", dtype, shape, data }
    }

    #[test]
    fn numbers_of_a_block_change_their_places() {
        // Number i of the block is i modulo 16.
        let block: Vec<u8> = (0..16).map(|byte| (2 * byte % 16) | (((2 * byte + 1) % 16) << 4)).collect();
        let expect: Vec<u8> = (0..16).map(|byte| byte | byte << 4).collect();
        assert_eq!(in_order(&block).to_vec(), expect);
    }

    #[test]
    fn rows_of_two_parts_alternate() {
        let blocks: Vec<u8> = (0..4).flat_map(|row| [row; BLOCK_BYTES]).collect();
        let blocks = stored(Dtype::U8, &[2, 2, 1, BLOCK_BYTES], &blocks);
        let scales = stored(Dtype::U8, &[2, 2, 1], &[10, 11, 12, 13]);
        let parts = weights(&["gate", "up"], &blocks, &scales).unwrap();
        assert_eq!(
            parts.iter().map(|part| (part.part, part.rows, part.cols)).collect::<Vec<_>>(),
            [("gate", 2, 32), ("up", 2, 32)]
        );
        assert_eq!([0, 17].map(|at| parts[0].data[at]), [10, 12]);
        assert_eq!([0, 17].map(|at| parts[1].data[at]), [11, 13]);
        let bias = biases(&["gate", "up"], &stored(Dtype::BF16, &[2, 2], &[0, 1, 2, 3, 4, 5, 6, 7])).unwrap();
        assert_eq!([&bias[0].data[..], &bias[1].data], [[0, 1, 4, 5], [2, 3, 6, 7]]);
        assert_eq!((bias[0].rows, bias[0].cols), (2, 1));
    }

    #[test]
    fn shapes_that_contradict_each_other_are_refused() {
        let refused = |blocks: &[usize], scales: &[usize]| {
            let bytes = vec![0; 4096];
            let (blocks, scales) = (stored(Dtype::U8, blocks, &bytes), stored(Dtype::U8, scales, &bytes));
            assert!(matches!(weights(&["gate", "up"], &blocks, &scales), Err(HfError::BadShape { .. })));
        };
        refused(&[2, 2, 1, 8], &[2, 2, 1]);
        refused(&[2, 2, 16], &[2, 2, 1]);
        refused(&[2, 2, 1, 16], &[2, 1, 2]);
        refused(&[2, 3, 1, 16], &[2, 3, 1]);
        refused(&[1 << 40, 1 << 40, 0, 16], &[1 << 40, 1 << 40, 0]);
        let floats = stored(Dtype::F32, &[1, 2, 1, 16], &[0; 128]);
        let scales = stored(Dtype::U8, &[1, 2, 1], &[0; 2]);
        assert!(matches!(weights(&["x"], &floats, &scales), Err(HfError::UnsupportedType { .. })));
        for shape in [&[4][..], &[2, 3], &[0, 1 << 60]] {
            let bias = biases(&["gate", "up"], &stored(Dtype::F32, shape, &[0; 64]));
            assert!(matches!(bias, Err(HfError::BadShape { .. })), "{shape:?}");
        }
    }
}
