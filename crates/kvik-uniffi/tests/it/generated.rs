//! The sources for Kotlin, Swift and Python that are checked in say what the definition says.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};

use camino::{Utf8Path, Utf8PathBuf};
use uniffi_bindgen::bindings::{GenerateOptions, TargetLanguage, generate_with_bindgen_paths};
use uniffi_bindgen::{BindgenPaths, BindgenPathsLayer};

/// What uniffi writes, and where it is checked in, below `bindings/`.
const FILES: [(&str, &str); 5] = [
    ("dev/kvik/kvik.kt", "kotlin/src/main/kotlin/dev/kvik/Generated.kt"),
    ("Kvik.swift", "swift/Sources/Kvik/Generated.swift"),
    ("KvikFFI.h", "swift/Sources/KvikFFI/include/KvikFFI.h"),
    ("KvikFFI.modulemap", "swift/Sources/KvikFFI/include/module.modulemap"),
    ("kvik.py", "python/kvik/_native.py"),
];

/// Where uniffi finds `uniffi.toml`.
struct ThisCrate;

impl BindgenPathsLayer for ThisCrate {
    fn get_crate_root(&self, _: &str) -> Option<Utf8PathBuf> {
        Some(env!("CARGO_MANIFEST_DIR").into())
    }
}

#[test]
fn the_sources_are_what_uniffi_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut paths = BindgenPaths::default();
    paths.add_layer(ThisCrate);
    let options = GenerateOptions {
        languages: vec![TargetLanguage::Kotlin, TargetLanguage::Swift, TargetLanguage::Python],
        source: Utf8PathBuf::from_path_buf(library()).unwrap(),
        out_dir: Utf8Path::from_path(dir.path()).unwrap().to_owned(),
        crate_filter: Some("kvik_uniffi".to_owned()),
        ..GenerateOptions::default()
    };
    generate_with_bindgen_paths(options, paths).unwrap();
    let bindings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings");
    let changed = FILES.iter().filter(|(written, file)| {
        let written = tidy(&fs::read_to_string(dir.path().join(written)).unwrap());
        !is_checked_in(&bindings.join(file), &written)
    });
    let changed: Vec<&str> = changed.map(|(_, file)| *file).collect();
    assert!(changed.is_empty(), "`bash bindings/generate` writes these again: {changed:?}");
}

/// The shared library that was built for this test, and has the definition in it.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join(format!("{DLL_PREFIX}kvik_uniffi{DLL_SUFFIX}"))
}

/// Without spaces at the ends of lines, and with one line break at the end.
fn tidy(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

fn is_checked_in(file: &Path, written: &str) -> bool {
    if std::env::var_os("KVIK_WRITE_BINDINGS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, written).unwrap();
    }
    fs::read_to_string(file).is_ok_and(|text| text == written)
}
