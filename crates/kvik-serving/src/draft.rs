//! The draft model: a smaller one with the same vocabulary, whose keys and values share the budget.

use std::sync::Arc;

use anyhow::{Context, bail};
use kvik_cache::{CacheConfig, Token};
use kvik_engine::schedule::DraftSetup;
use kvik_kernels::{KvFormat, KvLayout, Pool};
use kvik_model::{Model, ModelConfig, ModelRunner};
use kvik_session::OpenedModel;
use kvik_text::{stream::Vocabulary, tokenizer::Tokenizer};

use super::open;
use crate::settings::model::ModelArgs;

/// A loaded draft model.
pub(crate) struct DraftFile {
    model: Arc<Model>,
    layout: KvLayout,
    vocab_len: usize,
}

impl DraftFile {
    /// Loads the model `name`, and checks that it has the vocabulary of `tokenizer`.
    pub(crate) fn open(
        name: &str,
        args: &ModelArgs,
        tokenizer: &Tokenizer,
        pool: &Pool,
    ) -> anyhow::Result<DraftFile> {
        let opened = open::model(&args.of(name), pool).with_context(|| format!("--draft {name}"))?;
        let OpenedModel { model, tokenizer: own, .. } = opened;
        let (own, large) = (Vocabulary::from(&own), Vocabulary::from(tokenizer));
        check(&large, &own).with_context(|| format!("--draft {name}"))?;
        let layout = layout_of(model.config());
        Ok(DraftFile { model: Arc::new(model), layout, vocab_len: large.len().min(own.len()) })
    }

    /// Bytes of a block of its keys and values.
    pub(crate) fn block_bytes(&self) -> usize {
        self.layout.block_bytes()
    }

    /// Bytes of its packed weights.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.model.weight_bytes()
    }

    /// Name of the model.
    pub(crate) fn name(&self) -> &str {
        &self.model.config().name
    }

    /// The engine's setup of the draft model, for a cache and a context of these sizes.
    pub(crate) fn setup(
        self,
        pool: Arc<Pool>,
        cache: CacheConfig,
        context: usize,
    ) -> anyhow::Result<DraftSetup> {
        let runner = ModelRunner::new(self.model, pool, self.layout, cache.blocks, context)
            .context("no memory for the draft model's KV cache; lower --cache-ram")?;
        Ok(DraftSetup { runner: Box::new(runner), cache, vocab_len: self.vocab_len })
    }
}

/// The formats of a draft model's keys and values.
pub(crate) fn layout_of(config: &ModelConfig) -> KvLayout {
    ModelRunner::uniform_layout(config, KvFormat::F16)
}

/// Refuses a vocabulary that differs from the large model's.
fn check(large: &Vocabulary, own: &Vocabulary) -> anyhow::Result<()> {
    let Some(token) = large.first_difference(own) else { return Ok(()) };
    let text =
        |vocabulary: &Vocabulary, token: Token| String::from_utf8_lossy(vocabulary.bytes(token)).into_owned();
    bail!(
        "its token {token} is {:?} and the model's is {:?}; a draft model must have the vocabulary of the model it \
         drafts for",
        text(own, token),
        text(large, token)
    )
}

#[cfg(test)]
mod tests {
    use kvik_text::stream::TokenKind;

    use super::*;

    fn vocabulary(words: &[&str]) -> Vocabulary {
        Vocabulary::new(words.iter().map(|word| (word.as_bytes().to_vec(), TokenKind::Text)))
    }

    #[test]
    fn another_vocabulary_is_refused_and_names_the_token() {
        let large = vocabulary(&["a", "b", "c"]);
        assert!(check(&large, &vocabulary(&["a", "b", "c"])).is_ok());
        assert!(check(&large, &vocabulary(&["a", "b", "c", "<pad>"])).is_ok(), "padded to another size");
        let error = check(&large, &vocabulary(&["a", "x", "c"])).unwrap_err().to_string();
        assert!(error.starts_with("its token 1 is \"x\" and the model's is \"b\""), "{error}");
    }
}
