//! What of a body nobody reads: noted while the others read it, so that the answer can say it.
//!
//! A client that sends a field which is not known here is answered all the same; it is told, and not refused. Types that
//! deny unknown fields still do: those are kvik's own, where a name that is written wrongly would keep or delete
//! something else than was meant.

use std::{cell::RefCell, collections::BTreeSet};

/// Notes of one body at most; what is beyond is counted.
const NOTES_MAX: usize = 32;
/// Characters of a path that a note repeats at most.
const PATH_CHARS: usize = 120;

/// What the readers of one body have declared and noted.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Names of fields of the body that some type has asked for.
    declared: RefCell<BTreeSet<&'static str>>,
    /// Where the value is that is being read, outermost first.
    path: RefCell<Vec<Step>>,
    noted: RefCell<Vec<String>>,
}

/// A field of an object, or an item of an array.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Field(&'static str),
    Item(usize),
}

impl Notes {
    /// A type reads these fields of the body.
    pub(super) fn declare(&self, names: &'static [&'static str]) {
        self.declared.borrow_mut().extend(names);
    }

    /// Whether some type has asked for a field of the body.
    pub(super) fn is_declared(&self, name: &str) -> bool {
        self.declared.borrow().contains(name)
    }

    /// Reads what stands one step further in.
    pub(super) fn within<T>(&self, step: Step, read: impl FnOnce() -> T) -> T {
        self.path.borrow_mut().push(step);
        let value = read();
        self.path.borrow_mut().pop();
        value
    }

    /// Notes a field of the object that is being read, for which its type has no use.
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

    /// Notes a sentence, once.
    pub(super) fn note(&self, text: String) {
        let mut noted = self.noted.borrow_mut();
        if !noted.contains(&text) {
            noted.push(text);
        }
    }

    /// All notes with those of fields that no type has declared, as many as an answer repeats.
    pub(super) fn with<'a>(&self, fields: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut notes = self.noted.borrow().clone();
        notes.extend(fields.filter(|name| !self.is_declared(name)).map(unknown));
        if let Some(more @ 1..) = notes.len().checked_sub(NOTES_MAX) {
            notes.truncate(NOTES_MAX);
            notes.push(format!("and {more} more"));
        }
        notes
    }
}

/// The note of a field that is not known here.
pub(crate) fn unknown(path: &str) -> String {
    let shown: String = path.chars().take(PATH_CHARS).collect();
    format!("`{shown}` is not known here and was ignored")
}
