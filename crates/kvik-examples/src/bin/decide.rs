//! How long a decision takes: every policy under every budget, for the heads of a large model and a long sequence.
//!
//! ```text
//! cargo run --release -p kvik-examples --bin decide
//! ```

use std::time::Instant;

use kvik_cache::retain::{
    Budget, HeadFacts, HeadImportance, Keep, LayerFacts, Policy, PolicyState, Retention, decide,
};

const LAYERS: usize = 28;
const KV_HEADS: usize = 8;
const POSITIONS: usize = 16_384;

fn main() {
    let facts = facts();
    let importance =
        (0..LAYERS).map(|layer| (0..KV_HEADS).map(|head| number(layer, head)).collect()).collect();
    let importance = HeadImportance { layers: importance };
    let budgets = [
        Budget::Head,
        Budget::Pyramid { beta: 20.0 },
        Budget::Layer { floor: 0.2 },
        Budget::All,
        Budget::Calibrated,
    ];
    println!("milliseconds for {LAYERS} layers of {KV_HEADS} heads of {POSITIONS} positions, a quarter kept");
    println!("{:<14}{}", "", budgets.map(|budget| format!("{:>13}", budget.to_string())).concat());
    for policy in Policy::ALL {
        print!("{:<14}", policy.name());
        for budget in budgets {
            let retention = Retention { budget, ..Retention::new(policy, Keep::Share(0.25)) };
            let start = Instant::now();
            let decision =
                decide(&retention, POSITIONS, &facts, Some(&importance), &mut PolicyState::default());
            let milliseconds = start.elapsed().as_secs_f64() * 1e3;
            let kept: usize = decision.kept.iter().flatten().map(Vec::len).sum();
            assert!(kept <= LAYERS * KV_HEADS * POSITIONS / 4, "{retention}");
            print!("{milliseconds:>13.1}");
        }
        println!();
    }
}

fn facts() -> Vec<LayerFacts> {
    let head = |place: usize| {
        let some = |fact: usize| (0..POSITIONS).map(|position| number(place * 8 + fact, position)).collect();
        HeadFacts {
            positions: (0..POSITIONS as u32).collect(),
            mass: some(0),
            key_norms: some(1),
            value_norms: some(2),
            likeness: some(3),
            expected: some(4),
            gated: some(5),
        }
    };
    let layer =
        |layer| LayerFacts { heads: (0..KV_HEADS).map(|index| head(layer * KV_HEADS + index)).collect() };
    (0..LAYERS).map(layer).collect()
}

/// A number in [0, 1) that looks like chance.
fn number(row: usize, column: usize) -> f32 {
    let bits = (row as u64) << 32 | column as u64;
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits >> 40) as f32 / (1_u64 << 24) as f32
}
