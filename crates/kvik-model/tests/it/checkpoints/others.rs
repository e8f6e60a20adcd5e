//! Families with latent attention, with experts the other way round, and the Gemmas with embeddings for every layer.

use kvik_model::ModelConfig;

use super::families::{Experts, Family, PLAIN, SHARED_EXPERTS};
use super::write::Tensor;

pub(crate) const OTHERS: &[Family] = &[
    Family {
        golden: "arch-deepseek2",
        hf: "DeepseekV3ForCausalLM",
        config: r#"{"head_dim": null, "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 56,
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "rope_scaling": {"type": "yarn",
            "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64}, "n_routed_experts": 8, "num_experts_per_tok": 3,
            "moe_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
            "n_group": 4, "topk_group": 2, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
            "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1,
            "rope_interleave": true}"#,
        modules: DEEPSEEK2,
        rewrite: fused,
        ..PLAIN
    },
    Family {
        golden: "arch-deepseek2-lite",
        hf: "DeepseekV2ForCausalLM",
        config: r#"{"head_dim": 8, "q_lora_rank": null, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8, "v_head_dim": 16, "rope_scaling": {"type": "yarn", "factor": 4.0,
            "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 64},
            "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 2,
            "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "topk_method": "greedy",
            "scoring_func": "softmax", "norm_topk_prob": false, "routed_scaling_factor": 1.0}"#,
        modules: DEEPSEEK2,
        ..PLAIN
    },
    LLAMA4,
    Family {
        hf: "Llama4ForConditionalGeneration",
        config: r#"{"intermediate_size": 24, "intermediate_size_mlp": 56, "num_local_experts": 6,
            "num_experts_per_tok": 1, "moe_layers": [1, 3], "interleave_moe_layer_step": 2, "use_qk_norm": true,
            "attention_chunk_size": 8192, "no_rope_layers": [1, 1, 1, 0], "layer_types": ["chunked_attention",
            "chunked_attention", "chunked_attention", "full_attention"], "attn_temperature_tuning": true,
            "attn_scale": 0.1, "floor_scale": 8192}"#,
        prefix: "language_model.model.",
        ..LLAMA4
    },
    Family {
        golden: "arch-gemma3n",
        hf: "Gemma3nForConditionalGeneration",
        config: r#"{"sliding_window": 20, "hidden_activation": "gelu_pytorch_tanh", "num_kv_shared_layers": 3,
            "intermediate_size": [40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40,
            40, 40], "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 90, "altup_num_inputs": 4,
            "altup_active_idx": 0, "altup_coef_clip": 120.0, "altup_correct_scale": true, "laurel_rank": 64,
            "final_logit_softcapping": 30.0, "rope_local_base_freq": 1e4, "activation_sparsity_pattern": [0.95, 0.95,
            0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0], "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
            "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
            "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
            "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]}"#,
        prefix: "model.language_model.",
        modules: GEMMA,
        ..PLAIN
    },
    Family {
        golden: "arch-gemma4",
        hf: "Gemma4ForConditionalGeneration",
        config: r#"{"sliding_window": 20, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16,
            "global_head_dim": 32, "num_key_value_heads": 2, "num_global_key_value_heads": 1,
            "attention_k_eq_v": true, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 30.0, "enable_moe_block": false, "num_experts": null,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
            "sliding_attention", "full_attention", "sliding_attention"], "rope_parameters": {"full_attention":
            {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3}}}"#,
        ..GEMMA4
    },
    Family {
        golden: "arch-gemma4-experts",
        hf: "Gemma4ForCausalLM",
        config: r#"{"sliding_window": 19, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16,
            "global_head_dim": 32, "attention_k_eq_v": true, "num_global_key_value_heads": 2,
            "hidden_size_per_layer_input": null, "final_logit_softcapping": 30.0, "enable_moe_block": true,
            "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 24, "rope_parameters": null,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}"#,
        prefix: "model.",
        experts: Experts::Together(["experts.gate_up_proj", "experts.down_proj"]),
        ..GEMMA4
    },
    Family {
        golden: "arch-gemma4-shared",
        hf: "Gemma4ForConditionalGeneration",
        config: r#"{"sliding_window": 18, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16,
            "global_head_dim": 32, "intermediate_size": 56, "use_double_wide_mlp": true, "num_kv_shared_layers": 3,
            "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 90, "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
            "full_attention", "sliding_attention", "sliding_attention", "full_attention"], "rope_parameters":
            {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}}"#,
        ..GEMMA4
    },
];

const DEEPSEEK2: &[(&str, &str)] = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    SHARED_EXPERTS[0],
    SHARED_EXPERTS[1],
    SHARED_EXPERTS[2],
];

/// Its rows are inputs, and scores are of the product with the router.
const LLAMA4: Family = Family {
    golden: "arch-llama4",
    hf: "Llama4ForCausalLM",
    config: r#"{"intermediate_size": 24, "intermediate_size_mlp": 56, "num_local_experts": 6,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "use_qk_norm": true, "attention_chunk_size": 8192,
        "no_rope_layers": [], "attn_temperature_tuning": 4}"#,
    modules: &[
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
        ("ffn_gate_inp", "feed_forward.router"),
        ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
        ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
        ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
    ],
    experts: Experts::Turned(["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"]),
    ..PLAIN
};

const GEMMA: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("altup_correct_coef", "altup.correction_coefs"),
    ("altup_correct_scale.weight", "altup.correct_output_scale"),
    ("altup_predict_coef", "altup.prediction_coefs"),
    ("altup_router", "altup.modality_router"),
    ("altup_router_norm", "altup.router_norm"),
    ("laurel_l", "laurel.linear_left"),
    ("laurel_r", "laurel.linear_right"),
    ("laurel_post_norm", "laurel.post_laurel_norm"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
];

const GEMMA4: Family = Family { prefix: "model.language_model.", modules: GEMMA, ..PLAIN };

/// Checkpoints have what makes the keys of a head, and below it what makes its values, in one tensor.
fn fused<'t>(
    config: &ModelConfig,
    name: &str,
    tensor: &'t Tensor,
    get: &dyn Fn(&str) -> Option<&'t Tensor>,
) -> Option<(String, Tensor)> {
    match name {
        "attn_v_b.weight" => None,
        "attn_k_b.weight" => {
            let keys = tensor.split(config.heads).into_iter().map(|keys| keys.transposed());
            let values = get("attn_v_b.weight").unwrap().split(config.heads);
            let parts: Vec<Tensor> = keys.zip(values).flat_map(|(keys, values)| [keys, values]).collect();
            Some(("attn_kv_b.weight".to_owned(), Tensor::below(&parts)))
        }
        _ => Some((name.to_owned(), tensor.clone())),
    }
}
