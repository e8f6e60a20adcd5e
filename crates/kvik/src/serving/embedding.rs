//! What a model gives besides text: embeddings, and the order of documents.

use std::sync::Arc;

use kvik_engine::{api::Pooling, load::Ranking};

/// How the model embeds and ranks.
#[derive(Debug, Clone)]
pub(crate) struct Embedder {
    /// How hidden states become one vector.
    pub(crate) pooling: Pooling,
    pub(crate) ranking: Ranking,
    /// Length of an embedding.
    pub(crate) width: usize,
    /// What a reranker multiplies its hidden state by, `[2, width]`: yes, no. Absent where these are rows of the output
    /// matrix.
    pub(crate) classifier: Option<Arc<[f32]>>,
}
