//! Reads the settings of mixtures of experts.

use kvik_kernels::Activation;

use super::Presence;
use super::metadata::{Key, Metadata};
use crate::feed_forward::{ExpertGroups, ExpertsShape, Gating, SharedShape, Weighted};
use crate::{ConfigError, ExpertsConfig, ModelConfig};

pub(super) const COUNT: Key =
    Key::new("expert_count", &["num_experts", "num_local_experts", "n_routed_experts"]);
const USED: Key =
    Key::new("expert_used_count", &["num_experts_per_tok", "experts_per_token", "top_k_experts"]);
const D_FF: Key = Key::new("expert_feed_forward_length", &["moe_intermediate_size"]);
const SHARED_D_FF: Key = Key::new(
    "expert_shared_feed_forward_length",
    &["shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size"],
);
const SHARED_COUNT: Key = Key::new("expert_shared_count", &["n_shared_experts"]);
const DENSE_LAYERS: Key =
    Key::new("leading_dense_block_count", &["first_k_dense_replace", "num_dense_layers"]);
/// Interval of the layers with experts.
const INTERVAL: Key = Key::hf(&["decoder_sparse_step"]);
const NORMALISED: Key = Key::new("expert_weights_norm", &["norm_topk_prob"]);
const SCALE: Key = Key::new("expert_weights_scale", &["routed_scaling_factor"]);
pub(super) const GATING: Key = Key::gguf("expert_gating_func");
const GROUPS: Key = Key::new("expert_group_count", &["n_group"]);
const GROUPS_USED: Key = Key::new("expert_group_used_count", &["topk_group"]);

/// GGUF's number for sigmoid gating.
const SIGMOID: usize = 2;

/// The experts of a file; `None` if it has none. `normalised` is the default for whether weights are normalised.
pub(super) fn read(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    normalised: bool,
) -> Result<Option<ExpertsConfig>, ConfigError> {
    read_or(metadata, normalised, |_| config.d_ff)
}

/// As [`read`], for architectures whose old files store the total width of a token's experts.
pub(super) fn read_divided(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    normalised: bool,
) -> Result<Option<ExpertsConfig>, ConfigError> {
    read_or(metadata, normalised, |used| config.d_ff.checked_div(used).unwrap_or(0))
}

/// The experts of a file; `width` computes the default width of an expert from the number of experts used per token.
fn read_or(
    metadata: &dyn Metadata,
    normalised: bool,
    width: impl Fn(usize) -> usize,
) -> Result<Option<ExpertsConfig>, ConfigError> {
    let Some(count) = metadata.count(COUNT)?.filter(|&count| count > 0) else { return Ok(None) };
    let used = metadata.needed_count(USED)?;
    let d_ff = metadata.count(D_FF)?.filter(|&d_ff| d_ff > 0).unwrap_or_else(|| width(used));
    let shared = metadata.count(SHARED_COUNT)?.unwrap_or(0);
    let groups = metadata.count(GROUPS)?.filter(|&groups| groups > 1);
    Ok(Some(ExpertsConfig {
        count,
        used,
        d_ff,
        shared_d_ff: metadata.count(SHARED_D_FF)?.unwrap_or(shared.saturating_mul(d_ff)),
        dense_layers: metadata.count(DENSE_LAYERS)?.unwrap_or(0),
        interval: metadata.count(INTERVAL)?.unwrap_or(1).max(1),
        normalised: metadata.flag(NORMALISED)?.unwrap_or(normalised),
        // 0 stands for none, as in llama.cpp.
        scale: metadata.number(SCALE)?.filter(|&scale| scale != 0.0).unwrap_or(1.0),
        sigmoid: metadata.count(GATING)? == Some(SIGMOID),
        groups: match groups {
            Some(groups) => Some([groups, metadata.needed_count(GROUPS_USED)?]),
            None => None,
        },
        ranked_by_best: false,
    }))
}

impl ExpertsConfig {
    /// Whether a layer has experts.
    pub(super) fn has_layer(&self, index: usize) -> bool {
        index >= self.dense_layers && (index + 1).is_multiple_of(self.interval)
    }

    /// The shape of a layer of these experts without optional parts.
    pub(super) fn shape(&self) -> ExpertsShape {
        ExpertsShape {
            count: self.count,
            used: self.used,
            d_ff: self.d_ff,
            activation: Activation::SwiGlu,
            biases: Presence::Absent,
            gating: if self.sigmoid { Gating::Sigmoid } else { Gating::Softmax },
            selection_bias: Presence::Absent,
            groups: self.groups.map(|[count, used]| {
                let best = if self.ranked_by_best { 1 } else { 2 };
                ExpertGroups { count, used, best }
            }),
            normalised: self.normalised,
            scale: self.scale,
            weighted: Weighted::Output,
            output_scale: Presence::Absent,
            shared: (self.shared_d_ff > 0)
                .then_some(SharedShape { d_ff: self.shared_d_ff, gate: Presence::Absent }),
        }
    }
}
