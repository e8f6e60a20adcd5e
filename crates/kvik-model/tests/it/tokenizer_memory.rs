//! Memory that tokenizing needs in addition to the text. In a process of its own, so that it can measure its memory.
#![cfg(target_os = "linux")]

use kvik_testing::{tiny_file, tiny_model};
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::Gguf;
use kvik_text::files::gguf::write::GgufWriter;
use kvik_text::tokenizer::{Tokenizer, TokenizerHints};

const TEXT_BYTES: usize = 4 << 20;

/// Maximum bytes of memory for each byte of a text, including its tokens (4 bytes each).
const PER_BYTE_MAX: usize = 12;

/// Texts that are one word, or in which every pair can be merged.
const UNITS: [&str; 6] = ["a", "ab", "aab", "é", "\u{e0}\u{301}", "<|im_"];

#[test]
fn tokens_take_a_small_multiple_of_the_text() {
    if !kvik_testing::alone() {
        return;
    }
    for (name, tokenizer) in [("bytes", bytes()), ("composed", composed()), ("pieces", pieces())] {
        tokenizer.encode("Everything that is made once is made.", true, true);
        for unit in UNITS {
            let text = unit.repeat(TEXT_BYTES / unit.len());
            let (before, tokens) = (reset_peak(), tokenizer.encode(&text, false, true));
            let per_byte = (peak() - before) as f64 / text.len() as f64;
            println!("{name} {unit:?}: {per_byte:.1} bytes a byte, {} tokens", tokens.len());
            assert!(per_byte < PER_BYTE_MAX as f64, "{name} {unit:?}: {per_byte:.1} bytes a byte");
        }
    }
}

fn bytes() -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::open(&tiny_model()).unwrap()).unwrap()
}

/// Text is composed first.
fn composed() -> Tokenizer {
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(tiny_file("tokenizer.json")).unwrap()).unwrap();
    json["normalizer"] = serde_json::json!({"type": "NFC"});
    Tokenizer::from_json(json.to_string().as_bytes(), &TokenizerHints::default()).unwrap()
}

/// Every piece of up to six letters `a` and `b`, with different scores: the maximum of ranks and merges.
fn pieces() -> Tokenizer {
    let mut pieces: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    for len in 1..=6 {
        let piece = |bits: u32| (0..len).map(|i| if bits >> i & 1 == 0 { 'a' } else { 'b' }).collect();
        pieces.extend((0..1 << len).map(piece));
    }
    let scores: Vec<f32> = (0..pieces.len()).map(|i| -(i as f32)).collect();
    let mut writer = GgufWriter::new();
    writer
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &pieces)
        .f32s("tokenizer.ggml.scores", &scores);
    Tokenizer::from_gguf(&Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap()).unwrap()
}

/// Resets the peak and returns the resident bytes.
fn reset_peak() -> usize {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    status("VmRSS:")
}

fn peak() -> usize {
    status("VmHWM:")
}

fn status(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}
