//! How long rows take in the states of recurrent layers: `recurrence THREADS`.
//!
//! One row of one sequence reads and writes the whole state of a layer, so its time says what bandwidth that gets; rows
//! of a prompt find 16 values of a head in the first level of the cache.

use std::time::Instant;

use kvik_kernels::{
    Columns, ConvWeights, KeySharing, LinearInputs, LinearShape, Pool, StateArena, StateRows, StateRule,
    advance, convolve,
};

/// Rows of a prompt.
const PROMPT: usize = 256;
/// Layers, so that their states do not all stay in the cache.
const LAYERS: usize = 16;

fn main() {
    let threads = std::env::args().nth(1).and_then(|threads| threads.parse().ok()).unwrap_or(2);
    let pool = Pool::new(threads);
    let qwen = LinearShape {
        rule: StateRule::Delta,
        heads: 32,
        key_heads: 16,
        sharing: KeySharing::Tiled,
        key_dim: 128,
        value_dim: 128,
    };
    let granite = LinearShape {
        rule: StateRule::Scan,
        heads: 48,
        key_heads: 1,
        sharing: KeySharing::Grouped,
        key_dim: 128,
        value_dim: 64,
    };
    for (name, shape) in [("Qwen3-Next", qwen), ("Granite 4 H Tiny", granite)] {
        for rows in [1, PROMPT] {
            measure(&pool, name, shape, rows);
        }
    }
}

fn measure(pool: &Pool, name: &str, shape: LinearShape, rows: usize) {
    let keys = shape.key_heads * shape.key_dim;
    let width = 2 * keys + shape.heads * shape.value_dim;
    let conv = ConvWeights::new(&vec![0.1; width * 4], 4, None, true);
    let layer = conv.state_floats() + shape.state_floats();
    let mut arena = StateArena::new(LAYERS * layer, 1).expect("memory for the states");
    let x: Vec<f32> = (0..rows * width).map(|i| (i * 37 % 101) as f32 / 500.0 - 0.1).collect();
    let (mut mixed, gates) = (vec![0.0; x.len()], vec![0.9; rows * shape.heads]);
    let mut out = vec![0.0; rows * shape.heads * shape.value_dim];
    let sequences = [StateRows { rows: 0..rows, certain: rows, live: 0, saves: &[] }];
    let mut best = [f64::INFINITY; 2];
    for _ in 0..if rows == 1 { 50 } else { 3 } {
        let mut times = [0.0; 2];
        for index in 0..LAYERS {
            let (offset, started) = (index * layer, Instant::now());
            convolve(pool, &mut arena, offset, &conv, &sequences, &x, &mut mixed);
            times[0] += started.elapsed().as_secs_f64();
            let columns = |start| Columns { data: &mixed, width, start };
            let (q, k, v) = (columns(0), columns(keys), columns(2 * keys));
            let inputs = LinearInputs { q, k, v, decays: &gates, rates: &gates, skips: &[] };
            let (offset, started) = (offset + conv.state_floats(), Instant::now());
            advance(pool, &mut arena, offset, shape, &sequences, inputs, &mut out);
            times[1] += started.elapsed().as_secs_f64();
        }
        best = [0, 1].map(|part| f64::min(best[part], times[part]));
    }
    let [conv_us, state_us] = best.map(|seconds| 1e6 * seconds / (LAYERS * rows) as f64);
    let bytes = 2.0 * 4.0 * shape.state_floats() as f64;
    let bandwidth = bytes / state_us / 1e3;
    println!(
        "{name}, {rows} rows: convolution {conv_us:.1} us, state {state_us:.1} us a row and layer ({bandwidth:.1} GB/s of states)"
    );
}
