//! Commands whose output nobody reads to its end, as `| head -1`: they end at once, without a word and with status 0.

#![cfg(feature = "embedded-model")]

use std::process::{Command, Output, Stdio};

/// What a command ends with that prints into this output.
fn run(words: &[&str], stdout: impl Into<Stdio>) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_kvik"))
        .args(words)
        .env("XDG_CONFIG_HOME", home.path())
        .env("KVIK_STATE_DIR", home.path())
        .env("KVIK_MODELS_DIR", home.path())
        .env("KVIK_CACHE_DISK", "off")
        // No server of this machine's user answers.
        .env("XDG_RUNTIME_DIR", home.path())
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .output()
        .unwrap()
}

/// What is said on standard error where nobody reads standard output.
fn unread(words: &[&str]) -> String {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run(words, writer);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words:?}: {}: {said}", output.status);
    said
}

#[test]
fn a_command_ends_when_nobody_reads_it() {
    for words in [
        &["list"][..],
        &["search", "smollm2", "--count", "0"],
        &["inspect", "--tensors"],
        &["completions", "bash"],
        &["cache", "key"],
        &["bench", "-p", "16", "-n", "0", "-r", "1", "--threads", "2"],
    ] {
        assert_eq!(unread(words), "", "{words:?}");
    }
}

#[test]
fn what_is_wrong_is_told_although_nobody_reads_it() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run(&["doctor", "-m", "/there/is/no/model.gguf"], writer);
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(1), ""));
}

#[test]
fn an_answer_that_nobody_reads_is_not_computed() {
    // Without an end: what was said is more likely each time.
    let endless = ["--temperature", "0", "--repeat-penalty", "0.5", "--allow-loops", "--context", "8192"];
    let words = ["run", "--cache-ram", "64MiB", "--threads", "2"];
    let said = unread(&[&words[..], &endless, &["Tell me a story."]].concat());
    assert!(!said.contains("tokens/s"), "it was computed to its end: {said}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_output_that_takes_nothing_is_an_error() {
    for words in [&["list"][..], &["completions", "bash"], &["run", "--max-tokens", "4", "Hello"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = run(words, full);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("error: standard output cannot be written: "), "{words:?}: {said}");
    }
}
