#![no_main]

#[allow(dead_code)]
#[path = "../../crates/kvik-model/tests/it/fuzz/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::tokenizer(data));
