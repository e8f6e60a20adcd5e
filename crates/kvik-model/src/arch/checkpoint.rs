//! Differences between architectures that occur only in Hugging Face checkpoints.

use kvik_text::files::hf::Modules;

use super::metadata::{Key, Metadata};
use super::{Arch, deepseek2, experts, lfm2, nemotron_h};
use crate::{ConfigError, RopeStyle};

/// Granite's shared layer, which is the only feed-forward layer if there are no experts.
const SHARED_WIDTH: Key = Key::hf(&["shared_intermediate_size"]);

impl Arch {
    /// The names in `architectures` of `config.json`, of which the first counts.
    pub(crate) fn hf_names(self) -> &'static [&'static str] {
        self.architecture().hf_names
    }

    /// Modules whose Hugging Face names differ from Llama's, or that Llama lacks.
    pub(crate) fn hf_modules(self) -> Modules {
        self.architecture().hf_modules
    }

    /// Settings that `config.json` has under another name, as (usual name, other name).
    pub(crate) fn hf_settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Arch::Lfm2 | Arch::Lfm2Moe => &[
                ("rms_norm_eps", "norm_eps"),
                ("intermediate_size", "block_ff_dim"),
                ("tie_word_embeddings", "tie_embedding"),
                ("rope_theta", "theta"),
            ],
            Arch::NemotronH | Arch::NemotronHMoe => {
                &[("rms_norm_eps", "layer_norm_epsilon"), ("head_dim", "attention_head_dim")]
            }
            // Its `intermediate_size` is that of an expert, and its `head_dim` that of windowed layers.
            Arch::Llama4 => &[("intermediate_size", "intermediate_size_mlp")],
            Arch::Gemma4 => &[("head_dim", "global_head_dim")],
            _ => &[],
        }
    }

    /// The actual architecture of a checkpoint that names this one: models with experts may share the name of those
    /// without.
    pub(crate) fn of_checkpoint(self, metadata: &dyn Metadata) -> Result<Arch, ConfigError> {
        match self {
            Arch::NemotronH if nemotron_h::names_experts(metadata)? => Ok(Arch::NemotronHMoe),
            arch => Ok(arch),
        }
    }

    /// The rotation pairs of a head in checkpoints. Where GGUF's order differs, files were permuted during conversion.
    pub(crate) fn hf_rope(self) -> RopeStyle {
        match self {
            Arch::Glm4 | Arch::Llama4 | Arch::DeepSeek2 => RopeStyle::Interleaved,
            _ => RopeStyle::HalfSplit,
        }
    }

    /// The default fraction of each head that rotates, if `config.json` does not say it and it is not 1.
    pub(crate) fn hf_rotated(self) -> Option<f32> {
        match self {
            Arch::Glm4 | Arch::Glm4Moe => Some(0.5),
            Arch::Qwen3Next | Arch::Qwen35 | Arch::Qwen35Moe => Some(0.25),
            _ => None,
        }
    }

    /// For latent attention, the stored dimensions of a key, and how many of them rotate.
    pub(crate) fn hf_latent_dims(self, metadata: &dyn Metadata) -> Result<Option<[usize; 2]>, ConfigError> {
        match self {
            Arch::DeepSeek2 => deepseek2::stored_dims(metadata).map(Some),
            _ => Ok(None),
        }
    }

    /// The width of feed-forward layers, if it is not the value that `config.json` calls so.
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
