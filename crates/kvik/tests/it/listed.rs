//! Documents have a row for each policy and each architecture that the code has.

use std::fs;

use kvik_cache::{Policy, retain};

use crate::tidy::{assert_none, workspace};

#[test]
fn every_policy_and_every_architecture_has_its_row() {
    let evictions = Policy::ALL.map(|policy| policy.name().to_owned());
    let retentions = retain::Policy::names().into_iter().map(str::to_owned);
    let mut complaints = without_row("docs/eviction.md", evictions);
    complaints.extend(without_row("docs/retention.md", retentions));
    complaints.extend(without_row("docs/architectures.md", architectures()));
    assert_none(&complaints);
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
