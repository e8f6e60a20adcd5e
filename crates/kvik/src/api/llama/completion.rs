//! llama-server's own endpoints: `/completion`, `/tokenize`, `/detokenize`, `/apply-template`, `/props`.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use kvik_cache::Token;
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{Echo, LlamaAnswer};
use crate::{
    api::{
        openai::chat::Conversation,
        request::{
            options::{LLAMA_SERVER, Options, max_tokens},
            prompt::Prompt,
        },
    },
    app::{
        body::JsonBody,
        report::closing::Origin,
        state::{App, Prepared},
    },
    http::{
        error::ApiError,
        fields::{Fields, whole, wrong},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// `n_probs` at most.
const PROBABILITIES_MAX: i64 = 256;

/// `POST /completion`: continues prompts, with llama-server's fields and defaults.
pub(crate) async fn completion(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.complete(body, read_completion).await
}

fn read_completion(app: &App, mut fields: Fields) -> Result<Prepared<LlamaAnswer>> {
    let tokenizer = &app.serving.tokenizer;
    let prompts = Prompt::read(&mut fields)?;
    let options = Options::read(&mut fields, LLAMA_SERVER, &|text| tokenizer.encode(text, false, true))?;
    let context = app.serving.model.context;
    let max_tokens = max_tokens(&mut fields, context)?.unwrap_or(context);
    let probabilities = fields.integer("n_probs", 0..=PROBABILITIES_MAX)?.unwrap_or(0) as usize;
    let logprobs = (probabilities > 0).then_some(probabilities);
    let stream = fields.bool("stream")?.unwrap_or(false);

    options.check_copies(prompts.len())?;
    let request = |prompt: &Prompt| {
        fields.still_wanted()?;
        Ok(options.request(prompt.encode(app)?, max_tokens, logprobs))
    };
    let requests = prompts.iter().map(request).collect::<Result<_>>()?;
    let echo = Echo {
        model: app.serving.model.name.clone(),
        settings: settings(&options, max_tokens, probabilities, stream),
        stop: options.stop.clone(),
        prompts: Prompt::texts(&prompts, tokenizer, options.choices as usize, "n")?,
        max_tokens,
        context,
        return_tokens: fields.bool("return_tokens")?.unwrap_or(false),
        probabilities: logprobs.is_some(),
    };
    let answer = LlamaAnswer::new(echo, options.choices as usize);
    let origin = Origin { schema_notes: options.schema_notes, ..Origin::default() };
    Ok(Prepared { requests, origin, answer, stream })
}

/// `generation_settings`: what was really used.
fn settings(options: &Options, max_tokens: usize, n_probs: usize, stream: bool) -> Value {
    let sampling = &options.sampling;
    json!({
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_last_n": sampling.penalty_last_n,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": options.stop,
        "max_tokens": max_tokens,
        "n_predict": max_tokens,
        "ignore_eos": options.ignore_eos,
        "stream": stream,
        "n_probs": n_probs,
        "cache_prompt": options.reuse,
    })
}

/// Longest text that `/tokenize` takes where the context allows no longer ones.
const TOKENIZE_BYTES: usize = 1 << 20;

/// `POST /tokenize`: `{"content": text}` to `{"tokens": [...]}`.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.read(body, |app, mut fields| {
        let content = fields.string("content")?;
        let content = fields.required("content", content)?;
        let limit = app.text_bytes_max().max(TOKENIZE_BYTES);
        if content.len() > limit {
            let message = format!("has {} bytes, the limit is {limit}; send it in parts", content.len());
            return Err(fields.error("content", message));
        }
        let add_special = fields.bool("add_special")?.unwrap_or(false);
        let parse_special = fields.bool("parse_special")?.unwrap_or(true);
        let tokens = app.serving.tokenizer.encode(&content, add_special, parse_special);
        match fields.bool("with_pieces")? {
            Some(true) => {
                written(tokens.iter().map(|&id| TokenPiece { id, piece: piece(app, id) }).collect())
            }
            _ => written(tokens),
        }
    })
    .await
}

/// A token with its text.
#[derive(Serialize)]
struct TokenPiece<'a> {
    id: Token,
    piece: Piece<'a>,
}

/// The text of a token, or its bytes where they are not text by themselves.
#[derive(Serialize)]
#[serde(untagged)]
enum Piece<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

fn piece(app: &App, token: Token) -> Piece<'_> {
    let bytes = app.serving.tokenizer.token_bytes(token);
    std::str::from_utf8(bytes).map_or(Piece::Bytes(bytes), Piece::Text)
}

/// The answer as text at once: a tree of JSON values would take fifty times the memory.
fn written<T: Serialize>(tokens: Vec<T>) -> Result<Response> {
    #[derive(Serialize)]
    struct Tokens<T> {
        tokens: Vec<T>,
    }
    Ok(Json(Tokens { tokens }).into_response())
}

/// `POST /detokenize`: `{"tokens": [...]}` to `{"content": text}`.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    app.read(body, |app, mut fields| {
        let items = fields.array("tokens")?;
        let items = fields.required("tokens", items)?;
        let tokens =
            items.iter().enumerate().map(|(i, item)| token(app, i, item)).collect::<Result<Vec<_>>>()?;
        Ok(Json(json!({"content": app.serving.tokenizer.decode(&tokens)})))
    })
    .await
}

fn token(app: &App, i: usize, item: &Value) -> Result<Token> {
    let vocab = app.serving.tokenizer.vocab_len();
    whole(item)
        .and_then(|id| Token::try_from(id).ok())
        .filter(|id| (*id as usize) < vocab)
        .ok_or_else(|| wrong(format!("tokens[{i}]"), &format!("a token id below {vocab}"), item))
}

/// `POST /apply-template`: a chat request to `{"prompt": text}`, without running it.
pub(crate) async fn apply_template(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    app.read(body, |app, mut fields| {
        let prompt = Conversation::read(&mut fields)?.render(app)?;
        Ok(Json(json!({"prompt": prompt.text})))
    })
    .await
}

/// `GET /props`: what llama-server's clients ask at their start.
pub(crate) async fn props(State(app): State<Arc<App>>) -> Result<Json<Value>> {
    let model = &app.serving.model;
    let tokenizer = &app.serving.tokenizer;
    let text = |token: Option<Token>| {
        token.map(|token| String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned())
    };
    let options = Options::read(&mut Fields::of_body(json!({}))?, LLAMA_SERVER, &|_| Vec::new())?;
    Ok(Json(json!({
        "default_generation_settings": {
            "n_ctx": model.context,
            "params": settings(&options, model.context, 0, false),
        },
        "total_slots": model.parallel,
        "model_path": model.source,
        "model_alias": model.name,
        "modalities": {"vision": false, "audio": false},
        "chat_template": app.serving.template.as_ref().map(|template| template.source()),
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "build_info": concat!("kvik ", env!("CARGO_PKG_VERSION")),
    })))
}
