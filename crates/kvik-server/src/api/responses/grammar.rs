//! The format of a custom tool's text: any text, or text of a grammar.
//!
//! The model writes the text as a JSON string, so a grammar is converted to a regular expression of that
//! string. This is possible for Lark grammars without recursion, which are the ones that agents send.

mod lark;

use crate::{api::request::place::Place, http::error::ApiError};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum bytes of a definition.
const DEFINITION_BYTES_MAX: usize = 64 << 10;

/// The texts that a custom tool accepts.
#[derive(Debug, PartialEq)]
pub(super) enum Format<'a> {
    Text,
    Grammar {
        syntax: &'a str,
        definition: &'a str,
        /// A regular expression for the grammar, or the reason why there is none, as the end of a sentence.
        pattern: std::result::Result<String, String>,
    },
}

/// Reads the field `format`: `{"type": "text"}`, or
/// `{"type": "grammar", "syntax": "lark" | "regex", "definition"}`.
pub(super) fn format<'a>(format: Option<&Place<'a>>) -> Result<Format<'a>> {
    let Some(format) = format else { return Ok(Format::Text) };
    let kind = format.need("type")?;
    match kind.text()? {
        "text" => return Ok(Format::Text),
        "grammar" => {}
        _ => return Err(kind.error("must be `text` or `grammar`")),
    }
    let (syntax, definition) = (format.need("syntax")?, format.need("definition")?);
    let text = definition.text()?;
    if text.len() > DEFINITION_BYTES_MAX {
        return Err(definition.error(&format!("is longer than {DEFINITION_BYTES_MAX} bytes")));
    }
    let pattern = match syntax.text()? {
        "regex" => Ok(text.to_owned()),
        "lark" => lark::regex(text),
        _ => return Err(syntax.error("must be `lark` or `regex`")),
    };
    let pattern = pattern.map(|pattern| format!("^(?:{pattern})$"));
    Ok(Format::Grammar { syntax: syntax.text()?, definition: text, pattern })
}
