//! House style that a test can check: arrows between crates, lengths of files and functions, names, words.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::Lines;

/// A file above this needs a `//! Long because` line that says why.
const FILE_LINES_MAX: usize = 800;
/// A function above this does more than one thing.
const FUNCTION_LINES_MAX: usize = 70;

/// Which crates of the workspace each crate may use; the tests of all may use `kvik-testing`.
const ARROWS: [(&str, &[&str]); 19] = [
    ("kvik-testing", &[]),
    ("kvik-schema", &[]),
    ("kvik-shelf", &[]),
    ("kvik-kernels", &[]),
    ("kvik-cache", &[]),
    ("kvik-gpu", &["kvik-kernels"]),
    ("kvik-text", &["kvik-kernels", "kvik-cache"]),
    ("kvik-model", &["kvik-text", "kvik-kernels", "kvik-cache", "kvik-gpu"]),
    ("kvik-engine", &["kvik-model", "kvik-text", "kvik-kernels", "kvik-cache"]),
    ("kvik-memory", &["kvik-engine", "kvik-model", "kvik-text", "kvik-cache"]),
    (
        "kvik-session",
        &["kvik-memory", "kvik-engine", "kvik-model", "kvik-text", "kvik-kernels", "kvik-cache"],
    ),
    (
        "kvik-library",
        &[
            "kvik-session",
            "kvik-memory",
            "kvik-engine",
            "kvik-model",
            "kvik-text",
            "kvik-kernels",
            "kvik-cache",
        ],
    ),
    ("kvik-c", &["kvik-library"]),
    ("kvik-uniffi", &["kvik-library"]),
    ("kvik-remote", &["kvik-engine", "kvik-text", "kvik-cache", "kvik-shelf"]),
    (
        "kvik-serving",
        &[
            "kvik-session",
            "kvik-memory",
            "kvik-engine",
            "kvik-model",
            "kvik-text",
            "kvik-kernels",
            "kvik-cache",
            "kvik-shelf",
            "kvik-remote",
        ],
    ),
    (
        "kvik-server",
        &[
            "kvik-serving",
            "kvik-session",
            "kvik-memory",
            "kvik-engine",
            "kvik-model",
            "kvik-text",
            "kvik-kernels",
            "kvik-cache",
            "kvik-schema",
            "kvik-shelf",
            "kvik-remote",
        ],
    ),
    (
        "kvik",
        &[
            "kvik-server",
            "kvik-serving",
            "kvik-session",
            "kvik-memory",
            "kvik-engine",
            "kvik-model",
            "kvik-text",
            "kvik-kernels",
            "kvik-cache",
            "kvik-library",
            "kvik-shelf",
            "kvik-remote",
        ],
    ),
    (
        "kvik-examples",
        &[
            "kvik-testing",
            "kvik-engine",
            "kvik-model",
            "kvik-text",
            "kvik-kernels",
            "kvik-cache",
            "kvik-library",
            "kvik-remote",
        ],
    ),
];

/// Words that say nothing or are no terms of the field, and the terms to use instead. (Split, so that this file
/// passes its own check.)
const BANNED: [(&str, &str); 26] = [
    (concat!("Man", "ager"), "the noun for what it owns"),
    (concat!("mod ut", "ils"), "the subject of the functions"),
    (concat!("mod hel", "pers"), "the subject of the functions"),
    (concat!("todo", "!("), "finished work"),
    (concat!("fore", "tell"), "predict"),
    (concat!("inside the ", "program"), "embedded model, built in"),
    (concat!("the one ", "inside"), "embedded model, built in"),
    (concat!("gra", "ft"), "derived namespace"),
    (concat!("un", "hang"), "detach"),
    (concat!("minds_the", "_past"), "needs ghost history"),
    (concat!("doo", "med"), "failed"),
    (concat!("last use is ", "longest"), "least recently used"),
    (concat!("what they have ", "had"), "usage"),
    (concat!("model ", "inside"), "embedded model, built in"),
    (concat!("let_disk", "_go"), "unpin"),
    (concat!("take_", "leave"), "notify_finished"),
    (concat!("un", "told"), "unregistered"),
    (concat!("forget_", "told"), "reset"),
    (concat!("line", "age"), "content key"),
    (concat!("kin", "ship"), "related store, content key"),
    (concat!("copy_", "head"), "copy_partial: a head is an attention head"),
    (concat!("give_", "back"), "unpin, release"),
    (concat!("had to ", "go"), "was evicted"),
    (concat!("has to ", "go"), "is evicted"),
    (concat!("rising ", "ground"), "the ageing value (GDSF)"),
    (concat!("turn it is to ", "give"), "victim tenant"),
];

/// Names that two types of one crate may share, and why.
const SHARED_NAMES: [(&str, &str, &str); 17] = [
    ("kvik-kernels", "Avx2", "one instruction set: its kernels and its lanes of f32"),
    ("kvik-kernels", "Avx512", "one instruction set: its kernels and its lanes of f32"),
    ("kvik-kernels", "Neon", "one instruction set: its kernels and its lanes of f32"),
    ("kvik-cache", "BlockTokens", "the tokens of one block: as stored in a tier, and as labels of the tree"),
    ("kvik-kernels", "Quantised", "rows of activations for a product, and rows of keys or values in a block"),
    (
        "kvik-cache",
        "Needs",
        "what must be there where a match ends, and what a retention policy must observe",
    ),
    ("kvik-cache", "Keep", "of a prefix: how long its blocks stay; of a sequence: how many positions stay"),
    ("kvik-cache", "Policy", "of eviction: which prefixes stay; of retention: which positions of a sequence"),
    ("kvik-model", "Buffers", "of the layers of each kind, between the steps of a forward pass"),
    (
        "kvik-text",
        "CompilerPool",
        "what compiles constraints, and what refuses them in a build without grammars",
    ),
    ("kvik-text", "Guide", "a compiled constraint, and that there is none in a build without grammars"),
    ("kvik-text", "Waiter", "who waits for a constraint, in builds with and without grammars"),
    ("kvik-serving", "Hangups", "requests to read settings again: of Unix, and of a system that has none"),
    ("kvik-serving", "Stops", "requests to stop: of Unix, and of a system that has one key for them"),
    ("kvik-server", "Part", "of a comparison of prompts, and of the content of a message"),
    ("kvik-server", "Reader", "the turn to read a body, and the reader of its fields"),
    ("kvik-server", "Wanted", "the query of a route, next to its route"),
];

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every Rust file of the workspace's crates, with its text.
pub(crate) fn sources() -> Vec<(PathBuf, String)> {
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

/// The documents about the program as it is; decisions are history and keep their words.
fn documents() -> Vec<(PathBuf, String)> {
    let paths = fs::read_dir(workspace().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let documents = paths.filter(|path| path.extension().is_some_and(|e| e == "md"));
    let documents: Vec<_> = documents.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    assert!(!documents.is_empty(), "the documents are where this test looks for them");
    documents
}

pub(crate) fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn arrows_between_crates_point_down() {
    for (name, allowed) in ARROWS {
        let manifest = fs::read_to_string(workspace().join("crates").join(name).join("Cargo.toml")).unwrap();
        let (shipped, tests) = manifest.split_once("[dev-dependencies]").unwrap_or((&manifest, ""));
        let wrong = |section: &str, allowed: &[&str]| -> Vec<String> {
            let uses = section.lines().filter_map(|line| line.split(['.', ' ']).next());
            let uses = uses.filter(|dependency| dependency.starts_with("kvik"));
            uses.filter(|dependency| !allowed.contains(dependency)).map(str::to_owned).collect()
        };
        assert_eq!(wrong(shipped, allowed), [""; 0], "{name} must not use these");
        let allowed = [allowed, &["kvik-testing"]].concat();
        assert_eq!(wrong(tests, &allowed), [""; 0], "tests of {name} must not");
    }
}

#[test]
fn folders_of_a_crate_do_not_import_in_circles() {
    for name in [
        "kvik-kernels",
        "kvik-cache",
        "kvik-text",
        "kvik-model",
        "kvik-engine",
        "kvik-memory",
        "kvik-session",
        "kvik-library",
        "kvik-c",
        "kvik-uniffi",
        "kvik-shelf",
        "kvik-remote",
        "kvik-serving",
        "kvik-server",
        "kvik",
    ] {
        let root = workspace().join("crates").join(name).join("src");
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (path, text) in sources().iter().filter(|(path, _)| is_code(path, &root)) {
            let folder = first_name(path.strip_prefix(&root).unwrap().to_str().unwrap());
            let others = imported(text).into_iter().filter(|other| *other != folder);
            imports.entry(folder.clone()).or_default().extend(others);
        }
        assert!(imports.len() > 2, "{name}: the imports are where this test looks for them");
        // Removing folders that import no remaining folder leaves the circles.
        let leaf = |imports: &BTreeMap<String, BTreeSet<String>>| {
            let is_leaf = |uses: &BTreeSet<String>| uses.iter().all(|other| !imports.contains_key(other));
            imports.iter().find(|(_, uses)| is_leaf(uses)).map(|(folder, _)| folder.clone())
        };
        while let Some(folder) = leaf(&imports) {
            imports.remove(&folder);
        }
        assert!(imports.is_empty(), "{name}: these import in a circle, or import one: {imports:#?}");
    }
}

/// Whether a file lies under `root` and is neither a test nor the root itself.
fn is_code(path: &Path, root: &Path) -> bool {
    let Ok(inside) = path.strip_prefix(root) else { return false };
    let inside = inside.to_str().unwrap();
    !inside.contains("test") && !matches!(inside, "lib.rs" | "main.rs")
}

/// The first component of a path, without an extension.
fn first_name(path: &str) -> String {
    path.split(['/', '.']).next().unwrap_or_default().to_owned()
}

/// The root modules of the crate that a file imports, except those that only its tests import.
fn imported(text: &str) -> BTreeSet<String> {
    let lines = without_tests(text).into_iter().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.flat_map(|line| [line, "\n"]).collect();
    let after = |rest: &str| match rest.strip_prefix('{') {
        Some(group) => first_level(group),
        None => vec![rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("").to_owned()],
    };
    let names = code.split("crate::").skip(1).flat_map(after);
    // A name of the crate itself, such as a macro or a re-export, is no module.
    names.filter(|name| name.starts_with(|c: char| c.is_lowercase())).collect()
}

/// The first name of each part of a group of imports, `a::B, c::{D, e::F}, ...}`.
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

/// The lines of a file without the items that only tests compile, wherever they stand in it.
pub(crate) fn without_tests(text: &str) -> Vec<&str> {
    let (mut kept, mut lines) = (Vec::new(), text.lines());
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if code == "#[cfg(test)]" || code.starts_with("#[cfg(all(test,") {
            skip_item(&mut lines, line.len() - code.len());
        } else {
            kept.push(line);
        }
    }
    kept
}

/// Skips the item behind an attribute that is indented by `indent`: rustfmt closes an item at its own indentation.
fn skip_item(lines: &mut Lines<'_>, indent: usize) {
    let outermost = lines.filter_map(|line| {
        let (margin, code) = line.split_at_checked(indent)?;
        (margin.trim().is_empty() && !code.starts_with(' ')).then_some(code)
    });
    let mut code = outermost.filter(|code| !code.is_empty() && !code.starts_with("//"));
    // Further attributes, of which one of several lines ends in `)]`, are no first line.
    let first = code.find(|line| !line.starts_with(['#', ')'])).unwrap_or_default();
    if !first.ends_with([';', ',', '}']) {
        code.find(|line| closes(line));
    }
}

/// Whether a line is the last one of an item of several lines.
fn closes(line: &str) -> bool {
    let behind = line.trim_start_matches(['}', ')', ']']);
    matches!(behind, ";" | ",") || behind.is_empty() && line.starts_with('}')
}

#[test]
fn what_only_tests_compile_is_left_out() {
    let check = |text: &str, expect: &[&str]| assert_eq!(without_tests(text), expect, "{text}");
    check("a\n#[cfg(test)]\nmod tests;\nb\n", &["a", "b"]);
    check("a\n#[cfg(test)]\nmod tests {\n    b;\n\n    c {\n    }\n}\n\nd\n", &["a", "", "d"]);
    check("#[cfg(test)]\nuse a::{\n    b,\n};\nc\n", &["c"]);
    check(
        "#[cfg(all(test, unix))]\n// Why;\n#[expect(\n    a,\n)]\nfn f(\n    b: B,\n) -> C {\n}\nd\n",
        &["d"],
    );
    check(
        "impl A {\n    #[cfg(test)]\n    const B: C = C {\n        d,\n    };\n    e\n}\n",
        &["impl A {", "    e", "}"],
    );
    check("a {\n    b,\n    #[cfg(test)]\n    c: D,\n}\n", &["a {", "    b,", "}"]);
    check("#[cfg(any(test, fuzzing))]\nmod a;\n", &["#[cfg(any(test, fuzzing))]", "mod a;"]);
}

#[test]
fn a_type_name_has_one_meaning_in_a_crate() {
    let mut complaints = Vec::new();
    for (name, _) in ARROWS {
        let root = workspace().join("crates").join(name).join("src");
        let mut places: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
        let sources = sources();
        for (path, text) in sources.iter().filter(|(path, _)| is_code(path, &root)) {
            types(text).for_each(|ty| places.entry(ty).or_default().push(path.strip_prefix(&root).unwrap()));
        }
        let shared =
            |ty: &str| SHARED_NAMES.iter().any(|(krate, allowed, _)| (*krate, *allowed) == (name, ty));
        places.retain(|ty, places| places.len() > 1 && !shared(ty));
        complaints
            .extend(places.iter().map(|(ty, places)| format!("{name}: `{ty}` is defined in {places:?}")));
    }
    assert_none(&complaints);
}

/// The names of the types of a file that the rest of its crate can use.
fn types(text: &str) -> impl Iterator<Item = &str> {
    without_tests(text).into_iter().filter_map(|line| {
        let line = line.trim_start();
        let rest = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "))?;
        let (_, name) =
            rest.split_once(' ').filter(|(kind, _)| matches!(*kind, "struct" | "enum" | "trait"))?;
        let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        // A macro's `$name` is no name.
        (!name.is_empty()).then_some(name)
    })
}

#[test]
fn types_are_read() {
    let text = "pub struct A<'a> {\n    pub(crate) enum B {\nstruct C;\npub(super) struct D;\npub trait E: F {\npub fn g() {}\n#[cfg(test)]\nmod tests {\npub struct H;\n";
    assert_eq!(types(text).collect::<Vec<_>>(), ["A", "B", "E"]);
}

#[test]
fn only_the_binary_is_async() {
    for name in [
        "kvik-kernels",
        "kvik-cache",
        "kvik-text",
        "kvik-model",
        "kvik-engine",
        "kvik-memory",
        "kvik-session",
        "kvik-library",
        "kvik-c",
        "kvik-uniffi",
        "kvik-shelf",
    ] {
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
    let texts = [sources(), documents()].concat();
    let complaints: Vec<String> = texts
        .iter()
        .flat_map(|(path, text)| {
            let found = BANNED.iter().filter(|(word, _)| text.contains(word));
            found.map(move |(word, instead)| format!("{}: `{word}`; use {instead}", path.display()))
        })
        .collect();
    assert_none(&complaints);
}

/// The tests that documents name, as `` `path::name` ``, are there: a path is the end of a file's.
#[test]
fn tests_that_documents_name_are_there() {
    let files: Vec<(PathBuf, String)> = sources().into_iter().chain(python_tests()).collect();
    let mut named = 0;
    let mut complaints = Vec::new();
    for (document, text) in documents() {
        for (path, name) in tests_named(&text) {
            named += 1;
            let of_path = files.iter().filter(|(file, _)| file.ends_with(path));
            let functions = ["fn", "def"].map(|word| format!("{word} {name}("));
            let has = |text: &&String| functions.iter().any(|function| text.contains(function));
            match of_path.map(|(_, text)| text).collect::<Vec<&String>>()[..] {
                [text] if has(&text) => {}
                [] => complaints.push(format!("{}: there is no file {path}", document.display())),
                [_] => complaints.push(format!("{}: {path} has no test {name}", document.display())),
                _ => complaints.push(format!("{}: several files are called {path}", document.display())),
            }
        }
    }
    assert!(named > 40, "{named} tests are named: the documents are read as they are written");
    assert_none(&complaints);
}

/// Every Python file of the tests, with its text.
fn python_tests() -> Vec<(PathBuf, String)> {
    let folders = fs::read_dir(workspace().join("tests")).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.filter(|path| path.is_dir()).flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths =
        files.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "py"));
    paths.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The paths and names of the tests that a document names.
fn tests_named(text: &str) -> Vec<(&str, &str)> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let tests = spans.filter_map(|span| span.split_once("::"));
    tests.filter(|(path, _)| path.ends_with(".rs") || path.ends_with(".py")).collect()
}

#[test]
fn named_tests_are_found() {
    let text = "| a | `x` holds | `api/tests/x.rs::a_b`, `std::fs`, `tests/e2e/test_y.py::test_c` |";
    assert_eq!(tests_named(text), [("api/tests/x.rs", "a_b"), ("tests/e2e/test_y.py", "test_c")]);
}

#[test]
fn long_functions_are_found() {
    let body = "    let x = 1;\n".repeat(FUNCTION_LINES_MAX + 1);
    assert_eq!(long_functions(&format!("fn long() {{\n{body}}}\n")).len(), 1);
    assert_eq!(long_functions("fn short() {\n    let x = 1;\n}\n").len(), 0);
}
