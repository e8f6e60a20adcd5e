//! What sets the architectures apart. A new one is a file here with its [`Architecture`] and a line in
//! `architectures!`; a layer that computes something new is a variant of what [`LayerShape`] is made of.

mod llama;
mod qwen2;
mod qwen3;

use kvik_kernels::KvKind;

use super::feed_forward::FeedForwardShape;
use super::{ModelConfig, RopeStyle};

/// Declares [`Arch`] from names and modules.
macro_rules! architectures {
    ($($(#[doc = $doc:literal])+ $name:ident = $module:ident,)+) => {
        /// Model architectures that kvik runs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Arch {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Arch {
            /// All of them.
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
}

/// An architecture.
struct Architecture {
    /// The value of `general.architecture` in GGUF.
    name: &'static str,
    /// The first of `architectures` in Hugging Face's `config.json`.
    hf_name: &'static str,
    /// How GGUF files of it order the rows of q and k.
    gguf_rope: RopeStyle,
    /// The shape of one layer of a model.
    layer: fn(&ModelConfig, usize) -> LayerShape,
}

impl Arch {
    /// The value of `general.architecture` in GGUF.
    pub fn name(self) -> &'static str {
        self.architecture().name
    }

    /// The first of `architectures` in Hugging Face's `config.json`.
    pub(crate) fn hf_name(self) -> &'static str {
        self.architecture().hf_name
    }

    /// Which elements of a head GGUF files of this architecture rotate together.
    pub(crate) fn gguf_rope(self) -> RopeStyle {
        self.architecture().gguf_rope
    }
}

/// The shape of one layer, and which optional parts it has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerShape {
    /// Which positions its attention keeps.
    pub(crate) kind: KvKind,
    /// Query heads.
    pub(crate) heads: usize,
    /// Key/value heads; divides `heads`.
    pub(crate) kv_heads: usize,
    /// Dimensions of one head.
    pub(crate) head_dim: usize,
    /// Biases on the q, k and v projections.
    pub(crate) qkv_bias: Presence,
    /// Bias on the output projection of attention.
    pub(crate) output_bias: Presence,
    /// RMSNorm on every query and key head, before rotation.
    pub(crate) qk_norm: Presence,
    /// The feed-forward half.
    pub(crate) feed_forward: FeedForwardShape,
}

impl LayerShape {
    /// A layer with the numbers of the model and without optional parts.
    fn plain(config: &ModelConfig) -> LayerShape {
        LayerShape {
            kind: KvKind::Full,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            qkv_bias: Presence::Absent,
            output_bias: Presence::Absent,
            qk_norm: Presence::Absent,
            feed_forward: FeedForwardShape::swi_glu(config.d_ff),
        }
    }
}

/// Whether a tensor belongs to a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Always there.
    Required,
    /// Used where the file has it.
    Optional,
    /// Not part of the architecture.
    Absent,
}

impl ModelConfig {
    /// The shape of a layer.
    pub(crate) fn layer(&self, index: usize) -> LayerShape {
        (self.arch.architecture().layer)(self, index)
    }
}
