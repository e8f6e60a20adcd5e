//! Parts of architectures beyond a plain transformer, as read from both kinds of files.

mod gemma;
mod latent;
mod rotation;
mod sliding_windows;

use std::collections::BTreeSet;

use kvik_kernels::KvKind;
use kvik_text::files::gguf::write::GgufWriter;
use serde_json::{Value, json};

use super::*;
use crate::{Multipliers, RopeScaling, Temperature};

/// A file with four layers; keys of `add` are written without the prefix of the architecture, before those of every
/// file.
fn gguf(arch: &str, add: impl Fn(&mut Keys<'_>)) -> Result<ModelConfig, String> {
    let mut writer = GgufWriter::new();
    writer.text("general.architecture", arch).texts("tokenizer.ggml.tokens", &["a", "b"]);
    let mut keys = Keys { arch, writer: &mut writer, written: BTreeSet::new() };
    add(&mut keys);
    keys.count("block_count", 4).count("embedding_length", 64).count("feed_forward_length", 96);
    keys.count("attention.head_count", 4).count("context_length", 128);
    keys.number("attention.layer_norm_rms_epsilon", 1e-5);
    let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
    model_config(&file).map_err(|error| error.to_string())
}

struct Keys<'a> {
    arch: &'a str,
    writer: &'a mut GgufWriter,
    written: BTreeSet<String>,
}

impl Keys<'_> {
    /// Writes a key, unless it is present.
    fn put(&mut self, key: &str, write: impl FnOnce(&mut GgufWriter, &str)) -> &mut Self {
        if self.written.insert(key.to_owned()) {
            write(self.writer, &format!("{}.{key}", self.arch));
        }
        self
    }

    fn count(&mut self, key: &str, value: u32) -> &mut Self {
        self.put(key, |writer, key| {
            writer.u32(key, value);
        })
    }

    fn counts(&mut self, key: &str, values: &[u32]) -> &mut Self {
        let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
        self.put(key, |writer, key| {
            writer.i32s(key, &values);
        })
    }

    fn flags(&mut self, key: &str, values: &[bool]) -> &mut Self {
        let values: Vec<u32> = values.iter().map(|&value| u32::from(value)).collect();
        self.counts(key, &values)
    }

    fn number(&mut self, key: &str, value: f32) -> &mut Self {
        self.put(key, |writer, key| {
            writer.f32(key, value);
        })
    }

    fn numbers(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.put(key, |writer, key| {
            writer.f32s(key, values);
        })
    }

    fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.put(key, |writer, key| {
            writer.text(key, value);
        })
    }
}

pub(super) fn hf(architecture: &str, fields: Value) -> Result<ModelConfig, String> {
    let mut config = json!({
        "architectures": [architecture], "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "vocab_size": 4096, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    });
    for (key, value) in fields.as_object().unwrap() {
        config[key] = value.clone();
    }
    config_from_json(config.to_string().as_bytes(), "test").map_err(|error| error.to_string())
}

/// The windows of all layers.
pub(super) fn windows(config: &ModelConfig) -> Vec<Option<u32>> {
    let window = |layer| match config.layer(layer).kind {
        KvKind::Full => None,
        KvKind::Window { positions } | KvKind::Chunk { positions } => Some(positions),
    };
    (0..config.layers).map(window).collect()
}

#[test]
fn granite_has_multipliers_in_both() {
    let expect = Multipliers { embedding: 12.0, residual: 0.25, logits: 1.0 / 8.0 };
    let file = gguf("granite", |keys| {
        keys.number("embedding_scale", 12.0).number("residual_scale", 0.25);
        keys.number("attention.scale", 0.5).number("logit_scale", 8.0);
    });
    let directory = hf(
        "GraniteForCausalLM",
        json!({"embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.5,
            "logits_scaling": 8.0}),
    );
    for config in [file.unwrap(), directory.unwrap()] {
        assert_eq!(config.extras.multipliers, expect);
        assert_eq!(config.layer(3).scale, 0.5);
        assert_eq!(config.layer(3).rotation, Some(0));
    }
    let unrotated =
        hf("GraniteForCausalLM", json!({"logits_scaling": 8.0, "position_embedding_type": "nope"}));
    assert_eq!(unrotated.unwrap().layer(0).rotation, None);
    let missing = gguf("granite", |_| ()).unwrap_err();
    assert!(missing.contains("granite.logit_scale"), "{missing}");
    let zero = gguf("granite", |keys| {
        keys.number("logit_scale", 0.0);
    })
    .unwrap_err();
    assert!(zero.contains("logit_scale"), "{zero}");
}

#[test]
fn a_temperature_needs_an_original_context() {
    let without = gguf("mistral3", |keys| {
        keys.number("attention.temperature_scale", 0.1);
    })
    .unwrap_err();
    assert!(without.contains("temperature_scale"), "{without}");
    let with = gguf("mistral3", |keys| {
        keys.number("attention.temperature_scale", 0.1).number("rope.scaling.factor", 16.0);
        keys.text("rope.scaling.type", "yarn").count("rope.scaling.original_context_length", 32);
        keys.number("rope.scaling.yarn_log_multiplier", 1.0);
    });
    let directory = hf(
        "Ministral3ForCausalLM",
        json!({"rope_parameters": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32,
            "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    );
    for config in [with.unwrap(), directory.unwrap()] {
        let expect = Temperature { scale: 0.1, interval: 32, offset: 0.0 };
        assert_eq!(config.extras.temperature, Some(expect));
        let RopeScaling::Yarn { attention_factor: Some(factor), .. } = config.rope.scaling else {
            panic!("{:?}", config.rope.scaling)
        };
        assert!((factor - 1.0).abs() < 1e-6, "{factor}");
    }
}

#[test]
fn experts_are_read_and_refused_by_name() {
    let file = |count: u32, used: Option<u32>| {
        gguf("qwen3moe", |keys| {
            keys.count("expert_count", count).count("expert_feed_forward_length", 24);
            if let Some(used) = used {
                keys.count("expert_used_count", used);
            }
        })
    };
    let experts = file(8, Some(2)).unwrap().extras.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.d_ff, experts.normalised), (8, 2, 24, true));
    assert!(file(8, None).unwrap_err().contains("qwen3moe.expert_used_count"));
    let directory = |fields: Value| {
        let mut all = json!({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": []});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        hf("Qwen3MoeForCausalLM", all)
    };
    let experts = directory(json!({"moe_intermediate_size": 24})).unwrap().extras.experts.unwrap();
    // The library normalises only if the file says so.
    assert_eq!((experts.count, experts.used, experts.d_ff, experts.normalised), (8, 2, 24, false));
    let every_other = directory(json!({"decoder_sparse_step": 2, "norm_topk_prob": true})).unwrap();
    assert!(every_other.extras.experts.unwrap().normalised);
    let has_experts = |layer| format!("{:?}", every_other.layer(layer).feed_forward).starts_with("Experts");
    assert_eq!([0, 1, 2, 3].map(has_experts), [false, true, false, true]);
    assert!(directory(json!({"mlp_only_layers": [1]})).unwrap_err().contains("mlp_only_layers"));
}

#[test]
fn old_files_say_the_width_of_all_experts_of_a_token() {
    let width = |arch: &str| {
        let file = gguf(arch, |keys| {
            keys.count("expert_count", 8).count("expert_used_count", 3).number("logit_scale", 1.0);
            keys.count("expert_shared_count", u32::from(arch == "glm4moe"));
        });
        let experts = file.unwrap().extras.experts.unwrap();
        (experts.d_ff, experts.shared_d_ff)
    };
    assert_eq!(["qwen2moe", "qwen3moe", "glm4moe"].map(width), [(32, 96), (32, 0), (32, 32)]);
    assert_eq!(["llama", "olmoe", "granitemoe"].map(width), [(96, 0); 3]);
}

/// Bamba, which has the architecture of hybrid Granite.
#[test]
fn hybrids_may_leave_logits_as_they_are() {
    let hybrid = |logits: Option<f32>| {
        gguf("granitehybrid", |keys| {
            keys.counts("attention.head_count_kv", &[0, 2, 0, 2]).count("ssm.conv_kernel", 4);
            keys.count("ssm.inner_size", 80).count("ssm.state_size", 20).count("ssm.time_step_rank", 4);
            keys.count("ssm.group_count", 2);
            logits.iter().for_each(|&logits| _ = keys.number("logit_scale", logits));
        })
    };
    let factor = |logits| hybrid(logits).unwrap().extras.multipliers.logits;
    assert_eq!([factor(None), factor(Some(0.0)), factor(Some(4.0))], [1.0, 1.0, 0.25]);
    assert!(hybrid(Some(-1.0)).unwrap_err().contains("granitehybrid.logit_scale"));
}

/// Values by layer would be a list of that length.
#[test]
fn layers_beyond_count_are_refused_before_they_are_listed() {
    for arch in ["gemma3", "smollm3", "llama4", "granite", "qwen35"] {
        let file = gguf(arch, |keys| {
            keys.count("block_count", u32::MAX);
        });
        assert!(file.unwrap_err().contains(&format!("{arch}.block_count")), "{arch}");
    }
    for name in ["Gemma2ForCausalLM", "SmolLM3ForCausalLM", "GraniteForCausalLM"] {
        let error = hf(name, json!({"num_hidden_layers": u64::MAX})).unwrap_err();
        assert!(error.contains("num_hidden_layers"), "{error}");
    }
}

#[test]
fn extras_out_of_range_are_named() {
    let check = |arch: &str, key: &str, value: f32, expect: &str| {
        let error = gguf(arch, |keys| {
            keys.number(key, value);
        })
        .unwrap_err();
        assert!(error.contains(expect), "{error:?} does not contain {expect:?}");
    };
    for value in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
        check("gemma2", "attn_logit_softcapping", value, "cap of attention scores");
        check("gemma2", "final_logit_softcapping", value, "cap of logits");
    }
    let error = gguf("gemma3", |keys| {
        keys.count("attention.sliding_window", 8).number("rope.freq_base_swa", f32::NAN);
    });
    assert!(error.unwrap_err().contains("rotary base"));
}

#[test]
fn layers_that_predict_beyond_the_next_token_are_not_computed() {
    let file = |beyond: u32| {
        gguf("glm4moe", |keys| {
            keys.count("expert_count", 4).count("expert_used_count", 2).count("nextn_predict_layers", beyond);
        })
    };
    let config = file(1).unwrap();
    assert_eq!((config.layers, config.extras.layers_beyond), (3, 1));
    for beyond in [4, 5, u32::MAX] {
        let error = file(beyond).unwrap_err();
        assert!(error.contains("glm4moe.nextn_predict_layers"), "{error}");
    }
}
