//! The real binary: commands that measure or plan a retention refuse it where a server does.

use std::{fs, process::Command};

/// Standard error of a command that is refused.
fn refused(args: &[&str]) -> String {
    let state = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kvik"))
        .args(args)
        .env("XDG_CONFIG_HOME", state.path().join("nowhere"))
        .env("KVIK_STATE_DIR", state.path())
        .output()
        .unwrap();
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_a_model_does_not_support_is_not_measured_either() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "the quick brown fox ".repeat(40)).unwrap();
    let text = text.to_str().unwrap();
    for (name, said) in [("arch-gemma3", "see a window"), ("arch-deepseek2", "latent attention")] {
        let model = kvik_testing::golden(&format!("{name}.gguf"));
        let model = model.to_str().unwrap();
        for args in [
            &["eval", "-m", model, "--retain", "keydiff:0.5"][..],
            &["eval", "-m", model, "--calibrate"],
            &["perplexity", "-m", model, "-f", text, "--retain", "sinks:64"],
            &["plan", "-m", model, "--retain", "keydiff:0.5"],
        ] {
            let error = refused(args);
            assert!(error.contains(said), "{args:?}: {error}");
        }
    }
}

#[test]
fn what_goes_by_measurements_needs_them() {
    let model = kvik_testing::golden("arch-qwen3.gguf");
    let model = model.to_str().unwrap();
    for (retain, said) in [("keydiff:0.5,budget=calibrated", "measured importance"), ("gated:0.5", "gates")] {
        let error = refused(&["plan", "-m", model, "--retain", retain]);
        assert!(error.contains(said), "{retain}: {error}");
    }
}
