//! The differences between architectures. A new architecture is a file here with its [`Architecture`] and a line in
//! `architectures!`; a layer with a new computation is a new variant of a part of [`LayerShape`].

mod checkpoint;
mod deepseek;
mod deepseek2;
mod experts;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod granitehybrid;
mod granitemoe;
mod lfm2;
mod lfm2moe;
mod llama;
mod llama4;
pub(crate) mod metadata;
mod mistral3;
mod nemotron_h;
mod nemotron_h_moe;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod recurrence;
mod smollm3;
mod windows;

use kvik_kernels::KvKind;
use kvik_text::files::hf::Modules;

use super::feed_forward::FeedForwardShape;
use super::layer_tensor::Presence;
use super::recurrent::RecurrentShape;
use super::residual::ResidualShape;
use super::{ConfigError, Extras, LatentConfig, ModelConfig, RopeConfig, RopeStyle, Window};
use metadata::Metadata;

/// Declares [`Arch`] from names and modules.
macro_rules! architectures {
    ($($(#[doc = $doc:literal])+ $name:ident = $module:ident,)+) => {
        /// Model architectures that kvik runs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Arch {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Arch {
            /// All architectures.
            pub(crate) const ALL: &[Arch] = &[$(Arch::$name,)+];

            fn architecture(self) -> &'static Architecture {
                match self {
                    $(Arch::$name => &$module::ARCHITECTURE,)+
                }
            }
        }
    };
}

architectures! {
    /// Llama 1 to 3.x, TinyLlama, SmolLM2 and others of that shape.
    Llama = llama,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2 = qwen2,
    /// Qwen3: a norm on every query and key head.
    Qwen3 = qwen3,
    /// Ministral 3: Llama with queries scaled by a factor that grows with their position.
    Mistral3 = mistral3,
    /// SmolLM3: Llama in which every fourth layer does not rotate.
    SmolLm3 = smollm3,
    /// OLMo 2 and 3: norms after the halves of a layer.
    Olmo2 = olmo2,
    /// Granite 3 and the dense models of Granite 4: multipliers.
    Granite = granite,
    /// Phi-3, Phi-3.5 and Phi-4: fused projections.
    Phi3 = phi3,
    /// Gemma 2: soft caps, norms before and after the halves of a layer, sliding windows.
    Gemma2 = gemma2,
    /// Gemma 3: two RoPE bases, sliding windows.
    Gemma3 = gemma3,
    /// Gemma 3n: several residual streams, embeddings for every layer, layers that share keys and values.
    Gemma3n = gemma3n,
    /// Gemma 4: heads of two widths, embeddings for every layer, layers that share keys and values, experts.
    Gemma4 = gemma4,
    /// gpt-oss: experts, sliding windows, attention sinks.
    GptOss = gpt_oss,
    /// Qwen2-MoE: experts and a shared expert with a gate.
    Qwen2Moe = qwen2moe,
    /// Qwen3-MoE: experts.
    Qwen3Moe = qwen3moe,
    /// Granite MoE: experts.
    GraniteMoe = granitemoe,
    /// OLMoE: experts.
    OlMoe = olmoe,
    /// Llama 4: chunked attention, layers that do not rotate, experts.
    Llama4 = llama4,
    /// GLM-4: norms before and after the halves of a layer, fused projections.
    Glm4 = glm4,
    /// DeepSeek-MoE: experts and a shared expert.
    DeepSeek = deepseek,
    /// GLM-4.5: experts and a shared expert.
    Glm4Moe = glm4moe,
    /// Qwen3-Next: as Qwen3.5 with experts.
    Qwen3Next = qwen3next,
    /// Qwen3.5 with experts.
    Qwen35Moe = qwen35moe,
    /// Qwen3.5: the gated delta rule, and gated attention in every fourth layer.
    Qwen35 = qwen35,
    /// Nemotron-H with experts.
    NemotronHMoe = nemotron_h_moe,
    /// Nemotron-H: Mamba 2, attention or a feed-forward half in each layer.
    NemotronH = nemotron_h,
    /// LFM2 with experts.
    Lfm2Moe = lfm2moe,
    /// LFM2: short convolutions with attention in some layers.
    Lfm2 = lfm2,
    /// Granite 4: Mamba 2 with attention in some layers, with or without experts.
    GraniteHybrid = granitehybrid,
    /// DeepSeek V2 and V3: latent attention, grouped experts and a shared expert.
    DeepSeek2 = deepseek2,
}

/// An architecture.
struct Architecture {
    /// The value of `general.architecture` in GGUF.
    name: &'static str,
    /// The first name in `architectures` of Hugging Face's `config.json`; empty if another architecture has the same
    /// name.
    hf_names: &'static [&'static str],
    /// Modules whose Hugging Face names differ from Llama's, or that Llama lacks: its name, GGUF's name. A parameter
    /// that belongs to no module has its full name in both.
    hf_modules: Modules,
    /// The order of the rows of q and k in its GGUF files.
    gguf_rope: RopeStyle,
    /// Reads the parts of a model beyond a plain transformer, whose shape has been read already.
    extras: fn(&dyn Metadata, &ModelConfig) -> Result<Extras, ConfigError>,
    /// The shape of one layer of a model.
    layer: fn(&ModelConfig, usize) -> LayerShape,
}

impl Arch {
    /// The value of `general.architecture` in GGUF.
    pub fn name(self) -> &'static str {
        self.architecture().name
    }

    /// Whether the layer that its files have after the last one is a prediction head that kvik drafts with.
    pub(crate) fn predicts(self) -> bool {
        matches!(self, Arch::DeepSeek2 | Arch::Glm4Moe | Arch::Qwen3Next | Arch::Qwen35 | Arch::Qwen35Moe)
    }

    /// Whether its feed-forward layers use GELU instead of SiLU.
    pub(crate) fn has_gelu(self) -> bool {
        matches!(self, Arch::Gemma2 | Arch::Gemma3 | Arch::Gemma3n | Arch::Gemma4)
    }

    /// Whether counts by layer may be 0 for layers that lack a part.
    pub(crate) fn is_hybrid(self) -> bool {
        matches!(
            self,
            Arch::Lfm2
                | Arch::Lfm2Moe
                | Arch::Qwen3Next
                | Arch::Qwen35
                | Arch::Qwen35Moe
                | Arch::GraniteHybrid
                | Arch::NemotronH
                | Arch::NemotronHMoe
        )
    }

    /// The name of the norm after the last layer.
    pub(crate) fn output_norm(self) -> &'static str {
        match self {
            Arch::Lfm2 | Arch::Lfm2Moe => "token_embd_norm.weight",
            _ => "output_norm.weight",
        }
    }

    /// The logarithmic multiplier of YaRN for cosines and sines, given the `stored` one of a GGUF file. That of
    /// DeepSeek's files scales only attention scores, and the factor of cosines and sines is cancelled.
    pub(crate) fn yarn_log_multiplier(self, stored: f32) -> f32 {
        match self {
            Arch::DeepSeek2 if stored != 0.0 => 1.0,
            _ => stored,
        }
    }

    /// Reads the parts of a model of this architecture beyond the shape in `config`.
    pub(crate) fn extras(self, metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
        let extras = (self.architecture().extras)(metadata, config)?;
        // Layers that share keys and values find them by the kind of the layer, which must not change.
        let is_kept = |window: &Window| extras.sharing_layers > 0 || !window.is_idle(config);
        let window = extras.window.filter(is_kept);
        Ok(Extras { window, ..extras })
    }

    /// The rotation pairs of a head in GGUF files of this architecture. The rows of GLM-4 have another order in models
    /// that also take images, whose files have RoPE sections.
    pub(crate) fn gguf_rope(self, has_sections: bool) -> RopeStyle {
        match self {
            Arch::Glm4 if has_sections => RopeStyle::HalfSplit,
            _ => self.architecture().gguf_rope,
        }
    }
}

/// The shape of a layer, including its optional parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerShape {
    /// The sequence mixing. The fields about attention apply only if it is attention.
    pub(crate) mixing: MixingShape,
    /// The positions that its attention sees.
    pub(crate) kind: KvKind,
    /// The layer whose keys and values it attends to, if it stores none of its own.
    pub(crate) source: Option<usize>,
    /// Query heads.
    pub(crate) heads: usize,
    /// Key/value heads; divides `heads`.
    pub(crate) kv_heads: usize,
    /// Dimensions of one head of queries and keys.
    pub(crate) head_dim: usize,
    /// The lengths of latent attention, if queries and keys are computed that way.
    pub(crate) latent: Option<LatentConfig>,
    /// Biases on the q, k and v projections.
    pub(crate) qkv_bias: Presence,
    /// Bias on the output projection of attention.
    pub(crate) output_bias: Presence,
    /// RMSNorm on queries and keys.
    pub(crate) qk_norm: QkNorm,
    /// How values are computed.
    pub(crate) values: Values,
    /// The rotation of queries and keys, as an index of [`ModelConfig::ropes`]; `None` without rotation.
    pub(crate) rotation: Option<usize>,
    /// Multiplies attention scores.
    pub(crate) scale: f32,
    /// Whether the model's temperature, if it has one, scales queries.
    pub(crate) warmed: bool,
    /// Whether the query projection also computes gates of the attention output, of the same length: query and gate of
    /// each head are adjacent.
    pub(crate) gated: bool,
    /// Attention sinks: scores without a value that take part in every softmax.
    pub(crate) sinks: Presence,
    /// The positions of the norms of its two halves.
    pub(crate) norms: Norms,
    /// The feed-forward half.
    pub(crate) feed_forward: FeedForwardShape,
    /// Additional computations on the residual stream.
    pub(crate) residual: ResidualShape,
}

impl LayerShape {
    /// A layer with the numbers of the model and without optional parts.
    fn plain(config: &ModelConfig, index: usize) -> LayerShape {
        let extras = &config.extras;
        let windowed = extras.window.as_ref().filter(|_| extras.is_windowed(index));
        let rotation = if windowed.is_some() { WINDOWED } else { UNWINDOWED };
        let head_dim = windowed.map_or(config.head_dim, |window| window.head_dim);
        LayerShape {
            mixing: MixingShape::Attention,
            kind: kind(config, index),
            source: extras.source(index, config.layers),
            heads: config.heads,
            kv_heads: config.kv_heads(index),
            head_dim,
            latent: None,
            qkv_bias: Presence::Absent,
            output_bias: Presence::Absent,
            qk_norm: QkNorm::Absent,
            values: Values::Projected,
            rotation: extras.is_rotated(index).then_some(rotation),
            scale: extras.attention_scale.unwrap_or(1.0 / (head_dim as f32).sqrt()),
            warmed: true,
            gated: false,
            sinks: Presence::Absent,
            norms: Norms::BEFORE,
            feed_forward: feed_forward_of(config, index),
            residual: ResidualShape::PLAIN,
        }
    }

    /// Length of the values in attention.
    pub(crate) fn value_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.rank)
    }

    /// Length of a head's input to the output projection.
    pub(crate) fn output_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.value)
    }
}

impl LayerShape {
    /// Names of the norms of the halves that it has.
    pub(crate) fn norm_names(&self) -> impl Iterator<Item = &'static str> {
        let halves = [self.mixing != MixingShape::Absent, self.feed_forward != FeedForwardShape::Absent];
        let norms = [self.norms.before, self.norms.after].into_iter().flatten();
        norms
            .flat_map(move |names| names.into_iter().zip(halves))
            .filter(|(_, there)| *there)
            .map(|(name, _)| name)
    }

    /// Rows of the projection to queries.
    pub(crate) fn q_rows(&self) -> usize {
        self.heads * self.head_dim * if self.gated { 2 } else { 1 }
    }
}

/// The sequence mixing of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum MixingShape {
    /// Attention.
    Attention,
    /// A recurrent state.
    Recurrent(RecurrentShape),
    /// None: the layer is only a feed-forward layer (Nemotron-H).
    Absent,
}

fn kind(config: &ModelConfig, index: usize) -> KvKind {
    match &config.extras.window {
        // A window with more positions than fit the type includes all.
        Some(window) if config.extras.is_windowed(index) => {
            let positions = u32::try_from(window.positions).unwrap_or(u32::MAX);
            if window.chunked { KvKind::Chunk { positions } } else { KvKind::Window { positions } }
        }
        _ => KvKind::Full,
    }
}

fn feed_forward_of(config: &ModelConfig, index: usize) -> FeedForwardShape {
    match &config.extras.experts {
        Some(experts) if experts.has_layer(index) => FeedForwardShape::Experts(experts.shape()),
        _ => FeedForwardShape::swi_glu(config.d_ff(index)),
    }
}

/// The rotation of layers without a window, as an index of [`ModelConfig::ropes`].
const UNWINDOWED: usize = 0;
/// The rotation of windowed layers.
const WINDOWED: usize = 1;

/// RMSNorm on queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QkNorm {
    /// None.
    Absent,
    /// Head by head, with weights `[head_dim]`.
    Head(Presence),
    /// Over all heads of a row, with weights `[heads * head_dim]` and `[kv_heads * head_dim]`.
    All(Presence),
    /// Head by head, without weights, after rotation.
    Rotated,
}

/// How the values of a layer are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// By a projection of their own.
    Projected,
    /// By a projection of their own, normed without weights. If a file has no projection for a layer, and that is
    /// allowed, the output of the key projection is used.
    Normed {
        /// Presence of the projection.
        projection: Presence,
    },
}

/// The norms of the two halves of a layer, by the names of their tensors: attention, feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Norms {
    /// Norms of the input of each half.
    pub(crate) before: Option<[&'static str; 2]>,
    /// Norms of what each half adds to the residual stream.
    pub(crate) after: Option<[&'static str; 2]>,
}

impl Norms {
    /// Before both halves.
    pub(crate) const BEFORE: Norms =
        Norms { before: Some(["attn_norm.weight", "ffn_norm.weight"]), after: None };
    /// After both halves.
    pub(crate) const AFTER: Norms =
        Norms { before: None, after: Some(["post_attention_norm.weight", "post_ffw_norm.weight"]) };
    /// Before and after both halves.
    pub(crate) const AROUND: Norms = Norms { before: Norms::BEFORE.before, after: Norms::AFTER.after };
}

impl ModelConfig {
    /// The shape of a layer.
    pub(crate) fn layer(&self, index: usize) -> LayerShape {
        (self.arch.architecture().layer)(self, index)
    }

    /// The shape of the decoder layer of the prediction head, which attends to keys and values of its own.
    pub(crate) fn head_layer(&self) -> LayerShape {
        LayerShape { source: None, mixing: MixingShape::Attention, ..self.layer(self.layers) }
    }

    /// Key/value heads of a layer.
    fn kv_heads(&self, index: usize) -> usize {
        self.extras.by_layer.kv_heads.get(index).copied().unwrap_or(self.kv_heads)
    }

    /// Width of the feed-forward half of a layer.
    fn d_ff(&self, index: usize) -> usize {
        self.extras.by_layer.d_ff.get(index).copied().unwrap_or(self.d_ff)
    }

    /// The layers that store keys and values, which are those of the KV layout, in order.
    pub fn kv_layers(&self) -> impl Iterator<Item = usize> {
        let stores = |shape: LayerShape| shape.mixing == MixingShape::Attention && shape.source.is_none();
        (0..self.layers).filter(move |&index| stores(self.layer(index)))
    }

    /// Vectors of a layer that are stored in rows, by name, with the number of rows: checkpoints store them flat.
    pub(crate) fn vectors_in_rows(&self) -> Vec<(&'static str, usize)> {
        let recurrent = (0..self.layers).find_map(|index| match self.layer(index).mixing {
            MixingShape::Recurrent(shape) => Some(shape),
            _ => None,
        });
        recurrent.map(RecurrentShape::vectors_in_rows).unwrap_or_default()
    }

    /// Additional computations on the residual stream in every layer.
    pub(crate) fn residual(&self) -> ResidualShape {
        ResidualShape {
            altup: self.extras.altup,
            laurel: self.extras.laurel_rank,
            per_layer: self.extras.per_layer_width,
            ..ResidualShape::PLAIN
        }
    }

    /// The rotations of layers: that of layers without a window; then that of windowed layers, if there are any.
    ///
    /// Each comes with whether the frequency divisors of the file apply to it.
    pub(crate) fn ropes(&self) -> Vec<(&RopeConfig, bool)> {
        let windowed = self.extras.window.as_ref().map(|window| (&window.rope, window.divided));
        [Some((&self.rope, true)), windowed].into_iter().flatten().collect()
    }

    /// Whether a layer rotates queries and keys in the way with this index of [`ropes`](Self::ropes).
    pub(crate) fn has_rotation(&self, rotation: usize) -> bool {
        let head = self.extras.predicts.then(|| self.head_layer());
        let mut layers = (0..self.layers).map(|index| self.layer(index)).chain(head);
        layers.any(|shape| shape.mixing == MixingShape::Attention && shape.rotation == Some(rotation))
    }
}
