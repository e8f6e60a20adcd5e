//! `POST /v1/embeddings`

use std::sync::Arc;

use axum::{extract::State, response::Response};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kvik_engine::api::{Request, Wants};
use serde::{Deserialize, Serialize};

use super::{
    input::{INPUTS_MAX, Treatment, encode},
    scale::Scale,
    usage::{Ending, only_prompt},
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
    http::{answer::words, error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

words! {
    List = "list";
    EmbeddingWord = "embedding";
}

/// All fields of a body.
pub(super) type Fields = (InputFields, CacheFields);

/// What to embed, and how to write it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct InputFields {
    /// The model; the server has one.
    #[serde(default)]
    model: String,
    /// A text, token ids, or an array of either: 2,048 at most.
    input: Prompts,
    #[serde(default)]
    encoding_format: Format,
    /// Numbers of an embedding: the first ones of the model's, scaled again.
    dimensions: Option<Whole<1, { i64::MAX }>>,
}

impl Part for InputFields {}

/// How an embedding is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Format {
    /// An array of numbers.
    #[default]
    Float,
    /// The bytes of the numbers, 32-bit floats, least significant byte first.
    Base64,
}

/// A parsed request.
struct Asked {
    requests: Vec<Request>,
    format: Format,
    dimensions: usize,
}

/// Embeds texts.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    let caller = body.caller.clone();
    let Asked { requests, format, dimensions } = app.read(body, read).await?;
    let only = only_prompt(&requests);
    let Vectors { computed, share } = app.vectors(&caller, requests).await?;
    let ending = Ending::new(&app, &caller, &computed, only);
    let vectors = computed.into_iter().map(|computed| computed.vector);
    let data = (0..).zip(vectors).map(|(index, vector)| Embedding::new(index, vector, format, dimensions));
    let (data, model) = (data.collect(), app.serving.model.name.clone());
    Ok(answer_within(share, &Embeddings { object: List, data, model, ending }))
}

fn read(app: &App, body: &Body) -> Result<Asked> {
    let (fields, cache) = Fields::from_body(body)?;
    app.accept_model(&fields.model)?;
    let width = app.serving.embedder.width;
    let dimensions = fields.dimensions.map_or(width, |dimensions| dimensions.count().unwrap_or(usize::MAX));
    if dimensions > width {
        let message =
            format!("`dimensions` must be from 1 to {width}, which this model has, not {dimensions}");
        return Err(ApiError::field("dimensions", message));
    }
    let (treatment, inputs) = (Treatment::of(app, body, cache)?, fields.input.list("input", INPUTS_MAX)?);
    let wants = Wants::Embedding(app.serving.embedder.pooling);
    let tokens = encode(app, body, "input", &inputs)?;
    let requests = tokens.into_iter().map(|tokens| treatment.request(tokens, wants.clone())).collect();
    Ok(Asked { requests, format: fields.encoding_format, dimensions })
}

/// The answer, written as text at once: a tree of JSON values would take ten times the memory of its numbers.
#[derive(Serialize, JsonSchema)]
pub(super) struct Embeddings {
    object: List,
    data: Vec<Embedding>,
    model: String,
    #[serde(flatten)]
    ending: Ending,
}

#[derive(Serialize, JsonSchema)]
struct Embedding {
    object: EmbeddingWord,
    index: usize,
    embedding: Written,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Written {
    Floats(Vec<f32>),
    /// The bytes of the numbers, 32-bit floats, least significant byte first.
    Base64(String),
}

impl Embedding {
    fn new(index: usize, mut vector: Vec<f32>, format: Format, dimensions: usize) -> Embedding {
        vector.truncate(dimensions);
        Scale::EUCLIDEAN.apply(&mut vector);
        let embedding = match format {
            Format::Float => Written::Floats(vector),
            Format::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Written::Base64(STANDARD.encode(bytes))
            }
        };
        Embedding { object: EmbeddingWord, index, embedding }
    }
}
