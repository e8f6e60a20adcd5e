//! Windows of layers, in every form in which files have them.

use serde_json::json;

use super::*;
use crate::Arch;

#[test]
fn windows_of_a_file_are_read_in_every_form() {
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
    let none = gguf("gemma3", |keys| {
        keys.count("attention.sliding_window", 0);
    })
    .unwrap();
    assert_eq!(windows(&none), [None; 4]);
}

#[test]
fn windows_of_a_directory_are_read_in_every_form() {
    let types = json!({"sliding_window": 16, "query_pre_attn_scalar": 256, "rope_local_base_freq": 500.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]});
    let listed = hf("Gemma3ForCausalLM", types).unwrap();
    assert_eq!(windows(&listed), [None, Some(16), Some(16), None]);
    assert_eq!((listed.ropes()[1].0.theta, listed.layer(0).scale), (500.0, 1.0 / 16.0));
    let short = json!({"sliding_window": 16, "layer_types": ["full_attention"]});
    let error = hf("Gemma3ForCausalLM", short).unwrap_err();
    assert!(error.contains("layer_types") && error.contains("4 layers"), "{error}");
    let mistral = hf("MistralForCausalLM", json!({"sliding_window": 32})).unwrap();
    assert_eq!((mistral.arch, windows(&mistral)), (Arch::Llama, vec![Some(32); 4]));
    let plain = hf("MistralForCausalLM", json!({"sliding_window": null})).unwrap();
    assert_eq!(windows(&plain), [None; 4]);
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
