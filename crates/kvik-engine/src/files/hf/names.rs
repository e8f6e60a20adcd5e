//! Maps Hugging Face tensor names to GGUF's.

use std::ops::Range;

/// What a tensor is, by its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// One tensor of the model: GGUF's name for it.
    Canonical(String),
    /// Two, of which the first is the upper half of the rows.
    Halves([String; 2]),
    /// A part of what `repack` puts in order, of gpt-oss: the layer, and the name in its experts.
    Packed(u32, &'static str),
    /// Derived from the configuration, or nothing of the decoder of text: not read.
    Unread,
    /// Not part of a decoder that kvik runs.
    Unknown,
}

/// Modules of a layer that an architecture names otherwise than Llama does, or has beside Llama's: Hugging Face's
/// name, GGUF's.
pub(crate) type Modules = &'static [(&'static str, &'static str)];

/// How the tensors of a checkpoint are named.
#[derive(Debug, Default, Clone)]
pub(crate) struct Names {
    /// What the architecture names otherwise than Llama does.
    pub(crate) modules: Modules,
    /// Whether the checkpoint also takes images or sounds, by tensors that a decoder of text does not have.
    pub(crate) is_multimodal: bool,
    /// Layers that predict tokens beyond the next one.
    pub(crate) beyond: Range<usize>,
}

/// Parts of a checkpoint that a decoder of text does not have.
const OTHER_INPUTS: [&str; 6] = [
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
];

impl Names {
    /// Maps for example `model.layers.0.self_attn.q_proj.weight` to `blk.0.attn_q.weight`.
    pub(super) fn of(&self, name: &str) -> Name {
        // Checkpoints of the decoder without its output matrix have no prefix; those that take images have two.
        let mut inner = name;
        for prefix in ["language_model.", "model.", "language_model."] {
            inner = inner.strip_prefix(prefix).unwrap_or(inner);
        }
        if is_rotary_buffer(inner)
            || (self.is_multimodal && OTHER_INPUTS.iter().any(|part| inner.starts_with(part)))
        {
            return Name::Unread;
        }
        match inner {
            "embed_tokens.weight" => Name::Canonical("token_embd.weight".into()),
            "norm.weight" => Name::Canonical("output_norm.weight".into()),
            "lm_head.weight" => Name::Canonical("output.weight".into()),
            _ => match inner.strip_prefix("layers.").and_then(numbered) {
                Some((layer, _)) if self.beyond.contains(&(layer as usize)) => Name::Unread,
                Some((layer, rest)) => self.in_layer(layer, rest),
                None => Name::Unknown,
            },
        }
    }

    /// Names a bias wherever a module could have one; `model::expected` decides whether the model adds it.
    fn in_layer(&self, layer: u32, rest: &str) -> Name {
        if let Some((_, part)) = BARE.iter().find(|(name, _)| *name == rest) {
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
        if module == "shared_mlp.input_linear" {
            return Name::Halves(["gate", "up"].map(|part| format!("blk.{layer}.ffn_{part}_shexp.{kind}")));
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
}

/// Old checkpoints store the rotary frequencies, once or in every layer.
fn is_rotary_buffer(name: &str) -> bool {
    let in_layer = name.strip_prefix("layers.").and_then(numbered).map(|(_, rest)| rest);
    name == "rotary_emb.inv_freq" || in_layer == Some("self_attn.rotary_emb.inv_freq")
}

/// The number in `7.self_attn.q_proj.weight`, and the rest of the name.
fn numbered(name: &str) -> Option<(u32, &str)> {
    let (index, rest) = name.split_once('.')?;
    // Accepts only the plain spelling of a number: `07` would name layer 7 a second time.
    let number = index.parse().ok().filter(|number: &u32| number.to_string() == index)?;
    Some((number, rest))
}

/// Tensors of a layer that are named like modules. Those of all experts in one have the rows of the first expert first.
const BARE: [(&str, &str); 5] = [
    ("self_attn.sinks", "attn_sinks.weight"),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
];

/// The experts of gpt-oss.
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
    let rest = ["mlp.experts.", "block_sparse_moe.experts."]
        .iter()
        .find_map(|prefix| module.strip_prefix(prefix))?;
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
        "mlp.gate" | "mlp.router" | "block_sparse_moe.gate" | "block_sparse_moe.router.layer" => {
            "ffn_gate_inp"
        }
        "block_sparse_moe.input_linear" => "ffn_gate_up_exps",
        "block_sparse_moe.output_linear" => "ffn_down_exps",
        "mlp.shared_expert.gate_proj" | "mlp.shared_experts.gate_proj" => "ffn_gate_shexp",
        "mlp.shared_expert.up_proj" | "mlp.shared_experts.up_proj" => "ffn_up_shexp",
        "mlp.shared_expert.down_proj" | "mlp.shared_experts.down_proj" | "shared_mlp.output_linear" => {
            "ffn_down_shexp"
        }
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
        let scales = plain.of("model.layers.4.mlp.experts.down_proj_scales");
        assert_eq!(scales, Name::Packed(4, "down_proj_scales"));
        assert_eq!(plain.of("model.layers.0.self_attn.rotary_emb.inv_freq"), Name::Unread);
        assert_eq!(plain.of("model.rotary_emb.inv_freq"), Name::Unread);
        for unknown in [
            "model.layers.07.mlp.up_proj.weight",
            "model.layers.0.mlp.experts.0.weight",
            "model.layers.0.mlp.experts.00.up_proj.weight",
            "model.layers.0.mlp.experts.0.x.weight",
            "model.layers.0.mlp.rotary_emb.inv_freq",
            "vision.rotary_emb.inv_freq",
            "vision_tower.layers.0.weight",
            "x",
            "",
        ] {
            assert_eq!(plain.of(unknown), Name::Unknown, "{unknown}");
        }
    }

    #[test]
    fn parts_that_a_decoder_of_text_lacks_are_not_read() {
        let names = Names { is_multimodal: true, beyond: 4..6, ..Names::default() };
        for unread in
            ["vision_tower.layers.0.weight", "model.multi_modal_projector.x", "model.layers.5.eh_proj.weight"]
        {
            assert_eq!(names.of(unread), Name::Unread, "{unread}");
        }
        assert_eq!(names.of("model.layers.6.eh_proj.weight"), Name::Unknown);
        assert_eq!(names.of("vision.weight"), Name::Unknown);
    }
}
