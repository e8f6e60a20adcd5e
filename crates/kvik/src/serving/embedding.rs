//! Outputs of a model other than text: embeddings, and rankings of documents.

use std::sync::Arc;

use kvik_engine::{api::Pooling, load::Ranking};

/// Settings of embedding and ranking.
#[derive(Debug, Clone)]
pub(crate) struct Embedder {
    /// How hidden states are pooled into one vector.
    pub(crate) pooling: Pooling,
    pub(crate) ranking: Ranking,
    /// Length of an embedding.
    pub(crate) width: usize,
    /// Matrix that a reranker multiplies its hidden state by, `[2, width]`: yes, no. Absent if these are rows of the
    /// output matrix.
    pub(crate) classifier: Option<Arc<[f32]>>,
}
