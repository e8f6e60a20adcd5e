//! Times the sampler on a vocabulary of Qwen3's size: `cargo run --release -p kvik-examples --bin sampler_speed`.

use std::hint::black_box;
use std::time::Instant;

use kvik_engine::api::Sampling;
use kvik_text::sampler::{Sampler, Scratch, logprobs};

const VOCAB: usize = 151_936;

fn main() {
    let neutral = Sampling { seed: 1, ..Sampling::GREEDY };
    let warm = Sampling { temperature: 0.8, ..neutral.clone() };
    let settings = [
        ("greedy", neutral.clone()),
        ("greedy, penalties", Sampling { repetition_penalty: 1.1, frequency_penalty: 0.2, ..neutral }),
        ("temperature", warm.clone()),
        ("top-k 40, top-p 0.95", Sampling { top_k: 40, top_p: 0.95, ..warm.clone() }),
        ("top-p 0.95", Sampling { top_p: 0.95, ..warm.clone() }),
        ("min-p 0.05", Sampling { min_p: 0.05, ..warm }),
    ];
    // Peaked is the usual shape of a model's logits: some hundreds of tokens stand out. Broad and flat are
    // the shapes of an uncertain model.
    for (shape, spread, peak) in [("peaked", 2.0, 12.0), ("broad", 3.0, 0.0), ("flat", 0.3, 0.0)] {
        let lift = |i: usize| if i.is_multiple_of(500) { peak } else { 0.0 };
        let logits: Vec<f32> = (0..VOCAB).map(|i| noise(i as u64) * spread + lift(i)).collect();
        for (name, sampling) in &settings {
            println!("{shape:7} {name:22} {:7.0} us", time_sampler(sampling, &logits, None));
        }
        let mut mask = vec![0; VOCAB.div_ceil(32)];
        (0..VOCAB).filter(|token| token % 3 == 0).for_each(|token| mask[token / 32] |= 1 << (token % 32));
        println!(
            "{shape:7} {:22} {:7.0} us",
            "greedy, mask",
            time_sampler(&settings[0].1, &logits, Some(&mask))
        );
        let mut scratch = Scratch::default();
        let time = time(|| drop(black_box(logprobs(&logits, 3, 20, &mut scratch))));
        println!("{shape:7} {:22} {time:7.0} us", "logprobs 20");
    }
}

fn time_sampler(sampling: &Sampling, logits: &[f32], mask: Option<&[u32]>) -> f64 {
    let prompt: Vec<u32> = (0..2000).map(|i| i * 7).collect();
    let mut sampler = Sampler::new(sampling, 0, &prompt);
    let mut scratch = Scratch::default();
    time(|| {
        if let Some(token) = black_box(sampler.sample(logits, mask, &mut scratch)) {
            sampler.accept(token);
        }
    })
}

/// Median time of a call, in microseconds.
fn time(mut call: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            let started = Instant::now();
            call();
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Roughly normal, mean 0, deviation 1.
fn noise(index: u64) -> f32 {
    let uniform = |salt: u64| {
        let x = (index * 4 + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u64 << 24) as f32
    };
    (uniform(0) + uniform(1) + uniform(2) + uniform(3) - 2.0) * 1.73
}
