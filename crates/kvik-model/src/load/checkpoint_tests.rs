//! Settings of `config.json` for models with latent attention, for Llama 4 and for Gemma 4, and which of them are
//! refused; and the defaults of settings, which differ between classes of models.

use serde_json::{Value, json};

use super::extras_tests::{hf, windows};
use crate::{LatentConfig, ModelConfig, RopeScaling, RopeStyle, Temperature};

/// A configuration of DeepSeek V2-Lite, with `fields` replaced or added.
fn lite(fields: Value) -> Result<ModelConfig, String> {
    let mut all = json!({"kv_lora_rank": 32, "q_lora_rank": null, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 4,
        "topk_group": 2});
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    hf("DeepseekV2ForCausalLM", all)
}

#[test]
fn a_directory_says_the_lengths_of_latent_attention() {
    let config = lite(json!({})).unwrap();
    let expect = LatentConfig { query_rank: 0, rank: 32, unrotated: 16, rotated: 8, value: 12 };
    assert_eq!(config.extras.latent, Some(expect));
    assert_eq!((config.head_dim, config.rope.dims, config.rope.style), (40, 8, RopeStyle::Interleaved));
    let compressed = lite(json!({"q_lora_rank": 12})).unwrap();
    assert_eq!(compressed.extras.latent, Some(LatentConfig { query_rank: 12, ..expect }));
    for key in ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"] {
        for value in [json!(null), json!(0), json!(1 << 20), json!("x")] {
            let error = lite(json!({key: value})).unwrap_err();
            assert!(error.contains(key), "{key} {value}: {error}");
        }
    }
}

/// Newer files of V3 do not say that a sigmoid is applied to each score, nor how groups are ranked; V2 has groups only
/// if its file says how.
#[test]
fn a_directory_says_how_experts_of_latent_models_are_chosen() {
    let experts = |fields: Value| {
        let experts = lite(fields).map(|config| config.extras.experts.unwrap());
        experts.map(|experts| (experts.sigmoid, experts.groups, experts.ranked_by_best))
    };
    let (groups, v2) = (Some([4, 2]), json!({"topk_method": "group_limited_greedy"}));
    assert_eq!(experts(v2), Ok((false, groups, true)));
    assert_eq!(experts(json!({"topk_method": "greedy"})), Ok((false, None, false)));
    assert_eq!(experts(json!({})), Ok((false, None, false)));
    let sigmoid = json!({"scoring_func": "sigmoid", "topk_method": "noaux_tc"});
    assert_eq!(experts(sigmoid), Ok((true, groups, false)));
    let v3 = json!({"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2});
    let v3 = hf("DeepseekV3ForCausalLM", v3).unwrap().extras.experts.unwrap();
    assert_eq!((v3.sigmoid, v3.groups, v3.ranked_by_best, v3.normalised), (true, groups, false, true));
    assert!(!lite(json!({})).unwrap().extras.experts.unwrap().normalised);
    for (key, value) in [
        ("topk_method", json!("ranked")),
        ("scoring_func", json!("tanh")),
        ("rope_interleave", json!(false)),
        ("quantization_config", json!({"quant_method": "fp8"})),
    ] {
        let error = experts(json!({key: value})).unwrap_err();
        assert!(error.contains(key) && error.contains("GGUF"), "{error}");
    }
}

/// In a directory the factor of cosines and sines applies to those only, and scores have a separate one.
#[test]
fn yarn_of_a_directory_scales_scores_and_rotations_apart() {
    let scale = |fields: Value| {
        let mut rope = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
        rope.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let config = lite(json!({"rope_scaling": rope})).unwrap();
        let RopeScaling::Yarn { attention_factor, .. } = config.rope.scaling else { panic!("no YaRN") };
        (config.layer(0).scale * 24.0_f32.sqrt(), attention_factor)
    };
    let growth = |multiplier: f32| 0.1 * multiplier * 4.0_f32.ln() + 1.0;
    let is_near = |(scale, factor): (f32, Option<f32>), expect: f32, rotated: Option<f32>| {
        assert!((scale - expect).abs() < 1e-6, "{scale} {expect}");
        assert_eq!(factor, rotated);
    };
    is_near(scale(json!({})), 1.0, None);
    let both = json!({"mscale": 0.7, "mscale_all_dim": 0.7});
    is_near(scale(both), growth(0.7) * growth(0.7), Some(1.0));
    let more = json!({"mscale": 1.0, "mscale_all_dim": 0.5});
    is_near(scale(more), growth(0.5) * growth(0.5), Some(growth(1.0) / growth(0.5)));
}

#[test]
fn chunks_of_llama4_are_in_layers_that_rotate() {
    let read = |fields: Value| {
        let mut all = json!({"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
            "attention_chunk_size": 64, "intermediate_size": 24, "intermediate_size_mlp": 96});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        hf("Llama4ForCausalLM", all)
    };
    let plain = read(json!({})).unwrap();
    assert_eq!(windows(&plain), [Some(64), Some(64), Some(64), None]);
    assert_eq!((plain.d_ff, plain.extras.experts.unwrap().d_ff), (96, 24));
    assert_eq!(plain.extras.temperature, Some(Temperature { scale: 0.1, interval: 8192, offset: 1.0 }));
    let listed = read(json!({"no_rope_layers": [0, 1, 1, 0]})).unwrap();
    assert_eq!(windows(&listed), [None, Some(64), Some(64), None]);
    assert_eq!(listed.extras.unrotated, [true, false, false, true]);
    let full =
        read(json!({"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"],
        "attention_chunk_size": null, "attn_temperature_tuning": false}));
    let full = full.unwrap();
    assert_eq!((windows(&full), full.extras.temperature), (vec![None; 4], None));
    for (key, value) in [
        ("attention_chunk_size", json!(null)),
        ("moe_layers", json!([1, 3])),
        ("use_qk_norm", json!(false)),
        ("no_rope_layers", json!([1, 0])),
        ("no_rope_layer_interval", json!(0)),
        ("floor_scale", json!(0)),
        ("attn_scale", json!(-1)),
        ("interleave_moe_layer_step", json!(null)),
    ] {
        let error = read(json!({key: value})).unwrap_err();
        assert!(error.contains(key), "{key}: {error}");
    }
}

#[test]
fn a_directory_of_gemma4_says_heads_and_widths_by_kind_of_layer() {
    let read = |fields: Value| {
        let mut all = json!({"head_dim": 16, "num_key_value_heads": 2, "sliding_window": 8, "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        hf("Gemma4ForCausalLM", all)
    };
    let plain = read(json!({})).unwrap();
    let shape = |config: &ModelConfig, index| {
        let layer = config.layer(index);
        (layer.head_dim, layer.kv_heads)
    };
    assert_eq!((shape(&plain, 0), shape(&plain, 1)), ((16, 2), (512, 2)));
    assert_eq!(plain.rope.scaling, RopeScaling::Proportional { pairs: 64 });
    assert_eq!((plain.rope.theta, plain.rope.dims, plain.extras.logit_cap), (1e6, 512, None));
    let own = json!({"attention_k_eq_v": true, "num_global_key_value_heads": 1, "global_head_dim": 32});
    let own = read(own).unwrap();
    assert_eq!((shape(&own, 0), shape(&own, 1)), ((16, 2), (32, 1)));
    let unused = read(json!({"num_global_key_value_heads": 1})).unwrap();
    assert_eq!(shape(&unused, 1).1, 2);
    let double = read(json!({"num_kv_shared_layers": 2, "use_double_wide_mlp": true})).unwrap();
    assert_eq!(double.extras.by_layer.d_ff, [96, 96, 192, 192]);
    for (key, value) in [
        ("head_dim", json!(null)),
        ("global_head_dim", json!(0)),
        ("num_global_key_value_heads", json!(3)),
        ("layer_types", json!(["full_attention"])),
        ("layer_types", json!(null)),
        ("sliding_window", json!(null)),
        ("num_kv_shared_layers", json!(4)),
        ("hidden_size_per_layer_input", json!(-1)),
        ("use_bidirectional_attention", json!("all")),
    ] {
        let error = read(json!({"attention_k_eq_v": true, key: value})).unwrap_err();
        assert!(error.contains(key), "{key} {value}: {error}");
    }
}

#[test]
fn a_cap_of_null_is_no_cap() {
    let caps = |class: &str, cap: Value| {
        let fields =
            json!({"sliding_window": 8, "attn_logit_softcapping": cap, "final_logit_softcapping": cap});
        let extras = hf(class, fields).unwrap().extras;
        (extras.score_cap, extras.logit_cap)
    };
    assert_eq!(caps("Gemma2ForCausalLM", json!(null)), (None, None));
    assert_eq!(caps("Gemma2ForCausalLM", json!(7)), (Some(7.0), Some(7.0)));
    assert_eq!(caps("Gemma3nForCausalLM", json!(null)), (None, None));
    assert_eq!(caps("Gemma3nForCausalLM", json!(7)), (None, Some(7.0)));
    let default = hf("Gemma2ForCausalLM", json!({})).unwrap().extras;
    assert_eq!((default.score_cap, default.logit_cap), (Some(50.0), Some(30.0)));
}

#[test]
fn hybrids_of_granite_rotate_only_if_they_say_so() {
    let rotation = |class: &str, fields: Value| hf(class, fields).unwrap().layer(0).rotation;
    let (granite, bamba) = ("GraniteMoeHybridForCausalLM", "BambaForCausalLM");
    assert_eq!(rotation(granite, json!({})), None);
    for (value, expect) in [(json!(null), None), (json!("nope"), None), (json!("rope"), Some(0))] {
        assert_eq!(rotation(granite, json!({"position_embedding_type": value})), expect, "{value}");
    }
    assert_eq!(rotation(bamba, json!({})), Some(0));
    assert_eq!(rotation("GraniteForCausalLM", json!({"logits_scaling": 8.0})), Some(0));
}

#[test]
fn a_base_of_rotation_that_is_not_said_is_that_of_the_class() {
    let layers = json!(["conv", "full_attention", "conv", "full_attention"]);
    let lfm2 = |fields: Value| {
        let mut all = json!({"layer_types": layers, "conv_L_cache": 3});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        all
    };
    let mxfp4 = json!({"quantization_config": {"quant_method": "mxfp4"}});
    let llama4 = json!({"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
        "attention_chunk_size": 64, "intermediate_size": 24, "intermediate_size_mlp": 96});
    for (class, fields, expect) in [
        ("LlamaForCausalLM", json!({}), 10_000.0),
        ("MixtralForCausalLM", json!({}), 1e6),
        ("Olmo2ForCausalLM", json!({}), 10_000.0),
        ("Olmo3ForCausalLM", json!({}), 500_000.0),
        ("SmolLM3ForCausalLM", json!({}), 2e6),
        ("SmolLM3ForCausalLM", json!({"rope_theta": 5e6}), 5e6),
        ("SmolLM3ForCausalLM", json!({"rope_parameters": {"rope_theta": 6e6}}), 6e6),
        ("GptOssForCausalLM", mxfp4, 150_000.0),
        ("Ministral3ForCausalLM", json!({}), 1e6),
        ("Ministral3ForCausalLM", json!({"rope_parameters": {"rope_theta": 5e5}}), 5e5),
        ("Mistral3ForConditionalGeneration", json!({"text_config": {"model_type": "mistral"}}), 10_000.0),
        ("Llama4ForCausalLM", llama4, 500_000.0),
        ("Lfm2ForCausalLM", lfm2(json!({})), 1e6),
        ("Lfm2ForCausalLM", lfm2(json!({"rope_theta": 2e6})), 2e6),
        ("Lfm2ForCausalLM", lfm2(json!({"rope_theta": 2e6, "theta": 3e6})), 3e6),
    ] {
        let config = hf(class, fields.clone()).unwrap();
        assert_eq!(config.rope.theta, expect, "{class} {fields}");
    }
}

#[test]
fn a_scaling_that_is_not_said_is_that_of_the_class() {
    let yarn = RopeScaling::Yarn {
        factor: 16.0,
        original_context: 16_384,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(1.0),
        truncate: true,
    };
    let temperature = Some(Temperature { scale: 0.1, interval: 16_384, offset: 0.0 });
    let with_images = |decoder: &str| json!({"text_config": {"model_type": decoder}});
    for (class, fields, expect) in [
        ("Ministral3ForCausalLM", json!({}), (yarn.clone(), temperature)),
        ("Ministral3ForCausalLM", json!({"rope_scaling": {}}), (yarn.clone(), temperature)),
        ("Ministral3ForCausalLM", json!({"rope_parameters": {"rope_theta": 1e6}}), (RopeScaling::None, None)),
        ("Mistral3ForConditionalGeneration", with_images("ministral3"), (yarn, temperature)),
        ("Mistral3ForConditionalGeneration", with_images("mistral"), (RopeScaling::None, None)),
    ] {
        let config = hf(class, fields.clone()).unwrap();
        assert_eq!((config.rope.scaling, config.extras.temperature), expect, "{class} {fields}");
    }
}

#[test]
fn weights_of_experts_are_normalised_as_by_the_class() {
    let experts = json!({"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "hybrid_override_pattern": "ME*E", "mamba_num_heads": 4, "mamba_head_dim": 20, "n_groups": 2,
        "ssm_state_size": 20, "conv_kernel": 4});
    let normalised = |class: &str, said: Option<bool>| {
        let mut fields = experts.clone();
        if let Some(said) = said {
            fields["norm_topk_prob"] = said.into();
        }
        hf(class, fields).unwrap().extras.experts.unwrap().normalised
    };
    for (class, default) in
        [("Glm4MoeForCausalLM", true), ("NemotronHForCausalLM", true), ("DeepseekForCausalLM", false)]
    {
        let found = [None, Some(true), Some(false)].map(|said| normalised(class, said));
        assert_eq!(found, [default, true, false], "{class}");
    }
}
