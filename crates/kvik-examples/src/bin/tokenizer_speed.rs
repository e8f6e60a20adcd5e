//! Measures tokenizing: `cargo run --release -p kvik-examples --bin tokenizer_speed -- MODEL.gguf TEXT.txt`
//!
//! Prints MB per second of processor time for the text, for shapes that defeat backtracking tokenizers, and for the second turn of a
//! long conversation; with a third argument, a tokenizer.json, also for the tokenizers crate.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use kvik_text::files::gguf::Gguf;
use kvik_text::tokenizer::Tokenizer;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, rest @ ..] = &arguments[..] else {
        eprintln!("usage: tokenizer_speed MODEL.gguf TEXT.txt [tokenizer.json]");
        return;
    };
    let start = Instant::now();
    let file = Gguf::open(Path::new(model)).expect("the first argument is a GGUF file");
    let tokenizer = Tokenizer::from_gguf(&file).expect("the file has a tokenizer");
    println!("{:>8.1} ms to load, {} tokens", start.elapsed().as_secs_f64() * 1e3, tokenizer.vocab_len());
    let text = std::fs::read_to_string(text).expect("the second argument is a text file");
    let ours = |name: &str, text: &str| {
        measure(name, text.len(), &mut || tokenizer.encode(text, false, true).len());
    };
    ours("text", &text);
    for unit in ["a", " ", "\n", "é", "7", "!", "ab "] {
        ours(&format!("10 MiB of {unit:?}"), &unit.repeat((10 << 20) / unit.len()));
    }
    let conversation: String = text
        .as_bytes()
        .chunks(4000)
        .map(|part| format!("<|im_start|>user\n{}<|im_end|>\n", String::from_utf8_lossy(part)))
        .collect();
    ours("conversation, first", &conversation);
    ours("conversation, again and one turn", &(conversation + "<|im_start|>user\nAnd now?<|im_end|>\n"));
    if let Some(json) = rest.first() {
        let library = tokenizers::Tokenizer::from_file(json).expect("the third argument is a tokenizer.json");
        let mut encode = || library.encode_fast(text.as_str(), false).expect("the library encodes").len();
        measure("text, tokenizers crate", text.len(), &mut encode);
    }
}

fn measure(name: &str, bytes: usize, work: &mut dyn FnMut() -> usize) {
    let start = cpu_seconds();
    let tokens = work();
    let seconds = cpu_seconds() - start;
    println!(
        "{:>8.1} MB/s  {:>9.2} ms  {tokens:>9} tokens  {name}",
        bytes as f64 / 1e6 / seconds,
        seconds * 1e3
    );
}

/// Processor time of this thread, which a busy machine does not distort; wall time if the system does not
/// report it.
fn cpu_seconds() -> f64 {
    let on_cpu = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = on_cpu.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    nanoseconds.unwrap_or_else(|| START.elapsed().as_nanos() as f64) / 1e9
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
