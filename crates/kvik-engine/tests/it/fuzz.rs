//! Readers of untrusted bytes on mutated inputs, on stable Rust and without instrumentation: a few seconds of each.
//!
//! A longer run of one of them; an input that fails is written to `failure-TARGET.bin`:
//! `FUZZ=gguf FUZZ_SECONDS=600 FUZZ_SEED=1 cargo test --release -p kvik-engine --test it fuzz -- --nocapture`.

mod campaign;
mod mutate;
mod targets;

use std::path::Path;
use std::time::Duration;

use kvik_testing::golden;

/// Time for each target where nobody says how long, and the seed.
const SAMPLE: Duration = Duration::from_millis(350);
const SEED: u64 = 7;

#[test]
fn no_target_fails() {
    if !kvik_testing::alone() {
        return;
    }
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let (only, seed) = (std::env::var("FUZZ").ok(), number("FUZZ_SEED").unwrap_or(SEED));
    let duration = number("FUZZ_SECONDS").map_or(SAMPLE, Duration::from_secs);
    let mut targets = targets::TARGETS.to_vec();
    targets.retain(|(name, _)| only.as_deref().is_none_or(|only| only == *name));
    assert!(!targets.is_empty(), "no target is called {only:?}");
    for (name, target) in targets {
        let corpus = campaign::read_corpus(&corpora.join(name), &golden("")).unwrap();
        assert!(!corpus.is_empty(), "{name} has no seeds");
        let outcome = campaign::run(campaign::Campaign { target, corpus, duration, seed });
        println!("{name}: {} executions, slowest {:?}", outcome.executions, outcome.slowest);
        if let Some((input, reason)) = outcome.failure {
            std::fs::write(format!("failure-{name}.bin"), &input).unwrap();
            let text = String::from_utf8_lossy(&input);
            panic!("{name}: an input of {} bytes {reason}: {text:?}", input.len());
        }
    }
}
