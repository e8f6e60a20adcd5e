//! Products and embeddings against the meaning of each weight type.

use half::f16;
use kvik_gpu::{Device, DeviceError, DeviceMatrix};
use kvik_kernels::{Activation, WeightType, dequantize, quantize};

use crate::{bits, device, floats, upload, zeros};

pub(crate) const TYPES: [WeightType; 9] = [
    WeightType::F32,
    WeightType::F16,
    WeightType::Bf16,
    WeightType::Q8_0,
    WeightType::Q4_0,
    WeightType::Q4K,
    WeightType::Q5K,
    WeightType::Q6K,
    WeightType::Mxfp4,
];

/// Blocks as a file might hold them: any bytes, but scales of a usual size.
pub(crate) fn blocks(ty: WeightType, count: usize, seed: u64) -> Vec<u8> {
    let values = floats(seed, count);
    let mut raw = vec![0; ty.row_bytes(count).unwrap()];
    let scales: &[usize] = match ty {
        WeightType::Q8_0 | WeightType::Q4_0 => &[0],
        WeightType::Q4K | WeightType::Q5K => &[0, 2],
        WeightType::Q6K => &[208],
        WeightType::Mxfp4 => &[],
        _ => {
            quantize(ty, &values, &mut raw);
            return raw;
        }
    };
    for (i, byte) in raw.iter_mut().enumerate() {
        *byte = kvik_testing::mix(seed << 32 | i as u64) as u8;
    }
    for (i, block) in raw.chunks_exact_mut(ty.block_bytes()).enumerate() {
        if ty == WeightType::Mxfp4 {
            block[0] = 112 + block[0] % 12;
        }
        for &at in scales {
            block[at..at + 2].copy_from_slice(&f16::from_f32(values[i] * 0.01).to_le_bytes());
        }
    }
    raw
}

struct Case {
    matrix: DeviceMatrix,
    weights: Vec<f32>,
    rows: usize,
    cols: usize,
}

impl Case {
    fn new(device: &Device, ty: WeightType, [rows, cols]: [usize; 2]) -> Case {
        let raw = blocks(ty, rows * cols, ty as u64);
        let mut weights = vec![0.0; rows * cols];
        dequantize(ty, &raw, &mut weights);
        let matrix = DeviceMatrix::upload(device, "a matrix", ty, [rows, cols], &raw).unwrap();
        Case { matrix, weights, rows, cols }
    }

    fn multiply(&self, device: &mut Device, x: &[f32]) -> Vec<f32> {
        let n = x.len() / self.cols;
        let (x, mut out) = (upload(device, x), zeros(device, n * self.rows));
        let mut step = device.step();
        step.matmul(&self.matrix, &x, n, &mut out).unwrap();
        step.submit().unwrap();
        device.read(&out).unwrap()
    }
}

/// The stated tolerance of a product: parts of the sum of the magnitudes of its terms.
const TOLERANCE: f64 = 2e-6;

#[test]
fn products_are_those_of_what_the_weights_mean() {
    let Some(mut device) = device() else { return };
    for ty in TYPES {
        // Rows that fill no tile, and columns that not all lanes share equally.
        for (shape, n) in [([37, 768], 3), ([8, 256], 1), ([70, 1280], 9)] {
            let case = Case::new(&device, ty, shape);
            let x = floats(9, n * case.cols);
            let out = case.multiply(&mut device, &x);
            for (i, out) in out.iter().enumerate() {
                let x = &x[i / case.rows * case.cols..][..case.cols];
                let weights = &case.weights[i % case.rows * case.cols..][..case.cols];
                let terms = x.iter().zip(weights).map(|(&x, &w)| f64::from(x) * f64::from(w));
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                let error = (f64::from(*out) - sum).abs() / size;
                assert!(error <= TOLERANCE, "{} {shape:?}: {out} at {i}, not {sum}", ty.name());
            }
        }
    }
}

#[test]
fn products_are_the_same_to_the_bit_in_any_batch() {
    let Some(mut device) = device() else { return };
    for ty in TYPES {
        let case = Case::new(&device, ty, [37, 768]);
        let x = floats(5, 19 * case.cols);
        let whole = bits(&case.multiply(&mut device, &x));
        for n in [1, 2, 4, 5, 8, 13] {
            let parts = x.chunks(n * case.cols).flat_map(|x| case.multiply(&mut device, x));
            assert_eq!(bits(&parts.collect::<Vec<_>>()), whole, "{} by {n}", ty.name());
        }
        // Neighbours that are no numbers stay where they are.
        let mut beside = x.clone();
        beside[case.cols..].fill(f32::NAN);
        let first = case.multiply(&mut device, &beside);
        assert_eq!(bits(&first[..case.rows]), whole[..case.rows], "{}", ty.name());
    }
}

#[test]
fn gated_products_are_those_of_two_matrices_and_an_activation_to_the_bit() {
    let Some(mut device) = device() else { return };
    for ty in [WeightType::F16, WeightType::Q8_0, WeightType::Q4K] {
        let (rows, cols) = (37, 512);
        let raw = [1, 2].map(|seed| blocks(ty, rows * cols, seed));
        let [gate, up] =
            [0, 1].map(|i| DeviceMatrix::upload(&device, "one", ty, [rows, cols], &raw[i]).unwrap());
        let pairs =
            DeviceMatrix::upload_pairs(&device, "both", ty, [rows, cols], [&raw[0], &raw[1]]).unwrap();
        for n in [1, 11] {
            let x = upload(&device, &floats(3, n * cols));
            let [mut of_gate, mut of_up, mut both] = [(); 3].map(|()| zeros(&device, n * rows));
            let mut step = device.step();
            step.matmul(&gate, &x, n, &mut of_gate).unwrap();
            step.matmul(&up, &x, n, &mut of_up).unwrap();
            step.activate(Activation::SwiGlu, &mut of_gate, Some(&of_up), n * rows).unwrap();
            step.matmul_gated(Activation::SwiGlu, &pairs, &x, n, &mut both).unwrap();
            step.submit().unwrap();
            let [apart, together] = [&of_gate, &both].map(|x| bits(&device.read(x).unwrap()));
            assert!(apart == together, "{} by {n}", ty.name());
        }
    }
}

#[test]
fn up_to_sixteen_inputs_share_one_read_of_a_matrix() {
    let Some(mut device) = device() else { return };
    let case = Case::new(&device, WeightType::F32, [8, 64]);
    for (n, reads) in [(1, 1), (16, 1), (17, 3)] {
        let before = device.work();
        case.multiply(&mut device, &floats(1, n * case.cols));
        let after = device.work();
        let bytes = case.matrix.bytes() as u64;
        assert_eq!(after.weight_bytes - before.weight_bytes, reads * bytes, "{n}");
        assert_eq!(after.weight_bytes_least - before.weight_bytes_least, bytes, "{n}");
    }
}

#[test]
fn embeddings_are_the_rows_of_their_tokens() {
    let Some(mut device) = device() else { return };
    for ty in TYPES {
        let case = Case::new(&device, ty, [37, 512]);
        let tokens = [36u32, 0, 5, 5, 17];
        let ids = device.upload("tokens", &tokens).unwrap();
        let mut out = zeros(&device, tokens.len() * case.cols);
        let mut step = device.step();
        step.embed(&case.matrix, &ids, tokens.len(), &mut out).unwrap();
        step.submit().unwrap();
        let out = device.read(&out).unwrap();
        for (token, row) in tokens.iter().zip(out.chunks_exact(case.cols)) {
            let expect = &case.weights[*token as usize * case.cols..][..case.cols];
            for (i, (value, expect)) in row.iter().zip(expect).enumerate() {
                let near = (value - expect).abs() <= 2e-7 * expect.abs().max(1.0);
                assert!(near, "{}: {value} at {i} of {token}, not {expect}", ty.name());
            }
        }
    }
}

#[test]
fn every_exponent_of_mxfp4_is_a_power_of_two() {
    let Some(mut device) = device() else { return };
    // The codes of the magnitudes, and behind them those with a sign; both halves of a byte.
    let raw: Vec<u8> = (2..=254u8)
        .flat_map(|exponent| [exponent].into_iter().chain((0..16).map(|code| code * 17)))
        .collect();
    let rows = raw.len() / 17;
    let mut weights = vec![0.0; rows * 32];
    dequantize(WeightType::Mxfp4, &raw, &mut weights);
    let matrix = DeviceMatrix::upload(&device, "all exponents", WeightType::Mxfp4, [rows, 32], &raw).unwrap();
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let (ids, mut out) = (device.upload("tokens", &tokens).unwrap(), zeros(&device, weights.len()));
    let mut step = device.step();
    step.embed(&matrix, &ids, rows, &mut out).unwrap();
    step.submit().unwrap();
    // Zeros have no sign here.
    let positive = |x: &[f32]| bits(&x.iter().map(|x| x + 0.0).collect::<Vec<_>>());
    assert_eq!(positive(&device.read(&out).unwrap()), positive(&weights));
}

#[test]
fn types_and_shapes_without_a_kernel_are_refused() {
    let Some(device) = device() else { return };
    let upload = |ty: WeightType, cols: usize| {
        let raw = vec![0; ty.row_bytes(cols).unwrap()];
        DeviceMatrix::upload(&device, "blk.3.ffn_up.weight", ty, [1, cols], &raw).map(|_| ())
    };
    for (ty, cols) in [(WeightType::Q2K, 256), (WeightType::Iq4Nl, 32), (WeightType::F16, 12)] {
        let error = upload(ty, cols).unwrap_err();
        assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("blk.3.ffn_up.weight"), "{error}");
    }
}
