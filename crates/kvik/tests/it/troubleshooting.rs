//! Every error that kvik prints has an entry in docs/troubleshooting.md, and every entry is an error that it prints.
//!
//! An error is the text of a typed error, or the one with which a command fails; a name or number in it is `…`. Texts of
//! fewer than two words name the place of an error and stand before its own text. Codes of HTTP answers have a table.

use std::collections::BTreeSet;
use std::fs;

use crate::tidy::{assert_none, sources, without_tests, workspace};

/// Openings of the text of an error.
const OPENERS: [&str; 5] = ["#[error(", "bail!(", "anyhow!(", ".context(", ".with_context("];
/// Opening of a condition that stands before the text of an error.
const CONDITION: &str = "ensure!(";
/// Openings of the code of an HTTP answer.
const CODE_OPENERS: [&str; 4] = ["Some(", "unavailable(", "conflict(", "unsupported("];
/// Crates of no program, and files whose errors only tests and fuzzing see.
const UNSEEN: [&str; 5] = [
    "crates/kvik-testing",
    "crates/kvik-examples",
    "crates/kvik-schema",
    "kvik-cache/src/cache/check.rs",
    "crates/kvik/src/fuzzing",
];

#[test]
fn every_error_has_an_entry() {
    let page = page();
    let listed: BTreeSet<String> = entries(&page).collect();
    let printed: BTreeSet<String> =
        shipped("").iter().flat_map(|text| errors(text)).filter(|error| words(error) > 1).collect();
    assert!(printed.len() > 300, "{} errors are found: they are read as they are written", printed.len());
    assert_none(&complaints(&printed, &listed));
}

#[test]
fn every_code_has_a_row() {
    let page = page();
    let listed: BTreeSet<String> = rows(&page).collect();
    let sent: BTreeSet<String> = shipped("crates/kvik-server/").iter().flat_map(|text| codes(text)).collect();
    assert!(sent.len() > 30, "{} codes are found: they are read as they are written", sent.len());
    assert_none(&complaints(&sent, &listed));
}

fn page() -> String {
    fs::read_to_string(workspace().join("docs/troubleshooting.md")).unwrap()
}

/// What is printed and has no entry, and entries of what is not printed.
fn complaints(printed: &BTreeSet<String>, listed: &BTreeSet<String>) -> Vec<String> {
    let missing = printed.difference(listed).map(|text| format!("docs/troubleshooting.md lacks: {text}"));
    let stale =
        listed.difference(printed).map(|text| format!("docs/troubleshooting.md has, and kvik not: {text}"));
    missing.chain(stale).collect()
}

/// The code of a crate's programs, without tests.
fn shipped(krate: &str) -> Vec<String> {
    let is_shipped = |path: &str| {
        let inside = path.rsplit_once("/src/").map_or("", |(_, inside)| inside);
        path.contains(krate)
            && !inside.is_empty()
            && !inside.contains("test")
            && !UNSEEN.iter().any(|unseen| path.contains(unseen))
    };
    let sources = sources().into_iter().filter(|(path, _)| is_shipped(path.to_str().unwrap()));
    sources.map(|(_, text)| without_tests(&text).join("\n")).collect()
}

/// The texts of the errors in some code, as they are listed.
fn errors(code: &str) -> Vec<String> {
    let openings = OPENERS.iter().flat_map(|opener| code.split(opener).skip(1));
    let conditions = code.split(CONDITION).skip(1).filter_map(after_condition);
    openings.chain(conditions).filter_map(literal).map(|text| pattern(&text)).collect()
}

/// The codes of HTTP answers in some code: two words at least, joined by underscores.
fn codes(code: &str) -> Vec<String> {
    let texts = CODE_OPENERS.iter().flat_map(|opener| code.split(opener).skip(1)).filter_map(literal);
    texts.filter(|text| is_code(text)).collect()
}

fn is_code(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    text.contains('_') && text.split('_').all(is_word)
}

/// What follows the first argument of a macro.
fn after_condition(rest: &str) -> Option<&str> {
    let (mut depth, mut in_text, mut escaped) = (0, false, false);
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            _ if in_text => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return None,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => return Some(&rest[at + 1..]),
            _ => {}
        }
    }
    None
}

/// The text with which some code begins, also that of a closure or of `format!`.
fn literal(code: &str) -> Option<String> {
    let mut rest = code.trim_start();
    while let Some(inner) = ["||", "format!(", "anyhow!("].iter().find_map(|opener| rest.strip_prefix(opener))
    {
        rest = inner.trim_start();
    }
    let (mut text, mut chars) = (String::new(), rest.strip_prefix('"')?.chars().peekable());
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => match chars.next()? {
                // The text goes on behind the line break and the indentation.
                '\n' => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                'n' => text.push(' '),
                c => text.push(c),
            },
            c => text.push(c),
        }
    }
}

/// A text with `…` for what is filled in.
fn pattern(text: &str) -> String {
    let (mut pattern, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once('{') {
        pattern.push_str(before);
        if let Some(literal) = behind.strip_prefix('{') {
            pattern.push('{');
            rest = literal;
            continue;
        }
        if !pattern.ends_with('…') {
            pattern.push('…');
        }
        rest = behind.split_once('}').map_or("", |(_, rest)| rest);
    }
    pattern.push_str(rest);
    pattern.replace("}}", "}").split_whitespace().collect::<Vec<&str>>().join(" ")
}

fn words(text: &str) -> usize {
    let is_word = |word: &&str| {
        let word = word.trim_matches(['`', ',', ';', ':', '.', '(', ')']);
        !word.is_empty() && word.chars().all(char::is_alphabetic)
    };
    text.split_whitespace().filter(is_word).count()
}

/// The messages of the page: lines of its blocks of text.
fn entries(page: &str) -> impl Iterator<Item = String> {
    let blocks = page.split("\n```text\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.flat_map(str::lines).map(str::to_owned)
}

/// The codes of the page's table.
fn rows(page: &str) -> impl Iterator<Item = String> {
    let first = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    first.filter(|text| is_code(text)).map(str::to_owned)
}

#[test]
fn texts_are_read() {
    let code = concat!(
        "#[error(\"{a}: `{b:?}`{c} \\\"is\\\" {{x}} \\\n     here\")]",
        "ensure!(f(\"a, b\", [1, 2]), \"no {}; 1\", x); bail!(x); y.with_context(|| format!(\"in {}\", z))?;",
        "y.context(z)?; \"later\""
    );
    assert_eq!(errors(code), ["…: `…`… \"is\" {x} here", "in …", "no …; 1"]);
    assert_eq!(codes("Some(\"a_b\") Some(\"ab\") unavailable(\n \"c_d\", x) Some(\"a_\")"), ["a_b", "c_d"]);
    assert_eq!(["--flag …", "in …", "it fails: …", "`x` is"].map(words), [0, 1, 2, 2]);
    let page = "x\n\n```text\na b\nc\n```\n\ny\n\n```text\nd\n```\n| `e_f` | 1 |\n| `g` | 2 |\n";
    assert_eq!(entries(page).collect::<Vec<_>>(), ["a b", "c", "d"]);
    assert_eq!(rows(page).collect::<Vec<_>>(), ["e_f"]);
}
