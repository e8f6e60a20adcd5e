//! Notes on parts of a body that no reader uses, collected while it is read, for the answer.
//!
//! A request with an unknown field is answered all the same, with a note. Types that deny unknown fields still refuse:
//! they are kvik's own types, where a misspelt name would store or delete something else than intended.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
};

/// Maximum number of notes on one body; further ones are only counted.
const NOTES_MAX: usize = 32;
/// Maximum characters of a path in a note.
const PATH_CHARS: usize = 120;

/// Declared fields and notes of all readers of one body.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Names of the body's fields that any type has declared.
    declared: RefCell<BTreeSet<&'static str>>,
    /// Path of the value that is being read, outermost step first.
    path: RefCell<Vec<Step>>,
    /// At most [`NOTES_MAX`], so that a body of a million of them takes no more time for each.
    noted: RefCell<Vec<String>>,
    /// Number of further notes, some of which may be repeated.
    more: Cell<usize>,
}

/// A step of a path: a field of an object, or an item of an array.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Field(&'static str),
    Item(usize),
}

impl Notes {
    /// Registers the fields of the body that a type reads.
    pub(super) fn declare(&self, names: &'static [&'static str]) {
        self.declared.borrow_mut().extend(names);
    }

    /// True if any type has declared this field of the body.
    pub(super) fn is_declared(&self, name: &str) -> bool {
        self.declared.borrow().contains(name)
    }

    /// Reads a value one step further in.
    pub(super) fn within<T>(&self, step: Step, read: impl FnOnce() -> T) -> T {
        self.path.borrow_mut().push(step);
        let value = read();
        self.path.borrow_mut().pop();
        value
    }

    /// Notes an unused field of the object that is being read.
    pub(super) fn unread(&self, name: &str) {
        let mut path = String::new();
        for step in self.path.borrow().iter() {
            match step {
                Step::Field(name) if path.is_empty() => path.push_str(name),
                Step::Field(name) => path.extend([".", name]),
                Step::Item(index) => path.push_str(&format!("[{index}]")),
            }
        }
        self.note(unknown(&if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }));
    }

    /// Adds a note, once.
    pub(super) fn note(&self, text: String) {
        let mut noted = self.noted.borrow_mut();
        match noted.len() {
            _ if noted.contains(&text) => {}
            NOTES_MAX => self.more.set(self.more.get() + 1),
            _ => noted.push(text),
        }
    }

    /// All notes, including those on undeclared fields, up to the maximum.
    pub(super) fn with<'a>(&self, fields: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut notes = self.noted.borrow().clone();
        notes.extend(fields.filter(|name| !self.is_declared(name)).map(unknown));
        let more = self.more.get() + notes.len().saturating_sub(NOTES_MAX);
        notes.truncate(NOTES_MAX);
        if more > 0 {
            notes.push(format!("and {more} more"));
        }
        notes
    }
}

/// The note on an unknown field.
pub(crate) fn unknown(path: &str) -> String {
    let shown: String = path.chars().take(PATH_CHARS).collect();
    format!("`{shown}` is not known here and was ignored")
}
