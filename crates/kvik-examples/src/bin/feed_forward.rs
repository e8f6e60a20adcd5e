//! Measures a dense feed-forward layer of the shape of Qwen3-0.6B's: gate, up and activation in one round of the pool,
//! beside each by itself through rows of numbers.
//!
//! `cargo run --release -p kvik-examples --bin feed_forward [-- TYPE ...]` prints, for every weight type and number
//! of rows, the milliseconds of a layer either way, in turns, over the layers of a model, and the rate of products.

#[path = "kernels/samples.rs"]
#[allow(dead_code, reason = "samples are taken in turns here")]
mod samples;

use std::time::Instant;

use kvik_kernels::{
    Activated, Activation, Activations, Isa, Matrix, Pool, WeightType, activate, matmul, matmul_activated,
    matmul_many, performance_cores,
};
use samples::blocks;

const D_MODEL: usize = 1024;
const D_FF: usize = 3072;
const LAYERS: usize = 28;
const ROWS: [usize; 6] = [1, 4, 16, 64, 192, 512];
/// Rounds of either way, of which the median counts.
const ROUNDS: usize = 9;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let pool = Pool::new(performance_cores());
    println!("instructions: {}, {} threads", Isa::current().name(), pool.threads());
    println!("{:8}{:>6}{:>12}{:>12}{:>8}{:>10}", "type", "rows", "apart ms", "together", "ratio", "GOPS");
    for ty in
        WeightType::ALL.into_iter().filter(|ty| wanted.is_empty() || wanted.iter().any(|w| w == ty.name()))
    {
        let layers: Vec<Layer> = (0..LAYERS).map(|_| Layer::new(ty, &pool)).collect();
        ROWS.iter().for_each(|&rows| measure(ty, rows, &layers, &pool));
    }
}

struct Layer {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

#[derive(Default)]
struct Buffers {
    x: Activations,
    gate: Vec<f32>,
    up: Vec<f32>,
    hidden: Activations,
    out: Vec<f32>,
}

impl Layer {
    fn new(ty: WeightType, pool: &Pool) -> Layer {
        let raw = blocks(ty, D_FF * D_MODEL);
        let pack = |rows, cols| Matrix::pack(ty, rows, cols, &raw, pool).expect("the shape is valid");
        Layer { gate: pack(D_FF, D_MODEL), up: pack(D_FF, D_MODEL), down: pack(D_MODEL, D_FF) }
    }

    fn apart(&self, pool: &Pool, buffers: &mut Buffers) {
        let Buffers { x, gate, up, hidden, out } = buffers;
        gate.resize(x.rows() * D_FF, 0.0);
        up.resize(x.rows() * D_FF, 0.0);
        matmul_many(pool, &mut [(&self.gate, gate), (&self.up, up)], x);
        activate(pool, Activation::SwiGlu, gate, up);
        hidden.set(pool, gate, D_FF, &[&self.down]);
        matmul(pool, &self.down, hidden, out);
    }

    fn together(&self, pool: &Pool, buffers: &mut Buffers) {
        let Buffers { x, hidden, out, .. } = buffers;
        let layer = Activated { activation: Activation::SwiGlu, gate: Some(&self.gate), up: &self.up };
        matmul_activated(pool, layer, x, hidden, &[&self.down]);
        matmul(pool, &self.down, hidden, out);
    }
}

fn measure(ty: WeightType, rows: usize, layers: &[Layer], pool: &Pool) {
    let mut buffers = Buffers { out: vec![0.0; rows * D_MODEL], ..Buffers::default() };
    let x: Vec<f32> = (0..rows * D_MODEL).map(|i| (i % 61) as f32 / 30.0 - 1.0).collect();
    buffers.x.set(pool, &x, D_MODEL, &[&layers[0].gate, &layers[0].up]);
    let ways = [Layer::apart, Layer::together];
    let mut times = [[0.0; ROUNDS]; 2];
    for round in 0..ROUNDS {
        for (way, times) in ways.iter().zip(&mut times) {
            let started = Instant::now();
            layers.iter().for_each(|layer| way(layer, pool, &mut buffers));
            times[round] = started.elapsed().as_secs_f64() / layers.len() as f64;
        }
    }
    let [apart, together] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    let operations = (6 * rows * D_MODEL * D_FF) as f64;
    println!(
        "{:8}{rows:6}{:12.3}{:12.3}{:8.3}{:10.0}",
        ty.name(),
        apart * 1e3,
        together * 1e3,
        apart / together,
        operations / together / 1e9
    );
}
