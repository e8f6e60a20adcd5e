//! What a process takes: while idle, after answers, after pressure at each level, in the background; never more than its
//! budget.
//!
//! It reads the memory of the whole process, and has one of its own. It prints the table of `docs/library.md`:
//! `cargo test --release -p kvik-library --test it resident -- --nocapture`.

#![cfg(target_os = "linux")]

use crate::common::usage::{Usage, mib};
use crate::common::{greedy, model_on, text};
use kvik_library::{MemoryPressure, Model};

/// Prompts of about 1,900 tokens each: together they fill the budget.
const PROMPTS: u64 = 16;
const WORDS: usize = 950;
/// What a model takes beside its weights and the budget for keys and values: rows of activations, vocabulary, disk
/// buffers, stacks, and rounding to large pages.
const BESIDE: usize = 48 << 20;

/// The process before it had a model, and the most it may take with one.
struct Watch {
    before: Usage,
    most: usize,
}

impl Watch {
    /// Prints a line, and checks the budget. What the process takes for the model.
    fn line(&self, what: &str, model: Option<&Model>) -> usize {
        let now = Usage::now();
        let cached = model.map_or(0, |model| model.stats().kv_cached_bytes);
        println!(
            "| {what} | {:.1} | {:.1} | {:.1} | {:.1} |",
            mib(cached),
            mib(now.resident),
            mib(now.proportional),
            mib(now.private)
        );
        let own = now.private.saturating_sub(self.before.private);
        assert!(own <= self.most, "{what}: {own} bytes, at most {}", self.most);
        own
    }
}

fn ask(model: &Model) {
    for seed in 0..PROMPTS {
        model.generate(text(seed, WORDS), &greedy(4)).unwrap().finish().unwrap();
    }
}

#[test]
fn a_process_takes_its_budget_at_most_and_gives_back_what_it_says() {
    if !kvik_testing::alone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let weights = std::fs::metadata(kvik_testing::tiny_model()).unwrap().len() as usize;
    println!("| | cached | resident | proportional | private |\n| --- | --- | --- | --- | --- |");
    let before = Usage::now();
    let watch = Watch { before, most: usize::MAX };
    watch.line("before a model", None);
    let model = model_on(dir.path());
    let watch = Watch { before, most: model.stats().kv_bytes + weights + BESIDE };
    watch.line("open", Some(&model));
    for (level, share) in
        [(MemoryPressure::Moderate, 2), (MemoryPressure::High, 4), (MemoryPressure::Critical, usize::MAX)]
    {
        ask(&model);
        let cached = model.stats().kv_cached_bytes;
        let full = watch.line("after answers", Some(&model));
        let released = model.on_memory_pressure(level).unwrap();
        let left = watch.line(&format!("after pressure, {level:?}").to_lowercase(), Some(&model));
        let said = cached - cached / share;
        assert!(released.evicted_bytes >= said, "{level:?}: {released:?} of {cached}");
        let given = full.saturating_sub(left);
        // Pages at the edges of what is kept stay.
        assert!(given >= said * 9 / 10, "{level:?}: {given} bytes given back, {said} said");
    }
    assert!(model.on_background().unwrap().is_complete());
    watch.line("in the background", Some(&model));
    model.close().unwrap();
    let closed = watch.line("closed", None);
    assert!(closed <= BESIDE / 2, "{closed} bytes stay when nothing is open");
}
