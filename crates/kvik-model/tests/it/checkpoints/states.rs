//! Families whose layers keep a state: projections of key heads side by side, decays as logarithms, convolutions in three
//! dimensions.

use kvik_model::ModelConfig;

use super::families::{Experts, Family, GRANITE, PLAIN, QWEN};
use super::write::Tensor;

pub(crate) const STATES: &[Family] = &[
    Family {
        golden: "arch-qwen3next",
        hf: "Qwen3NextForCausalLM",
        config: r#"{"layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 20, "linear_value_head_dim": 20,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "norm_topk_prob": true,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "partial_rotary_factor": 0.5, "mtp_": 1}"#,
        rewrite: qwen3next,
        ..QWEN35MOE
    },
    Family {
        golden: "arch-qwen3next-legacy",
        hf: "Qwen3NextForCausalLM",
        config: r#"{"full_attention_interval": 2, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 20,
            "linear_value_head_dim": 20, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "num_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}"#,
        experts: Experts::Together(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
        rewrite: qwen3next,
        ..QWEN35MOE
    },
    Family {
        golden: "arch-qwen35",
        hf: "Qwen3_5ForCausalLM",
        config: r#"{"full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 20,
            "linear_value_head_dim": 20, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "attn_output_gate": true, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
            "mrope_interleaved": true, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}"#,
        ..QWEN35MOE
    },
    Family {
        golden: "arch-qwen35-short",
        hf: "Qwen3_5ForConditionalGeneration",
        config: r#"{"layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 3,
            "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
            "linear_num_value_heads": 6, "mtp_num_hidden_layers": 1, "rope_parameters": {"rope_type": "default",
            "rope_theta": 1e4, "mrope_section": [2, 2, 2], "partial_rotary_factor": 0.75}}"#,
        prefix: "model.language_model.",
        ..QWEN35MOE
    },
    Family {
        golden: "arch-qwen35moe",
        hf: "Qwen3_5MoeForConditionalGeneration",
        config: r#"{"intermediate_size": null, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 20,
            "linear_value_head_dim": 20, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
            "mtp_num_hidden_layers": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
            "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}"#,
        prefix: "model.language_model.",
        experts: Experts::Together(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
        ..QWEN35MOE
    },
    Family {
        golden: "arch-lfm2",
        hf: "Lfm2ForCausalLM",
        config: r#"{"rms_norm_eps": null, "norm_eps": 1e-5, "intermediate_size": null, "block_ff_dim": 84,
            "block_auto_adjust_ff_dim": true, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 8,
            "layer_types": ["conv", "conv", "full_attention", "conv"], "conv_L_cache": 3, "conv_bias": false}"#,
        ..LFM2
    },
    Family {
        golden: "arch-lfm2",
        hf: "Lfm2VlForConditionalGeneration",
        config: r#"{"full_attn_idxs": [2], "conv_L_cache": 3, "block_auto_adjust_ff_dim": false,
            "sliding_window": 19}"#,
        prefix: "model.language_model.",
        ..LFM2
    },
    LFM2MOE,
    Family {
        experts: Experts::Together(["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"]),
        ..LFM2MOE
    },
    Family {
        golden: "arch-granitehybrid",
        config: r#"{"layer_types": ["mamba", "attention", "mamba", "mamba"], "mamba_d_conv": 4, "mamba_d_state": 24,
            "mamba_d_head": "auto", "mamba_expand": 2, "mamba_n_heads": 4, "mamba_n_groups": 2,
            "num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": 7,
            "shared_intermediate_size": 56, "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 1.5}"#,
        halves: Some(["ffn_gate", "ffn_up"]),
        ..GRANITE_HYBRID
    },
    GRANITE_HYBRID,
    Family {
        experts: Experts::Together([
            "block_sparse_moe.experts.gate_up_proj",
            "block_sparse_moe.experts.down_proj",
        ]),
        ..GRANITE_HYBRID
    },
    Family {
        golden: "arch-granitehybrid-rotated",
        hf: "BambaForCausalLM",
        config: r#"{"attn_layer_indices": [1], "mamba_d_conv": 4, "mamba_d_state": 20, "mamba_d_head": 20,
            "mamba_expand": 2, "mamba_n_heads": 4, "mamba_n_groups": 2}"#,
        modules: &[
            ("output_norm.weight", "final_layernorm"),
            ("ffn_norm", "pre_ff_layernorm"),
            ("ffn_gate", "feed_forward.gate_proj"),
            ("ffn_up", "feed_forward.up_proj"),
            ("ffn_down", "feed_forward.down_proj"),
            ("ssm_in", "mamba.in_proj"),
            ("ssm_conv1d", "mamba.conv1d"),
            ("ssm_a_log", "mamba.A_log"),
            ("ssm_d", "mamba.D"),
            ("ssm_dt.bias", "mamba.dt_bias"),
            ("ssm_norm", "mamba.norm"),
            ("ssm_out", "mamba.out_proj"),
        ],
        halves: None,
        ..GRANITE_HYBRID
    },
    Family {
        golden: "arch-nemotron_h",
        config: r#"{"hybrid_override_pattern": "M-*-M-", "rms_norm_eps": 1.0, "layer_norm_epsilon": 1e-5,
            "head_dim": null, "attention_head_dim": 16, "mamba_num_heads": 4, "mamba_head_dim": 20, "n_groups": 2,
            "ssm_state_size": 18, "conv_kernel": 4, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu",
            "mlp_bias": true, "time_step_limit": [0.0, {"__float__": "Infinity"}]}"#,
        ..NEMOTRON
    },
    NEMOTRON,
    Family { experts: Experts::Together(["mixer.experts.up_proj", "mixer.experts.down_proj"]), ..NEMOTRON },
];

/// Qwen3.5 and Qwen3-Next, with experts or without.
const QWEN35MOE: Family = Family {
    modules: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
        ("attn_qkv", "linear_attn.in_proj_qkv"),
        ("attn_gate", "linear_attn.in_proj_z"),
        ("ssm_beta", "linear_attn.in_proj_b"),
        ("ssm_alpha", "linear_attn.in_proj_a"),
        ("ssm_in", "linear_attn.in_proj_qkvz"),
        ("ssm_ba", "linear_attn.in_proj_ba"),
        ("ssm_conv1d", "linear_attn.conv1d"),
        ("ssm_a_log", "linear_attn.A_log"),
        ("ssm_dt.bias", "linear_attn.dt_bias"),
        ("ssm_norm", "linear_attn.norm"),
        ("ssm_out", "linear_attn.out_proj"),
    ],
    norm_offset: 1.0,
    experts: QWEN,
    rewrite: qwen35,
    ..PLAIN
};

const LFM2: Family = Family {
    modules: &[
        ("token_embd_norm.weight", "embedding_norm"),
        ("attn_norm", "operator_norm"),
        ("ffn_norm", "ffn_norm"),
        ("attn_output", "self_attn.out_proj"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
        ("shortconv.in_proj", "conv.in_proj"),
        ("shortconv.conv", "conv.conv"),
        ("shortconv.out_proj", "conv.out_proj"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_down", "feed_forward.w2"),
        ("ffn_gate_inp", "feed_forward.gate"),
        ("exp_probs_b.bias", "feed_forward.expert_bias"),
    ],
    rewrite: |_, name, tensor, _| Some(stored(name, tensor.clone())),
    ..PLAIN
};

const LFM2MOE: Family = Family {
    golden: "arch-lfm2moe",
    hf: "Lfm2MoeForCausalLM",
    config: r#"{"layer_types": ["conv", "full_attention", "conv", "full_attention"], "conv_L_cache": 3,
        "norm_eps": 1e-5, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "num_dense_layers": 1, "norm_topk_prob": true, "use_expert_bias": true, "routed_scaling_factor": 1.0}"#,
    experts: Experts::Each("feed_forward.experts", ["w1", "w3", "w2"]),
    ..LFM2
};

const GRANITE_HYBRID: Family = Family {
    golden: "arch-granitehybrid-experts",
    hf: "GraniteMoeHybridForCausalLM",
    config: r#"{"layer_types": ["linear_attention", "mamba", "full_attention"], "mamba_d_conv": 4,
        "mamba_d_state": 16, "mamba_d_head": 16, "mamba_expand": 2, "mamba_n_heads": 8, "mamba_n_groups": 1,
        "position_embedding_type": "rope", "num_local_experts": 6, "num_experts_per_tok": 2,
        "shared_intermediate_size": 40, "logits_scaling": 1.5, "time_step_limit": [0.0, null]}"#,
    modules: &[
        ("ffn_gate_inp", "block_sparse_moe.router.layer"),
        ("ffn_down_shexp", "shared_mlp.output_linear"),
        ("ffn_down", "shared_mlp.output_linear"),
        ("ssm_in", "mamba.in_proj"),
        ("ssm_conv1d", "mamba.conv1d"),
        ("ssm_a_log", "mamba.A_log"),
        ("ssm_d", "mamba.D"),
        ("ssm_dt.bias", "mamba.dt_bias"),
        ("ssm_norm", "mamba.norm"),
        ("ssm_out", "mamba.out_proj"),
    ],
    permuted: true,
    experts: GRANITE,
    halves: Some(["ffn_gate_shexp", "ffn_up_shexp"]),
    rewrite: |_, name, tensor, _| Some(stored(name, tensor.clone())),
    ..PLAIN
};

const NEMOTRON: Family = Family {
    golden: "arch-nemotron_h_moe",
    hf: "NemotronHForCausalLM",
    config: r#"{"layers_block_type": ["mamba", "moe", "attention", "linear_attention"], "num_hidden_layers": null,
        "layer_norm_epsilon": 1e-5, "mamba_num_heads": 4, "mamba_head_dim": 20, "n_groups": 2, "ssm_state_size": 20,
        "conv_kernel": 4, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 40, "n_shared_experts": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.3, "n_group": 1, "topk_group": 1, "moe_latent_size": null}"#,
    prefix: "backbone.",
    modules: &[
        ("token_embd.weight", "embeddings"),
        ("output_norm.weight", "norm_f"),
        ("attn_norm", "norm"),
        ("attn_q", "mixer.q_proj"),
        ("attn_k", "mixer.k_proj"),
        ("attn_v", "mixer.v_proj"),
        ("attn_output", "mixer.o_proj"),
        ("ffn_up", "mixer.up_proj"),
        ("ffn_down", "mixer.down_proj"),
        ("ffn_gate_inp", "mixer.gate"),
        ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
        ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
        ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
        ("ssm_in", "mixer.in_proj"),
        ("ssm_conv1d", "mixer.conv1d"),
        ("ssm_a_log", "mixer.A_log"),
        ("ssm_d", "mixer.D"),
        ("ssm_dt.bias", "mixer.dt_bias"),
        ("ssm_norm", "mixer.norm"),
        ("ssm_out", "mixer.out_proj"),
    ],
    experts: Experts::Each("mixer.experts", ["gate_proj", "up_proj", "down_proj"]),
    rewrite: |_, name, tensor, _| Some(stored(name, tensor.clone())),
    ..PLAIN
};

/// What is stored of a layer's state in another form: decays as logarithms, convolutions with a dimension of one, vectors
/// flat.
fn stored(name: &str, tensor: Tensor) -> (String, Tensor) {
    let len = tensor.rows() * tensor.cols();
    match name {
        "ssm_a" => ("ssm_a_log".to_owned(), tensor.map(|decay| (-decay).ln()).reshaped(&[len])),
        "ssm_d" | "ssm_norm.weight" => (name.to_owned(), tensor.reshaped(&[len])),
        "ssm_conv1d.weight" | "shortconv.conv.weight" => {
            (name.to_owned(), tensor.reshaped(&[tensor.rows(), 1, tensor.cols()]))
        }
        _ => (name.to_owned(), tensor),
    }
}

/// Heads of values, heads of keys and dimensions of each.
fn heads(config: &ModelConfig) -> [usize; 3] {
    let matrices = config.extras.recurrence.as_ref().unwrap().matrices.unwrap();
    [matrices.heads, matrices.key_heads, matrices.key_dim]
}

/// Checkpoints of Qwen3-Next have the queries, keys, values and gates of a key head side by side.
fn qwen3next<'t>(
    config: &ModelConfig,
    name: &str,
    tensor: &'t Tensor,
    get: &dyn Fn(&str) -> Option<&'t Tensor>,
) -> Option<(String, Tensor)> {
    match name {
        "attn_gate.weight" => None,
        "attn_qkv.weight" => {
            let [heads, key_heads, dim] = heads(config);
            let (gate, values) = (get("attn_gate.weight").unwrap(), heads / key_heads * dim);
            let parts = (0..key_heads).flat_map(|head| {
                let of_keys = |start: usize| tensor.some_rows(start + head * dim..start + (head + 1) * dim);
                let of_values = |tensor: &Tensor, start: usize| {
                    tensor.some_rows(start + head * values..start + (head + 1) * values)
                };
                let keys = key_heads * dim;
                [of_keys(0), of_keys(keys), of_values(tensor, 2 * keys), of_values(gate, 0)]
            });
            Some(("ssm_in.weight".to_owned(), Tensor::below(&parts.collect::<Vec<_>>())))
        }
        _ => Some(stored(name, tensor.clone())),
    }
}

/// Checkpoints of Qwen3.5 have the heads of values of a key head side by side, and GGUF those of all key heads in turn.
fn qwen35<'t>(
    config: &ModelConfig,
    name: &str,
    tensor: &'t Tensor,
    _: &dyn Fn(&str) -> Option<&'t Tensor>,
) -> Option<(String, Tensor)> {
    let [heads, key_heads, dim] = heads(config);
    let of_head = move |head: usize| head % (heads / key_heads) * key_heads + head / (heads / key_heads);
    let in_order = move |first: usize, dim: usize| {
        move |row: usize| match row.checked_sub(first) {
            Some(row) => first + of_head(row / dim) * dim + row % dim,
            None => row,
        }
    };
    let tensor = match name {
        "attn_qkv.weight" | "ssm_conv1d.weight" => tensor.in_order(in_order(2 * key_heads * dim, dim)),
        "attn_gate.weight" => tensor.in_order(in_order(0, dim)),
        "ssm_beta.weight" | "ssm_alpha.weight" | "ssm_a" | "ssm_dt.bias" => tensor.in_order(in_order(0, 1)),
        "ssm_out.weight" => tensor.transposed().in_order(in_order(0, dim)).transposed(),
        _ => tensor.clone(),
    };
    Some(stored(name, tensor))
}
