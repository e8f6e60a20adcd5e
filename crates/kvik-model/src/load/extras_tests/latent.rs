//! Latent attention in files of GGUF, of old conversions and of current ones.

use super::*;
use crate::{ExpertsConfig, LatentConfig, RopeScaling};

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
