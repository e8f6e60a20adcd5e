//! kvik: a local LLM server whose centre is the KV cache.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    kvik::main()
}
