//! How each family names and orders in its checkpoints what GGUF has.

use std::fmt;

use kvik_engine::model::ModelConfig;
use serde_json::{Value, json};

use super::packed;
use super::write::{Tensor, of_layer};

/// A family of checkpoints.
pub(crate) struct Family {
    /// The golden file of the same numbers.
    pub golden: &'static str,
    hf: &'static str,
    /// What stands in `config.json` beside the shape of a plain transformer, as JSON.
    config: &'static str,
    /// Parts of GGUF's layers and the modules of their tensors, where Llama has others.
    modules: &'static [(&'static str, &'static str)],
    /// Whether the rows of queries and keys were permuted for GGUF.
    permuted: bool,
    /// What the conversion adds to the weights of norms.
    norm_offset: f32,
    experts: Experts,
}

/// How the experts of a layer are stored.
#[derive(Clone, Copy, PartialEq)]
enum Experts {
    /// A tensor for each: the module of all, and the names of gate, up and down.
    Each(&'static str, [&'static str; 3]),
    /// One for gate and up of all, one for down of all: their names.
    Together([&'static str; 2]),
    /// In blocks of MXFP4.
    Packed,
}

const QWEN: Experts = Experts::Each("mlp.experts", ["gate_proj", "up_proj", "down_proj"]);
const GEMMA: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

const PLAIN: Family = Family {
    golden: "",
    hf: "",
    config: "{}",
    modules: &[],
    permuted: false,
    norm_offset: 0.0,
    experts: QWEN,
};

pub(crate) const FAMILIES: &[Family] = &[
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
        experts: Experts::Together([
            "block_sparse_moe.input_linear.weight",
            "block_sparse_moe.output_linear.weight",
        ]),
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
            "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64},
            "quantization_config": {"quant_method": "mxfp4"}}"#,
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
const SHARED_EXPERT: &[(&str, &str)] = &[
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];
const SHARED_EXPERTS: &[(&str, &str)] = &[
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

/// Llama's modules, and those of mixtures of experts.
const MODULES: [(&str, &str); 13] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.hf, self.golden)
    }
}

impl Family {
    /// The tensors of the golden file; the experts of gpt-oss become random ones in MXFP4.
    pub(crate) fn prepared(&self, mut tensors: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
        if self.experts == Experts::Packed {
            let weights = tensors.iter_mut().filter(|(name, _)| name.ends_with("_exps.weight"));
            weights.enumerate().for_each(|(seed, (_, tensor))| *tensor = packed::random(tensor, seed));
        }
        tensors
    }

    fn is_multimodal(&self) -> bool {
        self.hf.ends_with("ForConditionalGeneration")
    }

    /// `config.json`.
    pub(crate) fn config(&self, config: &ModelConfig) -> Value {
        let mut text = json!({
            "num_hidden_layers": config.layers, "hidden_size": config.d_model, "intermediate_size": config.d_ff,
            "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
            "vocab_size": config.vocab, "max_position_embeddings": config.context, "rms_norm_eps": config.norm_eps,
            "rope_theta": config.rope.theta,
        });
        let own: Value = serde_json::from_str(self.config).unwrap();
        text.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let mut all =
            if self.is_multimodal() { json!({"text_config": text, "vision_config": {}}) } else { text };
        all["architectures"] = json!([self.hf]);
        all
    }

    /// Where in a checkpoint the modules of the decoder are.
    fn prefix(&self) -> &'static str {
        if self.is_multimodal() { "language_model.model." } else { "model." }
    }

    /// The tensors of the checkpoint.
    pub(crate) fn checkpoint(
        &self,
        config: &ModelConfig,
        tensors: &[(String, Tensor)],
    ) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        for (name, tensor) in tensors {
            let mut tensor = tensor.clone();
            if name.ends_with("norm.weight") {
                tensor.add(-self.norm_offset);
            }
            let name = match name.as_str() {
                "token_embd.weight" => format!("{}embed_tokens.weight", self.prefix()),
                "output_norm.weight" => format!("{}norm.weight", self.prefix()),
                "output.weight" => "lm_head.weight".to_owned(),
                name => match of_layer(name) {
                    Some((layer, part)) if !part.contains("_exps") => {
                        let Some(name) = self.name_in_layer(part, &mut tensor, config) else { continue };
                        format!("{}layers.{layer}.{name}", self.prefix())
                    }
                    _ => continue,
                },
            };
            all.push((name, tensor));
        }
        for layer in 0..config.layers {
            let prefix = format!("{}layers.{layer}.", self.prefix());
            let get = |part: &str| {
                let name = format!("blk.{layer}.{part}");
                tensors.iter().find(|(other, _)| *other == name).map(|(_, tensor)| tensor)
            };
            let parts = self.of_experts(config, &get);
            all.extend(parts.into_iter().map(|(name, tensor)| (prefix.clone() + &name, tensor)));
        }
        if self.is_multimodal() {
            all.push(("vision_tower.blocks.0.weight".to_owned(), all[0].1.clone()));
        }
        if self.config.contains("nextn") {
            all.push((format!("{}layers.{}.eh_proj.weight", self.prefix(), config.layers), all[0].1.clone()));
        }
        all
    }

    /// The name of a tensor in its layer, whose rows are brought in the checkpoint's order; `None` if it is stored
    /// together with another.
    fn name_in_layer(&self, part: &str, tensor: &mut Tensor, config: &ModelConfig) -> Option<String> {
        match part {
            "attn_sinks.weight" => return Some("self_attn.sinks".to_owned()),
            "exp_probs_b.bias" => return Some("mlp.gate.e_score_correction_bias".to_owned()),
            "ffn_gate_inp_shexp.weight" => tensor.shape.insert(0, 1),
            _ => {}
        }
        let (part, kind) = part.rsplit_once('.').unwrap();
        let heads = match part {
            "attn_q" => config.heads,
            "attn_k" => config.kv_heads,
            _ => 0,
        };
        if self.permuted && heads > 0 {
            tensor.unpermute(heads);
        }
        let known = self.modules.iter().chain(&MODULES).find(|(gguf, _)| *gguf == part);
        match known {
            Some((_, module)) => Some(format!("{module}.{kind}")),
            None => {
                assert!(part.ends_with("_shexp"), "{self}: {part} has no name");
                None
            }
        }
    }

    /// The experts of a layer of which `get` knows the tensors, and what is stored together of a shared one.
    fn of_experts<'t>(
        &self,
        config: &ModelConfig,
        get: &dyn Fn(&str) -> Option<&'t Tensor>,
    ) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        let stacks = ["gate", "up", "down"].map(|part| get(&format!("ffn_{part}_exps.weight")));
        let [Some(gate), Some(up), Some(down)] = stacks else { return all };
        let count = config.extras.experts.unwrap().count;
        match self.experts {
            Experts::Each(module, parts) => {
                for (stack, part) in [gate, up, down].into_iter().zip(parts) {
                    let named = |(expert, tensor)| (format!("{module}.{expert}.{part}.weight"), tensor);
                    all.extend(stack.split(count).into_iter().enumerate().map(named));
                }
            }
            Experts::Together([gate_up, name]) => {
                all.push((gate_up.to_owned(), Tensor::side_by_side(gate, up, count)));
                all.push((name.to_owned(), down.in_three(count)));
            }
            Experts::Packed => {
                let biases =
                    ["gate", "up", "down"].map(|part| get(&format!("ffn_{part}_exps.bias")).unwrap());
                all.extend(packed::checkpoint([gate, up, down], biases, count));
            }
        }
        if !self.modules.iter().any(|(part, _)| *part == "ffn_gate_shexp")
            && let (Some(gate), Some(up)) = (get("ffn_gate_shexp.weight"), get("ffn_up_shexp.weight"))
        {
            let both = Tensor::side_by_side(gate, up, 1);
            all.push(("shared_mlp.input_linear.weight".to_owned(), both.in_two()));
        }
        all
    }
}
