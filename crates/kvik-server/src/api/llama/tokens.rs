//! `POST /tokenize`, `/detokenize` and `/apply-template`: conversions between texts, tokens and prompts,
//! without running the model. Their answers can be many times as long as the bodies that ask for them, so they hold
//! memory until they are read.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use kvik_cache::{TenantId, Token};
use kvik_text::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::{
    api::{
        chat::previewed,
        request::{
            cache::CacheFields,
            conversation::ConversationFields,
            number::TokenId,
            parts::{FromBody, Part},
        },
    },
    app::{body::JsonBody, chat_text, kept_answer::KeptAnswer, state::App},
    described::JsonSchema,
    http::{answer::written, error::ApiError},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum bytes of a text for `/tokenize`, unless the context allows longer ones.
const TOKENIZE_BYTES: usize = 1 << 20;
/// Maximum bytes of the text of `/detokenize`: a token of four bytes in a body may stand for a hundred.
const DETOKENIZED_BYTES_MAX: usize = 16 << 20;

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
    let tenant = body.caller.tenant.id;
    app.read(body, move |app, body| {
        let TextFields { content, add_special, parse_special, with_pieces } = body.read()?;
        let limit = app.text_bytes_max().max(TOKENIZE_BYTES);
        if content.len() > limit {
            let message =
                format!("`content` has {} bytes, the limit is {limit}; send it in parts", content.len());
            return Err(ApiError::field("content", message));
        }
        let tokens = app.serving.texts.tokenizer.encode(&content, add_special, parse_special.unwrap_or(true));
        let piece = |&id| TokenPiece { id, piece: piece(app, id) };
        let tokenized = match with_pieces {
            true => Tokenized::Pieces { tokens: tokens.iter().map(piece).collect() },
            false => Tokenized::Ids { tokens },
        };
        answered(app, tenant, &tokenized)
    })
    .await
}

/// Returns an answer that holds its share of the memory until its client has read it. It is serialised directly: a tree
/// of JSON values would take fifty times the memory.
fn answered(app: &App, tenant: TenantId, answer: &impl Serialize) -> Result<Response> {
    app.server.answer_with(tenant, KeptAnswer::Written(written(answer)))
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
pub(super) async fn detokenize(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    let tenant = body.caller.tenant.id;
    app.read(body, move |app, body| {
        let TokenFields { tokens } = body.read()?;
        let tokenizer = &app.serving.texts.tokenizer;
        let vocab = tokenizer.vocab_len();
        let known = |(i, TokenId(id)): (usize, TokenId)| {
            let path = format!("tokens[{i}]");
            let message = format!("`{path}` must be a token id below {vocab}, not {id}");
            if (id as usize) < vocab { Ok(id) } else { Err(ApiError::field(path, message)) }
        };
        let tokens = tokens.into_iter().enumerate().map(known).collect::<Result<Vec<Token>>>()?;
        check_text(tokenizer, &tokens)?;
        answered(app, tenant, &Detokenized { content: tokenizer.decode(&tokens) })
    })
    .await
}

/// Refuses tokens whose text is too long, before it is made.
fn check_text(tokenizer: &Tokenizer, tokens: &[Token]) -> Result<()> {
    let bytes: usize = tokens.iter().map(|&token| tokenizer.token_bytes(token).len()).sum();
    if bytes <= DETOKENIZED_BYTES_MAX {
        return Ok(());
    }
    let limit = DETOKENIZED_BYTES_MAX >> 20;
    let message =
        format!("`tokens` are a text of {bytes} bytes, the limit is {limit} MiB; send them in parts");
    Err(ApiError::field("tokens", message))
}

/// The fields of a chat that decide its prompt.
pub(super) type TemplateFields = (ConversationFields, CacheFields);

/// `POST /apply-template`: a chat request to `{"prompt": text}`, without running it. The messages of a stored conversation
/// come before those of the request, as in its answer.
pub(super) async fn apply_template(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    let tenant = body.caller.tenant.clone();
    app.read(body, move |app, body| {
        let (conversation, cache) = TemplateFields::from_body(body)?;
        let kept = cache.keep()?.conversation;
        let chat = previewed(app, &tenant.name, conversation.chat()?, kept.as_deref())?;
        let prompt = chat_text::render(&app.serving, &chat)?;
        answered(app, tenant.id, &WrittenPrompt { prompt: prompt.text })
    })
    .await
}
