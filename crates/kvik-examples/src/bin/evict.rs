//! How every eviction policy does on traffic of several kinds, beside the best that could be done.
//!
//! ```text
//! cargo run --release -p kvik-examples --bin evict -- SEED[,SEED]... [TRACE]
//! ```
//!
//! For each trace a row a policy: the share of the blocks found, by blocks kept. The last row is how far `auto` is
//! from the best single policy, in percent of its hits; the last line, how many of these are worse than -1.

#[path = "../../../kvik-cache/tests/it/traffic/mod.rs"]
mod traffic;

use std::time::Duration;

use kvik_cache::Policy;
use kvik_cache::replay::{Capacity, TraceRequest, optimum, replay};

const SIZES: [usize; 8] = [500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000];
/// Blocks of a generated trace, as many as the recorded one has.
const BLOCKS: usize = 300_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seeds = arguments.first().map_or("1", String::as_str).split(',');
    let seeds: Vec<u64> = seeds.map(|seed| seed.parse().expect("a seed is a number")).collect();
    let mut traces: Vec<(String, Vec<TraceRequest>)> = Vec::new();
    for (name, generate) in traffic::KINDS {
        traces.extend(seeds.iter().map(|&seed| (format!("{name}, seed {seed}"), generate(seed, BLOCKS))));
    }
    if let Some(path) = arguments.get(1) {
        let text = std::fs::read_to_string(path).expect("the trace can be read");
        let recorded = traffic::variants(traffic::recorded(&text));
        traces.extend(recorded.into_iter().map(|(name, requests)| (name.to_owned(), requests)));
    }
    let worse: usize = traces.iter().map(|(name, requests)| print(name, requests)).sum();
    println!("{worse} of {} are more than 1% below the best single policy", traces.len() * SIZES.len());
}

/// Prints the table of a trace, and returns at how many sizes `auto` is more than 1% below the best.
fn print(name: &str, requests: &[TraceRequest]) -> usize {
    let blocks: usize = requests.iter().map(Vec::len).sum();
    println!("{name}: {} requests, {blocks} blocks", requests.len());
    println!("{:>10}{}", "", SIZES.map(|size| format!("{size:>9}")).concat());
    let row = |name: &str, hits: [usize; SIZES.len()]| {
        let rates = hits.map(|hits| format!("{:>9.4}", hits as f64 / blocks as f64));
        println!("{name:>10}{}", rates.concat());
        hits
    };
    let mut best = [0; SIZES.len()];
    let mut auto = best;
    for policy in Policy::ALL {
        auto = row(policy.name(), SIZES.map(|size| hits(requests, size, policy)));
        if policy != Policy::Auto {
            best.iter_mut().zip(auto).for_each(|(best, hits)| *best = hits.max(*best));
        }
    }
    row("optimum", SIZES.map(|size| optimum(requests, Capacity::Blocks(size))));
    let losses = best.iter().zip(auto).map(|(&best, auto)| 100.0 * (auto as f64 / best.max(1) as f64 - 1.0));
    let losses: Vec<f64> = losses.collect();
    let columns: String = losses.iter().map(|loss| format!("{loss:>+9.2}")).collect();
    println!("{:>10}{columns}\n", "to best");
    losses.iter().filter(|&&loss| loss < -1.0).count()
}

fn hits(requests: &[TraceRequest], size: usize, policy: Policy) -> usize {
    let report = replay(requests, Capacity::Blocks(size), policy, || Duration::ZERO);
    report.expect("the pool has room").hits
}
