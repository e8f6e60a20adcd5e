//! kvik: a local LLM server whose centre is the KV cache.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// The model of commands that name none.
#[cfg(feature = "embedded-model")]
const EMBEDDED: Option<&[u8]> =
    Some(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/kvik-tiny-q8_0.gguf")));
#[cfg(not(feature = "embedded-model"))]
const EMBEDDED: Option<&[u8]> = None;

fn main() -> ExitCode {
    kvik::main(EMBEDDED)
}
