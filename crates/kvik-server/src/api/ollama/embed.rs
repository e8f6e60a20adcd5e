//! `POST /api/embed` and the older `/api/embeddings`.

use std::sync::Arc;

use axum::{
    Json as Answered,
    extract::State,
    response::{IntoResponse, Response},
};
use kvik_engine::api::{Request, Wants};
use serde::{Deserialize, Serialize};

use super::{answer::nanos, fields::StayFields};
use crate::{
    api::{
        embedding::{INPUTS_MAX, Scale, Treatment, encode},
        request::{
            cache::CacheFields,
            number::Whole,
            parts::{FromBody, Part},
            prompt::Prompts,
        },
    },
    app::{
        body::JsonBody,
        kept_answer::answer_within,
        state::App,
        vectors::{Computed, Vectors},
    },
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Body, Json},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// A number of dimensions, within the model's or not.
type Dimensions = Whole<{ i64::MIN }, { i64::MAX }>;

/// All fields of a body.
pub(super) type Fields = (EmbedFields, StayFields, CacheFields);

/// What to embed.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct EmbedFields {
    /// The one model that runs here answers for any name, unless the server is strict.
    #[serde(default)]
    model: String,
    /// A text, or an array of texts: 2,048 at most. With none, an empty text or an empty array the model is loaded, or
    /// unloaded with a `keep_alive` of 0.
    input: Option<Prompts>,
    /// A text, of the older endpoint; likewise.
    prompt: Option<Prompts>,
    /// Numbers of an embedding: the first ones of the model's, scaled again; all of them where this is less than 1 or more
    /// than there are.
    dimensions: Option<Dimensions>,
    /// Not read: a text that is longer than the context is refused, and never cut off without a word.
    #[serde(rename = "truncate")]
    _truncate: Option<bool>,
    /// Not read: nothing in it concerns embeddings.
    #[serde(rename = "options")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    _options: Option<Json>,
}

impl Part for EmbedFields {}

/// The embeddings of texts.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Embedded {
    model: String,
    embeddings: Vec<Vec<f64>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// The embedding of one text; empty without a text.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EmbeddedOne {
    embedding: Vec<f64>,
}

/// Widens to `f64`: Ollama's clients expect the digits of doubles.
fn doubles(vector: Vec<f32>) -> Vec<f64> {
    vector.into_iter().map(f64::from).collect()
}

/// Embeds texts.
pub(super) async fn embed(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    let came = body.came.clone();
    let (vectors, dimensions) = run(&app, body, "input").await?;
    let nothing = Embedded::of_nothing(&app.serving.model.name);
    let Some(Vectors { computed, share }) = vectors else { return Ok(Answered(nothing).into_response()) };
    let tokens: usize = computed.iter().map(|computed| computed.report.prompt_tokens).sum();
    let scaled = |Computed { mut vector, .. }: Computed| {
        vector.truncate(dimensions);
        Scale::EUCLIDEAN.apply(&mut vector);
        doubles(vector)
    };
    let answer = Embedded {
        embeddings: computed.into_iter().map(scaled).collect(),
        total_duration: nanos(app.now().saturating_sub(came.arrived)),
        load_duration: nanos(came.loading),
        prompt_eval_count: tokens,
        ..nothing
    };
    Ok(answer_within(share, &answer))
}

impl Embedded {
    /// The answer to a request without a text.
    pub(super) fn of_nothing(model: &str) -> Embedded {
        let (model, embeddings) = (model.to_owned(), Vec::new());
        Embedded { model, embeddings, total_duration: 0, load_duration: 0, prompt_eval_count: 0 }
    }
}

impl EmbeddedOne {
    /// The answer to a request without a text.
    pub(super) fn of_nothing() -> EmbeddedOne {
        EmbeddedOne { embedding: Vec::new() }
    }
}

/// Embeds one text, unscaled.
pub(super) async fn embeddings(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    let (vectors, _) = run(&app, body, "prompt").await?;
    let Some(Vectors { computed, share }) = vectors else {
        return Ok(Answered(EmbeddedOne::of_nothing()).into_response());
    };
    let embedding = computed.into_iter().next().map(|computed| doubles(computed.vector));
    Ok(answer_within(share, &EmbeddedOne { embedding: embedding.unwrap_or_default() }))
}

/// Returns the vectors of the texts in `field`, if there are any, and the number of dimensions to answer with.
async fn run(app: &Arc<App>, body: JsonBody, field: &'static str) -> Result<(Option<Vectors>, usize)> {
    let caller = body.caller.clone();
    let (requests, dimensions) = app.read(body, move |app, body| read(app, body, field)).await?;
    // What only loads the model, or unloads it, waits for nobody.
    if requests.is_empty() {
        return Ok((None, dimensions));
    }
    Ok((Some(app.vectors(&caller, requests).await?), dimensions))
}

fn read(app: &App, body: &Body, field: &'static str) -> Result<(Vec<Request>, usize)> {
    let (fields, _, cache) = Fields::from_body(body)?;
    app.accept_model(&fields.model)?;
    let dimensions = dimensions(fields.dimensions, app.serving.embedder.width);
    let texts = if field == "input" { fields.input } else { fields.prompt };
    let texts = match texts.filter(|texts| !texts.say_nothing()) {
        Some(texts) => texts.list(field, INPUTS_MAX)?,
        None => Vec::new(),
    };
    let treatment = Treatment::of(app, body, cache)?;
    let wants = Wants::Embedding(app.serving.embedder.pooling);
    let tokens = encode(app, body, field, &texts)?;
    let requests = tokens.into_iter().map(|tokens| treatment.request(tokens, wants.clone())).collect();
    Ok((requests, dimensions))
}

/// The number of dimensions that a request asks for, of the `width` that the model has. As in Ollama, a request for none
/// or for more is one for all.
fn dimensions(asked: Option<Dimensions>, width: usize) -> usize {
    let asked = asked.and_then(Whole::count).filter(|&asked| asked > 0);
    asked.map_or(width, |asked| asked.min(width))
}
