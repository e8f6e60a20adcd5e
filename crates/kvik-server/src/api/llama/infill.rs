//! `POST /infill`: fills in the middle of a text between a prefix and a suffix.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use kvik_cache::Token;
use kvik_text::tokenizer::{FillTokens, Tokenizer};
use serde::Deserialize;

use super::{
    answer::LlamaAnswer,
    completion::{Asked, CompletionFields, LlamaServer},
};
use crate::{
    api::request::{
        generation::GenerationFields,
        parts::{FromBody, Part},
        prompt::Prompt,
    },
    app::{body::JsonBody, keys::Caller, requests::Prepared, state::App},
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// llama-server's separator between chunks, for vocabularies without a token for it.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// All fields of a body.
pub(super) type Fields = (InfillFields, GenerationFields<LlamaServer>, CompletionFields);

/// The text whose middle is wanted.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct InfillFields {
    /// What stands before the middle.
    input_prefix: String,
    /// What stands after the middle.
    input_suffix: String,
    /// Parts of other files, those that matter most last.
    #[serde(default)]
    input_extra: Vec<Chunk>,
    /// How the middle begins.
    #[serde(default)]
    prompt: String,
}

impl Part for InfillFields {}

/// A part of a file.
#[derive(Debug, Deserialize, JsonSchema)]
struct Chunk {
    text: String,
    /// Name of the file.
    filename: Option<String>,
}

/// Fills in the middle of a text.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.complete(body, read).await
}

fn read(app: &App, caller: &Caller, body: &Body) -> Result<Prepared<LlamaAnswer>> {
    let marks = Marks::of(app.serving.texts.tokenizer.fill_tokens())?;
    let (text, generation, fields) = Fields::from_body(body)?;
    let asked = Asked::read(app, generation, fields)?;
    let texts = [&text.input_prefix, &text.input_suffix, &text.prompt];
    let chunks = text.input_extra.iter().map(|chunk| &chunk.text);
    for text in texts.into_iter().chain(chunks) {
        body.still_wanted()?;
        app.check_length(text)?;
    }
    // At least a quarter of the context is for the prompt.
    let context = app.serving.model.context;
    let room = context.saturating_sub(asked.max_tokens.min(context - context / 4));
    let prompt = marks.prompt(&app.serving.texts.tokenizer, &text, room);
    asked.of(app, caller, &[Prompt::of_tokens(prompt)], body)
}

/// The tokens that delimit the parts of the text; three of them are required.
struct Marks {
    prefix: Token,
    suffix: Token,
    middle: Token,
    repository: Option<Token>,
    file: Option<Token>,
}

impl Marks {
    fn of(tokens: FillTokens) -> Result<Marks> {
        let FillTokens { prefix, suffix, middle, repository, file } = tokens;
        if let (Some(prefix), Some(suffix), Some(middle)) = (prefix, suffix, middle) {
            return Ok(Marks { prefix, suffix, middle, repository, file });
        }
        let missing = [(prefix, "prefix"), (suffix, "suffix"), (middle, "middle")];
        let missing = missing.iter().filter(|(token, _)| token.is_none());
        let missing: String = missing.map(|(_, name)| format!("{name} token is missing. ")).collect();
        Err(ApiError::not_supported(format!("Infill is not supported by this model: {missing}").trim_end()))
    }

    /// Assembles the prompt in llama-server's order, in at most `room` tokens. Long chunks keep their end; a
    /// long text keeps the parts next to the middle, three tokens before it for one after it.
    fn prompt(&self, tokenizer: &Tokenizer, text: &InfillFields, room: usize) -> Vec<Token> {
        let encode = |text: &str| tokenizer.encode(text, false, false);
        let begin = encode(&text.prompt);
        let (before, after) = (encode(&text.input_prefix), encode(&text.input_suffix));
        // The text begins with one special token, and its parts are delimited by three.
        let room = room.saturating_sub(begin.len() + 4);
        let kept_after = after.len().min((room / 4).max(room.saturating_sub(before.len())));
        let kept_before = before.len().min(room - kept_after);
        let chunks = self.chunks(&encode, &text.input_extra);
        let kept_chunks = chunks.len().min(room - kept_after - kept_before);

        let mut prompt = chunks[chunks.len() - kept_chunks..].to_vec();
        prompt.extend(tokenizer.encode("", true, false));
        prompt.push(self.prefix);
        prompt.extend_from_slice(&before[before.len() - kept_before..]);
        prompt.extend(begin);
        prompt.push(self.suffix);
        prompt.extend_from_slice(&after[..kept_after]);
        prompt.push(self.middle);
        prompt
    }

    fn chunks(&self, encode: &dyn Fn(&str) -> Vec<Token>, chunks: &[Chunk]) -> Vec<Token> {
        let mut tokens = Vec::new();
        let named = |token: Token, name: &str| [vec![token], encode(&format!("{name}\n"))].concat();
        if let Some(repository) = self.repository {
            tokens.extend(named(repository, "myproject"));
        }
        for chunk in chunks {
            tokens.extend(match self.file {
                Some(file) => named(file, chunk.filename.as_deref().unwrap_or("tmp")),
                None => encode(SNIPPET),
            });
            tokens.extend(encode(&chunk.text));
        }
        if let Some(file) = self.file {
            tokens.extend(named(file, "filename"));
        }
        tokens
    }
}
