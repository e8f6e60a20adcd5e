#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvik_remote::fuzzing::resp(data));
