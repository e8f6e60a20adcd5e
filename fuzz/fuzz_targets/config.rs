#![no_main]

#[allow(dead_code)]
#[path = "../../crates/kvik-engine/examples/fuzz_gguf/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::config(data));
