//! kvik: a local LLM server whose centre is the KV cache.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvik::main()
}
