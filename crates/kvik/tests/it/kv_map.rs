//! The real binary: formats by layer from flags, files, and what was measured of a model.

#![cfg(feature = "embedded-model")]

use std::{fs, path::Path, process::Command};

use serde_json::Value;

/// Standard output, or the error.
fn kvik(state: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_kvik"))
        .args(args)
        .env("XDG_CONFIG_HOME", state.join("nowhere"))
        .env("KVIK_STATE_DIR", state)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// The formats that `kvik plan` shows.
fn formats(state: &Path, kv: &str) -> Result<Vec<Value>, String> {
    let json = kvik(state, &["plan", "--json", "--kv", kv])?;
    let plan: Value = serde_json::from_str(&json).unwrap();
    Ok(plan["kv_formats"].as_array().unwrap().clone())
}

#[track_caller]
fn says(error: Result<impl std::fmt::Debug, String>, words: &[&str]) {
    let error = error.unwrap_err();
    for word in words {
        assert!(error.contains(word), "{error} says {word}");
    }
}

#[test]
fn auto_needs_a_measurement_and_fits_the_bits_asked_for() {
    let state = tempfile::tempdir().unwrap();
    let state = state.path();
    says(formats(state, "auto:5.0"), &["--kv auto:5", "kvik eval --sensitivity"]);

    let measure =
        |windows| kvik(state, &["eval", "--sensitivity", "--windows", windows, "--window", "64", "--json"]);
    says(measure("3"), &["192 positions, fewer than 256", "--windows"]);
    says(formats(state, "auto:5.0"), &["kvik eval --sensitivity"]);
    let measured: Value = serde_json::from_str(&measure("4").unwrap()).unwrap();
    assert_eq!(measured["positions"], 256);
    assert_eq!(measured["sensitivity"]["keys"].as_array().unwrap().len(), 6);

    let all = formats(state, "auto:5.0").unwrap();
    let bytes = |name: &str| {
        let entry = all.iter().find(|entry| entry["kv"] == name).unwrap();
        entry["bytes_per_token"].as_u64().unwrap()
    };
    let auto = all.last().unwrap()["kv"].as_str().unwrap();
    assert!(bytes("q4") < bytes(auto) && bytes(auto) <= bytes("q5"), "{all:?}");
    says(formats(state, "auto:3.0"), &["--kv auto:3", "too few", "q3", "3.125"]);

    let file = fs::read_dir(state.join("measured")).unwrap().next().unwrap().unwrap().path();
    fs::write(&file, &fs::read(&file).unwrap()[..200]).unwrap();
    says(formats(state, "auto:5.0"), &["kvik eval --sensitivity"]);
}

/// Of a file, like any model: without `--text` only the embedded one was measured, though the error of `--kv auto:5.0`
/// names no text.
#[test]
fn the_curve_is_measured_on_other_windows() {
    let state = tempfile::tempdir().unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/kvik-tiny-q8_0.gguf");
    let flags = ["eval", "-m", file, "--sensitivity", "--curve", "--windows", "2", "--window", "32"];
    let text = kvik(state.path(), &flags).unwrap();
    for word in
        ["32 positions in 1 windows of 32 tokens", "layers at random", "auto:5.00", "bits) ", "not kept"]
    {
        assert!(text.contains(word), "{text} says {word}");
    }
    assert!(!state.path().join("measured").exists(), "half of the windows replace no measurement of all");
    says(
        kvik(state.path(), &["eval", "--sensitivity", "--curve", "--windows", "1"]),
        &["--curve", "two windows"],
    );
    says(kvik(state.path(), &["eval", "--curve"]), &["--sensitivity"]);
}

#[test]
fn a_map_for_other_layers_names_its_flag_and_the_layers() {
    let state = tempfile::tempdir().unwrap();
    let map = state.path().join("map");
    fs::write(&map, "# of a larger model\n0-3: f16\n4-27: q8/q4\n").unwrap();
    let map = map.to_str().unwrap();
    for command in ["plan", "bench", "run"] {
        let prompt = if command == "run" { &["hello"][..] } else { &[] };
        let flags = [&[command, "--kv-map", map], prompt].concat();
        says(kvik(state.path(), &flags), &["--kv-map", "layers 0-27", "layers 0-5"]);
    }
    says(formats(state.path(), "0-3:f16,3-5:q8"), &["--kv", "layer 3", "twice"]);
    let own = formats(state.path(), "0-2:q8,3-5:q5/q4").unwrap();
    assert_eq!(own.last().unwrap()["kv"], "0-2:q8,3-5:q5/q4");
    says(formats(state.path(), "q4s"), &["q4s", "q4 has replaced q4s"]);
}
