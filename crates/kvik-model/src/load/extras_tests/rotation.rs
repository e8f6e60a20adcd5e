//! How queries and keys are rotated, which files say in many ways.

use serde_json::{Value, json};

use super::*;
use crate::{RopeScaling, RopeStyle};

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
