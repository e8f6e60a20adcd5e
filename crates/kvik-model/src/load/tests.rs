use kvik_kernels::WeightType;
use kvik_testing::tiny_model;
use kvik_text::files::gguf::write::GgufWriter;

use super::*;
use crate::{Arch, RopeScaling, RopeStyle};

#[test]
fn kvik_tiny_is_read() {
    let model = LoadedModel::open(&tiny_model()).unwrap();
    let config = &model.config;
    assert_eq!((config.arch, config.layers, config.d_model, config.d_ff), (Arch::Qwen3, 6, 256, 768));
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (4, 2, 64));
    assert_eq!((config.vocab, config.context, config.name.as_str()), (4096, 2048, "kvik-tiny"));
    assert_eq!((config.rope.theta, config.rope.style), (100_000.0, RopeStyle::HalfSplit));
    let embedding = model.tensors.get("token_embd.weight").unwrap();
    assert_eq!((embedding.ty, embedding.rows, embedding.cols), (WeightType::Q8_0, 4096, 256));
    assert_eq!(embedding.data.len(), 4096 * 256 / 32 * 34);
    let norm = model.tensors.get("output_norm.weight").unwrap();
    assert_eq!((norm.ty, norm.rows, norm.cols), (WeightType::F32, 1, 256));
    assert!(model.chat_template.unwrap().contains("<|im_start|>"));
    assert!(model.tensors.get("nothing").is_none());
}

#[test]
fn mapped_and_embedded_bytes_are_the_same_model() {
    let bytes = std::fs::read(tiny_model()).unwrap();
    // Shifted by one byte: nothing may depend on the alignment of the file's bytes.
    let shifted: &'static [u8] = [&[0u8][..], &bytes].concat().leak();
    let embedded = LoadedModel::from_bytes(FileBytes::Static(&shifted[1..])).unwrap();
    let mapped = LoadedModel::open(&tiny_model()).unwrap();
    assert_eq!(embedded.config, mapped.config);
    for name in mapped.tensors.names() {
        assert_eq!(mapped.tensors.get(name).unwrap().data, embedded.tensors.get(name).unwrap().data);
    }
}

fn base() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer
        .text("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .u32("llama.embedding_length", 64)
        .u32("llama.feed_forward_length", 96)
        .u32("llama.attention.head_count", 4)
        .u32("llama.context_length", 128)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .texts("tokenizer.ggml.tokens", &["a", "b"]);
    writer
}

#[test]
fn a_file_may_have_a_second_template_for_tools() {
    use kvik_text::template::RenderInput;
    let mut writer = base();
    writer
        .text("tokenizer.ggml.model", "llama")
        .f32s("tokenizer.ggml.scores", &[0.0, 0.0])
        .text("tokenizer.chat_template", "plain")
        .text("tokenizer.chat_template.tool_use", "tools: {{ tools | length }}");
    let model = LoadedModel::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
    let rendered = |given: Option<&str>, tools: Option<serde_json::Value>| {
        let input = RenderInput {
            messages: serde_json::json!([{"role": "user", "content": "hi"}]),
            tools,
            add_generation_prompt: true,
            enable_thinking: None,
            kwargs: serde_json::Map::new(),
            now: std::time::UNIX_EPOCH,
        };
        model.template(given).unwrap().render(&input).unwrap().text
    };
    let tools = || Some(serde_json::json!([{"type": "function", "function": {"name": "f"}}]));
    assert_eq!((rendered(None, None).as_str(), rendered(None, tools()).as_str()), ("plain", "tools: 1"));
    // A given template is used for all conversations.
    assert_eq!(rendered(Some("{{ tools | length }}"), tools()), "1");
}

#[test]
fn sampling_is_that_of_the_file_then_of_the_family_then_kviks() {
    let mut writer = base();
    writer
        .text("tokenizer.ggml.model", "llama")
        .f32s("tokenizer.ggml.scores", &[0.0, 0.0])
        .text("general.name", "SmolLM2 135M Instruct")
        .u32("general.sampling.top_k", 7)
        .f32("general.sampling.temp", 9.0);
    let model = LoadedModel::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
    assert_eq!(model.sampling.notes.len(), 1, "{:?}", model.sampling.notes);
    assert_eq!(
        model.sampling_defaults().to_string(),
        "temperature 0.2 (family SmolLM2), top_k 7 (file), top_p 0.9 (family SmolLM2), min_p 0.05 (kvik)"
    );
}

fn config(writer: &GgufWriter) -> Result<ModelConfig, ConfigError> {
    model_config(&Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap())
}

#[test]
fn absent_keys_have_llama_cpp_defaults() {
    let config = config(&base()).unwrap();
    assert_eq!((config.kv_heads, config.head_dim, config.rope.dims), (4, 16, 16));
    assert_eq!((config.rope.theta, config.rope.style), (10_000.0, RopeStyle::Interleaved));
    assert_eq!((config.rope.scaling, config.vocab), (RopeScaling::None, 2));
}

#[test]
fn rope_scaling_is_read() {
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(config(base().f32("llama.rope.scale_linear", 4.0)).unwrap().rope.scaling, linear);
    let mut writer = base();
    writer.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0);
    assert_eq!(config(&writer).unwrap().rope.scaling, linear);
    let mut writer = base();
    writer
        .text("llama.rope.scaling.type", "yarn")
        .f32("llama.rope.scaling.factor", 4.0)
        .u32("llama.rope.scaling.original_context_length", 32);
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 32,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        truncate: true,
    };
    assert_eq!(config(&writer).unwrap().rope.scaling, yarn);
}

#[test]
fn impossible_shapes_are_named() {
    let check = |writer: &mut GgufWriter, expect: &str| {
        let error = config(writer).unwrap_err().to_string();
        assert!(error.contains(expect), "{error:?} does not contain {expect:?}");
    };
    check(base().u32("llama.attention.head_count_kv", 3), "divisor of the 4 heads");
    check(base().u32("llama.attention.head_count_kv", 0), "number of key/value heads");
    for length in [0, 2, 6, 15, 578, 1024, u32::MAX] {
        check(base().u32("llama.attention.key_length", length), "an even number from 8 to 576");
    }
    check(base().u32("llama.rope.dimension_count", 18), "rotary dimensions");
    check(base().f32("llama.rope.freq_base", f32::NAN), "rotary base");
    check(base().f32("llama.rope.scale_linear", 0.0), "rope scaling factor");
    check(base().text("llama.rope.scaling.type", "longrope"), "longrope");
    check(&mut GgufWriter::new(), "general.architecture");
    check(GgufWriter::new().text("general.architecture", "mamba"), "\"mamba\" is not supported");
}

/// LFM2.5-Embedding is a file of a causal architecture that attends to both sides.
#[test]
fn keys_that_change_the_computation_are_refused_by_name() {
    let check = |key: &str, write: &dyn Fn(&mut GgufWriter, &str), is_refused: bool| {
        let mut writer = base();
        write(&mut writer, &format!("llama.{key}"));
        match config(&writer).map_err(|error| error.to_string()) {
            Ok(_) => assert!(!is_refused, "{key}"),
            Err(error) => assert!(is_refused && error.contains(&format!("llama.{key} is")), "{error}"),
        }
    };
    for (key, usual) in [("attention.causal", true), ("use_parallel_residual", false)] {
        for value in [true, false] {
            let write = |writer: &mut GgufWriter, key: &str| {
                writer.boolean(key, value);
            };
            check(key, &write, value != usual);
        }
    }
    for (key, neutral, other) in [
        ("embedding_scale", 1.0, 12.0),
        ("residual_scale", 1.0, 0.22),
        ("logit_scale", 0.0, 8.0),
        ("attention.scale", 0.25, 0.5),
        ("attn_logit_softcapping", 0.0, 50.0),
        ("final_logit_softcapping", 0.0, 30.0),
        ("attention.clamp_kqv", 0.0, 8.0),
        ("attention.max_alibi_bias", 0.0, f32::NAN),
        ("rope.scaling.yarn_ext_factor", -1.0, 1.0),
        ("rope.scaling.attn_factor", 1.0, 1.2),
        ("rope.scaling.yarn_attn_factor", 1.0, 1.2),
    ] {
        for (value, is_refused) in [(neutral, false), (other, true)] {
            let write = |writer: &mut GgufWriter, key: &str| {
                writer.f32(key, value);
            };
            check(key, &write, is_refused);
        }
    }
}

#[test]
fn yarn_has_one_share_of_extrapolation() {
    let yarn = |share: f32| {
        let mut writer = base();
        writer
            .text("llama.rope.scaling.type", "yarn")
            .f32("llama.rope.scaling.factor", 4.0)
            .f32("llama.rope.scaling.yarn_attn_factor", 1.5)
            .f32("llama.rope.scaling.yarn_ext_factor", share);
        config(&writer).map_err(|error| error.to_string())
    };
    assert!(yarn(1.0).is_ok() && yarn(-1.0).is_ok());
    assert!(yarn(0.5).unwrap_err().contains("yarn_ext_factor is 0.5"));
}
