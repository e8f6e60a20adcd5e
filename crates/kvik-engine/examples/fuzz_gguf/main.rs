//! Fuzzes the readers of model files and answers, on stable Rust and without instrumentation.
//!
//! `cargo run --release -p kvik-engine --example fuzz_gguf -- --seconds 600 --corpus fuzz/corpus/gguf`
//!
//! The name of the corpus directory selects the target. `fuzz/` has the same targets for cargo-fuzz.

mod campaign;
mod mutate;
mod targets;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use campaign::{Campaign, read_corpus};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}\nusage: fuzz_gguf [--seconds N] [--seed N] --corpus DIRECTORY");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, String> {
    let (mut seconds, mut seed, mut corpus) = (60, 1, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{flag} needs a number"));
        match flag.as_str() {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            "--corpus" => corpus = Some(PathBuf::from(value)),
            other => return Err(format!("{other} is unknown")),
        }
    }
    let directory = corpus.ok_or("--corpus is missing")?;
    let name = directory.file_name().unwrap_or_default();
    let target = targets::TARGETS.iter().find(|(known, _)| name == *known);
    let (name, target) = *target.ok_or_else(|| format!("no target is called {}", name.display()))?;
    let golden = kvik_testing::golden("");
    let corpus =
        read_corpus(&directory, &golden).map_err(|error| format!("{}: {error}", directory.display()))?;
    println!("{name}: {} seeds, {seconds} s", corpus.len());
    let outcome = campaign::run(Campaign { target, corpus, duration: Duration::from_secs(seconds), seed });
    let rate = outcome.executions / seconds.max(1);
    println!("{} executions, {rate} per second, slowest {:?}", outcome.executions, outcome.slowest);
    let Some((input, reason)) = outcome.failure else { return Ok(true) };
    let path = format!("failure-{name}.bin");
    std::fs::write(&path, input).map_err(|error| format!("{path}: {error}"))?;
    println!("an input {reason}; it is in {path}");
    Ok(false)
}
