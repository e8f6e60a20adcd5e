//! Hugging Face model directories: safetensors, `tokenizer.json` and configuration files.
//!
//! Tensors get GGUF's canonical names. Nothing is converted here except the layout of gpt-oss' experts: tensors
//! with another layout than in GGUF get distinct names, which the model knows.

mod names;
mod repack;
mod settings;
mod shards;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::FileError;
use super::small::{SETTINGS_BYTES_MAX, read_own};

pub use names::{Modules, Names};
pub use settings::HfSettings;
pub use settings::TokenizerHints;
pub use shards::Shards;

/// Errors of model directories.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HfError {
    /// A JSON file cannot be parsed.
    #[error("{path}: {reason}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The error and its position.
        reason: String,
    },
    /// The directory has no weights.
    #[error(
        "{path} has neither model.safetensors nor model.safetensors.index.json; \
         kvik does not read pickled weights (pytorch_model.bin)",
        path = path.display()
    )]
    NoWeights {
        /// The directory.
        path: PathBuf,
    },
    /// A file of weights is damaged.
    #[error("{path} is not usable: {reason}; download it again", path = path.display())]
    BadShard {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The index names a file outside the directory.
    #[error("the index names {name:?}, which is no file name; the directory is not trustworthy")]
    BadShardName {
        /// The name.
        name: String,
    },
    /// The directory has no output matrix, and its configuration does not tie the embedding.
    #[error(
        "the directory has no lm_head.weight, and config.json does not set \"tie_word_embeddings\": true; \
         set it if the model uses its embedding as the output matrix"
    )]
    NoOutputMatrix,
    /// A tensor that the model's architecture does not have.
    #[error("tensor {tensor:?} is not part of the architectures that kvik runs")]
    UnknownTensor {
        /// Its name in the file.
        tensor: String,
    },
    /// An auxiliary tensor of quantised weights.
    #[error(
        "tensor {tensor:?} belongs to quantised weights; kvik reads F32, F16 and BF16 (use a GGUF file for quantised weights)"
    )]
    Quantised {
        /// Its name in the file.
        tensor: String,
    },
    /// A tensor occurs twice.
    #[error("tensor {tensor:?} occurs twice; remove the files that do not belong to the model")]
    DuplicateTensor {
        /// Its name in the file.
        tensor: String,
    },
    /// A tensor of a type other than F32, F16 and BF16.
    #[error(
        "tensor {tensor:?} has type {dtype}; kvik reads F32, F16 and BF16 (use a GGUF file for quantised weights)"
    )]
    UnsupportedType {
        /// Its name in the file.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// A tensor of gpt-oss' experts is missing.
    #[error(
        "tensor {tensor:?} is missing, and others of its experts are there; download the directory again"
    )]
    MissingPart {
        /// The suffix of its name.
        tensor: String,
    },
    /// A tensor without dimensions, or of a shape that its kind cannot have.
    #[error(
        "tensor {tensor:?} has the shape {shape:?}; one to three dimensions are needed, or those of its kind"
    )]
    BadShape {
        /// Its name in the file.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
}

impl HfError {
    /// A JSON file that cannot be parsed.
    pub fn json(path: &Path, error: &serde_json::Error) -> HfError {
        HfError::Json { path: path.into(), reason: error.to_string() }
    }
}

/// JSON files larger than this are not read: vocabularies and indices.
const JSON_BYTES_MAX: u64 = 64 << 20;

/// Reads a small file; `None` if it is missing.
pub fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    read_within(path, JSON_BYTES_MAX)
}

fn read_within(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, FileError> {
    match read_own(path, bytes_max) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            Err(HfError::Json { path: path.into(), reason: error.to_string() }.into())
        }
        Err(error) => Err(FileError::io(path, error)),
    }
}

/// Reads a JSON file; `None` if it is missing.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    read_optional(path)?.map(|bytes| parse_file(path, &bytes)).transpose()
}

/// Reads a JSON file of settings, which are few; `None` if it is missing.
pub fn read_settings<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    read_within(path, SETTINGS_BYTES_MAX)?.map(|bytes| parse_file(path, &bytes)).transpose()
}

fn parse_file<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, FileError> {
    Ok(parse_json(bytes).map_err(|error| HfError::json(path, &error))?)
}

/// Parses JSON as Python writes it: non-finite numbers become null.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(bytes).or_else(|error| match without_infinities(bytes) {
        Some(plain) => serde_json::from_slice(&plain),
        None => Err(error),
    })
}

/// The text with non-finite numbers replaced by null; `None` if there are none.
fn without_infinities(bytes: &[u8]) -> Option<Vec<u8>> {
    const NUMBERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut plain, mut rest, mut quoted, mut found) = (Vec::with_capacity(bytes.len()), bytes, false, false);
    while let [first, behind @ ..] = rest {
        if let Some(number) = NUMBERS.iter().find(|number| !quoted && rest.starts_with(number)) {
            plain.extend_from_slice(b"null");
            (rest, found) = (&rest[number.len()..], true);
            continue;
        }
        // A quotation mark after a backslash does not end the string.
        let len = if quoted && *first == b'\\' { rest.len().min(2) } else { 1 };
        quoted ^= *first == b'"';
        plain.extend_from_slice(&rest[..len]);
        rest = if len == 2 { &rest[2..] } else { behind };
    }
    found.then_some(plain)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn json_of_python_is_read() {
        let check = |text: &str, expect: Value| {
            assert_eq!(parse_json::<Value>(text.as_bytes()).unwrap(), expect, "{text}");
        };
        check(
            r#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN}"#,
            json!({"a": [0.0, null], "b": null, "c": null}),
        );
        check(r#"{"Infinity": "\"NaN", "x": NaN}"#, json!({"Infinity": "\"NaN", "x": null}));
        check(r#"["\\", Infinity]"#, json!(["\\", null]));
        for bad in ["Infinit", "[Infinity", "\"\\", "{\"a\": Infinity1}", ""] {
            assert!(parse_json::<Value>(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
