//! Measures a mixture of experts, of the shape of Qwen3-30B-A3B's layers, beside a dense layer of as many products.
//!
//! `cargo run --release -p kvik-examples --bin experts [-- TYPE ...]` prints, for every weight type, the rate at
//! which one row and four read the matrices of the experts that they go to, which no cache holds, in one round for all
//! experts and in one for each; and the rate of a batch of 512 rows, with what sorting and adding up take.

#[path = "kernels/peaks.rs"]
mod peaks;
#[path = "kernels/samples.rs"]
mod samples;

use kvik_kernels::{
    Activation, Activations, Groups, Isa, Matrix, Pool, WeightType, activate, matmul, matmul_grouped,
    matmul_many, performance_cores, vectorised,
};
use samples::{best, blocks};

const D_MODEL: usize = 2048;
const D_FF: usize = 768;
const COUNT: usize = 128;
const USED: usize = 8;

const PREFILL: usize = 512;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let pool = Pool::new(performance_cores());
    println!("instructions: {}", Isa::current().name());
    peaks::Peaks::measure(&pool).print(&pool);
    println!(
        "{:8}{:>12}{:>14}{:>14}{:>16}{:>14}{:>12}",
        "type", "1 row GB/s", "one by one", "4 rows GB/s", "512 rows GOPS", "products only", "dense"
    );
    let types = [WeightType::Q4K, WeightType::Q8_0, WeightType::Mxfp4];
    for ty in types.into_iter().filter(|ty| wanted.is_empty() || wanted.iter().any(|w| w == ty.name())) {
        measure(ty, &pool);
    }
}

fn measure(ty: WeightType, pool: &Pool) {
    let mut layer = Layer::new(ty, pool);
    let one = layer.read_rate(1, pool, Layer::forward);
    let one_by_one = layer.read_rate(1, pool, Layer::forward_one_by_one);
    let four = layer.read_rate(4, pool, Layer::forward);
    let whole = layer.prefill_rate(pool);
    let products = layer.product_rate(pool);
    let dense = dense_rate(ty, pool);
    println!("{:8}{one:12.1}{one_by_one:14.1}{four:14.1}{whole:16.0}{products:14.0}{dense:12.0}", ty.name());
}

/// The experts of a layer, and buffers.
struct Layer {
    gate: Vec<Matrix>,
    up: Vec<Matrix>,
    down: Vec<Matrix>,
    inputs: Activations,
    groups: Groups,
    sorted: Activations,
    hidden: Activations,
    gated: Vec<f32>,
    projected: Vec<f32>,
    outputs: Vec<f32>,
    out: Vec<f32>,
}

impl Layer {
    fn new(ty: WeightType, pool: &Pool) -> Layer {
        let raw = blocks(ty, D_FF * D_MODEL);
        let pack = |rows: usize, cols: usize| -> Vec<Matrix> {
            (0..COUNT)
                .map(|_| Matrix::pack(ty, rows, cols, &raw, pool).expect("the shape is valid"))
                .collect()
        };
        let (gate, up, down) = (pack(D_FF, D_MODEL), pack(D_FF, D_MODEL), pack(D_MODEL, D_FF));
        let new = Activations::new;
        let (inputs, sorted, hidden) = (new(), new(), new());
        let (gated, projected, outputs, out) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Layer {
            gate,
            up,
            down,
            inputs,
            groups: Groups::new(),
            sorted,
            hidden,
            gated,
            projected,
            outputs,
            out,
        }
    }

    /// What a layer does with rows whose experts are known.
    fn forward(&mut self, pool: &Pool, x: &[f32], chosen: &[u32]) {
        let takers = [&self.gate[0], &self.up[0]];
        self.inputs.set(pool, x, D_MODEL, &takers);
        self.groups.set(chosen, USED, COUNT);
        self.sorted.gather(pool, &self.inputs, &takers, &self.groups);
        self.resize();
        let mut jobs = [(&self.gate[..], &mut self.gated[..]), (&self.up[..], &mut self.projected[..])];
        matmul_grouped(pool, &mut jobs, &self.sorted, &self.groups);
        activate(pool, Activation::SwiGlu, &mut self.gated, &self.projected);
        self.hidden.set_grouped(pool, &self.gated, &[&self.down[0]], &self.groups);
        matmul_grouped(pool, &mut [(&self.down[..], &mut self.outputs[..])], &self.hidden, &self.groups);
        self.add_up(pool, x.len() / D_MODEL);
    }

    fn resize(&mut self) {
        let places = self.groups.places();
        self.gated.resize(places * D_FF, 0.0);
        self.projected.resize(places * D_FF, 0.0);
        self.outputs.resize(places * D_MODEL, 0.0);
    }

    fn add_up(&mut self, pool: &Pool, rows: usize) {
        self.out.resize(rows * D_MODEL, 0.0);
        let Layer { groups, outputs, out, .. } = self;
        pool.run_chunks(out, 4 * D_MODEL, |task, rows| {
            for (row, out) in rows.chunks_exact_mut(D_MODEL).enumerate() {
                for choice in (task * 4 + row) * USED..(task * 4 + row + 1) * USED {
                    let outputs = &outputs[groups.place(choice) * D_MODEL..][..D_MODEL];
                    vectorised(
                        #[inline(always)]
                        || out.iter_mut().zip(outputs).for_each(|(out, x)| *out += 0.125 * x),
                    );
                }
            }
        });
    }

    /// The same for one row, with a round of the pool for every expert.
    fn forward_one_by_one(&mut self, pool: &Pool, x: &[f32], chosen: &[u32]) {
        self.inputs.set(pool, x, D_MODEL, &[&self.gate[0], &self.up[0]]);
        self.gated.resize(D_FF, 0.0);
        self.projected.resize(D_FF, 0.0);
        self.outputs.resize(D_MODEL, 0.0);
        for &expert in chosen {
            let (gate, up) = (&self.gate[expert as usize], &self.up[expert as usize]);
            let mut jobs = [(gate, &mut self.gated[..]), (up, &mut self.projected[..])];
            matmul_many(pool, &mut jobs, &self.inputs);
            activate(pool, Activation::SwiGlu, &mut self.gated, &self.projected);
            let down = &self.down[expert as usize];
            self.hidden.set(pool, &self.gated, D_FF, &[down]);
            matmul(pool, down, &self.hidden, &mut self.outputs);
        }
    }

    /// Gigabytes per second of the matrices that `n` rows go to, other ones each time.
    fn read_rate(&mut self, n: usize, pool: &Pool, forward: fn(&mut Layer, &Pool, &[f32], &[u32])) -> f64 {
        let x = values(n * D_MODEL);
        // No row goes to an expert of another, so that all matrices are read and none twice.
        let steps: Vec<Vec<u32>> = (0..COUNT / (n * USED))
            .map(|step| {
                (0..n * USED).map(|choice| ((step * n * USED + choice) * 37 % COUNT) as u32).collect()
            })
            .collect();
        let stacks = [&self.gate, &self.up, &self.down];
        let bytes: usize = stacks.into_iter().flatten().map(Matrix::bytes).sum();
        let seconds = best(0.5, || steps.iter().for_each(|chosen| forward(self, pool, &x, chosen)));
        bytes as f64 / seconds / 1e9
    }

    fn prefill_rate(&mut self, pool: &Pool) -> f64 {
        let (x, chosen) = (values(PREFILL * D_MODEL), scattered());
        let seconds = best(1.0, || self.forward(pool, &x, &chosen));
        operations() / seconds / 1e9
    }

    /// The products of the last batch alone.
    fn product_rate(&mut self, pool: &Pool) -> f64 {
        let seconds = best(1.0, || {
            let mut jobs = [(&self.gate[..], &mut self.gated[..]), (&self.up[..], &mut self.projected[..])];
            matmul_grouped(pool, &mut jobs, &self.sorted, &self.groups);
            matmul_grouped(pool, &mut [(&self.down[..], &mut self.outputs[..])], &self.hidden, &self.groups);
        });
        operations() / seconds / 1e9
    }
}

/// As many products for every row, of a dense layer.
fn dense_rate(ty: WeightType, pool: &Pool) -> f64 {
    let raw = blocks(ty, USED * D_FF * D_MODEL);
    let pack = |rows, cols| Matrix::pack(ty, rows, cols, &raw, pool).expect("the shape is valid");
    let (gate, up, down) =
        (pack(USED * D_FF, D_MODEL), pack(USED * D_FF, D_MODEL), pack(D_MODEL, USED * D_FF));
    let (mut inputs, mut hidden) = (Activations::new(), Activations::new());
    let x = values(PREFILL * D_MODEL);
    let mut gated = vec![0.0; PREFILL * USED * D_FF];
    let (mut projected, mut out) = (gated.clone(), vec![0.0; PREFILL * D_MODEL]);
    let seconds = best(1.0, || {
        inputs.set(pool, &x, D_MODEL, &[&gate, &up]);
        matmul_many(pool, &mut [(&gate, &mut gated[..]), (&up, &mut projected[..])], &inputs);
        activate(pool, Activation::SwiGlu, &mut gated, &projected);
        hidden.set(pool, &gated, USED * D_FF, &[&down]);
        matmul(pool, &down, &hidden, &mut out);
    });
    operations() / seconds / 1e9
}

/// Multiplications and additions of `PREFILL` rows.
fn operations() -> f64 {
    (2 * PREFILL * USED * 3 * D_FF * D_MODEL) as f64
}

/// Experts of `PREFILL` rows, as evenly spread as chance has them.
fn scattered() -> Vec<u32> {
    let mut state = 1u64;
    let mut chosen = Vec::new();
    for _ in 0..PREFILL {
        let mut row: Vec<u32> = Vec::new();
        while row.len() < USED {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let expert = (state >> 33) as u32 % COUNT as u32;
            if !row.contains(&expert) {
                row.push(expert);
            }
        }
        chosen.extend(row);
    }
    chosen
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37).sin()).collect()
}
