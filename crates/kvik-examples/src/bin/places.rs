//! How many tokens of prompts are computed where layers hold something beside blocks, on traffic of several kinds.
//!
//! ```text
//! cargo run --release -p kvik-examples --bin places -- SEED [POLICY [BEFORE]]
//! ```
//!
//! A row for each kind of traffic and each model: tokens computed, by blocks' worth kept. With the output of another
//! version in the file BEFORE, how many times of it that is, as a geometric mean over all rows of each model.

#[allow(dead_code, reason = "recorded traces are for other examples")]
#[path = "../../../kvik-cache/tests/it/traffic/mod.rs"]
mod traffic;

#[path = "../../../kvik-cache/tests/it/traffic/auxiliary.rs"]
mod auxiliary;

use std::collections::HashMap;

use auxiliary::{MODELS, computed};
use kvik_cache::Policy;

const SIZES: [usize; 5] = [2_000, 4_000, 8_000, 16_000, 32_000];
/// Ids of a trace.
const IDS: usize = 30_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments.first().map_or(1, |seed| seed.parse().expect("a seed is a number"));
    let policy: Policy = arguments.get(1).map_or(Policy::Auto, |name| name.parse().expect("a policy"));
    let before = arguments.get(2).map(|path| std::fs::read_to_string(path).expect("the table can be read"));
    let before = before.as_deref().map(rows).unwrap_or_default();
    let mut ratios: HashMap<&str, Vec<f64>> = HashMap::new();
    println!("{:>26}{}", "", SIZES.map(|size| format!("{size:>9}")).concat());
    for (kind, generate) in traffic::KINDS {
        let requests = generate(seed, IDS);
        for (model, needs) in MODELS {
            let tokens = SIZES.map(|blocks| computed(&requests, needs, blocks, policy));
            let row = format!("{kind:>10} {model:>15}");
            println!("{row}{}", tokens.map(|tokens| format!("{tokens:>9}")).concat());
            let beside = before.get(&row).into_iter().flatten();
            let times = tokens.iter().zip(beside).map(|(&now, &before)| now as f64 / before);
            ratios.entry(model).or_default().extend(times);
        }
    }
    for (model, _) in MODELS.iter().filter(|_| !before.is_empty()) {
        println!("{model}: {:.3} times", mean(&ratios[model]));
    }
}

/// The numbers of a table by what stands before them.
fn rows(table: &str) -> HashMap<String, Vec<f64>> {
    let row = |line: &str| {
        let (name, numbers) = line.split_at_checked(26)?;
        Some((name.to_owned(), numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?))
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Their geometric mean.
fn mean(numbers: &[f64]) -> f64 {
    (numbers.iter().map(|number| number.ln()).sum::<f64>() / numbers.len() as f64).exp()
}
