//! `POST /v1/rerank`: documents by relevance to a query, in the format of Jina, Cohere and llama-server.

use std::{fmt, sync::Arc};

use axum::{Json, extract::State};
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
    app::{body::JsonBody, state::App},
    described::JsonSchema,
    http::{error::ApiError, json::Body},
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
    documents: Vec<Document>,
    /// Documents in the answer at most; all where nothing is said.
    top_n: Option<Whole<1, { i64::MAX }>>,
    /// Repeat the documents in the answer.
    #[serde(default)]
    return_documents: bool,
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
    count: usize,
    /// The documents, if the answer repeats them.
    documents: Option<Vec<String>>,
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

/// Ranks documents.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Reranked>> {
    let caller = body.caller.clone();
    let Asked { requests, scoring, count, documents } = app.read(body, read).await?;
    let only = only_prompt(&requests);
    let computed = app.vectors(&caller, requests).await?;
    let ending = Ending::new(&app, &caller, &computed, only);
    let mut scores: Vec<(usize, f64)> = scoring.scores(&computed).into_iter().enumerate().collect();
    // Stable sort: documents with equal scores keep their order.
    scores.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let document = |index: usize| {
        let text = documents.as_ref()?.get(index)?.clone();
        Some(ShownDocument { text })
    };
    let result = |&(index, relevance_score): &(usize, f64)| Ranked {
        index,
        relevance_score,
        document: document(index),
    };
    let results = scores.iter().take(count).map(result).collect();
    Ok(Json(Reranked { object: List, model: app.serving.model.name.clone(), results, ending }))
}

fn read(app: &App, body: &Body) -> Result<Asked> {
    let (fields, cache) = Fields::from_body(body)?;
    app.accept_model(&fields.model)?;
    let treatment = Treatment::of(app, body, cache)?;
    let count = fields.top_n.map_or(usize::MAX, |count| count.count().unwrap_or(usize::MAX));
    let return_documents = fields.return_documents;
    let question = fields.question()?;
    let (requests, scoring) = question.requests(app, body, &treatment)?;
    let documents = return_documents.then_some(question.documents);
    Ok(Asked { requests, scoring, count, documents })
}

impl RerankFields {
    fn question(self) -> Result<Question> {
        let documents: Vec<String> = self.documents.into_iter().map(|Document(text)| text).collect();
        let refused = |field: &str, what: String| Err(ApiError::field(field, format!("`{field}` {what}")));
        if self.query.is_empty() {
            return refused("query", "is empty".to_owned());
        }
        if documents.is_empty() {
            return refused("documents", "is an empty array".to_owned());
        }
        if documents.len() > INPUTS_MAX {
            let what = format!("holds {} documents, the limit is {INPUTS_MAX}", documents.len());
            return refused("documents", what);
        }
        if let Some(index) = documents.iter().position(String::is_empty) {
            return refused(&format!("documents[{index}]"), "is empty".to_owned());
        }
        let instruction = self.instruction.unwrap_or_else(|| INSTRUCTION.to_owned());
        Ok(Question { instruction, query: self.query, documents })
    }
}
