//! `POST /v1/rerank`: documents by relevance to a query, in the format of Jina, Cohere and llama-server, and texts in that
//! of TEI (Hugging Face's Text Embeddings Inference).

use std::{fmt, sync::Arc};

use axum::{extract::State, response::Response};
use kvik_engine::api::Request;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, IgnoredAny, MapAccess},
};

use super::{
    embeddings::List,
    input::{INPUTS_MAX, Treatment},
    ranking::{INSTRUCTION, Question, Scoring},
    usage::{Ending, only_prompt},
};
use crate::{
    api::request::{
        cache::CacheFields,
        number::Whole,
        parts::{FromBody, Part},
    },
    app::{body::JsonBody, kept_answer::KeptAnswer, state::App, vectors::Vectors},
    described::JsonSchema,
    http::{answer::written, error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// All fields of a body.
pub(super) type Fields = (RerankFields, CacheFields);

/// What to order.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RerankFields {
    /// The model; the server has one.
    #[serde(default)]
    model: String,
    /// What documents are to fit.
    query: String,
    /// Texts, or objects with a `text`: 2,048 at most.
    documents: Option<Vec<Document>>,
    /// The same in TEI's form, in place of `documents`: the answer is an array of scores.
    texts: Option<Vec<Document>>,
    /// Documents in the answer at most; all where nothing is said.
    top_n: Option<Whole<1, { i64::MAX }>>,
    /// Repeat the documents in the answer.
    #[serde(default)]
    return_documents: bool,
    /// Repeat `texts` in the answer.
    #[serde(default)]
    return_text: bool,
    /// Give what the probabilities are computed from: by how much the logit of yes exceeds that of no.
    #[serde(default)]
    raw_scores: bool,
    /// Not read: a text that is longer than the context is refused, and never cut off without a word.
    #[serde(rename = "truncate")]
    _truncate: Option<bool>,
    /// What a reranker is to look for, in a sentence; a web search where nothing is said.
    instruction: Option<String>,
}

impl Part for RerankFields {}

/// A document: a string, or an object with a `text`.
#[derive(Debug)]
struct Document(String);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Document, D::Error> {
        deserializer.deserialize_struct("Document", &["text"], DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> de::Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an object with a `text`")
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Document, E> {
        Ok(Document(text.to_owned()))
    }

    /// Ignores other fields, of which clients send many.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Document, A::Error> {
        let mut text = None;
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "text" => text = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        text.map(Document).ok_or_else(|| de::Error::missing_field("text"))
    }
}

#[cfg(test)]
impl JsonSchema for Document {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Document".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let object = serde_json::json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
        schemars::json_schema!({"anyOf": [{"type": "string"}, object]})
    }
}

/// A parsed request.
struct Asked {
    requests: Vec<Request>,
    scoring: Scoring,
    /// True if scores are not to become probabilities.
    is_raw: bool,
    count: usize,
    form: Form,
    /// The documents, if the answer repeats them.
    documents: Option<Vec<String>>,
}

/// The form of an answer.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// To `documents`.
    Results,
    /// To `texts`.
    Scores,
}

/// What is answered to `documents`, or to `texts`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum RerankAnswer {
    Results(Box<Reranked>),
    Scores(Vec<Scored>),
}

/// A text and its score, as TEI answers.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Scored {
    index: usize,
    score: f64,
    /// Where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Documents in the order in which they fit.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Reranked {
    object: List,
    model: String,
    results: Vec<Ranked>,
    #[serde(flatten)]
    ending: Ending,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Ranked {
    index: usize,
    relevance_score: f64,
    /// Where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<ShownDocument>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ShownDocument {
    text: String,
}

impl From<Scored> for Ranked {
    fn from(Scored { index, score, text }: Scored) -> Ranked {
        Ranked { index, relevance_score: score, document: text.map(|text| ShownDocument { text }) }
    }
}

/// Ranks documents. The answer may repeat them.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    let caller = body.caller.clone();
    let Asked { requests, scoring, is_raw, count, form, documents } = app.read(body, read).await?;
    let only = only_prompt(&requests);
    let Vectors { computed, .. } = app.vectors(&caller, requests).await?;
    let scores = if is_raw { scoring.raw_scores(&computed) } else { scoring.scores(&computed) };
    let best = best(scores, count, documents);
    let answer = match form {
        Form::Scores => RerankAnswer::Scores(best),
        Form::Results => {
            let ending = Ending::new(&app, &caller, &computed, only);
            let results = best.into_iter().map(Ranked::from).collect();
            let model = app.serving.model.name.clone();
            RerankAnswer::Results(Box::new(Reranked { object: List, model, results, ending }))
        }
    };
    app.server.answer_with(caller.tenant.id, KeptAnswer::Written(written(&answer)))
}

/// Returns the `count` best documents, best first, with their texts if there are `documents`.
fn best(scores: Vec<f64>, count: usize, documents: Option<Vec<String>>) -> Vec<Scored> {
    let mut texts = documents.into_iter().flatten();
    let scored = |(index, score)| Scored { index, score, text: texts.next() };
    let mut scored: Vec<Scored> = scores.into_iter().enumerate().map(scored).collect();
    // Stable sort: documents with equal scores keep their order.
    scored.sort_by(|a, b| b.score.total_cmp(&a.score));
    scored.truncate(count);
    scored
}

fn read(app: &App, body: &Body) -> Result<Asked> {
    let (fields, cache) = Fields::from_body(body)?;
    app.accept_model(&fields.model)?;
    let treatment = Treatment::of(app, body, cache)?;
    let count = fields.top_n.map_or(usize::MAX, |count| count.count().unwrap_or(usize::MAX));
    let is_raw = fields.raw_scores;
    let (form, repeats) = match fields.texts {
        Some(_) => (Form::Scores, fields.return_text),
        None => (Form::Results, fields.return_documents),
    };
    let question = fields.question()?;
    let (requests, scoring) = question.requests(app, body, &treatment)?;
    let documents = repeats.then_some(question.documents);
    Ok(Asked { requests, scoring, is_raw, count, form, documents })
}

fn refused(field: &str, what: &str) -> ApiError {
    ApiError::field(field, format!("`{field}` {what}"))
}

impl RerankFields {
    fn question(self) -> Result<Question> {
        if self.query.is_empty() {
            return Err(refused("query", "is empty"));
        }
        let (field, documents) = match (self.documents, self.texts) {
            (Some(documents), None) => ("documents", documents),
            (None, Some(texts)) => ("texts", texts),
            (None, None) => return Err(refused("documents", "is missing")),
            (Some(_), Some(_)) => {
                return Err(refused("texts", "is TEI's name for `documents`; send one of them"));
            }
        };
        let instruction = self.instruction.unwrap_or_else(|| INSTRUCTION.to_owned());
        Ok(Question { instruction, query: self.query, documents: checked(field, documents)?, field })
    }
}

/// Returns the texts of the documents in a field.
fn checked(field: &str, documents: Vec<Document>) -> Result<Vec<String>> {
    if documents.is_empty() {
        return Err(refused(field, "is an empty array"));
    }
    if documents.len() > INPUTS_MAX {
        let what = format!("holds {} documents, the limit is {INPUTS_MAX}", documents.len());
        return Err(refused(field, &what));
    }
    let documents: Vec<String> = documents.into_iter().map(|Document(text)| text).collect();
    match documents.iter().position(String::is_empty) {
        Some(index) => Err(refused(&format!("{field}[{index}]"), "is empty")),
        None => Ok(documents),
    }
}
