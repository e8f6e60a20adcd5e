//! Vectors instead of text: embeddings in the formats of OpenAI and llama-server, and reranking of documents.

mod embeddings;
mod input;
mod llama;
mod ranking;
mod rerank;
mod scale;
mod usage;

pub(super) use self::{
    input::{INPUTS_MAX, Treatment, encode},
    scale::Scale,
};
use super::route::{Dialect, Errors, at, gives};
use crate::http::error::ErrorBody;

/// Returns the routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let embeddings =
        gives::<embeddings::Embeddings>("Embeds texts or token ids").takes::<embeddings::Fields>();
    let own = gives::<Vec<llama::Embedding>>("Embeds texts or token ids, as llama-server answers")
        .takes::<llama::Fields>();
    let rerank =
        gives::<rerank::RerankAnswer>("Orders documents by how they fit a query").takes::<rerank::Fields>();
    let routes = vec![
        at(&["/v1/embeddings", "/embeddings"]).post(embeddings::route, embeddings),
        at(&["/embedding"]).post(llama::route, own),
        at(&["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"]).post(rerank::route, rerank),
    ];
    Dialect { name: "embedding", errors: Errors::of::<ErrorBody>(), routes, of_server: Vec::new() }
}
