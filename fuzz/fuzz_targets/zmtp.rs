#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvik::fuzzing::zmtp(data));
