//! `POST /embedding`: embeddings in llama-server's format.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use kvik_engine::api::{Request, Wants};
use serde::{Deserialize, Serialize};

use super::{
    input::{INPUTS_MAX, Treatment, encode},
    scale::Scale,
};
use crate::{
    api::request::{
        cache::CacheFields,
        number::Whole,
        parts::{FromBody, Part},
        prompt::Prompts,
    },
    app::{body::JsonBody, kept_answer::answer_within, state::App, vectors::Vectors},
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// All fields of a body.
pub(super) type Fields = (ContentFields, CacheFields);

/// What to embed.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ContentFields {
    /// A text, token ids, or an array of either: 2,048 at most.
    content: Option<Prompts>,
    /// The same, where `content` is absent.
    input: Option<Prompts>,
    /// -1 leaves an embedding as the model gives it, 0 scales its largest value to 32760, p its p-norm to 1; 2 where
    /// nothing is said.
    embd_normalize: Option<Whole<-1, 64>>,
}

impl Part for ContentFields {}

/// Embeds texts.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    let caller = body.caller.clone();
    let (requests, scale) = app.read(body, read).await?;
    let Vectors { computed, share } = app.vectors(&caller, requests).await?;
    let vectors = computed.into_iter().map(|computed| computed.vector);
    let embedding = |(index, mut vector): (usize, Vec<f32>)| {
        scale.apply(&mut vector);
        Embedding { index, embedding: [vector] }
    };
    Ok(answer_within(share, &vectors.enumerate().map(embedding).collect::<Vec<Embedding>>()))
}

/// One prompt may have several vectors in llama-server; here it has one.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaEmbedding")]
pub(super) struct Embedding {
    index: usize,
    embedding: [Vec<f32>; 1],
}

fn read(app: &App, body: &Body) -> Result<(Vec<Request>, Scale)> {
    let (fields, cache) = Fields::from_body(body)?;
    let (name, inputs) = match (fields.content, fields.input) {
        (Some(content), _) => ("content", content),
        (None, Some(input)) => ("input", input),
        (None, None) => return Err(ApiError::field("content", "`content` is missing")),
    };
    let (treatment, inputs) = (Treatment::of(app, body, cache)?, inputs.list(name, INPUTS_MAX)?);
    let wants = Wants::Embedding(app.serving.embedder.pooling);
    let tokens = encode(app, body, name, &inputs)?;
    let requests = tokens.into_iter().map(|tokens| treatment.request(tokens, wants.clone())).collect();
    Ok((requests, fields.embd_normalize.map_or(Scale::EUCLIDEAN, |number| number.get().into())))
}
