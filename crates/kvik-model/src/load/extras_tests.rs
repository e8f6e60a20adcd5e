//! Parts of architectures beyond a plain transformer, as read from both kinds of files.

use std::collections::BTreeSet;

use kvik_kernels::KvKind;
use kvik_text::files::gguf::write::GgufWriter;
use serde_json::{Value, json};

use super::*;
use crate::{Arch, ExpertsConfig, LatentConfig, Multipliers, RopeScaling, RopeStyle, Temperature};

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
fn smollm3_leaves_layers_unrotated() {
    let rotations = |config: &ModelConfig| -> Vec<bool> {
        (0..4).map(|layer| config.layer(layer).rotation.is_some()).collect()
    };
    assert_eq!(rotations(&gguf("smollm3", |_| ()).unwrap()), [true, true, true, false]);
    let listed = hf("SmolLM3ForCausalLM", json!({"no_rope_layers": [1, 0, 1, 1]})).unwrap();
    assert_eq!(rotations(&listed), [true, false, true, true]);
    let every = hf("SmolLM3ForCausalLM", json!({"no_rope_layer_interval": 2})).unwrap();
    assert_eq!(rotations(&every), [true, false, true, false]);
    let short = hf("SmolLM3ForCausalLM", json!({"no_rope_layers": [1, 0]})).unwrap_err();
    assert!(short.contains("no_rope_layers"), "{short}");
}

#[test]
fn windows_are_read_in_every_form() {
    let gemma = gguf("gemma3", |keys| {
        keys.count("attention.sliding_window", 24);
    })
    .unwrap();
    assert_eq!(windows(&gemma), [Some(24); 4], "five of six");
    assert_eq!(gemma.layer(0).rotation, Some(1));
    assert_eq!(gemma.ropes()[1].0.theta, 10_000.0);
    let every = gguf("gemma2", |keys| {
        keys.count("attention.sliding_window", 24);
    })
    .unwrap();
    assert_eq!(windows(&every), [Some(24), None, Some(24), None]);
    let default = gguf("gemma2", |keys| {
        keys.count("context_length", 8192);
    })
    .unwrap();
    assert_eq!(windows(&default), [Some(4096), None, Some(4096), None]);
    let by_number = gguf("gpt-oss", |keys| {
        keys.count("attention.sliding_window", 8).count("attention.sliding_window_pattern", 4);
        keys.count("expert_count", 4).count("expert_used_count", 2);
    });
    assert_eq!(windows(&by_number.unwrap()), [Some(8), Some(8), Some(8), None]);
    let types = json!({"sliding_window": 16, "query_pre_attn_scalar": 256, "rope_local_base_freq": 500.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]});
    let listed = hf("Gemma3ForCausalLM", types).unwrap();
    assert_eq!(windows(&listed), [None, Some(16), Some(16), None]);
    assert_eq!((listed.ropes()[1].0.theta, listed.layer(0).scale), (500.0, 1.0 / 16.0));
    let short = json!({"sliding_window": 16, "layer_types": ["full_attention"]});
    let error = hf("Gemma3ForCausalLM", short).unwrap_err();
    assert!(error.contains("layer_types") && error.contains("4 layers"), "{error}");
    let none = gguf("gemma3", |keys| {
        keys.count("attention.sliding_window", 0);
    })
    .unwrap();
    assert_eq!(windows(&none), [None; 4]);
    let mistral = hf("MistralForCausalLM", json!({"sliding_window": 32})).unwrap();
    assert_eq!((mistral.arch, windows(&mistral)), (Arch::Llama, vec![Some(32); 4]));
    let plain = hf("MistralForCausalLM", json!({"sliding_window": null})).unwrap();
    assert_eq!(windows(&plain), [None; 4]);
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
fn long_rope_of_a_directory_has_its_divisors() {
    let scaling = json!({"type": "longrope", "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        "short_factor": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]});
    let fields = json!({"rope_scaling": scaling, "original_max_position_embeddings": 32});
    let config = hf("Phi3ForCausalLM", fields).unwrap();
    let RopeScaling::Long { long, original_context: 32, attention_factor, .. } = config.rope.scaling else {
        panic!("{:?}", config.rope.scaling)
    };
    assert_eq!(long[7], 9.0);
    assert!((attention_factor - (1.0_f32 + 4.0_f32.ln() / 32.0_f32.ln()).sqrt()).abs() < 1e-6);
    let mut short = scaling;
    short["long_factor"] = json!([2.0]);
    let error = hf("Phi3ForCausalLM", json!({"rope_scaling": short})).unwrap_err();
    assert!(error.contains("rope long factors"), "{error}");
}

/// Phi-3.5 and Phi-4 declare a window of twice their context.
#[test]
fn a_window_of_the_whole_context_is_none() {
    for (positions, expect) in [(127, Some(127)), (128, None), (256, None)] {
        let fields = json!({"sliding_window": positions, "max_position_embeddings": 128});
        let config = hf("Phi3ForCausalLM", fields).unwrap();
        assert_eq!(windows(&config), [expect; 4], "{positions}");
        assert_eq!(config.extras.window.is_some(), expect.is_some(), "{positions}");
    }
    // The context that YaRN stretches to.
    let stretched = json!({"sliding_window": 256, "rope_scaling": {"type": "yarn", "factor": 4.0}});
    assert_eq!(windows(&hf("MistralForCausalLM", stretched).unwrap()), [Some(256); 4]);
    // These layers also rotate in another way, and those of Llama 4 attend to chunks.
    let rotated = gguf("gemma3", |keys| {
        keys.count("attention.sliding_window", 4096).number("rope.freq_base", 1e6);
    });
    assert_eq!(windows(&rotated.unwrap()), [Some(4096); 4]);
    let chunked = gguf("llama4", |keys| {
        keys.count("interleave_moe_layer_step", 1).count("expert_count", 4).count("expert_used_count", 1);
    });
    assert_eq!(windows(&chunked.unwrap()), [Some(8192), Some(8192), Some(8192), None]);
}

#[test]
fn windows_of_a_directory_are_those_of_its_class() {
    let lfm2 = json!({"conv_L_cache": 3, "sliding_window": 32,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"]});
    assert_eq!(windows(&hf("Lfm2ForCausalLM", lfm2).unwrap()), [None; 4]);
    for (class, expect) in [
        ("LlamaForCausalLM", [None; 4]),
        ("MistralForCausalLM", [Some(32); 4]),
        ("MixtralForCausalLM", [Some(32); 4]),
        ("Ministral3ForCausalLM", [Some(32); 4]),
        ("Mistral3ForConditionalGeneration", [Some(32); 4]),
        ("Olmo2ForCausalLM", [None; 4]),
        ("Olmo3ForCausalLM", [Some(32), Some(32), Some(32), None]),
        ("Phi3ForCausalLM", [Some(32); 4]),
    ] {
        assert_eq!(windows(&hf(class, json!({"sliding_window": 32})).unwrap()), expect, "{class}");
        assert_eq!(windows(&hf(class, json!({"sliding_window": null})).unwrap()), [None; 4], "{class}");
    }
}

/// The settings that gpt-oss was published with. GGUF has no key for the rounding of the transition.
#[test]
fn yarn_of_gpt_oss_is_not_rounded() {
    let file = |arch: &str| {
        let config = gguf(arch, |keys| {
            keys.text("rope.scaling.type", "yarn").number("rope.scaling.factor", 32.0);
            keys.count("rope.scaling.original_context_length", 4096);
        });
        config.unwrap().rope.scaling
    };
    let directory = |fields: Value| {
        let mut all = json!({"quantization_config": {"quant_method": "mxfp4"}});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        hf("GptOssForCausalLM", all).unwrap().rope.scaling
    };
    let published = json!({"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}});
    let unrounded = file("gpt-oss");
    assert!(matches!(unrounded, RopeScaling::Yarn { truncate: false, .. }), "{unrounded:?}");
    assert_eq!(directory(published), unrounded);
    assert_eq!(directory(json!({})), unrounded, "the default of its class");
    assert!(matches!(file("qwen3"), RopeScaling::Yarn { truncate: true, .. }));
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

/// The rows of queries and keys have another order if a file has sections.
#[test]
fn sections_of_glm_change_what_rotates_together() {
    let style = |arch: &str, sections: &[u32]| {
        let file = gguf(arch, |keys| {
            keys.counts("rope.dimension_sections", sections);
            keys.count("expert_count", 4).count("expert_used_count", 2);
        });
        file.map(|config| config.rope.style)
    };
    assert_eq!(style("glm4", &[2, 3, 3, 0]), Ok(RopeStyle::HalfSplit));
    assert_eq!(style("glm4", &[0; 4]), Ok(RopeStyle::Interleaved));
    assert_eq!(style("glm4moe", &[2, 3, 3, 0]), Ok(RopeStyle::HalfSplit));
    for arch in ["glm4", "glm4moe"] {
        assert!(style(arch, &[2, 2, 2, 2]).unwrap_err().contains("rope.dimension_sections"));
    }
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

/// Blocks cached within the original context are not found beyond it.
#[test]
fn long_rope_has_an_identity_for_each_range_of_contexts() {
    let open = |file: &str| {
        let LoadedModel { config, tensors, .. } = LoadedModel::open(&kvik_testing::golden(file)).unwrap();
        crate::Model::load(config, tensors, None, &kvik_kernels::Pool::new(1), &|_, _| {}).unwrap()
    };
    let long = open("arch-phi3-long.gguf");
    assert_eq!(long.digest_within(65), long.digest());
    assert_ne!(long.digest_within(64), long.digest());
    assert_eq!(long.digest_within(1), long.digest_within(64));
    let plain = open("arch-phi3.gguf");
    assert_eq!(plain.digest_within(1), plain.digest());
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

/// DeepSeek V2-Lite as old conversions write it, smaller.
const OLD: [(&str, u32); 4] = [
    ("attention.kv_lora_rank", 32),
    ("rope.dimension_count", 8),
    ("attention.key_length", 24),
    ("attention.value_length", 16),
];

/// DeepSeek V2-Lite as current conversions write it, equally small.
const NEW: [(&str, u32); 7] = [
    ("attention.kv_lora_rank", 32),
    ("rope.dimension_count", 8),
    ("attention.key_length", 40),
    ("attention.value_length", 32),
    ("attention.key_length_mla", 24),
    ("attention.value_length_mla", 16),
    ("attention.head_count_kv", 1),
];

/// A file with these counts, and the keys that `add` adds.
fn latent(counts: &[(&str, u32)], add: impl Fn(&mut Keys<'_>)) -> Result<ModelConfig, String> {
    gguf("deepseek2", |keys| {
        counts.iter().for_each(|&(key, value)| _ = keys.count(key, value));
        add(keys);
    })
}

/// A file with these counts, one of which is replaced or added.
fn latent_with(counts: &[(&str, u32)], key: &str, value: u32) -> Result<ModelConfig, String> {
    let mut counts: Vec<_> = counts.iter().copied().filter(|(other, _)| *other != key).collect();
    counts.push((key, value));
    latent(&counts, |_| ())
}

#[test]
fn latent_attention_has_the_same_lengths_in_old_files_and_in_new_ones() {
    let expect = LatentConfig { query_rank: 0, rank: 32, unrotated: 16, rotated: 8, value: 16 };
    for config in [latent(&OLD, |_| ()).unwrap(), latent(&NEW, |_| ()).unwrap()] {
        assert_eq!(config.extras.latent, Some(expect));
        let layer = config.layer(3);
        assert_eq!((layer.kv_heads, layer.head_dim, layer.value_dim(), layer.output_dim()), (1, 40, 32, 16));
        assert_eq!(layer.scale, 1.0 / 24.0_f32.sqrt());
    }
    let compressed = latent_with(&OLD, "attention.q_lora_rank", 12);
    assert_eq!(compressed.unwrap().extras.latent, Some(LatentConfig { query_rank: 12, ..expect }));
}

#[test]
fn yarn_of_latent_attention_scales_scores() {
    let scaled = |multiplier: Option<f32>, factor: f32| {
        let config = latent(&OLD, |keys| {
            keys.text("rope.scaling.type", "yarn").number("rope.scaling.factor", factor);
            if let Some(multiplier) = multiplier {
                keys.number("rope.scaling.yarn_log_multiplier", multiplier);
            }
        });
        let config = config.unwrap();
        let RopeScaling::Yarn { attention_factor, .. } = config.rope.scaling else {
            panic!("{:?}", config.rope.scaling)
        };
        (attention_factor, config.layer(0).scale * 24.0_f32.sqrt())
    };
    let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} {b}");
    let log = 40.0_f32.ln();
    // DeepSeek V3 and V2-Lite: cosines and sines are not scaled.
    for (multiplier, all) in [(0.1, 1.0), (0.0707, 0.707)] {
        let (rotated, scores) = scaled(Some(multiplier), 40.0);
        near(rotated.unwrap(), 1.0);
        near(scores, (0.1 * all * log + 1.0).powi(2));
    }
    // Without a multiplier both are scaled, as in llama.cpp.
    let (rotated, scores) = scaled(None, 40.0);
    assert_eq!(rotated, None);
    near(scores, (0.1 * log + 1.0).powi(2));
    near(scaled(Some(0.1), 1.0).1, 1.0);
}

#[test]
fn lengths_of_latent_attention_that_do_not_fit_are_named() {
    let (old, new) = (&OLD[..], &NEW[..]);
    let check = |counts: &[(&str, u32)], key: &str, value: u32, expect: &str| {
        let error = latent_with(counts, key, value).expect_err(key);
        assert!(error.contains(expect), "{key} {value}: {error:?} does not contain {expect:?}");
    };
    for rank in [0, 7, 569, u32::MAX] {
        check(old, "attention.kv_lora_rank", rank, "deepseek2.attention.kv_lora_rank");
    }
    for rotated in [0, 7, 576, u32::MAX] {
        check(old, "rope.dimension_count", rotated, "deepseek2.rope.dimension_count");
    }
    for length in [0, 8, 577, u32::MAX] {
        check(old, "attention.key_length", length, "deepseek2.attention.key_length");
        check(new, "attention.key_length_mla", length, "deepseek2.attention.key_length_mla");
    }
    for length in [0, 577, u32::MAX] {
        check(old, "attention.value_length", length, "deepseek2.attention.value_length");
        check(new, "attention.value_length_mla", length, "deepseek2.attention.value_length_mla");
    }
    check(old, "attention.q_lora_rank", u32::MAX, "deepseek2.attention.q_lora_rank");
    // The stored lengths follow from the ranks.
    check(new, "attention.key_length", 24, "deepseek2.attention.key_length");
    check(new, "attention.value_length", 16, "deepseek2.attention.value_length");
    // Only one of the two keys that belong together.
    check(old, "attention.key_length_mla", 24, "deepseek2.attention.value_length_mla");
    check(old, "attention.value_length_mla", 16, "deepseek2.attention.key_length_mla");
    for missing in ["attention.kv_lora_rank", "rope.dimension_count"] {
        let counts: Vec<_> = OLD.into_iter().filter(|(key, _)| *key != missing).collect();
        let error = latent(&counts, |_| ()).unwrap_err();
        assert!(error.contains(&format!("deepseek2.{missing}")), "{missing}: {error}");
    }
    let without_length = latent(&OLD, |keys| {
        keys.number("attention.temperature_scale", 0.1);
    });
    assert!(without_length.unwrap_err().contains("deepseek2.attention.temperature_length"));
}

/// Files of GLM-4.7 Flash that do not say how experts are chosen.
#[test]
fn experts_of_latent_models_are_chosen_as_files_say() {
    let file = |gating: Option<u32>| {
        latent(&OLD, |keys| {
            keys.count("expert_count", 8).count("expert_used_count", 2).count("expert_shared_count", 2);
            keys.count("expert_feed_forward_length", 24).count("leading_dense_block_count", 1);
            keys.count("expert_group_count", 4).count("expert_group_used_count", 2);
            if let Some(gating) = gating {
                keys.count("expert_gating_func", gating);
            }
        })
    };
    let experts = |gating| file(gating).unwrap().extras.experts.unwrap();
    assert!(experts(Some(2)).sigmoid && !experts(Some(1)).sigmoid && !experts(None).sigmoid);
    // V3, V2, and files of V2 from before they said it.
    let ranked_by_best = |gating| experts(gating).ranked_by_best;
    assert_eq!([Some(2), Some(1), None].map(ranked_by_best), [false, true, true]);
    let ExpertsConfig { shared_d_ff, dense_layers, groups, normalised, .. } = experts(None);
    assert_eq!((shared_d_ff, dense_layers, groups, normalised), (48, 1, Some([4, 2]), false));
}

/// The keys of a Gemma 4 with four layers, of which the second and the last see all positions.
fn gemma4(keys: &mut Keys<'_>) {
    keys.count("attention.key_length", 32).count("attention.key_length_swa", 16);
    keys.count("attention.value_length", 32).count("attention.value_length_swa", 16);
    keys.count("attention.sliding_window", 8).count("embedding_length_per_layer_input", 0);
    keys.flags("attention.sliding_window_pattern", &[true, false, true, false]);
}

#[test]
fn gemma4_has_heads_of_two_widths_and_counts_by_layer() {
    let config = gguf("gemma4", |keys| {
        keys.counts("attention.head_count_kv", &[4, 2, 4, 2])
            .counts("feed_forward_length", &[96, 96, 192, 192]);
        keys.count("rope.dimension_count_swa", 8);
        gemma4(keys);
    })
    .unwrap();
    let layer = |index: usize| {
        let shape = config.layer(index);
        (shape.kv_heads, shape.head_dim, shape.rotation)
    };
    assert_eq!([0, 1, 3].map(layer), [(4, 16, Some(1)), (2, 32, Some(0)), (2, 32, Some(0))]);
    assert_eq!((config.kv_heads, config.d_ff, config.ropes()[1].0.dims), (4, 192, 8));
    assert_eq!(config.kv_layers().collect::<Vec<_>>(), [0, 1, 2, 3]);
    let refused = |key: &str, expect: &str, add: &dyn Fn(&mut Keys<'_>)| {
        let error = gguf("gemma4", |keys| {
            add(keys);
            gemma4(keys);
        })
        .unwrap_err();
        assert!(
            error.contains(key) && error.contains(expect),
            "{error:?} does not contain {key} and {expect}"
        );
    };
    let kv = "attention.head_count_kv";
    refused("gemma4.attention.head_count_kv", "4 layers", &|keys| {
        keys.counts(kv, &[4, 2]);
    });
    refused("key/value heads", "divisor", &|keys| {
        keys.counts(kv, &[4, 2, 3, 2]);
    });
    refused("key/value heads", "1 to", &|keys| {
        keys.counts(kv, &[4, 0, 4, 2]);
    });
    refused("gemma4.attention.value_length_swa", "the key length, 16", &|keys| {
        keys.count("attention.value_length_swa", 8);
    });
    refused("gemma4.attention.sliding_window", "0", &|keys| {
        keys.count("attention.sliding_window", 0);
    });
    refused("gemma4.attention.sliding_window_pattern", "4 layers", &|keys| {
        keys.flags("attention.sliding_window_pattern", &[true]);
    });
    refused("rotary dimensions", "16", &|keys| {
        keys.count("rope.dimension_count_swa", 18);
    });
    let bare = gguf("gemma4", |keys| {
        keys.count("attention.sliding_window", 8).count("embedding_length_per_layer_input", 0);
    });
    assert!(bare.unwrap_err().contains("gemma4.attention.sliding_window_pattern"));
}

#[test]
fn layers_that_share_keys_and_values_read_those_of_their_kind() {
    let file = |sharing: u32, kv_heads: &[u32]| {
        gguf("gemma4", |keys| {
            gemma4(keys);
            keys.count("attention.shared_kv_layers", sharing).counts("attention.head_count_kv", kv_heads);
        })
    };
    let config = file(2, &[4, 2, 4, 2]).unwrap();
    let sources: Vec<Option<usize>> = (0..4).map(|index| config.layer(index).source).collect();
    assert_eq!(sources, [None, None, Some(0), Some(1)]);
    assert_eq!(config.kv_layers().collect::<Vec<_>>(), [0, 1]);
    let layout = crate::ModelRunner::uniform_layout(&config, kvik_kernels::KvFormat::F16);
    // A block may have more bytes: the windowed part begins at a page boundary.
    let stored: usize = layout.layers().iter().flat_map(|layer| layer.part_bytes()).sum();
    assert_eq!(stored, 16 * 2 * 2 * (4 * 16 + 2 * 32));
    let refused = |sharing, kv_heads: &[u32], expect: &str| {
        let error = file(sharing, kv_heads).unwrap_err();
        assert!(error.contains("layers that share keys and values") && error.contains(expect), "{error}");
    };
    for sharing in [4, 5, u32::MAX] {
        refused(sharing, &[4, 2, 4, 2], "fewer than the 4 layers");
    }
    // Only layer 0 stores, and it has a window.
    refused(3, &[4, 2, 4, 2], "as layer 1");
    refused(2, &[4, 2, 2, 2], "in layer 2, as in layer 0");
}

#[test]
fn gemma3n_takes_what_files_do_not_say_from_llama_cpp() {
    let window = |keys: &mut Keys<'_>| {
        keys.count("attention.sliding_window", 8);
    };
    let plain = gguf("gemma3n", window).unwrap().extras;
    assert_eq!((plain.altup, plain.laurel_rank, plain.per_layer_width), (Some(4), Some(64), Some(256)));
    assert_eq!((plain.sharing_layers, plain.sparsity.clone()), (0, vec![Some(1.644_853_6); 4]));
    let listed = gguf("gemma3n", |keys| {
        window(keys);
        keys.numbers("activation_sparsity_scale", &[1.5, f32::NEG_INFINITY, 0.0, 2.0]);
        keys.count("altup.num_inputs", 2);
    });
    assert_eq!(listed.unwrap().extras.sparsity, [Some(1.5), None, None, Some(2.0)]);
    let refused = |expect: &str, add: &dyn Fn(&mut Keys<'_>)| {
        let error = gguf("gemma3n", |keys| {
            window(keys);
            add(keys);
        })
        .unwrap_err();
        assert!(error.contains(expect), "{error:?} does not contain {expect}");
    };
    for streams in [0, 1, 17, u32::MAX] {
        refused("gemma3n.altup.num_inputs", &|keys| {
            keys.count("altup.num_inputs", streams);
        });
    }
    refused("gemma3n.altup.active_idx", &|keys| {
        keys.count("altup.active_idx", 1);
    });
    for scales in [&[1.5][..], &[f32::INFINITY; 4], &[1.0, 1.0, 1.0, 1.0, 1.0]] {
        refused("activation_sparsity_scale", &|keys| {
            keys.numbers("activation_sparsity_scale", scales);
        });
    }
    refused("per-layer embeddings", &|keys| {
        keys.count("embedding_length_per_layer_input", 0);
    });
    assert!(gguf("gemma3n", |_| ()).unwrap_err().contains("gemma3n.attention.sliding_window"));
}

#[test]
fn missing_tensors_of_new_parts_are_named() {
    for (file, tensor) in [
        ("arch-gemma3n.gguf", "per_layer_token_embd.weight"),
        ("arch-gemma3n.gguf", "altup_unembd_proj.weight"),
        ("arch-gemma3n.gguf", "blk.7.laurel_r.weight"),
        ("arch-gemma3n.gguf", "blk.21.altup_predict_coef.weight"),
        ("arch-gemma4-shared.gguf", "per_layer_proj_norm.weight"),
        ("arch-gemma4-shared.gguf", "blk.7.inp_gate.weight"),
        ("arch-gemma4-shared.gguf", "blk.4.attn_k.weight"),
        ("arch-gemma4-experts.gguf", "blk.1.ffn_gate_inp.scale"),
        ("arch-gemma4-experts.gguf", "blk.1.pre_ffw_norm_2.weight"),
    ] {
        let LoadedModel { config, tensors, .. } = LoadedModel::open(&kvik_testing::golden(file)).unwrap();
        let mut writer = GgufWriter::new();
        for name in tensors.names().filter(|name| *name != tensor) {
            let view = tensors.get(name).unwrap();
            writer.tensor(name, view.ty, &[view.rows, view.cols], view.data);
        }
        let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
        let tensors = TensorSource::from_gguf(file);
        let pool = kvik_kernels::Pool::new(1);
        let error = crate::Model::load(config, tensors, None, &pool, &|_, _| {}).err().unwrap();
        assert!(error.to_string().contains(tensor), "{error}");
    }
}
