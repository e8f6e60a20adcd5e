//! A family's checkpoint of the tensors of a GGUF file.

use kvik_model::ModelConfig;
use serde_json::{Value, json};

use super::families::{Experts, Family};
use super::packed;
use super::write::{Tensor, of_layer};

impl Family {
    /// The tensors of the golden file; the experts of gpt-oss become random ones in MXFP4, and the last tokens have no
    /// embeddings for every layer.
    pub(crate) fn prepared(&self, mut tensors: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
        if let Some((_, table)) = tensors.iter_mut().find(|(name, _)| name == TABLE) {
            let row_bytes = table.data.len() / table.rows();
            table.data[TABLE_ROWS * row_bytes..].fill(0);
        }
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

    /// The tensors of the checkpoint.
    pub(crate) fn checkpoint(
        &self,
        config: &ModelConfig,
        tensors: &[(String, Tensor)],
    ) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        for (name, tensor) in tensors {
            let (layer, part) =
                of_layer(name).map_or((None, name.as_str()), |(layer, part)| (Some(layer), part));
            if part.contains("_exps.weight") || part.contains("_exps.bias") {
                continue;
            }
            let get = |part: &str| of_name(tensors, layer, part);
            let Some((part, tensor)) = (self.rewrite)(config, part, tensor, &get) else { continue };
            all.extend(self.named(layer, &part, tensor, config));
        }
        for layer in 0..config.layers {
            let prefix = format!("{}layers.{layer}.", self.prefix);
            let parts = self.of_experts(config, &|part: &str| of_name(tensors, Some(layer), part));
            all.extend(parts.into_iter().map(|(name, tensor)| (prefix.clone() + &name, tensor)));
        }
        self.add_unread(config, &mut all);
        all
    }

    /// What checkpoints have beside the decoder of text.
    fn add_unread(&self, config: &ModelConfig, all: &mut Vec<(String, Tensor)>) {
        let tensor = all[0].1.clone();
        if self.is_multimodal() {
            let names = ["vision_tower.blocks.0.weight", "model.visual.blocks.0.weight"];
            all.extend(names.map(|name| (name.to_owned(), tensor.clone())));
        }
        if self.config.contains("nextn") {
            all.push((format!("{}layers.{}.eh_proj.weight", self.prefix, config.layers), tensor.clone()));
        }
        if self.config.contains("mtp_") {
            all.push(("mtp.fc.weight".to_owned(), tensor));
        }
    }

    /// The names in the checkpoint of a tensor of a layer, or of the model, with the tensors.
    fn named(
        &self,
        layer: Option<usize>,
        part: &str,
        mut tensor: Tensor,
        config: &ModelConfig,
    ) -> Vec<(String, Tensor)> {
        if part.ends_with("norm.weight") && part != "ssm_norm.weight" && self.norm_offset != 0.0 {
            tensor = tensor.map(|weight| weight - self.norm_offset);
        }
        let Some(layer) = layer else { return self.outside_of_layers(part, tensor) };
        if part == "ffn_gate_inp_shexp.weight" {
            tensor.shape.insert(0, 1);
        }
        if self.permuted
            && let Some(heads) = heads_of(part, config)
        {
            tensor.unpermute(heads, config.rope.dims);
        }
        let name = self.name_in_layer(part);
        name.map(|name| (format!("{}layers.{layer}.{name}", self.prefix), tensor)).into_iter().collect()
    }

    /// The name of a tensor in its layer; `None` if it is stored together with another.
    fn name_in_layer(&self, part: &str) -> Option<String> {
        let modules = || self.modules.iter().chain(&MODULES);
        if let Some((_, name)) = modules().find(|(gguf, _)| *gguf == part) {
            return Some((*name).to_owned());
        }
        let (stem, kind) = part.rsplit_once('.').unwrap();
        if self.halves.is_some_and(|halves| halves.contains(&stem)) {
            return None;
        }
        match modules().find(|(gguf, _)| *gguf == stem) {
            Some((_, module)) => Some(format!("{module}.{kind}")),
            None => panic!("{self}: {part} has no name"),
        }
    }

    fn outside_of_layers(&self, name: &str, tensor: Tensor) -> Vec<(String, Tensor)> {
        let own = self.modules.iter().chain(&OUTSIDE).find(|(gguf, _)| *gguf == name);
        match (name, own) {
            // In the configuration.
            ("rope_factors_long.weight" | "rope_factors_short.weight" | "rope_freqs.weight", _) => Vec::new(),
            ("output.weight", _) => vec![("lm_head.weight".to_owned(), tensor)],
            (TABLE, Some((_, module))) => {
                vec![(format!("{}{module}.weight", self.prefix), tensor.some_rows(0..TABLE_ROWS))]
            }
            (_, Some((_, module))) if name.starts_with("altup") => {
                let part = |(index, tensor)| (format!("{}{module}.{index}.weight", self.prefix), tensor);
                tensor.split(ALTUP_MATRICES).into_iter().enumerate().map(part).collect()
            }
            (_, Some((_, module))) => vec![(format!("{}{module}.weight", self.prefix), tensor)],
            (_, None) => panic!("{self}: {name} has no name"),
        }
    }

    /// The experts of a layer of which `get` knows the tensors, and what is stored together of a shared one.
    fn of_experts<'t>(
        &self,
        config: &ModelConfig,
        get: &dyn Fn(&str) -> Option<&'t Tensor>,
    ) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        let stack = |part: &str| get(&format!("ffn_{part}_exps.weight"));
        if let Some(down) = stack("down") {
            let count = config.extras.experts.unwrap().count;
            let stacks = [stack("gate"), stack("up"), stack("gate_up")];
            all.extend(self.stacks(count, stacks, down, get));
        }
        let halves = self.halves.map(|halves| halves.map(|half| get(&format!("{half}.weight"))));
        if let Some([Some(gate), Some(up)]) = halves {
            let both = Tensor::side_by_side(gate, up, 1);
            all.push(("shared_mlp.input_linear.weight".to_owned(), both.in_two()));
        }
        all
    }

    /// The experts of a layer.
    fn stacks<'t>(
        &self,
        count: usize,
        [gate, up, gate_up]: [Option<&Tensor>; 3],
        down: &Tensor,
        get: &dyn Fn(&str) -> Option<&'t Tensor>,
    ) -> Vec<(String, Tensor)> {
        let both = || match gate_up {
            Some(both) => both.in_three(count),
            None => Tensor::side_by_side(gate.unwrap(), up.unwrap(), count),
        };
        match self.experts {
            Experts::Each(module, parts) => {
                let named = |(stack, part): (Option<&Tensor>, &str)| -> Vec<(String, Tensor)> {
                    let each = stack.into_iter().flat_map(|stack| stack.split(count)).enumerate();
                    each.map(|(expert, tensor)| (format!("{module}.{expert}.{part}.weight"), tensor))
                        .collect()
                };
                [gate, up, Some(down)].into_iter().zip(parts).flat_map(named).collect()
            }
            Experts::Together([name, down_name]) => {
                let gated = gate.is_some() || gate_up.is_some();
                let first = if gated { both() } else { up.unwrap().in_three(count) };
                vec![(name.to_owned(), first), (down_name.to_owned(), down.in_three(count))]
            }
            Experts::Turned(names) => {
                let turned = |stack: &Tensor| {
                    let all: Vec<Tensor> = stack.split(count).iter().map(Tensor::transposed).collect();
                    Tensor::below(&all).reshaped(&[count, all[0].rows(), all[0].cols()])
                };
                names
                    .into_iter()
                    .zip([turned(&both()), turned(down)])
                    .map(|(n, t)| (n.to_owned(), t))
                    .collect()
            }
            Experts::Packed => {
                let biases =
                    ["gate", "up", "down"].map(|part| get(&format!("ffn_{part}_exps.bias")).unwrap());
                packed::checkpoint([gate.unwrap(), up.unwrap(), down], biases, count)
            }
        }
    }
}

/// A tensor of a layer, or of the model, by its name there.
fn of_name<'t>(tensors: &'t [(String, Tensor)], layer: Option<usize>, part: &str) -> Option<&'t Tensor> {
    let name = layer.map_or(part.to_owned(), |layer| format!("blk.{layer}.{part}"));
    tensors.iter().find(|(other, _)| *other == name).map(|(_, tensor)| tensor)
}

/// How many heads the rows of a projection to queries or keys are of.
fn heads_of(part: &str, config: &ModelConfig) -> Option<usize> {
    match part.rsplit_once('.')?.0 {
        "attn_q" => Some(config.heads),
        "attn_k" => Some(config.kv_heads),
        _ => None,
    }
}

/// Embeddings of tokens for every layer, which the last tokens lack.
const TABLE: &str = "per_layer_token_embd.weight";
const TABLE_ROWS: usize = 90;
/// Matrices of a stack of AltUp: one for every stream but the first.
const ALTUP_MATRICES: usize = 3;

/// Tensors outside of the layers.
const OUTSIDE: [(&str, &str); 7] = [
    ("token_embd.weight", "embed_tokens"),
    ("output_norm.weight", "norm"),
    (TABLE, "embed_tokens_per_layer"),
    ("per_layer_model_proj.weight", "per_layer_model_projection"),
    ("per_layer_proj_norm.weight", "per_layer_projection_norm"),
    ("altup_proj.weight", "altup_projections"),
    ("altup_unembd_proj.weight", "altup_unembed_projections"),
];

/// Llama's modules, and those of mixtures of experts.
const MODULES: [(&str, &str); 15] = [
    ("attn_sinks.weight", "self_attn.sinks"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
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
