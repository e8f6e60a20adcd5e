use std::collections::HashMap;
use std::path::Path;

use kvik_kernels::{Pool, WeightType};
use kvik_testing::tiny_file;
use kvik_text::files::FileError;
use safetensors::{Dtype, tensor::TensorView as Stored};
use serde_json::{Value, json};

use super::*;
use crate::load::{LoadError, LoadedModel, SamplingSource};
use crate::{Arch, Model, ModelConfig, RopeScaling, RopeStyle, Temperature};

fn base() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "intermediate_size": 12,
        "num_attention_heads": 2,
        "vocab_size": 4096,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    })
}

fn with(fields: Value) -> Value {
    let mut config = base();
    for (key, value) in fields.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn config(fields: Value) -> Result<ModelConfig, String> {
    let hf = HfConfig::new(with(fields)).map_err(|error| error.to_string())?;
    model_config(&hf, "test").map_err(|error| error.to_string())
}

#[test]
fn configurations_are_read() {
    let plain = config(json!({})).unwrap();
    assert_eq!((plain.arch, plain.kv_heads, plain.head_dim), (Arch::Llama, 2, 8));
    assert_eq!((plain.rope.theta, plain.rope.style), (10_000.0, RopeStyle::HalfSplit));
    assert_eq!(plain.rope.scaling, RopeScaling::None);
    let qwen = config(json!({"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 1,
        "head_dim": 16, "rope_theta": 1e6, "rope_scaling": null, "use_sliding_window": false}));
    let qwen = qwen.unwrap();
    assert_eq!((qwen.arch, qwen.kv_heads, qwen.head_dim, qwen.rope.theta), (Arch::Qwen3, 1, 16, 1e6));
}

#[test]
fn rope_scaling_is_read_from_both_fields_and_in_every_kind() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32});
    let expect = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 32,
    };
    assert_eq!(config(json!({"rope_scaling": llama3})).unwrap().rope.scaling, expect);
    let mut newer = llama3;
    newer["rope_theta"] = 5e5.into();
    let newer = config(json!({"rope_parameters": newer})).unwrap();
    assert_eq!((newer.rope.scaling, newer.rope.theta), (expect, 5e5));
    let linear = config(json!({"rope_scaling": {"type": "linear", "factor": 2.0}})).unwrap();
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    let yarn = config(json!({"rope_scaling": {"type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 64}}));
    let yarn = yarn.unwrap();
    let rounded = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 64,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        truncate: true,
    };
    assert_eq!((&yarn.rope.scaling, yarn.context), (&rounded, 256));
    let exact = json!({"rope_type": "yarn", "factor": 32.0, "truncate": false});
    let exact = config(json!({"rope_scaling": exact})).unwrap().rope.scaling;
    assert!(matches!(exact, RopeScaling::Yarn { truncate: false, .. }));
    // A scaling that was added to a newer file.
    let added = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let plain = json!({"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5});
    let both = config(json!({"rope_parameters": plain, "rope_scaling": added})).unwrap().rope;
    assert_eq!((both.scaling, both.theta, both.dims), (rounded, 5e5, 4));
    let kinds = json!({"full_attention": {"rope_type": "default", "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}});
    let gemma = json!({"architectures": ["Gemma3ForCausalLM"], "head_dim": 8, "num_key_value_heads": 1,
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 16, "rope_parameters": kinds,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    let gemma = config(gemma).unwrap();
    assert_eq!((gemma.rope.scaling, gemma.rope.theta), (RopeScaling::Linear { factor: 8.0 }, 2e6));
    let windowed = gemma.extras.window.unwrap().rope;
    assert_eq!((windowed.scaling, windowed.theta), (RopeScaling::None, 2e4));
}

#[test]
fn what_an_added_scaling_does_not_replace_is_kept() {
    let yarn = |factor, original_context, attention_factor| RopeScaling::Yarn {
        factor,
        original_context,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor,
        truncate: true,
    };
    let parameters = json!({"rope_type": "yarn", "rope_theta": 5e5, "factor": 16.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.1});
    let added = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let temperature = |interval| Some(Temperature { scale: 0.1, interval, offset: 0.0 });
    for (scaling, expect, interval) in [
        (json!(null), yarn(16.0, 32, Some(1.0)), 32),
        (json!({}), yarn(16.0, 32, Some(1.0)), 32),
        (added.clone(), yarn(4.0, 64, None), 64),
    ] {
        let ministral = json!({"architectures": ["Ministral3ForCausalLM"], "rope_parameters": parameters,
            "rope_scaling": scaling});
        let ministral = config(ministral).unwrap();
        assert_eq!((ministral.rope.scaling, ministral.rope.theta), (expect, 5e5), "{scaling}");
        assert_eq!(ministral.extras.temperature, temperature(interval), "{scaling}");
    }
    let sections = json!({"architectures": ["Qwen3_5ForCausalLM"], "rope_scaling": added,
        "rope_parameters": {"rope_type": "default", "mrope_section": [0, 0, 0]}});
    let error = config(sections).unwrap_err();
    assert!(error.contains("mrope_section"), "{error}");
    // Parameters of one kind of layers are updated, field by field.
    let gemma = json!({"architectures": ["Gemma3ForCausalLM"], "head_dim": 8, "num_key_value_heads": 1,
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 16, "rope_scaling": {"factor": 8.0},
        "rope_parameters": {"full_attention": parameters, "sliding_attention": {"rope_theta": 2e4}}});
    let gemma = config(gemma).unwrap();
    assert_eq!((gemma.rope.scaling, gemma.rope.theta), (yarn(8.0, 32, Some(1.0)), 5e5));
    assert_eq!(gemma.extras.window.unwrap().rope.scaling, RopeScaling::None);
}

#[test]
fn configurations_that_compute_differently_are_refused() {
    let check = |fields: Value, expect: &str| {
        let error = config(fields).unwrap_err();
        assert!(error.contains(expect), "{error:?} does not contain {expect:?}");
    };
    check(json!({"architectures": ["MambaForCausalLM"]}), "MambaForCausalLM");
    check(json!({"architectures": []}), "none");
    check(json!({"hidden_act": "gelu"}), "gelu");
    check(json!({"use_sliding_window": true}), "sliding");
    check(json!({"is_causal": false}), "is_causal");
    check(json!({"quantization_config": {"quant_method": "gptq"}}), "gptq");
    check(json!({"rope_scaling": {"type": "longrope"}}), "longrope");
    check(json!({"rope_scaling": {"type": "linear"}}), "factor");
    check(json!({"num_attention_heads": 0}), "heads");
    check(json!({"num_key_value_heads": 3}), "divisor");
    check(json!({"hidden_size": 1u64 << 40}), "embedding length");
    check(json!({"hidden_size": -3}), "invalid value");
    check(json!({"hidden_size": "-3", "vocab_size": "x"}), "`hidden_size`: invalid type");
    check(json!({"rope_scaling": {"factor": "4"}}), "`rope_scaling`: invalid type");
    let mut lacking = base();
    lacking.as_object_mut().unwrap().remove("vocab_size");
    assert_eq!(HfConfig::new(lacking).unwrap_err().to_string(), "missing field `vocab_size`");
    check(json!({"partial_rotary_factor": 1e30}), "rotary dimensions");
}

#[test]
fn checkpoints_that_kvik_does_not_read_are_refused_by_what_they_are() {
    let check = |name: &str, fields: Value, expect: &str| {
        let mut fields = fields;
        fields["architectures"] = json!([name]);
        let error = config(fields).unwrap_err();
        assert!(error.contains(expect), "{error:?} does not contain {expect:?}");
    };
    check(
        "NemotronHForCausalLM",
        json!({"hybrid_override_pattern": "-", "moe_latent_size": 8}),
        "moe_latent_size",
    );
    let bounded = json!({"hybrid_override_pattern": "*", "time_step_limit": [0.0, 0.1]});
    check("NemotronHForCausalLM", bounded, "time_step_limit");
    check("NemotronHForCausalLM", json!({"hybrid_override_pattern": "-"}), "hybrid_override_pattern");
    check("NemotronHForCausalLM", json!({"hybrid_override_pattern": "?"}), "hybrid_override_pattern");
    check("Qwen3_5ForCausalLM", json!({"attn_output_gate": false}), "attn_output_gate");
    check("Lfm2ForCausalLM", json!({"layer_types": ["conv"], "conv_L_cache": 3}), "layer_types");
    check("Lfm2ForCausalLM", json!({"layer_types": ["window"], "conv_L_cache": 3}), "layer_types");
    check(
        "Gemma3nForCausalLM",
        json!({"sliding_window": 8, "activation_sparsity_pattern": [0.2]}),
        "activation_sparsity_pattern",
    );
    check("GptOssForCausalLM", json!({}), "mxfp4");
    check("GptOssForCausalLM", json!({"quantization_config": {"quant_method": "awq"}}), "awq");
    let gpt_oss = |key: &str, value: Value| {
        let mut fields = json!({"quantization_config": {"quant_method": "mxfp4"}});
        fields[key] = value;
        fields
    };
    check("GptOssForCausalLM", gpt_oss("swiglu_limit", json!(6.0)), "swiglu_limit");
    check("GptOssForCausalLM", gpt_oss("swiglu_limit", json!("none")), "swiglu_limit");
    check("GptOssForCausalLM", gpt_oss("swiglu_alpha", json!(1)), "swiglu_alpha");
    for (key, value) in [
        ("swiglu_limit", json!(7)),
        ("swiglu_limit", json!(7.0)),
        ("swiglu_limit", json!(null)),
        ("swiglu_alpha", json!(1.702)),
    ] {
        let mut fields = gpt_oss(key, value);
        fields["architectures"] = json!(["GptOssForCausalLM"]);
        assert_eq!(config(fields.clone()).err(), None, "{fields}");
    }
    check("OlmoeForCausalLM", json!({"clip_qkv": 8.0}), "clip_qkv");
    check("DeepseekForCausalLM", json!({"moe_layer_freq": 2}), "moe_layer_freq");
}

/// Published files of Gemma 3 omit the library's defaults, and store the decoder's settings in a section of their own.
#[test]
fn the_decoder_of_a_model_that_takes_images_is_read() {
    let json = json!({
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {"architectures": ["x"], "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        "vision_config": {"hidden_size": 1152, "num_attention_heads": 16},
    });
    let hf = HfConfig::new(json).unwrap();
    let read = model_config(&hf, "test").unwrap();
    assert_eq!((read.arch, read.layers, read.d_model), (Arch::Gemma3, 34, 2560));
    assert_eq!((read.heads, read.kv_heads, read.head_dim, read.vocab), (8, 4, 256, 262_208));
    assert_eq!((read.rope.theta, &read.rope.scaling), (1e6, &RopeScaling::Linear { factor: 8.0 }));
    assert!(hf.tie_word_embeddings && hf.names(&read).is_multimodal);
    let windowed: Vec<bool> = read.extras.window.unwrap().layers[..6].to_vec();
    assert_eq!(windowed, [true, true, true, true, true, false]);
    assert!(HfConfig::new(json!({"text_config": 7})).is_err() && HfConfig::new(json!([])).is_err());
    let both = json!({"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}});
    assert_eq!(config(both).unwrap().rope.scaling, RopeScaling::Linear { factor: 2.0 });
}

type Tensor<'a> = (&'a str, Dtype, Vec<usize>);

/// A directory with a one-layer model, its tensors spread over the given files.
fn directory(config: &Value, files: &[(&str, &[Tensor<'_>])]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).unwrap();
    write("config.json", config.to_string().as_bytes());
    std::fs::copy(tiny_file("tokenizer.json"), directory.path().join("tokenizer.json")).unwrap();
    let mut map = HashMap::new();
    for (file, tensors) in files {
        let data: Vec<Vec<u8>> = tensors
            .iter()
            .map(|(name, dtype, shape)| {
                vec![name.len() as u8; shape.iter().product::<usize>() * dtype.bitsize() / 8]
            })
            .collect();
        let views = tensors.iter().zip(&data).map(|((name, dtype, shape), data)| {
            map.insert(*name, *file);
            (*name, Stored::new(*dtype, shape.clone(), data).unwrap())
        });
        write(file, &safetensors::serialize(views, None).unwrap());
    }
    if files.len() > 1 {
        write("model.safetensors.index.json", json!({"weight_map": map}).to_string().as_bytes());
    }
    directory
}

fn embedding() -> Tensor<'static> {
    ("model.embed_tokens.weight", Dtype::BF16, vec![4096, 16])
}

#[test]
fn sharded_directories_are_one_model() {
    let shards: [(&str, &[_]); 2] = [
        ("model-1.safetensors", &[embedding(), ("model.norm.weight", Dtype::F32, vec![16])]),
        ("model-2.safetensors", &[("model.layers.0.self_attn.q_proj.weight", Dtype::F16, vec![16, 16])]),
    ];
    let directory = directory(&with(json!({"tie_word_embeddings": true})), &shards);
    let extra = |name: &str, value: Value| {
        std::fs::write(directory.path().join(name), value.to_string()).unwrap();
    };
    extra(
        "tokenizer_config.json",
        json!({"chat_template": [{"name": "default", "template": "T"}, {"name": "tool_use", "template": "U"}],
        "bos_token": null, "eos_token": {"content": "<|im_end|>"}}),
    );
    let generation = json!({"eos_token_id": [4093, 7, 1u64 << 40], "temperature": 0.6, "top_k": "many"});
    extra("generation_config.json", generation);
    let model = LoadedModel::open(directory.path()).unwrap();
    let sampling = model.sampling_defaults();
    assert_eq!((sampling.temperature.value, sampling.temperature.source), (0.6, SamplingSource::File));
    assert_eq!((sampling.top_k.source, model.sampling.notes.len()), (SamplingSource::Kvik, 1));
    assert_eq!(model.config.vocab, 4096);
    let q = model.tensors.get("blk.0.attn_q.weight").unwrap();
    assert_eq!((q.ty, q.rows, q.cols, q.data), (WeightType::F16, 16, 16, &[38u8; 512][..]));
    let norm = model.tensors.get("output_norm.weight").unwrap();
    assert_eq!((norm.ty, norm.rows, norm.cols), (WeightType::F32, 1, 16));
    assert_eq!(model.tensors.names().count(), 3);
    assert_eq!(model.tensors.total_bytes(), 4096 * 16 * 2 + 64 + 512);
    assert_eq!((model.chat_template.as_deref(), model.tool_template.as_deref()), (Some("T"), Some("U")));
    assert_eq!(model.tokenizer.eos(), Some(4093));
    assert!(model.tokenizer.is_eog(7) && model.tokenizer.is_eog(4093));
    assert!(!model.tokenizer.is_eog(9) && !model.tokenizer.is_eog(10));
    let mut config = with(json!({"tie_word_embeddings": true, "eos_token_id": 9}));
    config["text_config"] = json!({"eos_token_id": 10});
    // Python writes non-finite numbers by name.
    let text = config.to_string().replacen('{', "{\"time_step_limit\": [0.0, Infinity], ", 1);
    std::fs::write(directory.path().join("config.json"), text).unwrap();
    let model = LoadedModel::open(directory.path()).unwrap();
    assert!(model.tokenizer.is_eog(7) && model.tokenizer.is_eog(9) && model.tokenizer.is_eog(10));
}

/// Names and first bytes of the tensors of a model opened from these files.
fn opened(config: &Value, files: &[(&str, &[Tensor<'_>])]) -> Result<Vec<(String, u8)>, String> {
    let directory = directory(config, files);
    let model = LoadedModel::open(directory.path()).map_err(|error| error.to_string())?;
    let first = |name: &str| (name.to_owned(), model.tensors.get(name).unwrap().data[0]);
    Ok(model.tensors.names().map(first).collect())
}

fn output_matrix() -> Tensor<'static> {
    ("lm_head.weight", Dtype::BF16, vec![4096, 16])
}

#[test]
fn a_tied_model_stores_either_matrix_or_both() {
    let norm = || ("model.norm.weight", Dtype::F32, vec![16]);
    // The test directory fills a tensor with the length of its name.
    let (embedding_byte, output_byte) = (25, 14);
    let tied = with(json!({"tie_word_embeddings": true}));
    let check = |files: &[(&str, &[Tensor<'_>])], byte: u8| {
        let names = opened(&tied, files).unwrap();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(sorted, [("output_norm.weight".into(), 17), ("token_embd.weight".into(), byte)]);
    };
    check(&[("model.safetensors", &[embedding(), norm()])], embedding_byte);
    check(&[("model.safetensors", &[output_matrix(), norm()])], output_byte);
    check(&[("model.safetensors", &[output_matrix(), embedding(), norm()])], embedding_byte);
    check(
        &[("a.safetensors", &[output_matrix(), norm()]), ("b.safetensors", &[embedding()])],
        embedding_byte,
    );
    check(
        &[("a.safetensors", &[embedding()]), ("b.safetensors", &[norm(), output_matrix()])],
        embedding_byte,
    );
}

#[test]
fn an_untied_model_has_both_matrices() {
    let one = |tensors: &[Tensor<'_>]| opened(&base(), &[("model.safetensors", tensors)]);
    assert_eq!(one(&[embedding(), output_matrix()]).unwrap().len(), 2);
    assert!(one(&[embedding()]).unwrap_err().contains("tie_word_embeddings"));
}

/// The library leaves out of files what the class of the model has by default.
#[test]
fn a_model_whose_class_ties_its_matrices_need_not_say_so() {
    let is_tied = |class: &str, fields: Value| {
        let mut fields = fields;
        fields["architectures"] = json!([class]);
        HfConfig::new(with(fields)).unwrap().tie_word_embeddings
    };
    for class in [
        "Gemma2ForCausalLM",
        "SmolLM3ForCausalLM",
        "Lfm2ForCausalLM",
        "LFM2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm2VlForConditionalGeneration",
    ] {
        assert!(is_tied(class, json!({})), "{class}");
        assert!(!is_tied(class, json!({"tie_word_embeddings": false})), "{class}");
    }
    assert!(!is_tied("Lfm2ForCausalLM", json!({"tie_embedding": false})));
    assert!(!is_tied("LlamaForCausalLM", json!({})));
    let smollm3 = with(json!({"architectures": ["SmolLM3ForCausalLM"]}));
    let files: [(&str, &[Tensor<'_>]); 1] = [("model.safetensors", &[embedding()])];
    assert_eq!(opened(&smollm3, &files).unwrap().len(), 1);
}

/// The models of Gemma without images have the file of those with them, and fine-tunes add a padding token.
#[test]
fn an_added_token_without_a_row_is_left_out() {
    let tensors = [embedding(), output_matrix(), ("model.norm.weight", Dtype::F32, vec![16])];
    let directory = directory(&base(), &[("model.safetensors", &tensors)]);
    let path = directory.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let image = json!({"id": 4096, "content": "<image_soft_token>", "special": true});
    tokenizer["added_tokens"].as_array_mut().unwrap().push(image);
    let open = |tokenizer: &Value| {
        std::fs::write(&path, tokenizer.to_string()).unwrap();
        LoadedModel::open(directory.path()).map(|model| model.tokenizer)
    };
    let read = open(&tokenizer).unwrap();
    assert_eq!((read.vocab_len(), read.token_of("<image_soft_token>")), (4096, None));
    assert!(read.token_of("</think>").is_some(), "it has the last row");
    // A token of the model itself is not left out: its texts would be written with others.
    tokenizer["model"]["vocab"]["<image_soft_token>"] = 4096.into();
    let refused = open(&tokenizer).unwrap_err().to_string();
    assert!(refused.contains("4096 embedding rows"), "{refused}");
}

#[test]
fn an_unused_bias_is_refused_under_its_own_name() {
    let tensors = [
        embedding(),
        output_matrix(),
        ("model.norm.weight", Dtype::F32, vec![16]),
        ("model.layers.0.input_layernorm.weight", Dtype::F32, vec![16]),
        ("model.layers.0.post_attention_layernorm.weight", Dtype::F32, vec![16]),
        ("model.layers.0.self_attn.q_proj.weight", Dtype::F32, vec![16, 16]),
        ("model.layers.0.self_attn.k_proj.weight", Dtype::F32, vec![16, 16]),
        ("model.layers.0.self_attn.v_proj.weight", Dtype::F32, vec![16, 16]),
        ("model.layers.0.self_attn.o_proj.weight", Dtype::F32, vec![16, 16]),
        ("model.layers.0.mlp.gate_proj.weight", Dtype::F32, vec![12, 16]),
        ("model.layers.0.mlp.up_proj.weight", Dtype::F32, vec![12, 16]),
        ("model.layers.0.mlp.down_proj.weight", Dtype::F32, vec![16, 12]),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::F32, vec![2]),
        ("model.layers.0.mlp.up_proj.bias", Dtype::F32, vec![12]),
    ];
    let load = |tensors: &[Tensor<'_>]| {
        let directory = directory(&base(), &[("model.safetensors", tensors)]);
        let LoadedModel { config, tensors, .. } = LoadedModel::open(directory.path()).unwrap();
        Model::load(config, tensors, None, &Pool::new(1), &|_, _| {}).err().map(|error| error.to_string())
    };
    let (bias, rest) = tensors.split_last().unwrap();
    assert_eq!(load(rest), None);
    let refused = load(&tensors).unwrap();
    assert!(refused.contains(bias.0) && refused.contains("adds no bias"), "{refused}");
}

#[test]
fn a_directory_may_be_renamed() {
    let tensors = [embedding(), output_matrix(), ("model.norm.weight", Dtype::F32, vec![16])];
    let parent = directory(&base(), &[("model.safetensors", &tensors)]);
    let digest = |path: &Path| {
        let model = LoadedModel::open(path).unwrap();
        let digest = crate::digest(&model.config, &model.tensors, None, &Pool::new(1));
        (model.config.name, digest)
    };
    let (name, before) = digest(parent.path());
    let other = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(parent.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), other.path().join(file.file_name())).unwrap();
    }
    let (renamed, after) = digest(other.path());
    assert_ne!(renamed, name);
    assert_eq!(after, before);
}

#[test]
fn errors_name_what_is_wrong_with_a_directory() {
    let check = |directory: &tempfile::TempDir, expect: &str| {
        let error = LoadedModel::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains(expect), "{error:?} does not contain {expect:?}");
    };
    let write = |directory: &tempfile::TempDir, name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).unwrap();
    };
    let one = |tensor| directory(&base(), &[("model.safetensors", &[embedding(), tensor])]);
    check(&directory(&base(), &[]), "neither model.safetensors");
    check(&one(("model.layers.0.moe.weight", Dtype::F32, vec![1])), "model.layers.0.moe.weight");
    check(&one(("model.norm.weight", Dtype::I8, vec![16])), "I8");
    check(&one(("model.layers.0.mlp.up_proj.weight", Dtype::F8_E4M3, vec![16, 16])), "F8_E4M3");
    for auxiliary in [
        "model.layers.0.mlp.up_proj.weight_scale_inv",
        "model.layers.0.mlp.up_proj.qweight",
        "model.layers.0.mlp.up_proj.weight_packed",
    ] {
        check(&one((auxiliary, Dtype::F32, vec![16])), "belongs to quantised weights");
        check(&one((auxiliary, Dtype::F32, vec![16])), auxiliary);
    }
    check(&one(("model.norm.weight", Dtype::F32, vec![])), "shape []");
    check(&one(("embed_tokens.weight", Dtype::F32, vec![16])), "occurs twice");
    let broken = one(("model.norm.weight", Dtype::F32, vec![16]));
    write(&broken, "model.safetensors", "nonsense that is no header");
    check(&broken, "model.safetensors is not usable");
    write(&broken, "model.safetensors.index.json", "{\"weight_map\":{\"x\":\"../../etc/passwd\"}}");
    check(&broken, "../../etc/passwd");
    write(&broken, "model.safetensors.index.json", "{\"weight_map\":{\"x\":\"absent.safetensors\"}}");
    check(&broken, "absent.safetensors");
    write(&broken, "config.json", "{");
    check(&broken, "config.json");
    write(&broken, "config.json", &" ".repeat((16 << 20) + 1));
    check(&broken, "more than the 16777216 bytes");
    std::fs::remove_file(broken.path().join("config.json")).unwrap();
    check(&broken, "config.json");
    assert!(matches!(LoadedModel::open("/nowhere".as_ref()), Err(LoadError::File(FileError::Io { .. }))));
}
