//! Files of a crate do not import one another in circles, at any depth of folders.
//!
//! A room is a file of `src` without its tests. Imports are read as text: `use` trees, and paths in the code. A room within
//! another one knows where it is, so what a file names of the folders around it is no arrow. `tools/structure.py` reads
//! them alike and prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::tidy::without_tests;

/// A module by the names from the crate's root on.
type Room = Vec<String>;
/// Which rooms each room imports.
type Imports = BTreeMap<Room, BTreeSet<Room>>;

#[test]
fn files_of_a_crate_do_not_import_in_circles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut complaints = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let root = entry.unwrap().path().join("src");
        let rooms = rooms_of(&root);
        let circles = circles_of(&imports_of(&rooms));
        complaints.extend(circles.iter().map(|circle| shown(&root, circle)));
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn shown(root: &Path, circle: &Imports) -> String {
    let path = |room: &Room| room.join("/");
    let arrows = circle.iter().map(|(from, to)| {
        let to: Vec<String> = to.iter().map(path).collect();
        format!("    {} -> {}", path(from), to.join(", "))
    });
    let arrows: Vec<String> = arrows.collect();
    format!("{}: these import in a circle:\n{}", root.display(), arrows.join("\n"))
}

/// The rooms below a crate's `src`, each with its code.
fn rooms_of(root: &Path) -> BTreeMap<Room, String> {
    let (mut rooms, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(room) = room_at(path.strip_prefix(root).unwrap()) {
                rooms.insert(room, code_of(&fs::read_to_string(&path).unwrap()));
            }
        }
    }
    rooms
}

/// The room of a file; none of one that is a test or the crate's root.
fn room_at(file: &Path) -> Option<Room> {
    let mut parts: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    let is_source = file.extension().is_some_and(|extension| extension == "rs");
    let is_root = matches!(file.to_str(), Some("lib.rs" | "main.rs"));
    let is_test = parts.iter().any(|part| part.contains("test"));
    if !is_source || is_root || is_test {
        return None;
    }
    parts.pop_if(|name| name == "mod");
    Some(parts)
}

/// A file's text without comments and without what only tests compile.
fn code_of(text: &str) -> String {
    let code = without_tests(text).into_iter().map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(|line| [line, "\n"]).collect()
}

fn imports_of(rooms: &BTreeMap<Room, String>) -> Imports {
    let imported = |(room, code): (&Room, &String)| {
        let paths = uses(code).into_iter().chain(paths(code));
        let found = paths.filter_map(|path| existing(absolute(path, room), rooms));
        (room.clone(), found.filter(|other| !room.starts_with(other)).collect())
    };
    rooms.iter().map(imported).collect()
}

/// The innermost room on the way to an item.
fn existing(mut path: Room, rooms: &BTreeMap<Room, String>) -> Option<Room> {
    while !path.is_empty() && !rooms.contains_key(&path) {
        path.pop();
    }
    (!path.is_empty()).then_some(path)
}

/// A path from the crate's root on, as it is written in a room. A name without a root is a child of the room, or a crate.
fn absolute(path: Vec<String>, room: &Room) -> Room {
    let mut from = room.clone();
    let rest = match path.first().map(String::as_str) {
        Some("crate") => {
            from.clear();
            &path[1..]
        }
        Some("self") => &path[1..],
        Some("super") => {
            let up = path.iter().take_while(|name| *name == "super").count();
            from.truncate(from.len().saturating_sub(up));
            &path[up..]
        }
        _ => &path[..],
    };
    [&from, rest].concat()
}

/// The paths of all `use` trees.
fn uses(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let starts = code.match_indices("use ").filter(|(at, _)| {
        let before = code[..*at].rsplit('\n').next().unwrap_or_default().trim();
        before.is_empty() || before.starts_with("pub")
    });
    for (at, word) in starts {
        let tree = code[at + word.len()..].split(';').next().unwrap_or_default();
        leaves(tree, &[], &mut found);
    }
    found
}

/// Adds the paths of a tree, `a::{B, c::{self, D as E}}`, behind those that stand before it.
fn leaves(tree: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let (path, group) = match tree.split_once('{') {
        Some((path, rest)) => (path, rest.rsplit_once('}').map(|(group, _)| group)),
        None => (tree, None),
    };
    let path = path.split(" as ").next().unwrap_or_default();
    let names = path.split("::").map(str::trim).filter(|name| !name.is_empty() && *name != "*");
    let path: Vec<String> = before.iter().cloned().chain(names.map(str::to_owned)).collect();
    match group {
        Some(group) => branches(group).iter().for_each(|branch| leaves(branch, &path, found)),
        None => found.push(path),
    }
}

/// The parts of a group between its own commas.
fn branches(group: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in group.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("one is there from the start").push(c);
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// The paths in code that begin at a module.
fn paths(code: &str) -> Vec<Vec<String>> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            if code[..at].ends_with(|c: char| is_name(c) || c == ':') {
                continue;
            }
            let path = code[at..].split(|c: char| !is_name(c) && c != ':').next().unwrap_or_default();
            found.push(path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect());
        }
    }
    found
}

/// The circles: sets of rooms of which each leads to every other, with the arrows among them.
fn circles_of(imports: &Imports) -> Vec<Imports> {
    let reached: BTreeMap<&Room, BTreeSet<&Room>> =
        imports.keys().map(|room| (room, reach(imports, room))).collect();
    let mut circles = BTreeMap::new();
    for (room, there) in &reached {
        let circle: BTreeSet<&Room> =
            there.iter().copied().filter(|other| reached[other].contains(room)).collect();
        if let Some(first) = circle.first() {
            let arrows =
                |room: &Room| imports[room].iter().filter(|to| circle.contains(to)).cloned().collect();
            let among = circle.iter().map(|room| ((*room).clone(), arrows(room))).collect();
            circles.insert((*first).clone(), among);
        }
    }
    circles.into_values().collect()
}

fn reach<'a>(imports: &'a Imports, room: &Room) -> BTreeSet<&'a Room> {
    let (mut seen, mut todo) = (BTreeSet::new(), vec![room.clone()]);
    while let Some(room) = todo.pop() {
        for other in &imports[&room] {
            if seen.insert(other) {
                todo.push(other.clone());
            }
        }
    }
    seen
}

/// The circles of files with these texts.
fn check(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let rooms: BTreeMap<Room, String> = files
        .iter()
        .filter_map(|(path, text)| Some((room_at(&PathBuf::from(path))?, code_of(text))))
        .collect();
    let names = |circle: &Imports| circle.keys().map(|room| room.join("/")).collect();
    circles_of(&imports_of(&rooms)).iter().map(names).collect()
}

#[test]
fn a_circle_is_found_at_any_depth() {
    let two = |a, b| {
        check(&[("x/y/a.rs", a), ("x/y/b.rs", b), ("x/y/mod.rs", "mod a;\nmod b;\n"), ("x/mod.rs", "")])
    };
    assert_eq!(two("use super::b::B;\n", "use crate::x::y::a::A;\n"), [["x/y/a", "x/y/b"]]);
    assert_eq!(two("use super::{b::{B, C as D}, E};\n", "fn f() -> super::a::A {}\n"), [["x/y/a", "x/y/b"]]);
    assert_eq!(two("pub(crate) use crate::{\n    x::y::b::B,\n};\n", "use super::*;\n"), [[""; 0]; 0]);
    assert_eq!(two("// use super::b::B;\n", "use super::a::A;\n#[cfg(test)]\nmod tests {}\n"), [[""; 0]; 0]);
    let three =
        [("a.rs", "use crate::b;\n"), ("b/mod.rs", "mod c;\nuse c::C;\n"), ("b/c.rs", "use crate::a::A;\n")];
    assert_eq!(check(&three), [["a", "b", "b/c"]]);
}

#[test]
fn what_a_file_names_of_the_folders_around_it_is_no_arrow() {
    assert_eq!(
        check(&[("a/mod.rs", "use b::B;\n"), ("a/b.rs", "use super::C;\nuse crate::a::D;\n")]),
        [[""; 0]; 0]
    );
    assert_eq!(check(&[("a.rs", "use crate::tests::b;\n"), ("tests/b.rs", "use crate::a;\n")]), [[""; 0]; 0]);
}
