use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::testing::{Random, half_floats, random_blocks};
use crate::{WeightType, dequantize, quantize};

fn inputs(n: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n * cols).map(|_| random.float()).collect()
}

fn product(isa: Isa, threads: usize, weights: &Matrix, x: &[f32]) -> Vec<f32> {
    product_by(isa, isa, threads, weights, x)
}

/// The specified result of a product on `isa`, whose input layout has an order of its own.
pub(super) fn specified(isa: Isa, weights: &Matrix, x: &[f32]) -> Vec<f32> {
    product_by(Isa::Scalar, isa, 1, weights, x)
}

/// The result of the kernels of `isa` on inputs in the layout of another.
fn product_by(isa: Isa, form: Isa, threads: usize, weights: &Matrix, x: &[f32]) -> Vec<f32> {
    let pool = Pool::new(threads);
    let mut activations = Activations::new();
    activations.set_for(form, &pool, x, weights.cols(), &[weights]);
    let mut out = vec![f32::NAN; activations.rows() * weights.rows()];
    matmul_with(isa, &pool, &mut [(weights, &mut out)], &activations);
    out
}

#[test]
fn products_are_those_of_the_dequantised_weights() {
    for ty in WeightType::ALL {
        let (rows, cols, n) = (21, 512, 3);
        let raw = random_blocks(ty, rows * cols, 3);
        let weights = Matrix::pack(ty, rows, cols, &raw, &Pool::new(1)).unwrap();
        let x = inputs(n, cols, 4);
        let mut dense = vec![0.0; rows * cols];
        dequantize(ty, &raw, &mut dense);
        let out = product(Isa::current(), 2, &weights, &x);
        for (i, out) in out.iter().enumerate() {
            let (w, x) = (&dense[i % rows * cols..][..cols], &x[i / rows * cols..][..cols]);
            let exact: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let norm = |v: &[f32]| v.iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt();
            let error = (f64::from(*out) - exact).abs() / (norm(w) * norm(x));
            assert!(error < 2e-3, "{} output {i}: {out} for {exact}", ty.name());
        }
    }
}

/// Root mean square error of a product of half-float weights read as `ty`, relative to the error of rounding the
/// weights to half floats.
fn error_beside_rounding_to_halves(ty: WeightType) -> f64 {
    let (rows, cols, n) = (64, 1024, 8);
    let mut random = Random(12);
    let mut normal = || (0..12).map(|_| random.float()).sum::<f32>() / 100.0;
    let weights: Vec<f32> = (0..rows * cols).map(|_| normal()).collect();
    let x: Vec<f32> = (0..n * cols).map(|_| normal()).collect();
    let halves: Vec<f32> = weights.iter().map(|w| half::f16::from_f32(*w).to_f32()).collect();
    let mut raw = vec![0; ty.row_bytes(rows * cols).unwrap()];
    quantize(ty, &halves, &mut raw);
    let packed = Matrix::pack(ty, rows, cols, &raw, &Pool::new(1)).unwrap();
    let out = product(Isa::current(), 1, &packed, &x);
    let exact = |weights: &[f32], i: usize| -> f64 {
        let (w, x) = (&weights[i % rows * cols..][..cols], &x[i / rows * cols..][..cols]);
        w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    };
    let (mut rounding, mut product) = (0.0, 0.0);
    for (i, out) in out.iter().enumerate() {
        rounding += (exact(&halves, i) - exact(&weights, i)).powi(2);
        product += (f64::from(*out) - exact(&halves, i)).powi(2);
    }
    (product / rounding).sqrt()
}

#[test]
fn fourteen_bits_lose_less_than_half_floats_have_lost() {
    let ratio = error_beside_rounding_to_halves(WeightType::Q14_0);
    println!("14 bits: {ratio:.2} of what rounding to half floats costs");
    assert!((0.1..0.7).contains(&ratio), "{ratio}");
    let bfloats = error_beside_rounding_to_halves(WeightType::Bf16);
    println!("bfloats: {bfloats:.1} of it");
    assert!(bfloats > 5.0, "{bfloats}");
}

#[test]
fn a_row_does_not_depend_on_its_company() {
    for ty in WeightType::ALL {
        let (rows, cols, n) = (40, 256, 45);
        let raw = random_blocks(ty, rows * cols, 5);
        let weights = Matrix::pack(ty, rows, cols, &raw, &Pool::new(1)).unwrap();
        let x = inputs(n, cols, 6);
        let together = product(Isa::current(), 2, &weights, &x);
        for r in 0..n {
            let alone = product(Isa::current(), 1, &weights, &x[r * cols..][..cols]);
            assert_eq!(alone, together[r * rows..][..rows], "{} row {r}", ty.name());
        }
    }
}

#[test]
fn many_products_in_one_round_equal_single_ones() {
    let pool = Pool::new(2);
    let pack = |ty, rows| Matrix::pack(ty, rows, 512, &random_blocks(ty, rows * 512, 9), &pool).unwrap();
    let weights = [pack(WeightType::Q8_0, 70), pack(WeightType::Q4K, 33), pack(WeightType::F16, 5)];
    let mut x = Activations::new();
    x.set(&pool, &inputs(11, 512, 1), 512, &weights.each_ref());
    let mut outs = weights.each_ref().map(|weights| vec![0.0; 11 * weights.rows()]);
    let mut jobs: Vec<(&Matrix, &mut [f32])> =
        weights.iter().zip(&mut outs).map(|(weights, out)| (weights, out.as_mut_slice())).collect();
    matmul_many(&pool, &mut jobs, &x);
    for (weights, out) in weights.iter().zip(&outs) {
        let mut single = vec![0.0; out.len()];
        matmul(&pool, weights, &x, &mut single);
        assert_eq!(*out, single);
    }
}

#[test]
fn activations_change_forms_without_mixing_them_up() {
    let pool = Pool::new(1);
    let pack = |ty| Matrix::pack(ty, 16, 256, &random_blocks(ty, 16 * 256, 9), &pool).unwrap();
    let (q8, q6, f32) = (pack(WeightType::Q8_0), pack(WeightType::Q6K), pack(WeightType::F32));
    let mut x = Activations::new();
    for (n, user) in [(3, &q8), (20, &q6), (1, &f32), (9, &q8), (2, &q6)] {
        let values = inputs(n, 256, n as u64);
        x.set(&pool, &values, 256, &[user]);
        let mut out = vec![0.0; n * 16];
        matmul(&pool, user, &x, &mut out);
        assert_eq!(out, product(Isa::current(), 1, user, &values));
    }
}

#[test]
fn parts_cover_all_pieces_and_no_thread_gets_more_than_its_share() {
    for pieces in (1..200usize).chain([9496]) {
        for parts in 1..=pieces.min(32) {
            let starts: Vec<usize> = (0..=parts).map(|part| part_start(pieces, part, parts)).collect();
            assert_eq!((starts[0], starts[parts]), (0, pieces));
            assert!(starts.is_sorted());
            let largest = starts.windows(2).map(|span| span[1] - span[0]).max().unwrap();
            let share = (2 * pieces).div_ceil(parts);
            assert!(largest <= share, "{largest} of {pieces} pieces in one of {parts} parts");
        }
    }
}

/// A product to compare: shapes off every boundary, ordinary and extreme values.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) ty: WeightType,
    rows: usize,
    blocks: usize,
    n: usize,
    seed: u64,
    extreme: bool,
}

pub(super) fn cases() -> impl Strategy<Value = Case> {
    let ty = select(WeightType::ALL.to_vec());
    (ty, 1..70usize, 1..5usize, 1..=48usize, any::<u64>(), any::<bool>())
        .prop_map(|(ty, rows, blocks, n, seed, extreme)| Case { ty, rows, blocks, n, seed, extreme })
}

/// Half floats at the ends of their range: zeros, subnormals, the maximum, both signs.
const EXTREME_HALVES: [u16; 6] = [0, 0x8000, 1, 0x83ff, 0x7bff, 0xfbff];
/// Bfloats at the ends of their range.
const EXTREME_BFLOATS: [u16; 8] = [0, 0x8000, 1, 0x807f, 0x80, 0x8080, 0x7f7f, 0xff7f];
/// Exponents at the ends of their range, and of products at the ends of theirs.
const EXTREME_EXPONENTS: [u8; 6] = [0, 1, 2, 100, 254, 255];
const EXTREME_INPUTS: [f32; 8] = [0.0, -0.0, 1e-45, -1e-38, 3e38, -3e38, f32::INFINITY, 127.5];

impl Case {
    pub(super) fn weights(&self) -> Matrix {
        let cols = self.blocks * self.ty.block_len();
        let mut raw = random_blocks(self.ty, self.rows * cols, self.seed);
        let mut random = Random(!self.seed);
        for block in raw.chunks_exact_mut(self.ty.block_bytes()).filter(|_| self.extreme) {
            for at in half_floats(self.ty) {
                let halves: &[u16] =
                    if self.ty == WeightType::Bf16 { &EXTREME_BFLOATS } else { &EXTREME_HALVES };
                let half = halves[random.bits() as usize % halves.len()];
                block[*at..at + 2].copy_from_slice(&half.to_le_bytes());
            }
            if self.ty == WeightType::Mxfp4 {
                block[0] = EXTREME_EXPONENTS[random.bits() as usize % EXTREME_EXPONENTS.len()];
            }
        }
        Matrix::pack(self.ty, self.rows, cols, &raw, &Pool::new(1)).unwrap()
    }

    pub(super) fn inputs(&self) -> Vec<f32> {
        let mut random = Random(self.seed);
        let len = self.n * self.blocks * self.ty.block_len();
        (0..len)
            .map(|_| match random.bits() % 16 {
                bits @ 0..8 if self.extreme => EXTREME_INPUTS[bits as usize],
                _ => random.float(),
            })
            .collect()
    }
}

/// Asserts equal bits, except that any NaN equals any NaN.
pub(super) fn assert_same(found: &[f32], expect: &[f32]) {
    for (i, (found, expect)) in found.iter().zip(expect).enumerate() {
        let same = found.to_bits() == expect.to_bits() || found.is_nan() && expect.is_nan();
        assert!(same, "output {i}: {found:e} for {expect:e}");
    }
}

macro_rules! variants_equal_the_specification {
    ($($name:ident: $isa:expr;)*) => {$(
        #[test]
        fn $name() {
            if !Isa::available().contains(&$isa) {
                return kvik_testing::skip(&format!("this machine has no {}", $isa.name()));
            }
            proptest!(crate::testing::cases(300), |(case in cases())| {
                prop_assume!(!case.extreme || case.ty != WeightType::Bf16 || matches!($isa, Isa::Avx512Bf16 | Isa::Amx));
                let (weights, x) = (case.weights(), case.inputs());
                assert_same(&product($isa, 2, &weights, &x), &specified($isa, &weights, &x));
            });
        }
    )*};
}

variants_equal_the_specification! {
    avx2_equals_the_specification: Isa::Avx2;
    avx_vnni_equals_the_specification: Isa::AvxVnni;
    avx512_equals_the_specification: Isa::Avx512;
    avx512_bf16_equals_the_specification: Isa::Avx512Bf16;
    amx_equals_the_specification: Isa::Amx;
    neon_equals_the_specification: Isa::Neon;
    neon_dot_equals_the_specification: Isa::NeonDot;
    neon_i8mm_equals_the_specification: Isa::NeonI8mm;
}
