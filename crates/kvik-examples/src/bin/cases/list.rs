//! The list of cases: operations with arguments, a line each. `tests/library/cases.txt` says what they are.

use std::collections::BTreeMap;

/// An operation and its arguments, in their order.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) operation: String,
    pub(crate) arguments: Vec<(String, String)>,
}

/// All lines that say something.
pub(crate) fn read(list: &str) -> Vec<Line> {
    let says = |line: &&str| !line.is_empty() && !line.starts_with('#');
    list.lines().filter(says).map(Line::read).collect()
}

impl Line {
    fn read(line: &str) -> Line {
        let (operation, mut rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut arguments = Vec::new();
        while !rest.is_empty() {
            let (name, value) = rest.split_once('=').unwrap_or_else(|| panic!("no value: {line}"));
            let value_and_rest = match value.strip_prefix('"') {
                Some(quoted) => unescape(quoted),
                None => {
                    let (word, rest) = value.split_once(' ').unwrap_or((value, ""));
                    (word.to_owned(), rest)
                }
            };
            arguments.push((name.to_owned(), value_and_rest.0));
            rest = value_and_rest.1.trim_start();
        }
        Line { operation: operation.to_owned(), arguments }
    }

    /// The values of an argument.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.arguments.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// An argument that may be missing.
    pub(crate) fn find(&self, name: &str) -> Option<&str> {
        self.arguments.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// An argument that must be there.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.find(name).unwrap_or_else(|| panic!("`{name}` is missing: {self:?}"))
    }

    /// A number that may be missing.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.find(name).map(|value| value.parse().unwrap_or_else(|_| panic!("`{name}`: {self:?}")))
    }

    /// A text, `times` times.
    pub(crate) fn prompt(&self) -> String {
        self.get("prompt").repeat(self.number("times").unwrap_or(1))
    }

    /// Fails where an argument is none of these: the list says more than the runner does.
    pub(crate) fn only(&self, known: &[&str]) {
        let unknown = self.arguments.iter().find(|(name, _)| !known.contains(&name.as_str()));
        assert!(unknown.is_none(), "an argument that this runner does not know: {self:?}");
    }
}

/// What stands up to the closing quote, and what stands behind that.
fn unescape(quoted: &str) -> (String, &str) {
    let escapes = BTreeMap::from([('n', '\n'), ('r', '\r'), ('t', '\t'), ('"', '"'), ('\\', '\\')]);
    let mut value = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next().expect("a text in quotes ends with one") {
            '"' => return (value, chars.as_str()),
            '\\' => value.push(escapes[&chars.next().expect("an escape has a letter")]),
            other => value.push(other),
        }
    }
}

/// A text in quotes.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '\n' => quoted += "\\n",
            '\r' => quoted += "\\r",
            '\t' => quoted += "\\t",
            '"' | '\\' => quoted.extend(['\\', char]),
            other => quoted.push(other),
        }
    }
    quoted + "\""
}
