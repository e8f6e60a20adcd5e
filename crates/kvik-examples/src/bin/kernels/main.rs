//! Measures the matrix kernels beside what the machine can do.
//!
//! `cargo run --release -p kvik-examples --bin kernels [-- TYPE ...]` prints, for every weight type
//! and shape, the rate at which products of 1, 4 and 16 inputs read weights that no cache holds, and at which
//! a product of 512 inputs computes, each with one and with all threads. `KVIK_ISA` chooses the instructions.
//! `--peaks [THREADS]` prints what the machine can do at most as JSON, in bytes and operations a second.

mod peaks;
mod samples;

use std::time::Instant;

use kvik_kernels::{Activations, Isa, Matrix, Pool, WeightType, matmul, performance_cores};
use samples::{best, blocks};

/// Rows and columns of the matrices of a Qwen3-0.6B: up, down, query, output.
const SHAPES: [(usize, usize); 4] = [(3072, 1024), (1024, 3072), (2048, 1024), (151_936, 1024)];

/// Inputs of the products that weights are read for: decode of one sequence and of several.
const DECODE: [usize; 3] = [1, 4, 16];

/// Inputs of the matrix-matrix product.
const PREFILL: usize = 512;

/// Weights read between two uses of the same matrix: four times the third-level cache.
const COLD_BYTES: usize = 128 << 20;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("--peaks", threads)) = wanted.split_first().map(|(flag, rest)| (flag.as_str(), rest)) {
        let threads = threads.first().and_then(|n| n.parse().ok()).unwrap_or_else(performance_cores);
        return print_json(&peaks::Peaks::measure(&Pool::new(threads)));
    }
    let pools: Vec<Pool> = [1, performance_cores()].into_iter().map(Pool::new).collect();
    println!("instructions: {}", Isa::current().name());
    pools.iter().for_each(|pool| peaks::Peaks::measure(pool).print(pool));
    let columns = DECODE.map(|n| format!("{:>16}", format!("{n} inputs GB/s"))).concat();
    println!("\n{:8}{:>15}{:>6}{columns}{:>18}", "type", "shape", "pack", format!("{PREFILL} inputs GOPS"));
    for ty in
        WeightType::ALL.into_iter().filter(|ty| wanted.is_empty() || wanted.iter().any(|w| w == ty.name()))
    {
        for (rows, cols) in SHAPES {
            measure(ty, rows, cols, &pools);
        }
    }
}

/// For `bench/compare`.
fn print_json(peaks: &peaks::Peaks) {
    let rates = [
        ("read", peaks.read),
        ("bytes", peaks.bytes),
        ("shorts", peaks.shorts),
        ("bfloats", peaks.bfloats),
        ("floats", peaks.floats),
    ];
    let known = rates.iter().filter_map(|(name, rate)| rate.map(|rate| format!("\"{name}\": {rate:.4e}")));
    println!("{{{}}}", known.collect::<Vec<_>>().join(", "));
}

fn measure(ty: WeightType, rows: usize, cols: usize, pools: &[Pool]) {
    let raw = blocks(ty, rows * cols);
    let copies = COLD_BYTES.div_ceil(raw.len()).min(64);
    let all = pools.last().expect("there are two pools");
    let started = Instant::now();
    let matrices: Vec<Matrix> =
        (0..copies).map(|_| Matrix::pack(ty, rows, cols, &raw, all).expect("the shape is valid")).collect();
    let packed = (copies * raw.len()) as f64 / started.elapsed().as_secs_f64() / 1e9;
    print!("{:8}{:>15}{packed:6.1}", ty.name(), format!("{rows}x{cols}"));
    for n in DECODE {
        pools.iter().for_each(|pool| print!("{:8.1}", read_rate(&matrices, n, pool)));
    }
    pools.iter().for_each(|pool| print!("{:9.0}", matrix_rate(&matrices, pool)));
    println!();
}

/// Gigabytes of weights read per second for `n` inputs.
fn read_rate(matrices: &[Matrix], n: usize, pool: &Pool) -> f64 {
    let (x, mut out) = inputs(&matrices[0], n, pool);
    let bytes: usize = matrices.iter().map(Matrix::bytes).sum();
    let seconds = best(0.1, || matrices.iter().for_each(|weights| matmul(pool, weights, &x, &mut out)));
    bytes as f64 / seconds / 1e9
}

/// Billions of multiplications and additions per second for `PREFILL` inputs.
fn matrix_rate(matrices: &[Matrix], pool: &Pool) -> f64 {
    let (x, mut out) = inputs(&matrices[0], PREFILL, pool);
    let seconds = best(0.2, || matmul(pool, &matrices[0], &x, &mut out));
    (2 * PREFILL * matrices[0].rows() * matrices[0].cols()) as f64 / seconds / 1e9
}

fn inputs(weights: &Matrix, n: usize, pool: &Pool) -> (Activations, Vec<f32>) {
    let values: Vec<f32> = (0..n * weights.cols()).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut x = Activations::new();
    x.set(pool, &values, weights.cols(), &[weights]);
    (x, vec![0.0; n * weights.rows()])
}
