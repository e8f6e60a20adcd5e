//! What sets a model apart from a plain transformer: multipliers, caps, windows, layers that do not rotate.
//!
//! The file of an architecture reads them; the shapes of its layers and the forward pass follow from them.

use super::RopeConfig;

/// What a model has beside the shape of a plain transformer; the default is a plain one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Extras {
    /// What parts of the computation are multiplied by.
    pub multipliers: Multipliers,
    /// Multiplies attention scores; `None` is `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f32>,
    /// Multiplies queries by a factor that grows with their position.
    pub temperature: Option<Temperature>,
    /// Soft cap on attention scores: `cap * tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Soft cap on logits.
    pub logit_cap: Option<f32>,
    /// Layers that see a window.
    pub window: Option<Window>,
    /// Latent attention in all layers.
    pub latent: Option<LatentConfig>,
    /// Mixtures of experts in the place of feed-forward layers.
    pub experts: Option<ExpertsConfig>,
    /// Added to the weights of all norms when they are read: 1 where a file stores what they have beside 1.
    pub norm_offset: f32,
    /// Layers behind the last that predict tokens beyond the next one: they are not computed, and their tensors not
    /// read.
    pub layers_beyond: usize,
    /// Layers whose queries and keys are not rotated, `[layers]`; or empty where all are.
    pub unrotated: Vec<bool>,
    /// Counts that differ from layer to layer.
    pub by_layer: ByLayer,
    /// The last so many layers store no keys and values: each reads those of the last layer before them that sees the
    /// same positions.
    pub sharing_layers: usize,
    /// Of which standard deviations above the mean the gates of a layer are left, `[layers]`; or empty where all are.
    pub sparsity: Vec<Option<f32>>,
    /// Residual streams of which a layer computes the first (AltUp).
    pub altup: Option<usize>,
    /// Rank of the path beside attention (LAuReL).
    pub laurel_rank: Option<usize>,
    /// Width of the embedding that every layer has of a token.
    pub per_layer_width: Option<usize>,
    /// How many tokens have such an embedding; `None` if all have.
    pub per_layer_rows: Option<usize>,
    /// Layers that keep a state.
    pub recurrence: Option<Recurrence>,
}

/// Numbers of the layers that keep a state instead of keys and values.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrence {
    /// Which layers those are, `[layers]`.
    pub layers: Vec<bool>,
    /// Layers that are a feed-forward half alone, `[layers]`; or empty where none is.
    pub feed_forward_alone: Vec<bool>,
    /// Positions that their convolution looks at, the row's own among them.
    pub conv_width: usize,
    /// Their state matrices; `None` where they have none.
    pub matrices: Option<StateMatrices>,
}

/// Numbers of state matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateMatrices {
    /// Values of all heads.
    pub inner: usize,
    /// Heads, each with a matrix; divides `inner`.
    pub heads: usize,
    /// Heads of keys and queries; divides `heads` and `inner`.
    pub key_heads: usize,
    /// Dimensions of keys and queries.
    pub key_dim: usize,
    /// Whether the heads of a key head stand side by side, as in checkpoints, where GGUF files have those of all key heads
    /// in turn.
    pub grouped: bool,
}

/// Counts that differ from layer to layer, `[layers]`; or empty where all layers have that of the model, which else is
/// the greatest.
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
    /// How fast the factor grows.
    pub scale: f32,
    /// Positions of equal factor.
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

/// Lengths of latent attention (MLA, arXiv 2405.04434): keys and values of all heads come from one vector a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentConfig {
    /// Length of the vector that queries come from; 0 where they come from the stream itself.
    pub query_rank: usize,
    /// Length of the vector that keys and values come from.
    pub rank: usize,
    /// Dimensions of a head's queries and keys that do not rotate.
    pub unrotated: usize,
    /// Dimensions of queries and keys that rotate; of keys, all heads share them.
    pub rotated: usize,
    /// Dimensions of a head's values.
    pub value: usize,
}

impl LatentConfig {
    /// Length of what is stored for a position: the vector and the rotated part.
    pub fn key_dim(&self) -> usize {
        self.rank + self.rotated
    }
}

/// Numbers of the mixtures of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsConfig {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token goes to.
    pub used: usize,
    /// Width of an expert.
    pub d_ff: usize,
    /// Width of the expert that all tokens go to; 0 if there is none.
    pub shared_d_ff: usize,
    /// The first layers that have none of them.
    pub dense_layers: usize,
    /// Behind those, every so many layers have them; 1 is every one.
    pub interval: usize,
    /// Whether the weights of a token's experts are brought to a sum of one.
    pub normalised: bool,
    /// Multiplies their weights.
    pub scale: f32,
    /// Whether each expert's score is brought between 0 and 1 by itself.
    pub sigmoid: bool,
    /// Groups of experts, and how many of them a token chooses from; `None` if they stand in no groups.
    pub groups: Option<[usize; 2]>,
}

/// Layers that see the last positions alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// The positions that a row sees, its own among them.
    pub positions: usize,
    /// Whether a row sees those of its chunk of so many positions, up to itself, instead of the last ones.
    pub chunked: bool,
    /// Which layers have it, `[layers]`.
    pub layers: Vec<bool>,
    /// How these layers rotate.
    pub rope: RopeConfig,
    /// Whether the divisors of frequencies that a file has are for these layers too.
    pub divided: bool,
    /// Dimensions of one head of these layers.
    pub head_dim: usize,
}

impl Extras {
    /// Whether a layer sees a window.
    pub(crate) fn is_windowed(&self, layer: usize) -> bool {
        self.window.as_ref().is_some_and(|window| window.layers.get(layer) == Some(&true))
    }

    /// Whether a layer keeps a state.
    pub(crate) fn is_recurrent(&self, layer: usize) -> bool {
        self.recurrence.as_ref().is_some_and(|recurrence| recurrence.layers.get(layer) == Some(&true))
    }

    /// The layer whose keys and values one of `layers` reads, if it stores none.
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
