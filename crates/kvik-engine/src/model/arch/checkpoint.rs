//! What sets the architectures apart in Hugging Face's checkpoints alone.

use kvik_text::files::hf::Modules;

use super::metadata::{Key, Metadata};
use super::{Arch, deepseek2, experts, lfm2, nemotron_h};
use crate::model::{ConfigError, RopeStyle};

/// Granite's shared layer, which is the only feed-forward half where there are no experts.
const SHARED_WIDTH: Key = Key::hf(&["shared_intermediate_size"]);

impl Arch {
    /// What `config.json` may name first in `architectures`.
    pub(crate) fn hf_names(self) -> &'static [&'static str] {
        self.architecture().hf_names
    }

    /// Modules that Hugging Face names otherwise than in Llama, or that Llama lacks.
    pub(crate) fn hf_modules(self) -> Modules {
        self.architecture().hf_modules
    }

    /// What `config.json` has, where it is there, in the place of settings that most architectures have.
    pub(crate) fn hf_settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Arch::Lfm2 | Arch::Lfm2Moe => &[
                ("rms_norm_eps", "norm_eps"),
                ("intermediate_size", "block_ff_dim"),
                ("tie_word_embeddings", "tie_embedding"),
            ],
            Arch::NemotronH | Arch::NemotronHMoe => {
                &[("rms_norm_eps", "layer_norm_epsilon"), ("head_dim", "attention_head_dim")]
            }
            // Its `intermediate_size` is that of an expert, its `head_dim` that of layers with a window.
            Arch::Llama4 => &[("intermediate_size", "intermediate_size_mlp")],
            Arch::Gemma4 => &[("head_dim", "global_head_dim")],
            _ => &[],
        }
    }

    /// The architecture of a checkpoint that names this one: models with experts may have the name of those without.
    pub(crate) fn of_checkpoint(self, metadata: &dyn Metadata) -> Result<Arch, ConfigError> {
        match self {
            Arch::NemotronH if nemotron_h::names_experts(metadata)? => Ok(Arch::NemotronHMoe),
            arch => Ok(arch),
        }
    }

    /// Which elements of a head checkpoints rotate together. Where GGUF's order differs, files were permuted when they
    /// were made.
    pub(crate) fn hf_rope(self) -> RopeStyle {
        match self {
            Arch::Glm4 | Arch::Llama4 | Arch::DeepSeek2 => RopeStyle::Interleaved,
            _ => RopeStyle::HalfSplit,
        }
    }

    /// The part of each head that rotates where `config.json` does not say it and it is not all.
    pub(crate) fn hf_rotated(self) -> Option<f32> {
        match self {
            Arch::Glm4 | Arch::Glm4Moe => Some(0.5),
            Arch::Qwen3Next | Arch::Qwen35 | Arch::Qwen35Moe => Some(0.25),
            _ => None,
        }
    }

    /// Of latent attention, the dimensions that are stored of a key, and how many of them rotate.
    pub(crate) fn hf_latent_dims(self, metadata: &dyn Metadata) -> Result<Option<[usize; 2]>, ConfigError> {
        match self {
            Arch::DeepSeek2 => deepseek2::stored_dims(metadata).map(Some),
            _ => Ok(None),
        }
    }

    /// The width of feed-forward layers where it is not what `config.json` calls so.
    pub(crate) fn hf_width(self, metadata: &dyn Metadata) -> Result<Option<usize>, ConfigError> {
        match self {
            Arch::Lfm2 => lfm2::width(metadata),
            Arch::GraniteHybrid if metadata.count(experts::COUNT)?.unwrap_or(0) == 0 => {
                metadata.count(SHARED_WIDTH)
            }
            _ => Ok(None),
        }
    }
}
