//! Vectors instead of text: embeddings in OpenAI's shape and in llama-server's, and the order of documents.

mod embeddings;
mod input;
mod llama;
mod ranking;
mod rerank;
mod scale;
mod shapes;
mod usage;

pub(super) use self::{
    input::{INPUTS_MAX, Treatment, encode},
    scale::Scale,
};
use super::route::{Dialect, at, gives};
use crate::http::error::ApiError;

/// The routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let embeddings = gives(shapes::embeddings, "Embeds texts or token ids").takes::<embeddings::Fields>();
    let own =
        gives(shapes::llama, "Embeds texts or token ids, as llama-server answers").takes::<llama::Fields>();
    let rerank = gives(shapes::rerank, "Orders documents by how they fit a query").takes::<rerank::Fields>();
    let routes = vec![
        at(&["/v1/embeddings", "/embeddings"]).post(embeddings::route, embeddings),
        at(&["/embedding"]).post(llama::route, own),
        at(&["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"]).post(rerank::route, rerank),
    ];
    Dialect { name: "embedding", error: ApiError::body, routes }
}
