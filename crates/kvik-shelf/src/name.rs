//! Names of models, and the corresponding file names.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{ModelSource, ShelfError};

/// Maximum length of a manifest's file name: systems allow 255.
const FILE_NAME_MAX: usize = 240;
/// Words by which flags and requests mean the embedded model, and the model that was used last.
const RESERVED: [&str; 2] = ["embedded", "kvik"];

/// The name of a model on a shelf: ASCII letters, digits and `-_.@+`, in parts between `/` and `:`, such as
/// `qwen3`, `qwen3:0.6b` or `Qwen/Qwen3-0.6B-GGUF:Q4_K_M@main`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelName(String);

impl ModelName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Refuses a new name that flags or requests take for something else. A model that got it from an earlier version keeps
    /// it, so that it can be found and removed.
    pub(crate) fn check_new(&self) -> Result<(), ShelfError> {
        let bad = |reason| Err(ShelfError::BadName { name: self.0.clone(), reason });
        match self.0.parse() {
            _ if RESERVED.contains(&self.as_str()) => bad("kvik means another model by this word"),
            Ok(ModelSource::Path(_)) => Ok(()),
            Ok(ModelSource::Hub(_)) | Err(_) => bad("it begins as a source on the hub does"),
        }
    }

    /// The file name of its manifest, unique for each name.
    pub(crate) fn file_name(&self) -> String {
        format!("{}.json", self.0.replace('/', "%2F").replace(':', "%3A"))
    }
}

impl FromStr for ModelName {
    type Err = ShelfError;

    fn from_str(text: &str) -> Result<ModelName, ShelfError> {
        let bad = |reason| Err(ShelfError::BadName { name: text.to_owned(), reason });
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@+/:".contains(c);
        if !text.chars().all(allowed) {
            return bad("only ASCII letters, digits and -_.@+/: can be in it");
        }
        if text.split(['/', ':']).any(|part| part.is_empty() || part.starts_with(['.', '-'])) {
            return bad("each part between / and : begins with a letter, a digit or one of _@+");
        }
        if text.starts_with("hf:") {
            return bad("hf: begins the source of a model, not a name");
        }
        let name = ModelName(text.to_owned());
        match name.file_name().len() <= FILE_NAME_MAX {
            true => Ok(name),
            false => bad("it is too long"),
        }
    }
}

impl TryFrom<String> for ModelName {
    type Error = ShelfError;

    fn try_from(text: String) -> Result<ModelName, ShelfError> {
        text.parse()
    }
}

impl From<ModelName> for String {
    fn from(name: ModelName) -> String {
        name.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_that_users_know_are_names() {
        let names = ["qwen3", "qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q4_K_M@main", "o/r:sub/m.gguf", "a_b+c"];
        let files: HashSet<String> =
            names.iter().map(|name| name.parse::<ModelName>().unwrap().file_name()).collect();
        assert_eq!(files.len(), names.len());
        assert!(files.contains("Qwen%2FQwen3-0.6B-GGUF%3AQ4_K_M@main.json"), "{files:?}");
        assert!(files.iter().all(|file| !file.contains(['/', ':'])), "{files:?}");
    }

    #[test]
    fn words_that_mean_something_else_are_no_new_names() {
        for name in ["embedded", "kvik", "hf.co/o/r", "huggingface.co/o/r:Q4_K_M", "hf.co/x"] {
            let name: ModelName = name.parse().unwrap();
            assert!(name.check_new().is_err(), "{name}");
        }
        for name in ["embedded:1b", "kvik2", "o/hf.co", "hf.company/m"] {
            let name: ModelName = name.parse().unwrap();
            name.check_new().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = "x".repeat(300);
        let bad = [
            "",
            ".",
            "..",
            "/",
            "a/..",
            "../a",
            "/etc/passwd",
            "a//b",
            "a/",
            "a:",
            ":a",
            ".hidden",
            "a/.b",
            "a\\b",
            "a\0",
            "a\nb",
            "a b",
            "a%2Fb",
            "-rf",
            "a/-b",
            "ä",
            "hf:o/r",
            "a\u{202e}b",
            &long,
        ];
        for name in bad {
            assert!(name.parse::<ModelName>().is_err(), "{name:?}");
        }
        assert!("a/b".repeat(60).parse::<ModelName>().is_err(), "slashes take three bytes each");
    }
}
