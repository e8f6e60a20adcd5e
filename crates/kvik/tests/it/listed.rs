//! Documents list what the code has: policies, architectures, reasons, versions of formats.

use std::collections::BTreeSet;
use std::fs;

use kvik_cache::{Policy, StopReason, retain};

use crate::tidy::{assert_none, sources, without_tests, workspace};

#[test]
fn every_policy_and_every_architecture_has_its_row() {
    let evictions = Policy::ALL.map(|policy| policy.name().to_owned());
    let retentions = retain::Policy::names().into_iter().map(str::to_owned);
    let mut complaints = without_row("docs/eviction.md", evictions);
    complaints.extend(without_row("docs/retention.md", retentions));
    complaints.extend(without_row("docs/architectures.md", architectures()));
    assert_none(&complaints);
}

#[test]
fn every_reason_has_its_row_and_its_sentence() {
    let names = StopReason::ALL.map(|reason| reason.name().to_owned());
    let sentences = fs::read_to_string(workspace().join("crates/kvik-server/page/reasons.js")).unwrap();
    let without = names.iter().filter(|name| !sentences.contains(&format!("\n  {name}: \"")));
    let mut complaints: Vec<String> =
        without.map(|name| format!("page/reasons.js has no sentence for `{name}`")).collect();
    complaints.extend(without_row("docs/http.md", names.clone()));
    assert_none(&complaints);
}

/// An operator reads there what an upgrade loses.
#[test]
fn versions_of_formats_are_those_of_the_code() {
    let page = fs::read_to_string(workspace().join("docs/operations.md")).unwrap();
    let cell = |first: &str| {
        let row = page.lines().find(|line| line.starts_with(&format!("| {first}")));
        row.and_then(|row| row.split('|').nth(2)).unwrap_or_default().trim().to_owned()
    };
    for (first, file, name) in [
        ("files of the disk cache", "kvik-engine/src/store/format.rs", "VERSION"),
        ("layout of blocks", "kvik-kernels/src/kv/layout.rs", "KV_LAYOUT_VERSION"),
        ("names of models", "kvik-shelf/src/manifest.rs", "VERSION"),
        ("values that nodes share", "kvik-remote/src/seal.rs", "VERSION"),
    ] {
        assert_eq!(cell(first), constant(file, name), "{first}");
    }
    let results = cell("results of `kvik eval`");
    for kind in ["gates", "heads", "losses", "sensitivity"] {
        let group = results.split_inclusive(')').find(|group| group.contains(kind)).unwrap_or_default();
        let version = group.trim_start_matches([',', ' ']).split(' ').next().unwrap_or_default();
        assert_eq!(version, constant(&format!("kvik-serving/src/measured/{kind}.rs"), "VERSION"), "{kind}");
    }
}

/// The samples of a counter end in `_total`, which its registration does not say; a page that leaves it out names nothing.
#[test]
fn metrics_in_pages_are_those_of_the_server() {
    let registered: BTreeSet<String> =
        shipped("app/metrics/").iter().flat_map(|text| names(text, "\"")).collect();
    let recorded = fs::read_to_string(workspace().join("tests/recorded/base.jsonl")).unwrap();
    let is_wrong = |name: &String| {
        let is_counter = recorded.contains(&format!("# TYPE kvik_{name} counter"));
        match name.strip_suffix("_total") {
            Some(stem) => !registered.contains(stem) && !registered.contains(name),
            None => registered.contains(name) && is_counter,
        }
    };
    let named: BTreeSet<String> = pages().iter().flat_map(|text| names(text, "kvik_")).collect();
    assert!(registered.len() > 50 && named.len() > 50, "{registered:?} {named:?}");
    let wrong = named.into_iter().filter(is_wrong);
    assert_none(&wrong.map(|name| format!("a page names kvik_{name}")).collect::<Vec<_>>());
}

#[test]
fn every_variable_that_is_read_is_in_a_page() {
    let sources = shipped("/");
    let openers = ["var(\"KVIK_", "var_os(\"KVIK_"];
    let behind =
        openers.iter().flat_map(|opener| sources.iter().flat_map(move |text| text.split(*opener).skip(1)));
    let read: BTreeSet<String> =
        behind.filter_map(|rest| rest.split('"').next()).map(|name| format!("KVIK_{name}")).collect();
    assert!(read.contains("KVIK_CONFIG"), "{read:?}");
    let pages = pages();
    let missing = read.iter().filter(|name| !pages.iter().any(|text| text.contains(name.as_str())));
    assert_none(&missing.map(|name| format!("no page names {name}")).collect::<Vec<_>>());
}

/// README.md, ARCHITECTURE.md, CONTRIBUTING.md and the pages of `docs/`.
fn pages() -> Vec<String> {
    let folders = ["", "docs"].map(|folder| fs::read_dir(workspace().join(folder)).unwrap());
    let paths = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let pages = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// The code of the crates' programs, without tests, of paths that contain this.
fn shipped(part: &str) -> Vec<String> {
    let is_shipped = |path: &str| {
        let (krate, inside) = path.rsplit_once("/src/").unwrap_or_default();
        path.contains(part)
            && !inside.is_empty()
            && !inside.contains("test")
            && !krate.ends_with("kvik-testing")
    };
    let files = sources().into_iter().filter(|(path, _)| is_shipped(path.to_str().unwrap()));
    files.map(|(_, text)| without_tests(&text).join("\n")).collect()
}

/// The words of small letters, digits and underscores that follow `opener` in a text.
fn names(text: &str, opener: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words =
        text.split(opener).skip(1).map(|rest| rest.split(|c: char| !is_part(c)).next().unwrap_or_default());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The value of a constant in a file of the crates.
fn constant(file: &str, name: &str) -> String {
    let text = fs::read_to_string(workspace().join("crates").join(file)).unwrap();
    let (_, behind) = text.split_once(&format!("const {name}: ")).unwrap();
    let (_, value) = behind.split_once(" = ").unwrap();
    value.split(';').next().unwrap().to_owned()
}

/// Complaints about names that no row of a table in `page` has.
fn without_row(page: &str, names: impl IntoIterator<Item = String>) -> Vec<String> {
    let text = fs::read_to_string(workspace().join(page)).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    let has_row = |name: &String| rows.iter().any(|row| row.contains(&format!("`{name}`")));
    let missing = names.into_iter().filter(|name| !has_row(name));
    missing.map(|name| format!("{page} has no row for `{name}`")).collect()
}

/// The names of all architectures, as their files in the crate's folder give them.
fn architectures() -> Vec<String> {
    let files = fs::read_dir(workspace().join("crates/kvik-model/src/arch")).unwrap();
    let texts = files.filter_map(|file| fs::read_to_string(file.unwrap().path()).ok());
    let name = |text: String| Some(text.split_once("\n    name: \"")?.1.split_once('"')?.0.to_owned());
    let names: Vec<String> = texts.filter_map(name).collect();
    assert!(names.len() >= 30, "architectures are read as they are written: {names:?}");
    names
}
