//! The forms in which a prompt may come: text, token ids, both mixed, or several prompts at once.

use std::sync::Arc;

use kvik_cache::Token;
use kvik_engine::text::tokenizer::Tokenizer;
use serde_json::Value;

use crate::{
    app::state::App,
    http::{
        error::ApiError,
        fields::{Fields, whole, wrong},
    },
};

/// Prompts that one request may bring: each becomes a request to the engine of its own.
const PROMPTS_MAX: usize = 64;
/// Bytes of prompts that one answer repeats at most.
const REPEATED_BYTES_MAX: usize = 16 << 20;

/// One prompt, in pieces.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) struct Prompt(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Hash)]
enum Piece {
    Text(String),
    Tokens(Vec<Token>),
}

impl Prompt {
    /// Reads the field `prompt`.
    ///
    /// An array that holds a bare number is one prompt of token ids and texts; any other array
    /// holds one prompt per entry.
    pub(crate) fn read(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
        let prompt = fields.take("prompt")?;
        let path = fields.path("prompt");
        let prompts = match fields.required("prompt", prompt)? {
            Value::Array(items) if !items.iter().any(Value::is_number) => items
                .into_iter()
                .enumerate()
                .map(|(i, item)| Prompt::one(&format!("{path}[{i}]"), item))
                .collect::<Result<_, _>>()?,
            one => vec![Prompt::one(&path, one)?],
        };
        match prompts.len() {
            0 => Err(fields.error("prompt", "is an empty array")),
            n if n > PROMPTS_MAX => {
                Err(fields.error("prompt", format!("holds {n} prompts, the limit is {PROMPTS_MAX}")))
            }
            _ => Ok(prompts),
        }
    }

    fn one(path: &str, value: Value) -> Result<Prompt, ApiError> {
        match value {
            Value::String(text) => Ok(Prompt(vec![Piece::Text(text)])),
            Value::Array(items) => {
                let mut pieces = Vec::new();
                for (i, item) in items.into_iter().enumerate() {
                    add(&mut pieces, item)
                        .map_err(|item| wrong(format!("{path}[{i}]"), "a token id or a string", &item))?;
                }
                Ok(Prompt(pieces))
            }
            other => {
                Err(wrong(path.to_owned(), "a string, an array of token ids, or an array of those", &other))
            }
        }
    }

    /// The tokens; a prompt that begins with text begins as the model's texts do (with `<s>` and the
    /// like). One that does not fit the context is refused as soon as that is known.
    pub(crate) fn encode(&self, app: &App) -> Result<Vec<Token>, ApiError> {
        let tokenizer = &app.serving.tokenizer;
        let mut tokens = Vec::new();
        for (i, piece) in self.0.iter().enumerate() {
            match piece {
                Piece::Text(text) => {
                    app.check_length(text)?;
                    tokens.extend(tokenizer.encode(text, i == 0, true));
                }
                Piece::Tokens(ids) => tokens.extend_from_slice(ids),
            }
            app.check_tokens(&tokens)?;
        }
        Ok(tokens)
    }

    /// The texts of `prompts`, for answers that repeat each of them `copies` times; `field` is what
    /// asks for the copies. All prompts fit the context already.
    pub(crate) fn texts(
        prompts: &[Prompt],
        tokenizer: &Tokenizer,
        copies: usize,
        field: &str,
    ) -> Result<Vec<Arc<str>>, ApiError> {
        let mut bytes = 0;
        let text = |prompt: &Prompt| {
            let text = prompt.text(tokenizer);
            bytes += text.len() * copies;
            if bytes > REPEATED_BYTES_MAX {
                let limit = REPEATED_BYTES_MAX >> 20;
                let message = format!(
                    "`{field}` makes the answer repeat more than {limit} MiB of prompts; ask for fewer answers at a time"
                );
                return Err(ApiError::field(field, message));
            }
            Ok(text)
        };
        prompts.iter().map(text).collect()
    }

    fn text(&self, tokenizer: &Tokenizer) -> Arc<str> {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Tokens(ids) => tokenizer.decode(&known(ids, tokenizer)),
        };
        self.0.iter().map(piece).collect::<String>().into()
    }
}

/// Adds an item to the pieces, or gives it back when it is neither text nor a token id.
fn add(pieces: &mut Vec<Piece>, item: Value) -> Result<(), Value> {
    match (item, pieces.last_mut()) {
        (Value::String(text), _) => pieces.push(Piece::Text(text)),
        (item, last) => {
            let Some(token) = whole(&item).and_then(|id| Token::try_from(id).ok()) else { return Err(item) };
            match last {
                Some(Piece::Tokens(tokens)) => tokens.push(token),
                _ => pieces.push(Piece::Tokens(vec![token])),
            }
        }
    }
    Ok(())
}

/// The token ids that the vocabulary knows; the engine refuses a prompt with others.
fn known(ids: &[Token], tokenizer: &Tokenizer) -> Vec<Token> {
    ids.iter().copied().filter(|id| (*id as usize) < tokenizer.vocab_len()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(prompt: Value) -> Result<Vec<Prompt>, ApiError> {
        Prompt::read(&mut Fields::of_body(json!({"prompt": prompt})).unwrap())
    }

    #[test]
    fn every_form() {
        let text = |text: &str| Piece::Text(text.to_owned());
        let tokens = |ids: &[Token]| Piece::Tokens(ids.to_vec());
        let check = |prompt: Value, expect: &[&[Piece]]| {
            let prompts: Vec<Prompt> = expect.iter().map(|pieces| Prompt(pieces.to_vec())).collect();
            assert_eq!(read(prompt.clone()), Ok(prompts), "{prompt}");
        };
        check(json!("hello"), &[&[text("hello")]]);
        check(json!(["a", "b"]), &[&[text("a")], &[text("b")]]);
        check(json!([1, 2, 3]), &[&[tokens(&[1, 2, 3])]]);
        check(json!([[1, 2], [3]]), &[&[tokens(&[1, 2])], &[tokens(&[3])]]);
        check(json!([1, "a", 2, 3]), &[&[tokens(&[1]), text("a"), tokens(&[2, 3])]]);
        check(json!(["a", [1, "b"]]), &[&[text("a")], &[tokens(&[1]), text("b")]]);
    }

    #[test]
    fn wrong_forms_name_their_place() {
        let check = |body: Value, at: &str| {
            let error = Prompt::read(&mut Fields::of_body(body).unwrap()).unwrap_err().body();
            assert_eq!(error["error"]["param"], at, "{error}");
        };
        check(json!({}), "prompt");
        check(json!({"prompt": 5}), "prompt");
        check(json!({"prompt": []}), "prompt");
        check(json!({"prompt": {"text": "x"}}), "prompt");
        check(json!({"prompt": ["a", true]}), "prompt[1]");
        check(json!({"prompt": [1, -2]}), "prompt[1]");
        check(json!({"prompt": [[1], [2, null]]}), "prompt[1][1]");
        check(json!({"prompt": vec!["x"; 65]}), "prompt");
    }
}
