//! Prediction heads of checkpoints, which number them as a further layer or have them apart, say what those of GGUF files
//! do.

use kvik_model::load::LoadedModel;

use super::families::{Family, families};
use super::write::{Tensor, tensors_of, write_tensors};
use super::{ERROR_MAX, golden};
use crate::heads::told;
use kvik_cache::Token;

/// Tensors of a head beside its decoder layer: GGUF's name, that of a further layer, that of a head apart.
const JOINED: [(&str, &str, &str); 6] = [
    ("nextn.eh_proj.weight", "eh_proj.weight", "mtp.fc.weight"),
    ("nextn.enorm.weight", "enorm.weight", "mtp.pre_fc_norm_embedding.weight"),
    ("nextn.hnorm.weight", "hnorm.weight", "mtp.pre_fc_norm_hidden.weight"),
    ("nextn.shared_head_norm.weight", "shared_head.norm.weight", "mtp.norm.weight"),
    ("nextn.shared_head_head.weight", "shared_head.head.weight", ""),
    ("nextn.embed_tokens.weight", "embed_tokens.weight", "mtp.embed_tokens.weight"),
];

/// The checkpoint of a file with a head, whose decoder layer has the parts of layer `like`.
fn checkpoint(family: &Family, loaded: &LoadedModel, like: usize, apart: bool) -> Vec<(String, Tensor)> {
    let config = &loaded.config;
    let of_head = format!("blk.{}.", config.layers);
    let (head, trunk): (Vec<_>, Vec<_>) =
        tensors_of(&loaded.tensors).into_iter().partition(|(name, _)| name.starts_with(&of_head));
    let further = format!("{}layers.{}.", family.prefix, config.layers);
    let mut all = family.checkpoint(config, &trunk);
    all.retain(|(name, _)| !name.starts_with("mtp.") && !name.starts_with(&further));
    let (joined, layer): (Vec<_>, Vec<_>) = head.into_iter().partition(|(name, _)| name.contains(".nextn."));
    let layer: Vec<_> = layer
        .into_iter()
        .map(|(name, tensor)| (name.replace(&of_head, &format!("blk.{like}.")), tensor))
        .collect();
    let as_like = format!("{}layers.{like}.", family.prefix);
    for (name, tensor) in family.checkpoint(config, &layer) {
        if let Some(part) = name.strip_prefix(&as_like) {
            let name = if apart { format!("mtp.layers.0.{part}") } else { format!("{further}{part}") };
            all.push((name, tensor));
        }
    }
    for (name, tensor) in joined {
        let (_, in_layer, alone) = JOINED.iter().find(|(gguf, ..)| name.ends_with(gguf)).unwrap();
        let is_norm = name.ends_with("norm.weight");
        let tensor = if is_norm { tensor.map(|weight| weight - family.norm_offset) } else { tensor };
        all.push((if apart { (*alone).to_owned() } else { format!("{further}{in_layer}") }, tensor));
    }
    all
}

#[test]
fn heads_of_checkpoints_say_what_those_of_gguf_files_do() {
    for (name, like, apart) in
        [("glm4moe", 2, false), ("deepseek2", 2, false), ("qwen3next", 1, true), ("qwen35", 3, true)]
    {
        let family = families().find(|family| family.golden == format!("arch-{name}")).unwrap();
        let loaded = LoadedModel::open(&golden(&format!("head-{name}.gguf"))).unwrap();
        let tensors = checkpoint(family, &loaded, like, apart);
        let directory = tempfile::tempdir().unwrap();
        let mut config = family.config(&loaded.config);
        config["mtp_num_hidden_layers"] = apart.then_some(1).into();
        write_tensors(directory.path(), &config, &tensors);
        let [expect, found] = [loaded, LoadedModel::open(directory.path()).unwrap()].map(|loaded| {
            let mut told = told(loaded, 1);
            let tokens: Vec<Token> = (0..50).map(|index| index * 37 % 95).collect();
            told.feed(&tokens[..49], 0);
            told.guess(tokens[49], 2)
        });
        let largest = expect.1.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let errors = expect.1.iter().zip(&found.1).map(|(x, y)| (x - y).abs());
        let error = kvik_testing::largest(errors) / largest;
        assert!(expect.0 == found.0 && error < ERROR_MAX, "{name}: logits of the head are {error:.1e} off");
    }
}
