//! How each family names and orders in its checkpoints what GGUF has: those whose tensors GGUF has under other names, or
//! with the rows of heads in another order.

use std::fmt;

use kvik_model::ModelConfig;

use super::others::OTHERS;
use super::states::STATES;
use super::write::Tensor;

/// A family of checkpoints.
pub(crate) struct Family {
    /// The golden file of the same numbers.
    pub golden: &'static str,
    pub(crate) hf: &'static str,
    /// What stands in `config.json` beside the shape of a plain transformer, or in its place, as JSON.
    pub(crate) config: &'static str,
    /// Where in a checkpoint the modules of the decoder are.
    pub(crate) prefix: &'static str,
    /// Parts of GGUF's layers, and tensors outside of them, and the modules of their tensors, where Llama has others.
    /// What belongs to no module has its whole name in both.
    pub(crate) modules: &'static [(&'static str, &'static str)],
    /// Whether the rows of queries and keys were permuted for GGUF.
    pub(crate) permuted: bool,
    /// What the conversion adds to the weights of norms, but for those behind a state.
    pub(crate) norm_offset: f32,
    pub(crate) experts: Experts,
    /// The parts of GGUF's layers that are the halves of `shared_mlp.input_linear`.
    pub(crate) halves: Option<[&'static str; 2]>,
    /// Brings a tensor of GGUF, by its name in its layer or in the model, in the shape and order of checkpoints.
    pub(crate) rewrite: Rewrite,
}

/// The name and the tensor that a checkpoint has in the place of one of a layer, of which `get` knows the others; `None`
/// if it is stored with another.
pub(crate) type Rewrite = for<'t> fn(
    &ModelConfig,
    &str,
    &'t Tensor,
    &dyn Fn(&str) -> Option<&'t Tensor>,
) -> Option<(String, Tensor)>;

/// How the experts of a layer are stored.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Experts {
    /// A tensor for each: the module of all, and the names of gate, up and down.
    Each(&'static str, [&'static str; 3]),
    /// One for gate and up of all, one for down of all: their names.
    Together([&'static str; 2]),
    /// The same, each matrix the other way round.
    Turned([&'static str; 2]),
    /// In blocks of MXFP4.
    Packed,
}

pub(crate) const QWEN: Experts = Experts::Each("mlp.experts", ["gate_proj", "up_proj", "down_proj"]);
/// Granite's experts.
pub(crate) const GRANITE: Experts =
    Experts::Together(["block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"]);
const GEMMA: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

pub(crate) const PLAIN: Family = Family {
    golden: "",
    hf: "",
    config: "{}",
    prefix: "model.",
    modules: &[],
    permuted: false,
    norm_offset: 0.0,
    experts: QWEN,
    halves: None,
    rewrite: |_, name, tensor, _| Some((name.to_owned(), tensor.clone())),
};

/// All families.
pub(crate) fn families() -> impl Iterator<Item = &'static Family> {
    PLAIN_FAMILIES.iter().chain(STATES).chain(OTHERS)
}

const PLAIN_FAMILIES: &[Family] = &[
    Family { golden: "arch-llama-gqa", hf: "LlamaForCausalLM", permuted: true, ..PLAIN },
    Family { golden: "arch-qwen2", hf: "Qwen2ForCausalLM", ..PLAIN },
    Family { golden: "arch-qwen3", hf: "Qwen3ForCausalLM", ..PLAIN },
    Family {
        golden: "arch-gemma2",
        hf: "Gemma2ForCausalLM",
        config: r#"{"sliding_window": 24, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh"}"#,
        modules: GEMMA,
        norm_offset: 1.0,
        ..PLAIN
    },
    GEMMA3,
    Family {
        hf: "Gemma3ForConditionalGeneration",
        config: r#"{"sliding_window": 20, "query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh",
            "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}"#,
        prefix: "language_model.model.",
        ..GEMMA3
    },
    Family {
        golden: "arch-mistral3",
        hf: "Ministral3ForCausalLM",
        config: r#"{"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.3}}"#,
        permuted: true,
        ..PLAIN
    },
    Family { golden: "arch-smollm3", hf: "SmolLM3ForCausalLM", permuted: true, ..PLAIN },
    Family { golden: "arch-phi3", hf: "Phi3ForCausalLM", modules: PHI3, ..PLAIN },
    Family {
        golden: "arch-phi3-long",
        hf: "Phi3ForCausalLM",
        config: r#"{"original_max_position_embeddings": 64}"#,
        modules: PHI3,
        ..PLAIN
    },
    Family {
        golden: "arch-olmo2",
        hf: "Olmo2ForCausalLM",
        modules: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        ..PLAIN
    },
    Family {
        golden: "arch-granite",
        hf: "GraniteForCausalLM",
        config: r#"{"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
            "logits_scaling": 1.5}"#,
        permuted: true,
        ..PLAIN
    },
    Family {
        golden: "arch-glm4",
        hf: "Glm4ForCausalLM",
        modules: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        ..PLAIN
    },
    QWEN3MOE,
    Family { experts: Experts::Together(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]), ..QWEN3MOE },
    Family {
        golden: "arch-qwen2moe",
        hf: "Qwen2MoeForCausalLM",
        config: r#"{"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40, "norm_topk_prob": false, "decoder_sparse_step": 1}"#,
        modules: SHARED_EXPERT,
        ..PLAIN
    },
    Family {
        golden: "arch-olmoe",
        hf: "OlmoeForCausalLM",
        config: r#"{"num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": false, "clip_qkv": null}"#,
        ..PLAIN
    },
    Family {
        golden: "arch-llama-experts",
        hf: "MixtralForCausalLM",
        config: r#"{"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": null}"#,
        modules: &[("ffn_gate_inp", "block_sparse_moe.gate")],
        permuted: true,
        experts: Experts::Each("block_sparse_moe.experts", ["w1", "w3", "w2"]),
        ..PLAIN
    },
    Family {
        golden: "arch-granitemoe",
        hf: "GraniteMoeSharedForCausalLM",
        config: r#"{"num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 40,
            "logits_scaling": 1.5}"#,
        modules: &[
            ("ffn_gate_inp", "block_sparse_moe.router.layer"),
            ("ffn_down_shexp", "shared_mlp.output_linear"),
        ],
        permuted: true,
        experts: GRANITE,
        halves: Some(["ffn_gate_shexp", "ffn_up_shexp"]),
        ..PLAIN
    },
    Family {
        golden: "arch-deepseek",
        hf: "DeepseekForCausalLM",
        config: r#"{"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": false, "moe_layer_freq": 1}"#,
        modules: SHARED_EXPERTS,
        permuted: true,
        ..PLAIN
    },
    Family {
        golden: "arch-glm4moe",
        hf: "Glm4MoeForCausalLM",
        config: r#"{"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.3,
            "n_group": 1, "topk_group": 1, "partial_rotary_factor": 1.0, "num_nextn_predict_layers": 1}"#,
        modules: GLM4MOE,
        ..PLAIN
    },
    Family {
        golden: "arch-gpt-oss",
        hf: "GptOssForCausalLM",
        config: r#"{"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 17,
            "layer_types": ["sliding_attention", "full_attention"], "rope_scaling": {"rope_type": "yarn",
            "factor": 4.0, "beta_fast": 32.0, "beta_slow": 0.322107, "original_max_position_embeddings": 64,
            "truncate": false}, "swiglu_limit": 7.0, "quantization_config": {"quant_method": "mxfp4"}}"#,
        modules: &[("post_attention_norm", "post_attention_layernorm"), ("ffn_gate_inp", "mlp.router")],
        experts: Experts::Packed,
        ..PLAIN
    },
];

const GEMMA3: Family = Family {
    golden: "arch-gemma3",
    hf: "Gemma3ForCausalLM",
    config: r#"{"sliding_window": 20, "query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh",
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}"#,
    modules: GEMMA,
    norm_offset: 1.0,
    ..PLAIN
};

const QWEN3MOE: Family = Family {
    golden: "arch-qwen3moe",
    hf: "Qwen3MoeForCausalLM",
    config: r#"{"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": true,
        "mlp_only_layers": [], "decoder_sparse_step": 1}"#,
    ..PLAIN
};

const PHI3: &[(&str, &str)] = &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")];
pub(crate) const SHARED_EXPERT: &[(&str, &str)] = &[
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];
pub(crate) const SHARED_EXPERTS: &[(&str, &str)] = &[
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];
const GLM4MOE: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.hf, self.golden)
    }
}
