//! Maps Hugging Face tensor names to GGUF's.

use std::ops::Range;

/// The role of a tensor, derived from its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// A tensor of the model, with its GGUF name.
    Canonical(String),
    /// Two tensors: the first has the upper half of the rows.
    Halves([String; 2]),
    /// A tensor of gpt-oss' experts that `repack` converts: the layer, and the name within its experts.
    Packed(u32, &'static str),
    /// Derived from the configuration, or not part of the text decoder: not read.
    Unread,
    /// Not part of a decoder that kvik runs.
    Unknown,
}

/// Layer modules that an architecture names differently from Llama or has in addition: Hugging Face's name,
/// GGUF's. A parameter without a weight or bias suffix has its whole name in both.
pub type Modules = &'static [(&'static str, &'static str)];

/// The tensor names of a checkpoint.
#[derive(Debug, Default, Clone)]
pub struct Names {
    /// The names that differ from Llama's.
    pub modules: Modules,
    /// Whether the checkpoint also takes images or audio, with tensors that a text decoder lacks.
    pub is_multimodal: bool,
    /// Layers that predict tokens beyond the next one.
    pub beyond: Range<usize>,
    /// The first of those, if its tensors are read: the prediction head.
    pub head: Option<u32>,
    /// Vectors, by GGUF's names in their layer, that the model uses as matrices with this number of rows.
    pub in_rows: Vec<(&'static str, usize)>,
    /// Whether the module that Granite calls its shared layer is the only feed-forward part.
    pub shared_alone: bool,
}

/// Prefixes of tensors that a text decoder lacks.
const OTHER_INPUTS: [&str; 7] = [
    "vision_tower.",
    "visual.",
    "vision_model.",
    "multi_modal_projector.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
];

impl Names {
    /// Maps for example `model.layers.0.self_attn.q_proj.weight` to `blk.0.attn_q.weight`.
    pub(super) fn of(&self, name: &str) -> Name {
        // Checkpoints of the decoder without its output matrix have no prefix; multimodal ones have two.
        let mut inner = name;
        for prefix in ["backbone.", "language_model.", "model.", "language_model."] {
            inner = inner.strip_prefix(prefix).unwrap_or(inner);
        }
        if is_rotary_buffer(inner)
            || (self.is_multimodal && OTHER_INPUTS.iter().any(|part| inner.starts_with(part)))
        {
            return Name::Unread;
        }
        if let Some(apart) = inner.strip_prefix(BEYOND) {
            return self.head.map_or(Name::Unread, |head| self.in_head(head, apart, &HEAD_APART));
        }
        match inner.strip_prefix("layers.").and_then(numbered) {
            Some((layer, rest)) if self.head == Some(layer) => self.in_head(layer, rest, &HEAD),
            Some((layer, _)) if self.beyond.contains(&(layer as usize)) => Name::Unread,
            Some((layer, rest)) => self.in_layer(layer, rest),
            None => outside_of_layers(inner).map_or(Name::Unknown, Name::Canonical),
        }
    }

    /// Maps the name of a layer's parameter. Biases are mapped for all modules; `model::expected` decides whether
    /// the model uses them.
    fn in_layer(&self, layer: u32, rest: &str) -> Name {
        if let Some((_, part)) = self.modules.iter().chain(&BARE).find(|(name, _)| *name == rest) {
            return Name::Canonical(format!("blk.{layer}.{part}"));
        }
        if let Some(part) = PACKED.iter().find(|part| rest.strip_prefix("mlp.experts.") == Some(part)) {
            return Name::Packed(layer, part);
        }
        let Some((module, kind)) =
            rest.rsplit_once('.').filter(|(_, kind)| matches!(*kind, "weight" | "bias"))
        else {
            return Name::Unknown;
        };
        let shared = if self.shared_alone { "" } else { "_shexp" };
        match module {
            "shared_mlp.input_linear" => {
                let named = |part| format!("blk.{layer}.ffn_{part}{shared}.{kind}");
                return Name::Halves(["gate", "up"].map(named));
            }
            "shared_mlp.output_linear" => {
                return Name::Canonical(format!("blk.{layer}.ffn_down{shared}.{kind}"));
            }
            _ => {}
        }
        if let Some((expert, part)) = expert(module) {
            return Name::Canonical(format!("blk.{layer}.{part}.{expert}.{kind}"));
        }
        let own = self.modules.iter().find(|(hf, _)| *hf == module).map(|(_, gguf)| *gguf);
        match own.or_else(|| known_module(module)) {
            Some(part) => Name::Canonical(format!("blk.{layer}.{part}.{kind}")),
            None => Name::Unknown,
        }
    }

    /// Maps the name of a parameter of the prediction head, which GGUF has as layer `head`: one of its `modules`, or of
    /// its decoder layer. A head of another form is not read.
    fn in_head(&self, head: u32, name: &str, modules: &[(&str, &str)]) -> Name {
        let module = name.strip_suffix(".weight");
        if let Some((_, part)) = modules.iter().find(|(own, _)| Some(*own) == module) {
            return Name::Canonical(format!("blk.{head}.nextn.{part}.weight"));
        }
        match self.in_layer(head, name.strip_prefix("layers.0.").unwrap_or(name)) {
            Name::Canonical(name) => Name::Canonical(name),
            _ => Name::Unread,
        }
    }

    /// The number of rows of a tensor that is flat in the file, by GGUF's name.
    pub(super) fn rows_of(&self, name: &str) -> usize {
        let part = name.strip_prefix("blk.").and_then(numbered).map(|(_, part)| part);
        self.in_rows.iter().find(|(flat, _)| Some(*flat) == part).map_or(1, |(_, rows)| *rows)
    }
}

/// Prefix of separate layers that predict tokens beyond the next one.
const BEYOND: &str = "mtp.";

/// Modules of a prediction head beside its decoder layer, in checkpoints that number it as a further layer: Hugging
/// Face's name, GGUF's.
const HEAD: [(&str, &str); 6] = [
    ("eh_proj", "eh_proj"),
    ("enorm", "enorm"),
    ("hnorm", "hnorm"),
    ("embed_tokens", "embed_tokens"),
    ("shared_head.norm", "shared_head_norm"),
    ("shared_head.head", "shared_head_head"),
];

/// The same in checkpoints that have it apart (Qwen3-Next and later).
const HEAD_APART: [(&str, &str); 5] = [
    ("fc", "eh_proj"),
    ("pre_fc_norm_embedding", "enorm"),
    ("pre_fc_norm_hidden", "hnorm"),
    ("embed_tokens", "embed_tokens"),
    ("norm", "shared_head_norm"),
];

/// GGUF's name of a tensor outside the layers.
fn outside_of_layers(name: &str) -> Option<String> {
    let name = name.strip_suffix(".weight")?;
    let part = match name {
        "embed_tokens" | "embeddings" => "token_embd",
        "norm" | "norm_f" | "final_layernorm" => "output_norm",
        "embedding_norm" => "token_embd_norm",
        "lm_head" => "output",
        "embed_tokens_per_layer" => "per_layer_token_embd",
        "per_layer_model_projection" => "per_layer_model_proj",
        "per_layer_projection_norm" => "per_layer_proj_norm",
        // One matrix per stream except the first.
        _ => {
            let (stack, index) = name.rsplit_once('.')?;
            let part = match stack {
                "altup_projections" => "altup_proj",
                "altup_unembed_projections" => "altup_unembd_proj",
                _ => return None,
            };
            let (index, _) = numbered(&format!("{index}."))?;
            return Some(format!("{part}.{index}.weight"));
        }
    };
    Some(format!("{part}.weight"))
}

/// Old checkpoints store the rotary frequencies, once or in every layer.
fn is_rotary_buffer(name: &str) -> bool {
    let in_layer = name.strip_prefix("layers.").and_then(numbered).map(|(_, rest)| rest);
    name == "rotary_emb.inv_freq" || in_layer == Some("self_attn.rotary_emb.inv_freq")
}

/// The number in `7.self_attn.q_proj.weight`, and the rest of the name.
fn numbered(name: &str) -> Option<(u32, &str)> {
    let (index, rest) = name.split_once('.')?;
    // Accepts only the canonical form of a number: `07` would name layer 7 a second time.
    let number = index.parse().ok().filter(|number: &u32| number.to_string() == index)?;
    Some((number, rest))
}

/// Tensors of a layer that are named like modules. Stacked tensors have the rows of the first expert first.
const BARE: [(&str, &str); 7] = [
    ("self_attn.sinks", "attn_sinks.weight"),
    ("block_sparse_moe.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("block_sparse_moe.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
];

/// Names of gpt-oss' packed expert tensors.
pub(super) const PACKED: [&str; 6] = [
    "gate_up_proj_blocks",
    "gate_up_proj_scales",
    "gate_up_proj_bias",
    "down_proj_blocks",
    "down_proj_scales",
    "down_proj_bias",
];

/// The number of an expert and GGUF's name of one of its modules.
fn expert(module: &str) -> Option<(u32, &'static str)> {
    let rest = ["mlp.", "block_sparse_moe.", "feed_forward.", "mixer."]
        .iter()
        .find_map(|p| module.strip_prefix(p))?;
    let rest = rest.strip_prefix("experts.")?;
    let (number, part) = numbered(rest)?;
    let part = match part {
        "gate_proj" | "w1" => "ffn_gate_exps",
        "up_proj" | "w3" => "ffn_up_exps",
        "down_proj" | "w2" => "ffn_down_exps",
        _ => return None,
    };
    Some((number, part))
}

/// GGUF's name of a module of Llama's layers, or of a mixture of experts.
fn known_module(module: &str) -> Option<&'static str> {
    Some(match module {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "mlp.gate"
        | "mlp.router"
        | "block_sparse_moe.gate"
        | "block_sparse_moe.router.layer"
        | "block_sparse_moe.router" => "ffn_gate_inp",
        "block_sparse_moe.input_linear" => "ffn_gate_up_exps",
        "block_sparse_moe.output_linear" => "ffn_down_exps",
        "mlp.shared_expert.gate_proj" | "mlp.shared_experts.gate_proj" => "ffn_gate_shexp",
        "mlp.shared_expert.up_proj" | "mlp.shared_experts.up_proj" => "ffn_up_shexp",
        "mlp.shared_expert.down_proj" | "mlp.shared_experts.down_proj" => "ffn_down_shexp",
        "mlp.shared_expert_gate" => "ffn_gate_inp_shexp",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_mapped() {
        let plain = Names::default();
        let check = |name: &str, expect: &str| assert_eq!(plain.of(name), Name::Canonical(expect.into()));
        check("model.embed_tokens.weight", "token_embd.weight");
        check("embed_tokens.weight", "token_embd.weight");
        check("lm_head.weight", "output.weight");
        check("model.norm.weight", "output_norm.weight");
        check("model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias");
        check("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight");
        check("language_model.model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight");
        check("model.language_model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight");
        check("language_model.lm_head.weight", "output.weight");
        check("model.layers.3.mlp.experts.11.down_proj.weight", "blk.3.ffn_down_exps.11.weight");
        check("model.layers.3.block_sparse_moe.experts.0.w3.weight", "blk.3.ffn_up_exps.0.weight");
        check("model.layers.3.mlp.experts.gate_up_proj", "blk.3.ffn_gate_up_exps.weight");
        let modules: Modules = &[("post_attention_layernorm", "post_attention_norm"), ("mlp.x", "ffn_x")];
        let own = Names { modules, ..Names::default() };
        for (name, expect) in [
            ("model.layers.1.post_attention_layernorm.weight", "blk.1.post_attention_norm.weight"),
            ("model.layers.1.mlp.x.bias", "blk.1.ffn_x.bias"),
            ("model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
        ] {
            assert_eq!(own.of(name), Name::Canonical(expect.into()));
        }
        let halves = ["blk.0.ffn_gate_shexp.weight", "blk.0.ffn_up_shexp.weight"].map(str::to_owned);
        assert_eq!(plain.of("model.layers.0.shared_mlp.input_linear.weight"), Name::Halves(halves));
        check("model.layers.0.shared_mlp.output_linear.weight", "blk.0.ffn_down_shexp.weight");
        let alone = Names { shared_alone: true, ..Names::default() };
        let down = Name::Canonical("blk.0.ffn_down.weight".into());
        assert_eq!(alone.of("model.layers.0.shared_mlp.output_linear.weight"), down);
        check("backbone.embeddings.weight", "token_embd.weight");
        check("model.embedding_norm.weight", "token_embd_norm.weight");
        check("model.language_model.altup_projections.2.weight", "altup_proj.2.weight");
        check("backbone.layers.7.mixer.experts.3.up_proj.weight", "blk.7.ffn_up_exps.3.weight");
        let modules: Modules = &[("mamba.D", "ssm_d"), ("mamba.norm", "ssm_norm"), ("mamba.x", "ssm_x")];
        let in_rows = vec![("ssm_d", 4), ("ssm_norm.weight", 2)];
        let mamba = Names { modules, in_rows, ..Names::default() };
        assert_eq!(mamba.of("layers.0.mamba.D"), Name::Canonical("blk.0.ssm_d".into()));
        assert_eq!((mamba.rows_of("blk.0.ssm_d"), mamba.rows_of("blk.3.ssm_norm.weight")), (4, 2));
        assert_eq!((mamba.rows_of("blk.0.ssm_x.bias"), mamba.rows_of("output_norm.weight")), (1, 1));
        assert_eq!(mamba.of("layers.0.mamba.x.bias"), Name::Canonical("blk.0.ssm_x.bias".into()));
        let scales = plain.of("model.layers.4.mlp.experts.down_proj_scales");
        assert_eq!(scales, Name::Packed(4, "down_proj_scales"));
        assert_eq!(plain.of("model.layers.0.self_attn.rotary_emb.inv_freq"), Name::Unread);
        assert_eq!(plain.of("model.rotary_emb.inv_freq"), Name::Unread);
        assert_eq!(plain.of("mtp.layers.0.mlp.up_proj.weight"), Name::Unread);
        for unknown in [
            "model.layers.07.mlp.up_proj.weight",
            "model.layers.0.mlp.experts.0.weight",
            "model.layers.0.mlp.experts.00.up_proj.weight",
            "model.layers.0.mlp.experts.0.x.weight",
            "model.layers.0.mlp.rotary_emb.inv_freq",
            "vision.rotary_emb.inv_freq",
            "vision_tower.layers.0.weight",
            "model.altup_projections.02.weight",
            "model.altup_projections.weight",
            "model.norm.bias",
            "x",
            "",
        ] {
            assert_eq!(plain.of(unknown), Name::Unknown, "{unknown}");
        }
    }

    #[test]
    fn a_prediction_head_is_the_layer_after_the_last() {
        let names = Names { beyond: 4..6, head: Some(4), ..Names::default() };
        for (name, expect) in [
            ("model.layers.4.eh_proj.weight", "nextn.eh_proj.weight"),
            ("model.layers.4.enorm.weight", "nextn.enorm.weight"),
            ("model.layers.4.shared_head.norm.weight", "nextn.shared_head_norm.weight"),
            ("model.layers.4.shared_head.head.weight", "nextn.shared_head_head.weight"),
            ("model.layers.4.embed_tokens.weight", "nextn.embed_tokens.weight"),
            ("model.layers.4.self_attn.q_proj.bias", "attn_q.bias"),
            ("mtp.fc.weight", "nextn.eh_proj.weight"),
            ("mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight"),
            ("mtp.norm.weight", "nextn.shared_head_norm.weight"),
            ("mtp.layers.0.mlp.up_proj.weight", "ffn_up.weight"),
            ("mtp.layers.0.mlp.experts.7.up_proj.weight", "ffn_up_exps.7.weight"),
        ] {
            assert_eq!(names.of(name), Name::Canonical(format!("blk.4.{expect}")), "{name}");
        }
        for unread in [
            "model.layers.5.eh_proj.weight",
            "model.layers.4.self_attn.indexer.weight",
            "mtp.layers.1.mlp.up_proj.weight",
            "mtp.fc.bias",
        ] {
            assert_eq!(names.of(unread), Name::Unread, "{unread}");
        }
    }

    #[test]
    fn parts_that_a_decoder_of_text_lacks_are_not_read() {
        let names = Names { is_multimodal: true, beyond: 4..6, ..Names::default() };
        for unread in [
            "vision_tower.layers.0.weight",
            "model.visual.blocks.0.x",
            "model.multi_modal_projector.x",
            "model.layers.5.eh_proj.weight",
        ] {
            assert_eq!(names.of(unread), Name::Unread, "{unread}");
        }
        assert_eq!(names.of("model.layers.6.eh_proj.weight"), Name::Unknown);
        assert_eq!(names.of("vision.weight"), Name::Unknown);
    }
}
