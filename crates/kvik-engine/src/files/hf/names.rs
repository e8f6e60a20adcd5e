//! Maps Hugging Face tensor names to GGUF's.

/// The canonical name of a tensor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// GGUF's name for it.
    Canonical(String),
    /// Derived from the configuration, so not read.
    Derived,
    /// Not part of a Llama or Qwen decoder.
    Unknown,
}

/// Modules of a layer that an architecture names otherwise than Llama does, or has beside Llama's: Hugging Face's
/// name, GGUF's.
pub(crate) type Modules = &'static [(&'static str, &'static str)];

/// Maps for example `model.layers.0.self_attn.q_proj.weight` to `blk.0.attn_q.weight`.
pub(super) fn canonical(name: &str, modules: Modules) -> Name {
    // Checkpoints of the decoder without its output matrix have no prefix.
    let inner = name.strip_prefix("model.").unwrap_or(name);
    if is_rotary_buffer(inner) {
        return Name::Derived;
    }
    let canonical = match inner {
        "embed_tokens.weight" => Some("token_embd.weight".into()),
        "norm.weight" => Some("output_norm.weight".into()),
        "lm_head.weight" => Some("output.weight".into()),
        _ => inner.strip_prefix("layers.").and_then(|name| layer(name, modules)),
    };
    canonical.map_or(Name::Unknown, Name::Canonical)
}

/// Old checkpoints store the rotary frequencies, once or in every layer.
fn is_rotary_buffer(name: &str) -> bool {
    let in_layer = name.strip_prefix("layers.").and_then(numbered).map(|(_, rest)| rest);
    name == "rotary_emb.inv_freq" || in_layer == Some("self_attn.rotary_emb.inv_freq")
}

/// The layer in `7.self_attn.q_proj.weight`, and the rest of the name.
fn numbered(name: &str) -> Option<(u32, &str)> {
    let (index, rest) = name.split_once('.')?;
    // Accepts only the plain spelling of a number: `07` would name layer 7 a second time.
    let number = index.parse().ok().filter(|number: &u32| number.to_string() == index)?;
    Some((number, rest))
}

/// Names a bias wherever a module could have one; `model::expected` decides whether the model adds it.
fn layer(name: &str, modules: Modules) -> Option<String> {
    let (number, rest) = numbered(name)?;
    let (module, kind) = rest.rsplit_once('.').filter(|(_, kind)| matches!(*kind, "weight" | "bias"))?;
    let own = modules.iter().find(|(hf, _)| *hf == module).map(|(_, gguf)| *gguf);
    let part = own.or_else(|| llama_module(module))?;
    Some(format!("blk.{number}.{part}.{kind}"))
}

/// GGUF's name of a module of Llama's layers.
fn llama_module(module: &str) -> Option<&'static str> {
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
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_mapped() {
        let check =
            |name: &str, expect: &str| assert_eq!(canonical(name, &[]), Name::Canonical(expect.into()));
        check("model.embed_tokens.weight", "token_embd.weight");
        check("embed_tokens.weight", "token_embd.weight");
        check("lm_head.weight", "output.weight");
        check("model.norm.weight", "output_norm.weight");
        check("model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias");
        check("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight");
        let own: Modules = &[("post_attention_layernorm", "post_attention_norm"), ("mlp.x", "ffn_x")];
        for (name, expect) in [
            ("model.layers.1.post_attention_layernorm.weight", "blk.1.post_attention_norm.weight"),
            ("model.layers.1.mlp.x.bias", "blk.1.ffn_x.bias"),
            ("model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
        ] {
            assert_eq!(canonical(name, own), Name::Canonical(expect.into()));
        }
        assert_eq!(canonical("model.layers.0.self_attn.rotary_emb.inv_freq", &[]), Name::Derived);
        assert_eq!(canonical("model.rotary_emb.inv_freq", &[]), Name::Derived);
        for unknown in [
            "model.layers.07.mlp.up_proj.weight",
            "model.layers.0.mlp.experts.0.weight",
            "model.layers.0.mlp.rotary_emb.inv_freq",
            "vision.rotary_emb.inv_freq",
            "x",
            "",
        ] {
            assert_eq!(canonical(unknown, &[]), Name::Unknown, "{unknown}");
        }
    }
}
