//! `POST /tokenize`, `/detokenize` and `/apply-template`: conversions between texts, tokens and prompts,
//! without running the model.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use kvik_cache::Token;
use serde::{Deserialize, Serialize};

use crate::{
    api::request::{
        conversation::ConversationFields,
        number::TokenId,
        parts::{FromBody, Part},
    },
    app::{body::JsonBody, chat_text, state::App},
    described::JsonSchema,
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum bytes of a text for `/tokenize`, unless the context allows longer ones.
const TOKENIZE_BYTES: usize = 1 << 20;

/// The body of `/tokenize`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TextFields {
    content: String,
    /// Begin as the model's texts do, with `<s>` and the like.
    #[serde(default)]
    add_special: bool,
    /// Read the names of control tokens as these tokens; true where nothing is said.
    parse_special: Option<bool>,
    /// Give each token with its text.
    #[serde(default)]
    with_pieces: bool,
}

impl Part for TextFields {}

/// `POST /tokenize`: `{"content": text}` to `{"tokens": [...]}`.
pub(super) async fn tokenize(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.read(body, |app, body| {
        let TextFields { content, add_special, parse_special, with_pieces } = body.read()?;
        let limit = app.text_bytes_max().max(TOKENIZE_BYTES);
        if content.len() > limit {
            let message =
                format!("`content` has {} bytes, the limit is {limit}; send it in parts", content.len());
            return Err(ApiError::field("content", message));
        }
        let tokens = app.serving.texts.tokenizer.encode(&content, add_special, parse_special.unwrap_or(true));
        let piece = |&id| TokenPiece { id, piece: piece(app, id) };
        // Serialised directly: a tree of JSON values would take fifty times the memory.
        Ok(Json(match with_pieces {
            true => Tokenized::Pieces { tokens: tokens.iter().map(piece).collect() },
            false => Tokenized::Ids { tokens },
        })
        .into_response())
    })
    .await
}

/// The tokens of a text.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Tokenized<'a> {
    Ids { tokens: Vec<Token> },
    Pieces { tokens: Vec<TokenPiece<'a>> },
}

/// A token with its text.
#[derive(Serialize, JsonSchema)]
pub(super) struct TokenPiece<'a> {
    id: Token,
    piece: Piece<'a>,
}

/// The text of a token, or its bytes where they are not text by themselves.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Piece<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

fn piece(app: &App, token: Token) -> Piece<'_> {
    let bytes = app.serving.texts.tokenizer.token_bytes(token);
    std::str::from_utf8(bytes).map_or(Piece::Bytes(bytes), Piece::Text)
}

/// The text of tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Detokenized {
    content: String,
}

/// A prompt that is not run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WrittenPrompt {
    prompt: String,
}

/// The body of `/detokenize`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TokenFields {
    tokens: Vec<TokenId>,
}

impl Part for TokenFields {}

/// `POST /detokenize`: `{"tokens": [...]}` to `{"content": text}`.
pub(super) async fn detokenize(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Detokenized>> {
    app.read(body, |app, body| {
        let TokenFields { tokens } = body.read()?;
        let vocab = app.serving.texts.tokenizer.vocab_len();
        let known = |(i, TokenId(id)): (usize, TokenId)| {
            let path = format!("tokens[{i}]");
            let message = format!("`{path}` must be a token id below {vocab}, not {id}");
            if (id as usize) < vocab { Ok(id) } else { Err(ApiError::field(path, message)) }
        };
        let tokens = tokens.into_iter().enumerate().map(known).collect::<Result<Vec<Token>>>()?;
        Ok(Json(Detokenized { content: app.serving.texts.tokenizer.decode(&tokens) }))
    })
    .await
}

/// `POST /apply-template`: a chat request to `{"prompt": text}`, without running it.
pub(super) async fn apply_template(
    State(app): State<Arc<App>>,
    body: JsonBody,
) -> Result<Json<WrittenPrompt>> {
    app.read(body, |app, body| {
        let prompt = chat_text::render(&app.serving, &ConversationFields::from_body(body)?.chat()?)?;
        Ok(Json(WrittenPrompt { prompt: prompt.text }))
    })
    .await
}
