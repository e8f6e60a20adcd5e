//! Messages about wrong values, in the same words for every type.

use std::fmt;

use serde::de::{self, Expected, Unexpected};
use serde_json::{Number, Value};

use super::{JsonError, syntax};
use crate::http::error::ApiError;

/// Maximum bytes of a text that a message repeats.
const SHOWN_BYTES: usize = 40;

/// Reasons why a type cannot be read.
#[derive(Debug)]
pub(super) enum Complaint {
    /// The value is wrong; the text continues a sentence that begins with its path.
    Wrong(String),
    /// A field of the object is wrong: its name, and the rest of the sentence.
    Field(String, String),
    /// The text is not JSON or exceeds the budget; the message is about the whole field of the body.
    Json(JsonError),
    /// The client has left.
    Left(ApiError),
}

impl Complaint {
    /// Message about the value at this path.
    pub(super) fn at(self, path: &str) -> ApiError {
        let field = |path: &str, text: String| ApiError::field(path, format!("`{path}` {text}"));
        match self {
            Complaint::Wrong(text) => field(path, text),
            Complaint::Field(name, text) if path.is_empty() => field(&name, text),
            // The path of an unknown key ends with the key already.
            Complaint::Field(name, text) if path.strip_suffix(&name).is_some_and(|p| p.ends_with('.')) => {
                field(path, text)
            }
            Complaint::Field(name, text) => field(&format!("{path}.{name}"), text),
            Complaint::Json(error) => {
                field(path.split(['.', '[']).next().unwrap_or_default(), error.to_string())
            }
            Complaint::Left(error) => error,
        }
    }
}

impl From<JsonError> for Complaint {
    fn from(error: JsonError) -> Complaint {
        Complaint::Json(error)
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Complaint::Wrong(text) => f.write_str(text),
            Complaint::Field(name, text) => write!(f, "`{name}` {text}"),
            Complaint::Json(error) => error.fmt(f),
            Complaint::Left(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Complaint {}

impl de::Error for Complaint {
    fn custom<T: fmt::Display>(text: T) -> Complaint {
        Complaint::Wrong(text.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Complaint {
        Complaint::Wrong(format!("must be {}, not {}", kind_of(expected), Found(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Complaint {
        Complaint::invalid_type(found, expected)
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Complaint {
        let shown = Found(Unexpected::Str(found)).to_string();
        let shown = shown.strip_prefix("the string ").unwrap_or("unknown");
        Complaint::Wrong(format!("is {shown}; kvik knows {}", listed(expected)))
    }

    fn unknown_field(name: &str, expected: &'static [&'static str]) -> Complaint {
        Complaint::Field(name.to_owned(), format!("is not known; kvik knows {}", expected.join(", ")))
    }

    fn missing_field(name: &'static str) -> Complaint {
        Complaint::Field(name.to_owned(), "is missing".to_owned())
    }
}

/// Translates serde's name of an expected type to JSON terms.
fn kind_of(expected: &dyn Expected) -> String {
    let expected = expected.to_string();
    match expected.as_str() {
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "an array".to_owned(),
        text if text.starts_with("struct ") => "an object".to_owned(),
        _ => expected,
    }
}

/// A list in words: "a", "b" and "c".
fn listed(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => quoted.concat(),
    }
}

/// Describes a value in words, including the value itself if it is short.
struct Found<'a>(Unexpected<'a>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unexpected::Bool(b) => b.fmt(f),
            Unexpected::Unsigned(n) => n.fmt(f),
            Unexpected::Signed(n) => n.fmt(f),
            Unexpected::Float(x) => match Number::from_f64(x) {
                Some(number) => number.fmt(f),
                None => x.fmt(f),
            },
            Unexpected::Str(text) if text.len() <= SHOWN_BYTES => write!(f, "the string {text:?}"),
            Unexpected::Str(_) => f.write_str("a string"),
            Unexpected::Unit => f.write_str("null"),
            Unexpected::Seq => f.write_str("an array"),
            Unexpected::Map => f.write_str("an object"),
            other => other.fmt(f),
        }
    }
}

/// Describes a text that is not an object.
pub(super) fn found(text: &[u8]) -> Result<String, JsonError> {
    // Parsing a long array would cost more than a description is worth.
    if text.trim_ascii_start().starts_with(b"[") {
        return Ok("an array".to_owned());
    }
    Ok(wrong_kind(&serde_json::from_slice(text).map_err(syntax)?))
}

/// Describes a value in words.
fn wrong_kind(value: &Value) -> String {
    let found = match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(b) => Unexpected::Bool(*b),
        Value::Number(n) => return n.to_string(),
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    };
    Found(found).to_string()
}

/// An error of the form "`path` must be `expected`, not ...".
pub(crate) fn wrong(path: impl Into<String>, expected: &str, value: &Value) -> ApiError {
    let path = path.into();
    let message = format!("`{path}` must be {expected}, not {}", wrong_kind(value));
    ApiError::field(path, message)
}
