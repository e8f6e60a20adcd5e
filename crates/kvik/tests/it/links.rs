//! Links between documents lead to files and headings that are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::tidy::{assert_none, sources, workspace};

/// Folders of documents.
const FOLDERS: [&str; 4] = [".", "docs", "docs/decisions", "models/tiny"];

#[test]
fn links_of_documents_lead_somewhere() {
    let documents: Vec<(PathBuf, String)> = FOLDERS.iter().flat_map(|folder| documents(folder)).collect();
    let found: Vec<(&Path, &str)> = documents
        .iter()
        .flat_map(|(path, text)| links(text).into_iter().map(move |link| (path.as_path(), link)))
        .collect();
    assert!(found.len() > 300, "{} links are found: the documents are read as they are written", found.len());
    let broken = found.iter().filter(|(path, link)| !leads_somewhere(path, link));
    let complaints: Vec<String> =
        broken.map(|(path, link)| format!("{}: {link} leads nowhere", path.display())).collect();
    assert_none(&complaints);
}

/// Pages of the present name sources that are there; a decision names those of its day.
#[test]
fn sources_that_pages_name_are_there() {
    let files: Vec<String> = sources().iter().map(|(path, _)| path.display().to_string()).collect();
    let is_there = |name: &str| files.iter().any(|file| file.ends_with(&format!("/{name}")));
    let (mut named, mut complaints) = (0, Vec::new());
    for (path, text) in [".", "docs"].iter().flat_map(|folder| documents(folder)) {
        for name in named_sources(&text) {
            named += 1;
            if !is_there(&name) {
                complaints.push(format!("{}: there is no {name}", path.display()));
            }
        }
    }
    assert!(named > 100, "{named} sources are named: the pages are read as they are written");
    assert_none(&complaints);
}

/// The paths of Rust files that stand in backticks, of `{a,b}` in one both.
fn named_sources(text: &str) -> Vec<String> {
    let words = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = words.filter_map(|word| word.split("::").next()).filter(|word| is_source(word));
    paths.flat_map(alternatives).collect()
}

fn is_source(word: &str) -> bool {
    word.contains('/') && word.ends_with(".rs") && !word.contains(' ')
}

fn alternatives(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (names, behind))) = parts else { return vec![path.to_owned()] };
    names.split(',').map(|name| format!("{before}{name}{behind}")).collect()
}

fn documents(folder: &str) -> Vec<(PathBuf, String)> {
    let paths = fs::read_dir(workspace().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.map(|path| (path.clone(), prose(&fs::read_to_string(path).unwrap()))).collect()
}

/// A document without its blocks of code.
fn prose(text: &str) -> String {
    let mut in_code = false;
    let is_prose = |line: &&str| {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    };
    text.lines().filter(is_prose).flat_map(|line| [line, "\n"]).collect()
}

/// The links of a document to files of the repository, and to headings of its own.
fn links(text: &str) -> Vec<&str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '\n', ' ']).next());
    links.filter(|link| !link.contains(':')).collect()
}

fn leads_somewhere(from: &Path, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target =
        if file.is_empty() { from.to_owned() } else { from.parent().unwrap_or(Path::new("")).join(file) };
    let is_document = target.extension().is_some_and(|extension| extension == "md");
    match fs::read_to_string(&target) {
        Ok(text) if is_document && !heading.is_empty() => anchors(&prose(&text)).contains(heading),
        _ => target.exists(),
    }
}

/// The names by which links find the headings of a document.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|heading| anchor(heading.trim_start_matches('#').trim())).collect()
}

/// A heading in lower case, with hyphens for spaces and without other signs.
fn anchor(heading: &str) -> String {
    let sign = |c: char| match c {
        ' ' => Some('-'),
        c => (c.is_alphanumeric() || matches!(c, '-' | '_')).then_some(c),
    };
    heading.to_lowercase().chars().filter_map(sign).collect()
}

#[test]
fn links_are_read() {
    let text = "# A `b`, c?\n[x](y.md#z) [w](https://e.org/)\n```\n[no](no.md)\n```\n![i](i.svg)\n";
    let text = prose(text);
    assert_eq!(links(&text), ["y.md#z", "i.svg"]);
    assert_eq!(anchors(&text).into_iter().collect::<Vec<_>>(), ["a-b-c"]);
    let text = "`a/{b,c}.rs`, `d.rs`, `e/f.rs::g` and `h/i j.rs`\n";
    assert_eq!(named_sources(text), ["a/b.rs", "a/c.rs", "e/f.rs"]);
}
