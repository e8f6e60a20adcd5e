//! Memory given back: the system has it, answers stay as they are, and what is on disk need not be computed again.
//!
//! It reads the memory of the whole process, and has one of its own.

use crate::common::{greedy, model_on, text};
use kvik_library::{MemoryPressure, Model};

const PROMPTS: u64 = 8;

/// Bytes of RAM that this process takes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

fn ask(model: &Model, seed: u64) -> (String, usize) {
    let (answer, report) = model.generate(text(seed, 500), &greedy(8)).unwrap().finish().unwrap();
    (answer, report.computed_tokens)
}

#[test]
fn pressure_gives_memory_back_and_answers_stay_right() {
    if !kvik_testing::alone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let model = model_on(dir.path());
    model.keep_prompt("kept", text(100, 50)).unwrap();
    let expect: Vec<String> = (0..PROMPTS).map(|seed| ask(&model, seed).0).collect();
    let full = model.stats();
    let mut cached = full.kv_cached_bytes;
    for (level, share) in [(MemoryPressure::Moderate, 2), (MemoryPressure::High, 4)] {
        let before = resident_bytes();
        let released = model.on_memory_pressure(level).unwrap();
        let stats = model.stats();
        assert!(stats.kv_cached_bytes <= cached / share, "{level:?}: {stats:?}");
        assert_eq!(stats.kv_cached_bytes + released.evicted_bytes, cached, "{level:?}");
        assert_eq!(stats.kv_free_bytes, released.free_bytes);
        let given = before.saturating_sub(resident_bytes());
        assert!(given * 4 > released.evicted_bytes * 3, "{level:?}: {given} of {}", released.evicted_bytes);
        cached = stats.kv_cached_bytes;
    }
    model.on_memory_pressure(MemoryPressure::Critical).unwrap();
    let left = model.stats().kv_cached_bytes;
    assert!(left > 0 && left < full.kv_cached_bytes / 8, "what is kept stays, and nothing else: {left}");
    assert!(model.is_kept("kept", text(100, 50)).unwrap().is_warm());
    for (seed, expect) in (0..PROMPTS).zip(&expect) {
        let (answer, computed) = ask(&model, seed);
        assert_eq!(&answer, expect, "prompt {seed}");
        assert!(computed <= 16, "prompt {seed}: {computed} tokens were computed, though the disk had them");
    }
}
