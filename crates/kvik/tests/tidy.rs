//! House style that a machine can check: arrows between crates, lengths of files and functions, words.

#![allow(clippy::unwrap_used)] // a test may fail where it stands

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A file above this needs a `//! Long because` line that says why.
const FILE_LINES_MAX: usize = 800;
/// A function above this does more than one thing.
const FUNCTION_LINES_MAX: usize = 70;

/// Which crates of the workspace each crate may use.
const ARROWS: [(&str, &[&str]); 4] = [
    ("kvik-kernels", &[]),
    ("kvik-cache", &[]),
    ("kvik-engine", &["kvik-kernels", "kvik-cache"]),
    ("kvik", &["kvik-engine", "kvik-kernels", "kvik-cache"]),
];

/// Words that say nothing, and what to say instead. (Split, so that this file passes its own check.)
const BANNED: [(&str, &str); 4] = [
    (concat!("Man", "ager"), "the noun for what it owns"),
    (concat!("mod ut", "ils"), "the subject of the functions"),
    (concat!("mod hel", "pers"), "the subject of the functions"),
    (concat!("todo", "!("), "finished work"),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every Rust file of the workspace's crates, with its text.
fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![workspace().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    assert!(files.len() > 20, "the sources are where this test looks for them");
    files
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn arrows_between_crates_point_down() {
    for (name, allowed) in ARROWS {
        let manifest = fs::read_to_string(workspace().join("crates").join(name).join("Cargo.toml")).unwrap();
        let uses = manifest.lines().filter_map(|line| line.split(['.', ' ']).next());
        let wrong: Vec<&str> = uses
            .filter(|dependency| dependency.starts_with("kvik") && !allowed.contains(dependency))
            .collect();
        assert!(wrong.is_empty(), "{name} must not use {wrong:?}");
    }
}

#[test]
fn folders_of_a_crate_do_not_import_in_circles() {
    for name in ["kvik-kernels", "kvik-engine", "kvik"] {
        let root = workspace().join("crates").join(name).join("src");
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (path, text) in sources().iter().filter(|(path, _)| is_code(path, &root)) {
            let folder = first_name(path.strip_prefix(&root).unwrap().to_str().unwrap());
            let others = imported(text).into_iter().filter(|other| *other != folder);
            imports.entry(folder.clone()).or_default().extend(others);
        }
        assert!(imports.len() > 5, "{name}: the imports are where this test looks for them");
        // Whatever imports nothing that is left stands on what was taken away; a circle stays.
        let leaf = |imports: &BTreeMap<String, BTreeSet<String>>| {
            let is_leaf = |uses: &BTreeSet<String>| uses.iter().all(|other| !imports.contains_key(other));
            imports.iter().find(|(_, uses)| is_leaf(uses)).map(|(folder, _)| folder.clone())
        };
        while let Some(folder) = leaf(&imports) {
            imports.remove(&folder);
        }
        assert!(imports.is_empty(), "{name}: these import in a circle, or stand on one: {imports:#?}");
    }
}

/// A file under `root` that is no test and not the root itself.
fn is_code(path: &Path, root: &Path) -> bool {
    let Ok(inside) = path.strip_prefix(root) else { return false };
    let inside = inside.to_str().unwrap();
    !inside.contains("test") && !matches!(inside, "lib.rs" | "main.rs" | "naive.rs")
}

/// The folder, or the file without a folder, at the start of a path.
fn first_name(path: &str) -> String {
    path.split(['/', '.']).next().unwrap_or_default().to_owned()
}

/// The modules at the root of the crate that a file names, but for what its tests name.
fn imported(text: &str) -> BTreeSet<String> {
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.flat_map(|line| [line, "\n"]).collect();
    let after = |rest: &str| match rest.strip_prefix('{') {
        Some(group) => first_level(group),
        None => vec![rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("").to_owned()],
    };
    let names = code.split("crate::").skip(1).flat_map(after);
    // A name of the crate itself, such as a macro or a re-export, is no module.
    names.filter(|name| name.starts_with(|c: char| c.is_lowercase())).collect()
}

/// The first names of the parts of a group of imports, `a::B, c::{D, e::F}, ...}`.
fn first_level(group: &str) -> Vec<String> {
    let (mut depth, mut part, mut parts) = (1, String::new(), Vec::new());
    for c in group.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match c {
            _ if depth == 0 => break,
            ',' if depth == 1 => parts.push(std::mem::take(&mut part)),
            _ => part.push(c),
        }
    }
    parts.push(part);
    parts.iter().filter_map(|part| part.trim().split("::").next().map(str::to_owned)).collect()
}

#[test]
fn imports_are_read() {
    let text = "use crate::a::B;\nuse crate::{\n    c::{D, e::F},\n    g,\n};\n// crate::h\nfn f() { crate::i::j() }\n";
    let found: Vec<String> = imported(text).into_iter().collect();
    assert_eq!(found, ["a", "c", "g", "i"]);
    assert_eq!(imported("x\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n").len(), 0);
}

#[test]
fn only_the_binary_is_async() {
    for name in ["kvik-kernels", "kvik-cache", "kvik-engine"] {
        let manifest = fs::read_to_string(workspace().join("crates").join(name).join("Cargo.toml")).unwrap();
        assert!(!manifest.contains("tokio"), "{name} must not use tokio");
    }
}

#[test]
fn files_have_one_subject() {
    let too_long = |(path, text): &(PathBuf, String)| {
        let lines = text.lines().count();
        (lines > FILE_LINES_MAX && !text.contains("//! Long because"))
            .then(|| format!("{}: {lines} lines, at most {FILE_LINES_MAX}", path.display()))
    };
    assert_none(&sources().iter().filter_map(too_long).collect::<Vec<_>>());
}

#[test]
fn every_module_says_what_it_is() {
    let mute = |(path, text): &(PathBuf, String)| {
        let is_tests = path.file_name().is_some_and(|name| name == "tests.rs");
        (!is_tests && !text.starts_with("//!")).then(|| format!("{}: starts without `//!`", path.display()))
    };
    assert_none(&sources().iter().filter_map(mute).collect::<Vec<_>>());
}

#[test]
fn functions_do_one_thing() {
    let complaints: Vec<String> = sources()
        .iter()
        .flat_map(|(path, text)| {
            long_functions(text).into_iter().map(move |(name, lines)| {
                format!("{}: {name} has {lines} lines, at most {FUNCTION_LINES_MAX}", path.display())
            })
        })
        .collect();
    assert_none(&complaints);
}

/// Functions above the limit. rustfmt closes a function at the indentation it opened at.
fn long_functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let starts = lines.iter().enumerate().filter(|(_, line)| {
        let code = line.trim_start();
        let head = code.split('(').next().unwrap_or_default();
        let named = head.split_whitespace().skip_while(|word| *word != "fn").nth(1).is_some();
        !code.starts_with("//") && named
    });
    let has_body = |start: usize| {
        lines[start..].iter().find(|l| l.ends_with(['{', ';'])).is_some_and(|l| l.ends_with('{'))
    };
    starts
        .filter(|(start, _)| has_body(*start))
        .filter_map(|(start, line)| {
            let closing = format!("{}}}", " ".repeat(indent(line)));
            let end = lines[start..].iter().position(|l| **l == closing)?;
            (end > FUNCTION_LINES_MAX).then(|| (line.trim().to_owned(), end))
        })
        .collect()
}

#[test]
fn words_mean_something() {
    let complaints: Vec<String> = sources()
        .iter()
        .flat_map(|(path, text)| {
            let found = BANNED.iter().filter(|(word, _)| text.contains(word));
            found.map(move |(word, instead)| format!("{}: `{word}`; use {instead}", path.display()))
        })
        .collect();
    assert_none(&complaints);
}

#[test]
fn long_functions_are_found() {
    let body = "    let x = 1;\n".repeat(FUNCTION_LINES_MAX + 1);
    assert_eq!(long_functions(&format!("fn long() {{\n{body}}}\n")).len(), 1);
    assert_eq!(long_functions("fn short() {\n    let x = 1;\n}\n").len(), 0);
}
