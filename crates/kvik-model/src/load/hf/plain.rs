//! `config.json` under the names that all architectures share, with defaults added.

use serde_json::{Map, Value, json};

use crate::Arch;

/// All settings; in a model that also takes images, those of the decoder come from `text_config`.
pub(super) fn merged(config: Value) -> Value {
    let mut config = config;
    if let Some(all) = config.as_object_mut() {
        if let Some(Value::Object(text)) = all.get_mut("text_config").map(Value::take) {
            let kept = all.get("architectures").cloned();
            all.extend(text);
            all.extend(kept.map(|names| ("architectures".to_owned(), names)));
        }
        add_defaults(all);
    }
    config
}

/// The settings that all architectures have, by their most common names.
pub(super) fn plain(settings: &Value) -> Value {
    let mut plain = settings.clone();
    let Some((all, arch)) = plain.as_object_mut().and_then(|all| Some((&mut *all, arch(first(settings))?)))
    else {
        return plain;
    };
    for (name, own) in arch.hf_settings() {
        if let Some(value) = settings.get(own).filter(|value| !value.is_null()) {
            all.insert((*name).to_owned(), value.clone());
        }
    }
    plain
}

/// The architecture with this name.
pub(super) fn arch(name: &str) -> Option<Arch> {
    Arch::ALL.iter().copied().find(|arch| arch.hf_names().contains(&name))
}

fn first(settings: &Value) -> &str {
    settings["architectures"][0].as_str().unwrap_or_default()
}

/// The beginnings of the names of models that use the embedding as the output matrix unless files say otherwise.
const TIED: [&str; 4] = ["Gemma", "SmolLM3", "Lfm2", "LFM2"];

/// Bases of the rotation that differ from the usual 10,000, by the beginning of the model's name.
const THETAS: [(&str, f64); 8] = [
    ("Gemma3", 1e6),
    ("GptOss", 150_000.0),
    ("Lfm2", 1e6),
    ("LFM2", 1e6),
    ("Llama4", 500_000.0),
    ("Mixtral", 1e6),
    ("Olmo3", 500_000.0),
    ("SmolLM3", 2e6),
];

/// Adds the defaults of the library for settings that configurations omit.
fn add_defaults(config: &mut Map<String, Value>) {
    let name = config.get("architectures").and_then(|names| names[0].as_str()).unwrap_or_default().to_owned();
    let mut defaults = Vec::new();
    if TIED.iter().any(|start| name.starts_with(start)) {
        defaults.push(("tie_word_embeddings", json!(true)));
    }
    defaults.extend(of_rotation(&name, config));
    if name.starts_with("Gemma3For") {
        defaults.extend([
            ("num_attention_heads", json!(8)),
            ("num_key_value_heads", json!(4)),
            ("head_dim", json!(256)),
            ("vocab_size", json!(262_208)),
            ("max_position_embeddings", json!(131_072)),
            ("rms_norm_eps", json!(1e-6)),
        ]);
    }
    if name.starts_with("Gemma4For") {
        let full = json!({"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6});
        defaults.extend([
            ("global_head_dim", json!(512)),
            ("rope_parameters", json!({"full_attention": full, "sliding_attention": {"rope_theta": 1e4}})),
        ]);
    }
    if name == "BambaForCausalLM" {
        defaults.push(("partial_rotary_factor", json!(0.5)));
    }
    // Newer files of Nemotron-H give the number of their layers by listing them.
    let listed = config.get("layers_block_type").and_then(Value::as_array).map(Vec::len);
    defaults.extend(listed.map(|layers| ("num_hidden_layers", json!(layers))));
    for (key, value) in defaults {
        if config.get(key).is_none_or(Value::is_null) {
            config.insert(key.to_owned(), value);
        }
    }
}

/// The defaults of the library for the rotation of models with this name.
fn of_rotation(name: &str, config: &Map<String, Value>) -> Vec<(&'static str, Value)> {
    let theta = THETAS.iter().find(|(start, _)| name.starts_with(start));
    let mut defaults: Vec<_> = theta.map(|&(_, theta)| ("rope_theta", json!(theta))).into_iter().collect();
    let has = |key: &str| config.get(key).is_some_and(|value| !value.is_null() && *value != json!({}));
    if !has("rope_scaling") && !has("rope_parameters") {
        defaults.extend(scaling(name, config).map(|scaling| ("rope_parameters", scaling)));
    }
    defaults
}

/// The parameters of models whose rotation is scaled by default.
fn scaling(name: &str, config: &Map<String, Value>) -> Option<Value> {
    // A model that also takes images has its own name, and that of its decoder's family here.
    let is_ministral3 = || config.get("model_type").is_some_and(|family| family == "ministral3");
    if name.starts_with("GptOss") {
        return Some(json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": false, "original_max_position_embeddings": 4096}));
    }
    (name.starts_with("Ministral3") || is_ministral3()).then(|| {
        json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 16384})
    })
}
