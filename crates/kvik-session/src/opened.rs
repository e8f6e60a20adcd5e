//! A model with its weights in place, and what goes with them: tokenizer, chat template, pooling.

use std::sync::Arc;

use kvik_kernels::Pool;
use kvik_model::load::{Embedding, LoadedModel, Pooling, Ranking, SamplingDefaults};
use kvik_model::{Conversion, Model, ModelConfig, ModelError};
use kvik_text::files::TensorSource;
use kvik_text::template::{ChatTemplate, TemplateError};
use kvik_text::tokenizer::Tokenizer;

use crate::placed::Placed;

/// A model with its weights in place.
pub struct OpenedModel<M = Placed> {
    /// Its weights and shape.
    pub model: M,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template; `None` when its files have none and its vocabulary is of no known format.
    pub template: Option<ChatTemplate>,
    /// How it embeds and ranks.
    pub embedder: Embedder,
    /// How requests are sampled that set nothing.
    pub sampling: SamplingDefaults,
}

/// How a model embeds and ranks.
#[derive(Debug, Clone)]
pub struct Embedder {
    /// How hidden states become one vector.
    pub pooling: Pooling,
    /// How documents are ranked.
    pub ranking: Ranking,
    /// Length of an embedding.
    pub width: usize,
    /// The matrix of a reranker by which its hidden state is multiplied, `[2, width]`: yes, no. `None` where these are
    /// rows of the output matrix.
    pub classifier: Option<Arc<[f32]>>,
}

/// Why a model that was read cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its chat template cannot be read.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Its weights cannot be used.
    #[error(transparent)]
    Weights(#[from] ModelError),
}

impl OpenedModel<Model> {
    /// Packs the weights of a model that was read, on `pool`. `progress` is told `(bytes read, bytes in all)`.
    ///
    /// # Errors
    /// If the template or the weights cannot be used.
    pub fn load(
        loaded: LoadedModel,
        conversion: Conversion,
        pool: &Pool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<OpenedModel<Model>, OpenError> {
        let load = |config, tensors| Model::load(config, tensors, conversion, pool, progress);
        OpenedModel::load_by(loaded, load, Model::classifier)
    }

    /// The model as one that may be elsewhere.
    pub fn on_processor(self) -> OpenedModel {
        let OpenedModel { model, tokenizer, template, embedder, sampling } = self;
        OpenedModel { model: Placed::Processor(Box::new(model)), tokenizer, template, embedder, sampling }
    }
}

impl<M> OpenedModel<M> {
    /// Has `load` put the weights of a model that was read where they are multiplied.
    ///
    /// # Errors
    /// If the template or the weights cannot be used.
    pub fn load_by(
        loaded: LoadedModel,
        load: impl FnOnce(ModelConfig, TensorSource) -> Result<M, ModelError>,
        classifier: impl FnOnce(&M) -> Option<&[f32]>,
    ) -> Result<OpenedModel<M>, OpenError> {
        let template = loaded.own_template()?;
        let sampling = loaded.sampling_defaults();
        loaded.sampling.notes.iter().for_each(|note| tracing::warn!("{note}"));
        let LoadedModel { config, tensors, tokenizer, embedding: Embedding { pooling, ranking }, .. } =
            loaded;
        let width = config.d_model;
        let model = load(config, tensors)?;
        let classifier = classifier(&model).map(Into::into);
        let embedder = Embedder { pooling, ranking, width, classifier };
        Ok(OpenedModel { model, tokenizer, template, embedder, sampling })
    }
}
