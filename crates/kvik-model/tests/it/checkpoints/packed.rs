//! The experts of gpt-oss in MXFP4: blocks of 32 numbers of four bits, with a scale.
//!
//! GGUF has the scale before its block, and the first half of the numbers in the lower bits of its bytes. Checkpoints
//! have the scales apart, two numbers that follow one another in a byte, and rows of gate and up that alternate.

use kvik_kernels::WeightType;

use super::write::Tensor;

/// Random weights of the same shape, in GGUF's order.
pub(crate) fn random(like: &Tensor, seed: usize) -> Tensor {
    let blocks = like.rows() * like.cols() / 32;
    let mut state = seed as u64 + 1;
    let mut byte = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    // Scales are powers of two: these bring the numbers, of up to 6, to a fraction of one.
    let block =
        |_| std::iter::once(121 + byte() % 3).chain((0..16).map(|_| byte()).collect::<Vec<_>>()).collect();
    let data: Vec<Vec<u8>> = (0..blocks).map(block).collect();
    Tensor { ty: WeightType::Mxfp4, shape: like.shape.clone(), data: data.concat() }
}

/// Names in the layer and tensors of a checkpoint.
pub(crate) fn checkpoint(
    [gate, up, down]: [&Tensor; 3],
    [gate_bias, up_bias, down_bias]: [&Tensor; 3],
    count: usize,
) -> Vec<(String, Tensor)> {
    let alternating = |gate: &Tensor, up: &Tensor| -> Vec<Vec<u8>> {
        (0..gate.rows()).flat_map(|row| [gate.row(row).to_vec(), up.row(row).to_vec()]).collect()
    };
    let rows = |stack: &Tensor| (0..stack.rows()).map(|row| stack.row(row).to_vec()).collect();
    let mut all = weights("gate_up_proj", alternating(gate, up), count);
    all.extend(weights("down_proj", rows(down), count));
    let numbers = |bias: &Tensor| bias.data.chunks_exact(4).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let pairs = numbers(gate_bias).into_iter().zip(numbers(up_bias));
    let both = Tensor {
        ty: WeightType::F32,
        shape: vec![count, 2 * gate_bias.cols()],
        data: pairs.flat_map(|(gate, up)| [gate, up].concat()).collect(),
    };
    all.push(("mlp.experts.gate_up_proj_bias".to_owned(), both));
    all.push(("mlp.experts.down_proj_bias".to_owned(), down_bias.clone()));
    all
}

/// Blocks and scales of rows in GGUF's order.
fn weights(name: &str, rows: Vec<Vec<u8>>, count: usize) -> Vec<(String, Tensor)> {
    let in_row = rows[0].len() / 17;
    let shape = vec![count, rows.len() / count, in_row];
    let blocks: Vec<&[u8]> = rows.iter().flat_map(|row| row.chunks_exact(17)).collect();
    let tensor = |shape, data| Tensor { ty: WeightType::Mxfp4, shape, data };
    let scales = blocks.iter().map(|block| block[0]).collect();
    let number = |block: &[u8], index: usize| match index {
        0..16 => block[1 + index] & 0xf,
        _ => block[1 + index - 16] >> 4,
    };
    let pairs = |block: &[u8]| -> Vec<u8> {
        (0..16).map(|byte| number(block, 2 * byte) | number(block, 2 * byte + 1) << 4).collect()
    };
    let numbers = blocks.iter().flat_map(|block| pairs(block)).collect();
    vec![
        (format!("mlp.experts.{name}_blocks"), tensor([shape.clone(), vec![16]].concat(), numbers)),
        (format!("mlp.experts.{name}_scales"), tensor(shape, scales)),
    ]
}
