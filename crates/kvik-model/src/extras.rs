//! Parts of a model beyond a plain transformer: multipliers, caps, windows, layers that do not rotate.
//!
//! The file of an architecture reads them; they determine the shapes of its layers and the forward pass.

use super::{ModelConfig, RopeConfig};

/// Parts beyond the shape of a plain transformer; the default is a plain one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Extras {
    /// Factors of parts of the computation.
    pub multipliers: Multipliers,
    /// Scale of attention scores; `None` is `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f32>,
    /// Scales queries by a factor that grows with their position.
    pub temperature: Option<Temperature>,
    /// Soft cap on attention scores: `cap * tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Soft cap on logits.
    pub logit_cap: Option<f32>,
    /// Sliding window of some layers.
    pub window: Option<Window>,
    /// Latent attention in all layers.
    pub latent: Option<LatentConfig>,
    /// Mixtures of experts in place of dense feed-forward layers.
    pub experts: Option<ExpertsConfig>,
    /// Added to the weights of all norms when they are read: 1 if a file stores the weights minus 1.
    pub norm_offset: f32,
    /// Number of layers after the last that predict tokens beyond the next one: no logits depend on them.
    pub layers_beyond: usize,
    /// Whether the first of those is loaded, to draft with.
    pub predicts: bool,
    /// Layers whose queries and keys are not rotated, `[layers]`; empty if all are.
    pub unrotated: Vec<bool>,
    /// Counts that differ between layers.
    pub by_layer: ByLayer,
    /// Number of last layers that store no keys and values: each reads those of the last layer before them that sees
    /// the same positions.
    pub sharing_layers: usize,
    /// Standard deviations above the mean beyond which the gates of a layer are not zeroed, `[layers]`; empty if no
    /// layer has sparse gates.
    pub sparsity: Vec<Option<f32>>,
    /// Number of residual streams, of which a layer computes the first (AltUp).
    pub altup: Option<usize>,
    /// Rank of the path parallel to attention (LAuReL).
    pub laurel_rank: Option<usize>,
    /// Width of the per-layer embeddings of a token.
    pub per_layer_width: Option<usize>,
    /// Number of tokens with such an embedding; `None` if all have one.
    pub per_layer_rows: Option<usize>,
    /// Recurrent layers.
    pub recurrence: Option<Recurrence>,
}

/// Settings of the recurrent layers, which keep a state instead of keys and values.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrence {
    /// The recurrent layers, `[layers]`.
    pub layers: Vec<bool>,
    /// Layers that are only a feed-forward layer, `[layers]`; empty if there are none.
    pub feed_forward_alone: Vec<bool>,
    /// Number of positions that their convolution covers, including the row's own.
    pub conv_width: usize,
    /// Their state matrices; `None` without.
    pub matrices: Option<StateMatrices>,
}

/// Settings of state matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateMatrices {
    /// Values of all heads.
    pub inner: usize,
    /// Number of heads, each with a matrix; divides `inner`.
    pub heads: usize,
    /// Number of heads of keys and queries; divides `heads` and `inner`.
    pub key_heads: usize,
    /// Dimensions of keys and queries.
    pub key_dim: usize,
    /// Whether the heads of a key head are adjacent, as in checkpoints; in GGUF files the heads of all key heads
    /// alternate.
    pub grouped: bool,
}

/// Counts that differ between layers, `[layers]`; empty if all layers have the count of the model, which otherwise is
/// the maximum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ByLayer {
    /// Key/value heads.
    pub kv_heads: Vec<usize>,
    /// Widths of feed-forward layers.
    pub d_ff: Vec<usize>,
}

/// Factors of parts of the computation; 1 in most models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Multipliers {
    /// Of the embedding of a token.
    pub embedding: f32,
    /// Of what attention and feed-forward layers add to the residual stream.
    pub residual: f32,
    /// Of logits.
    pub logits: f32,
}

impl Default for Multipliers {
    fn default() -> Multipliers {
        Multipliers { embedding: 1.0, residual: 1.0, logits: 1.0 }
    }
}

/// Queries at position `p` are multiplied by `1 + scale * ln(1 + floor((p + offset) / interval))` (Llama 4,
/// Ministral 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    /// Growth rate of the factor.
    pub scale: f32,
    /// Number of consecutive positions with the same factor.
    pub interval: usize,
    /// Added to the position.
    pub offset: f32,
}

impl Temperature {
    /// The factor at a position.
    pub(crate) fn factor(&self, position: u32) -> f32 {
        let intervals = ((f64::from(position) + f64::from(self.offset)) / self.interval as f64).floor();
        ((intervals + 1.0).ln() * f64::from(self.scale) + 1.0) as f32
    }
}

/// Lengths of latent attention (MLA, arXiv 2405.04434): keys and values of all heads are derived from one vector per
/// position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentConfig {
    /// Length of the vector from which queries are derived; 0 if they are derived from the stream itself.
    pub query_rank: usize,
    /// Length of the vector from which keys and values are derived.
    pub rank: usize,
    /// Dimensions of a head's queries and keys that do not rotate.
    pub unrotated: usize,
    /// Dimensions of queries and keys that rotate; for keys, all heads share them.
    pub rotated: usize,
    /// Dimensions of a head's values.
    pub value: usize,
}

impl LatentConfig {
    /// Stored length per position: the vector and the rotated part.
    pub fn key_dim(&self) -> usize {
        self.rank + self.rotated
    }
}

/// Settings of the mixtures of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsConfig {
    /// Number of experts of a layer.
    pub count: usize,
    /// Number of experts per token.
    pub used: usize,
    /// Width of an expert.
    pub d_ff: usize,
    /// Width of the shared expert of all tokens; 0 if there is none.
    pub shared_d_ff: usize,
    /// Number of first layers without experts.
    pub dense_layers: usize,
    /// Interval of the layers with experts after those; 1 for all.
    pub interval: usize,
    /// Whether the weights of a token's experts are normalised to a sum of one.
    pub normalised: bool,
    /// Factor of their weights.
    pub scale: f32,
    /// Whether a sigmoid is applied to each expert's score.
    pub sigmoid: bool,
    /// Number of groups of experts, and of groups that a token chooses from; `None` without groups.
    pub groups: Option<[usize; 2]>,
    /// Whether groups are ranked by their best expert (DeepSeek V2) instead of by the sum of their two best.
    pub ranked_by_best: bool,
}

/// Settings of layers with a sliding window.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// Number of positions that a row sees, including its own.
    pub positions: usize,
    /// Whether a row sees the positions of its chunk of this length, up to itself, instead of the last ones.
    pub chunked: bool,
    /// The layers with a window, `[layers]`.
    pub layers: Vec<bool>,
    /// The rotation of these layers.
    pub rope: RopeConfig,
    /// Whether the frequency divisors of a file apply to these layers too.
    pub divided: bool,
    /// Dimensions of a head in these layers.
    pub head_dim: usize,
}

impl Window {
    /// Whether its layers compute what layers without a window do, in every context up to the declared one. They must
    /// not be windowed then: prompts would be reused only from places, and retention would be refused, for nothing.
    ///
    /// GGUF files of Llama 4 do not state the length of their chunks, so the declared context says nothing about it.
    pub(crate) fn is_idle(&self, config: &ModelConfig) -> bool {
        let is_alike = self.divided && self.rope == config.rope && self.head_dim == config.head_dim;
        self.positions >= config.context && !self.chunked && is_alike
    }
}

impl Extras {
    /// Whether a layer has a sliding window.
    pub(crate) fn is_windowed(&self, layer: usize) -> bool {
        self.window.as_ref().is_some_and(|window| window.layers.get(layer) == Some(&true))
    }

    /// Whether a layer is recurrent.
    pub(crate) fn is_recurrent(&self, layer: usize) -> bool {
        self.recurrence.as_ref().is_some_and(|recurrence| recurrence.layers.get(layer) == Some(&true))
    }

    /// The layer whose keys and values layer `layer` of `layers` reads, if it stores none.
    pub(crate) fn source(&self, layer: usize, layers: usize) -> Option<usize> {
        let storing = layers.saturating_sub(self.sharing_layers);
        let is_alike = |source: &usize| self.is_windowed(*source) == self.is_windowed(layer);
        (layer >= storing).then(|| (0..storing).rev().find(is_alike)).flatten()
    }

    /// Whether a layer rotates queries and keys.
    pub(crate) fn is_rotated(&self, layer: usize) -> bool {
        self.unrotated.get(layer) != Some(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temperature_grows_with_the_position() {
        let temperature = Temperature { scale: 0.1, interval: 8192, offset: 0.0 };
        assert_eq!(temperature.factor(0), 1.0);
        assert_eq!(temperature.factor(8191), 1.0);
        assert_eq!(temperature.factor(8192), (0.1_f64 * 2.0_f64.ln() + 1.0) as f32);
        assert!(temperature.factor(100_000) > temperature.factor(50_000));
    }
}
