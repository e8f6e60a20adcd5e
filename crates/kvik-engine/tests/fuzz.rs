//! A few seconds of fuzzing with a fixed seed; `fuzz/README.md` describes longer runs.

#[path = "../examples/fuzz_gguf/campaign.rs"]
mod campaign;
#[path = "../examples/fuzz_gguf/mutate.rs"]
mod mutate;
#[path = "../examples/fuzz_gguf/targets.rs"]
mod targets;

use std::path::Path;
use std::time::Duration;

use kvik_testing::golden;

#[test]
fn no_target_fails() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in targets::TARGETS {
        let corpus = campaign::read_corpus(&corpora.join(name), &golden("")).unwrap();
        assert!(!corpus.is_empty(), "{name} has no seeds");
        let duration = Duration::from_millis(350);
        let outcome = campaign::run(campaign::Campaign { target, corpus, duration, seed: 7 });
        println!("{name}: {} executions, slowest {:?}", outcome.executions, outcome.slowest);
        if let Some((input, reason)) = outcome.failure {
            panic!(
                "{name}: an input of {} bytes {reason}: {:?}",
                input.len(),
                String::from_utf8_lossy(&input)
            );
        }
    }
}
