//! The names in files of the settings that are checked for every kind of file.

use crate::metadata::{Key, WINDOWED_THETA};

/// Name of windowed layers, for settings of their own.
pub(super) const WINDOWED: &str = "layers with a window";

/// The setting of a field that `check` names; `None` if it does not come from a single setting.
pub(super) fn key_of(field: &str) -> Option<Key> {
    SETTINGS.iter().find(|(name, _)| *name == field).map(|&(_, key)| key)
}

/// The names of fields in `check`, and their settings; some are tensors in GGUF.
const SETTINGS: [(&str, Key); 48] = [
    ("number of layers", Key::new("block_count", &["num_hidden_layers"])),
    ("embedding length", Key::new("embedding_length", &["hidden_size"])),
    (
        "feed-forward length",
        Key::new("feed_forward_length", &["intermediate_size_mlp", "block_ff_dim", "intermediate_size"]),
    ),
    ("number of heads", Key::new("attention.head_count", &["num_attention_heads"])),
    ("number of key/value heads", Key::new("attention.head_count_kv", &["num_key_value_heads"])),
    (
        "head dimension",
        Key::new("attention.key_length", &["global_head_dim", "attention_head_dim", "head_dim"]),
    ),
    ("head dimension of layers with a window", Key::new("attention.key_length_swa", &["head_dim"])),
    ("vocabulary", Key::new("token_embd.weight", &["vocab_size"])),
    ("context length", Key::new("context_length", &["max_position_embeddings"])),
    (
        "norm epsilon",
        Key::new("attention.layer_norm_rms_epsilon", &["norm_eps", "layer_norm_epsilon", "rms_norm_eps"]),
    ),
    ("rotary dimensions", Key::new("rope.dimension_count", &["partial_rotary_factor"])),
    (
        "rotary dimensions of layers with a window",
        Key::new("rope.dimension_count_swa", &["partial_rotary_factor of sliding_attention"]),
    ),
    ("rotated pairs", Key::hf(&["partial_rotary_factor"])),
    ("per-layer embeddings", Key::hf(&["vocab_size_per_layer_input"])),
    ("rotary base", Key::new("rope.freq_base", &["rope_theta"])),
    ("rotary base of layers with a window", WINDOWED_THETA),
    ("rope scaling factor", Key::new("rope.scaling.factor", &["factor"])),
    ("rope scaling factor of layers with a window", Key::new("rope.scaling.factor", &["factor"])),
    (
        "rope original context",
        Key::new("rope.scaling.original_context_length", &["original_max_position_embeddings"]),
    ),
    ("rope attention factor", Key::new("rope.scaling.attn_factor", &["attention_factor"])),
    ("rope long factors", Key::new("rope_factors_long.weight", &["long_factor"])),
    ("rope short factors", Key::new("rope_factors_short.weight", &["short_factor"])),
    ("rope low_freq_factor", Key::hf(&["low_freq_factor"])),
    ("rope high_freq_factor", Key::hf(&["high_freq_factor"])),
    ("yarn beta_fast", Key::new("rope.scaling.yarn_beta_fast", &["beta_fast"])),
    ("yarn beta_slow", Key::new("rope.scaling.yarn_beta_slow", &["beta_slow"])),
    ("yarn attention factor", Key::new("rope.scaling.attn_factor", &["attention_factor"])),
    ("embedding multiplier", Key::new("embedding_scale", &["embedding_multiplier"])),
    ("residual multiplier", Key::new("residual_scale", &["residual_multiplier"])),
    ("logit multiplier", Key::new("logit_scale", &["logits_scaling"])),
    ("attention scale", Key::new("attention.scale", &["attention_multiplier", "query_pre_attn_scalar"])),
    ("cap of attention scores", Key::new("attn_logit_softcapping", &["attn_logit_softcapping"])),
    ("cap of logits", Key::new("final_logit_softcapping", &["final_logit_softcapping"])),
    (
        "scale of the temperature",
        Key::new("attention.temperature_scale", &["llama_4_scaling_beta", "attn_scale"]),
    ),
    ("interval of the temperature", Key::new("attention.temperature_length", &["floor_scale"])),
    ("window", Key::new("attention.sliding_window", &["sliding_window", "attention_chunk_size"])),
    ("layers that share keys and values", Key::new("attention.shared_kv_layers", &["num_kv_shared_layers"])),
    ("rank beside attention", Key::hf(&["laurel_rank"])),
    ("residual streams", Key::new("altup.num_inputs", &["altup_num_inputs"])),
    ("sparsity", Key::gguf("activation_sparsity_scale")),
    (
        "width of per-layer embeddings",
        Key::new("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]),
    ),
    (
        "number of experts",
        Key::new("expert_count", &["num_experts", "num_local_experts", "n_routed_experts"]),
    ),
    (
        "number of experts that a token goes to",
        Key::new("expert_used_count", &["num_experts_per_tok", "experts_per_token", "top_k_experts"]),
    ),
    ("feed-forward length of experts", Key::new("expert_feed_forward_length", &["moe_intermediate_size"])),
    (
        "feed-forward length of the shared expert",
        Key::new(
            "expert_shared_feed_forward_length",
            &[
                "shared_expert_intermediate_size",
                "shared_intermediate_size",
                "moe_shared_expert_intermediate_size",
            ],
        ),
    ),
    ("number of groups of experts", Key::new("expert_group_count", &["n_group"])),
    ("number of groups that a token goes to", Key::new("expert_group_used_count", &["topk_group"])),
    ("scale of the experts' weights", Key::new("expert_weights_scale", &["routed_scaling_factor"])),
];
