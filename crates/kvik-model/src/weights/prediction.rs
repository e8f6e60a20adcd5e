//! The weights of a prediction head. No logit of the model depends on them: a file whose head cannot be used computes
//! without one.

use kvik_kernels::Matrix;
use kvik_text::files::TensorSource;

use super::{Layer, ModelLoader};
use crate::ModelError;
use crate::expected::check_head;
use crate::layer_tensor::{
    HEAD_EMBEDDING, HEAD_EMBEDDING_NORM, HEAD_HIDDEN_NORM, HEAD_JOIN, HEAD_NORM, HEAD_OUTPUT,
};
use crate::loader::LayerLoader;

/// Weights of the prediction head.
pub(crate) struct Prediction {
    /// `[d_model]`
    pub(crate) embedding_norm: Vec<f32>,
    /// `[d_model]`
    pub(crate) hidden_norm: Vec<f32>,
    /// `[d_model, 2 * d_model]`: the columns of the embedding, then those of the hidden state.
    pub(crate) join: Matrix,
    /// Its decoder layer, which reads layer 0 of a KV layout of its own.
    pub(crate) layer: Layer,
    /// `[d_model]`; `None` if it is the model's output norm.
    pub(crate) norm: Option<Vec<f32>>,
    /// `[vocab, d_model]`; `None` if it is the model's output matrix.
    pub(crate) output: Option<Matrix>,
    /// The name of the tensor from which embeddings are looked up.
    pub(crate) table: String,
}

impl Prediction {
    /// Its matrices.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.layer.matrices().into_iter().chain([&self.join]).chain(&self.output)
    }

    /// The prediction head of a model that has one and wants it; `None` if it cannot be used, which the log says.
    pub(crate) fn load(loader: &mut ModelLoader<'_>) -> Option<Prediction> {
        // Files may say that they have one, and leave it out.
        let own = format!("blk.{}.nextn.", loader.config.layers);
        if !loader.config.extras.predicts || !loader.loader.tensors.names().any(|name| name.starts_with(&own))
        {
            return None;
        }
        let left = std::mem::take(&mut loader.loader.left);
        let loaded = check_head(loader.config, loader.loader.tensors).and_then(|names| {
            loader.loader.left = names;
            Prediction::load_parts(loader)
        });
        loader.loader.left = left;
        let said = |error: &ModelError| {
            tracing::warn!("the model's prediction head is not used: {error}; its answers are the same");
        };
        loaded.inspect_err(said).ok()
    }

    fn load_parts(loader: &mut ModelLoader<'_>) -> Result<Prediction, ModelError> {
        let (config, tensors) = (loader.config, loader.loader.tensors);
        let index = config.layers;
        let shape = config.head_layer();
        shape.feed_forward.check()?;
        let mut parts = LayerLoader { loader: &mut loader.loader, layer: index };
        let table = parts.name(HEAD_EMBEDDING);
        let has_own = parts.has(HEAD_EMBEDDING);
        let own_output = parts.has(HEAD_OUTPUT) && !is_the_models(tensors, &parts.name(HEAD_OUTPUT));
        Ok(Prediction {
            embedding_norm: parts.vector(HEAD_EMBEDDING_NORM)?,
            hidden_norm: parts.vector(HEAD_HIDDEN_NORM)?,
            join: parts.matrix(HEAD_JOIN)?,
            norm: parts.optional_vector(HEAD_NORM)?,
            output: own_output.then(|| parts.matrix(HEAD_OUTPUT)).transpose()?,
            table: if has_own { table } else { "token_embd.weight".to_owned() },
            layer: loader.layer(index, shape, Some(0))?,
        })
    }
}

/// Whether an output matrix equals the model's: checkpoints store it twice, and it is packed once.
fn is_the_models(tensors: &TensorSource, name: &str) -> bool {
    let own = tensors.get(name);
    let models = tensors.get("output.weight").or_else(|| tensors.get("token_embd.weight"));
    own.zip(models).is_some_and(|(own, models)| own.ty == models.ty && own.data == models.data)
}
