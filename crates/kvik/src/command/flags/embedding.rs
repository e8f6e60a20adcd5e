//! Flags of embedding and ranking.

use clap::{Args, ValueEnum};
use kvik_engine::api::Pooling;
use kvik_model::load::Ranking;

use kvik_session::Embedder;

/// How the model embeds and ranks, where its files are not to say it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Embeddings")]
pub(crate) struct EmbeddingArgs {
    /// Of which hidden states an embedding is made: last, mean or cls [default: what the model's files say, else last]
    #[arg(long, value_name = "POOLING")]
    pooling: Option<Pooling>,
    /// How documents are ranked [default: what the model's files say, else embedding]
    #[arg(long, value_enum, value_name = "HOW")]
    rerank: Option<RerankArg>,
}

/// How documents are ranked.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RerankArg {
    /// By the likeness of their embeddings
    Embedding,
    /// By the answer of a reranker such as Qwen3-Reranker, yes or no
    YesNo,
}

impl EmbeddingArgs {
    /// Overrides the settings from the model's files.
    pub(crate) fn apply(&self, embedder: &mut Embedder) {
        embedder.pooling = self.pooling.unwrap_or(embedder.pooling);
        embedder.ranking = match self.rerank {
            Some(RerankArg::Embedding) => Ranking::Embedding,
            Some(RerankArg::YesNo) => Ranking::YesNo,
            None => embedder.ranking,
        };
    }
}
