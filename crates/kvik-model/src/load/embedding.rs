//! Reads a model's embedding settings: how hidden states are pooled, and whether it ranks documents.

use std::path::Path;

use kvik_text::files::FileError;
use kvik_text::files::gguf::{Gguf, GgufError};
use kvik_text::files::hf::read_settings;
use serde::Deserialize;

use super::Pooling;
use crate::ModelConfig;

/// The embedding settings of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Embedding {
    /// The pooling of its hidden states; that of the last token by default.
    pub pooling: Pooling,
    /// The method by which it ranks documents.
    pub ranking: Ranking,
}

/// A method to rank documents for a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranking {
    /// By the similarity of their embeddings.
    Embedding,
    /// By a reranker's probability of yes, against no, to whether each document fits.
    YesNo,
}

/// Pooling types of llama.cpp (`LLAMA_POOLING_TYPE_*`).
const MEAN: u64 = 1;
const CLS: u64 = 2;
const RANK: u64 = 4;

/// The file in which sentence-transformers stores the pooling.
const POOLING_FILE: &str = "1_Pooling/config.json";

#[derive(Default, Deserialize)]
struct HfPooling {
    #[serde(default)]
    pooling_mode_mean_tokens: bool,
    #[serde(default)]
    pooling_mode_cls_token: bool,
}

impl Embedding {
    /// Reads `{arch}.pooling_type`.
    pub(super) fn from_gguf(file: &Gguf, config: &ModelConfig) -> Result<Embedding, GgufError> {
        let kind = file.integer(&format!("{}.pooling_type", config.arch.name()))?;
        let ranking = if kind == Some(RANK) { Ranking::YesNo } else { ranking(config) };
        Ok(Embedding { pooling: pooling(kind == Some(MEAN), kind == Some(CLS)), ranking })
    }

    /// Reads the files of sentence-transformers in the directory of a model.
    pub(super) fn from_directory(path: &Path, config: &ModelConfig) -> Result<Embedding, FileError> {
        let file: HfPooling = read_settings(&path.join(POOLING_FILE))?.unwrap_or_default();
        let pooling = pooling(file.pooling_mode_mean_tokens, file.pooling_mode_cls_token);
        Ok(Embedding { pooling, ranking: ranking(config) })
    }
}

fn pooling(mean: bool, cls: bool) -> Pooling {
    match (mean, cls) {
        (true, _) => Pooling::Mean,
        (false, true) => Pooling::Cls,
        (false, false) => Pooling::Last,
    }
}

/// Older files of rerankers are recognised only by their name.
fn ranking(config: &ModelConfig) -> Ranking {
    let is_reranker = config.name.to_lowercase().contains("reranker");
    if is_reranker { Ranking::YesNo } else { Ranking::Embedding }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::LoadedModel;
    use kvik_text::files::bytes::FileBytes;
    use kvik_text::files::gguf::write::GgufWriter;

    fn config() -> ModelConfig {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/arch-qwen3.gguf");
        LoadedModel::open(&path).unwrap().config
    }

    fn read(kind: Option<u32>, name: &str) -> Embedding {
        let mut writer = GgufWriter::new();
        if let Some(kind) = kind {
            writer.u32("qwen3.pooling_type", kind);
        }
        let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
        Embedding::from_gguf(&file, &ModelConfig { name: name.to_owned(), ..config() }).unwrap()
    }

    #[test]
    fn the_kind_of_pooling_says_what_a_model_is_for() {
        let check = |kind, name, pooling, ranking| {
            assert_eq!(read(kind, name), Embedding { pooling, ranking }, "{kind:?} {name}");
        };
        check(None, "Qwen3 0.6B", Pooling::Last, Ranking::Embedding);
        check(Some(0), "Qwen3 0.6B", Pooling::Last, Ranking::Embedding);
        check(Some(1), "E5", Pooling::Mean, Ranking::Embedding);
        check(Some(2), "BGE", Pooling::Cls, Ranking::Embedding);
        check(Some(3), "Qwen3 Embedding 0.6B", Pooling::Last, Ranking::Embedding);
        check(Some(4), "Qwen3", Pooling::Last, Ranking::YesNo);
        check(None, "Qwen3 Reranker 0.6B", Pooling::Last, Ranking::YesNo);
        check(Some(99), "x", Pooling::Last, Ranking::Embedding);
    }

    #[test]
    fn a_directory_says_it_as_sentence_transformers_do() {
        let directory = tempfile::tempdir().unwrap();
        let read = || Embedding::from_directory(directory.path(), &config()).unwrap().pooling;
        assert_eq!(read(), Pooling::Last);
        std::fs::create_dir(directory.path().join("1_Pooling")).unwrap();
        let write = |text: &str| std::fs::write(directory.path().join(POOLING_FILE), text).unwrap();
        write(r#"{"word_embedding_dimension": 64, "pooling_mode_lasttoken": true}"#);
        assert_eq!(read(), Pooling::Last);
        write(r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}"#);
        assert_eq!(read(), Pooling::Mean);
        write(r#"{"pooling_mode_cls_token": true}"#);
        assert_eq!(read(), Pooling::Cls);
    }
}
