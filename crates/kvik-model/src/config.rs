//! The shape of a model, the same whether it came from GGUF or a Hugging Face directory.

use std::ops::Range;

use super::{Arch, Extras};

pub use kvik_kernels::RopeStyle;

/// Scaling of the RoPE frequencies for contexts longer than the trained one.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// Every position is divided by `factor`.
    Linear {
        /// Stretch, at least 1.
        factor: f32,
    },
    /// Llama 3.1 to 3.3: low frequencies are stretched, high ones unchanged, with a smooth transition.
    Llama3 {
        /// Stretch of the low frequencies.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are stretched fully.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are unchanged.
        high_freq_factor: f32,
        /// Context the model was trained with, in tokens.
        original_context: usize,
    },
    /// YaRN (arXiv 2309.00071), as Qwen2.5 uses for long contexts.
    Yarn {
        /// Stretch, at least 1.
        factor: f32,
        /// Context the model was trained with, in tokens.
        original_context: usize,
        /// Dimensions that rotate more than this many times per context are unchanged (32).
        beta_fast: f32,
        /// Dimensions that rotate fewer than this many times per context are stretched (1).
        beta_slow: f32,
        /// Multiplier on cos and sin; `None` derives it as `0.1 ln(factor) + 1`.
        attention_factor: Option<f32>,
        /// Whether the transition begins and ends at whole pairs, rounded outwards; gpt-oss was trained without.
        truncate: bool,
    },
    /// Only the first pairs rotate, with frequencies as if all did (Gemma 4).
    Proportional {
        /// Number of pairs that rotate.
        pairs: usize,
    },
    /// LongRoPE (arXiv 2402.13753), as in Phi-3 and later: every pair has divisors of its own, with separate sets for
    /// contexts within the original one and for longer ones.
    Long {
        /// Stretch of all pairs, at least 1.
        factor: f32,
        /// Divisors of the frequencies in longer contexts, `[dims / 2]`.
        long: Vec<f32>,
        /// Divisors of the frequencies within the original context, `[dims / 2]`.
        short: Vec<f32>,
        /// Context the model was trained with, in tokens.
        original_context: usize,
        /// Multiplier on cos and sin.
        attention_factor: f32,
    },
}

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f32,
    /// Dimensions of each head that rotate; even, at most the head dimension.
    pub dims: usize,
    /// The dimensions that form a pair.
    pub style: RopeStyle,
    /// Stretching for long contexts.
    pub scaling: RopeScaling,
    // A GGUF may also carry `rope_freqs.weight`, shape [dims/2]: divisors of the frequencies.
    // They are a tensor, not a setting, and are read with the weights.
}

/// Shape and constants of a decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Architecture.
    pub arch: Arch,
    /// Display name, from the file.
    pub name: String,
    /// Transformer layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width of the feed-forward layer.
    pub d_ff: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Rows of the embedding matrix.
    pub vocab: usize,
    /// Context the model declares, in tokens.
    pub context: usize,
    /// Epsilon of RMSNorm.
    pub norm_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Parts beyond a plain transformer.
    pub extras: Extras,
}

impl ModelConfig {
    /// The same model without its prediction head, for uses that do not draft with it.
    pub fn without_head(mut self) -> ModelConfig {
        self.extras.predicts = false;
        self
    }

    /// The layers that predict tokens beyond the next one.
    pub(crate) fn beyond(&self) -> Range<usize> {
        self.layers..self.layers.saturating_add(self.extras.layers_beyond)
    }
}
