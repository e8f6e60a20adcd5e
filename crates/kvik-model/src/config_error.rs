//! Errors in the shape of a model, for any kind of file.

use kvik_text::files::gguf::GgufError;

use super::Arch;

/// Why the shape of a model is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An architecture that kvik does not support.
    #[error("architecture {found:?} is not supported; kvik runs {known}")]
    UnknownArch {
        /// The name in the file.
        found: String,
        /// The supported ones.
        known: String,
    },
    /// A value outside its range, or one that contradicts another.
    #[error("the model's {field} is {found}, and {expected} is needed")]
    BadField {
        /// The value's name.
        field: String,
        /// The value found.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// The metadata cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

impl ConfigError {
    /// The error for the architecture `found`; `name` returns the name of an architecture in this kind of file, if it
    /// has one.
    pub(crate) fn unknown_arch(found: &str, name: fn(Arch) -> Option<&'static str>) -> ConfigError {
        let known: Vec<&str> = Arch::ALL.iter().copied().filter_map(name).collect();
        ConfigError::UnknownArch { found: found.into(), known: known.join(", ") }
    }

    pub(crate) fn new(field: &str, found: impl ToString, expected: impl Into<String>) -> ConfigError {
        ConfigError::BadField { field: field.into(), found: found.to_string(), expected: expected.into() }
    }

    /// Rejects numbers outside 1 to `most`.
    pub(crate) fn within(field: &str, value: usize, most: usize) -> Result<(), ConfigError> {
        match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(ConfigError::new(field, value, format!("1 to {most}"))),
        }
    }

    /// Adds the part of the model to which the field belongs.
    pub(crate) fn of(self, part: &str) -> ConfigError {
        self.renamed(|field| format!("{field} of {part}"))
    }

    /// Adds the key of the field in the file, if `key` knows it.
    pub(crate) fn with_key(self, key: impl Fn(&str) -> Option<String>) -> ConfigError {
        self.renamed(|field| match key(&field) {
            Some(key) => format!("{field} (`{key}`)"),
            None => field,
        })
    }

    fn renamed(self, name: impl Fn(String) -> String) -> ConfigError {
        match self {
            ConfigError::BadField { field, found, expected } => {
                ConfigError::BadField { field: name(field), found, expected }
            }
            other => other,
        }
    }
}
