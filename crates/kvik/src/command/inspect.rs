//! `kvik inspect`: the contents of a model file, and whether kvik runs it.

use std::collections::BTreeMap;

use clap::Args;
use kvik_kernels::KvFormat;
use kvik_model::load::LoadedModel;
use kvik_model::{LatentConfig, ModelConfig, ModelRunner, RopeScaling};
use kvik_text::files::TensorView;
use serde_json::json;

use super::output::shown;
use kvik_serving::settings::{model::ModelArgs, size::ByteSize};

/// Shows a model's shape, tokenizer, template and tensors.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik inspect                      the model of `kvik default`
  kvik inspect -m model.gguf        a GGUF file
  kvik inspect -m ./Qwen3-0.6B/     a Hugging Face directory
  kvik inspect --tensors            every tensor with type and shape")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Show the chat template
    #[arg(long)]
    template: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let loaded = args.model.load()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summary(&loaded))?);
        return Ok(());
    }
    for (name, value) in facts(&loaded) {
        println!("{name:<12} {}", shown(&value));
    }
    loaded.sampling.notes.iter().for_each(|note| println!("{:<12} {}", "note", shown(note)));
    if args.tensors {
        println!("\n{:<10} {:>16}  tensor", "type", "rows x cols");
        for (name, view) in sorted(&loaded) {
            let shape = format!("{} x {}", view.rows, view.cols);
            println!("{:<10} {shape:>16}  {}", view.ty.name(), shown(name));
        }
    }
    if args.template {
        println!("\n{}", shown(loaded.chat_template.as_deref().unwrap_or("no chat template")));
    }
    Ok(())
}

/// The facts of a model, in the order in which they are printed.
fn facts(loaded: &LoadedModel) -> Vec<(&'static str, String)> {
    let config = &loaded.config;
    let tokenizer = &loaded.tokenizer;
    let special =
        |token: Option<u32>| token.map_or("none".to_owned(), |t| format!("{t} {:?}", tokenizer.decode(&[t])));
    let per_token = ModelRunner::uniform_layout(config, KvFormat::F16).token_bytes();
    vec![
        ("model", config.name.clone()),
        ("runs as", config.arch.name().to_owned()),
        ("parameters", format!("{:.1} M", parameters(loaded) as f64 / 1e6)),
        ("weights", format!("{} ({})", ByteSize(loaded.tensors.total_bytes()), types(loaded))),
        ("layers", config.layers.to_string()),
        ("width", format!("{}, feed-forward {}", config.d_model, config.d_ff)),
        ("heads", heads(config)),
        ("windows", windows(config)),
        ("experts", experts(config)),
        ("context", format!("{} tokens", config.context)),
        ("rope", format!("base {}, {} dimensions, {}", config.rope.theta, config.rope.dims, scaling(loaded))),
        ("kv", format!("{} a token in f16", ByteSize(per_token as u64))),
        ("vocabulary", format!("{} tokens", config.vocab)),
        ("bos, eos", format!("{}, {}", special(tokenizer.bos()), special(tokenizer.eos()))),
        ("sampling", loaded.sampling_defaults().to_string()),
        ("template", if loaded.chat_template.is_some() { "in the model" } else { "none" }.to_owned()),
    ]
}

fn summary(loaded: &LoadedModel) -> serde_json::Value {
    let facts: serde_json::Map<_, _> =
        facts(loaded).into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
    let tensors: Vec<_> = sorted(loaded)
        .into_iter()
        .map(|(name, view)| json!({"name": name, "type": view.ty.name(), "rows": view.rows, "cols": view.cols}))
        .collect();
    json!({"facts": facts, "tensors": tensors, "chat_template": loaded.chat_template})
}

fn sorted(loaded: &LoadedModel) -> BTreeMap<&str, TensorView<'_>> {
    loaded.tensors.names().filter_map(|name| Some((name, loaded.tensors.get(name)?))).collect()
}

fn parameters(loaded: &LoadedModel) -> usize {
    sorted(loaded).values().map(|view| view.rows * view.cols).sum()
}

/// Tensor types with their counts, most frequent first.
fn types(loaded: &LoadedModel) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for view in sorted(loaded).values() {
        *counts.entry(view.ty.name()).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

fn heads(config: &ModelConfig) -> String {
    match config.extras.latent {
        Some(LatentConfig { rank, unrotated, rotated, value, .. }) => format!(
            "{} of {}, values of {value}, all from one vector of {rank} and {rotated} rotated dimensions",
            config.heads,
            unrotated + rotated
        ),
        None => format!("{} of {}, {} for keys and values", config.heads, config.head_dim, config.kv_heads),
    }
}

fn windows(config: &ModelConfig) -> String {
    config.extras.window.as_ref().map_or("none".to_owned(), |window| {
        let layers = window.layers.iter().filter(|windowed| **windowed).count();
        format!("{} tokens in {layers} of {} layers", window.positions, config.layers)
    })
}

fn experts(config: &ModelConfig) -> String {
    config.extras.experts.map_or("none".to_owned(), |experts| {
        let shared = if experts.shared_d_ff > 0 { ", beside a shared one" } else { "" };
        format!("{} of {} for a token, of width {}{shared}", experts.used, experts.count, experts.d_ff)
    })
}

fn scaling(loaded: &LoadedModel) -> String {
    let divisors =
        if loaded.tensors.get("rope_freqs.weight").is_some() { ", divisors in the file" } else { "" };
    let scaling = match &loaded.config.rope.scaling {
        RopeScaling::None => "not stretched".to_owned(),
        RopeScaling::Linear { factor } => format!("stretched {factor} times"),
        RopeScaling::Llama3 { factor, .. } => format!("low frequencies stretched {factor} times (Llama 3)"),
        RopeScaling::Yarn { factor, .. } => format!("stretched {factor} times by YaRN"),
        RopeScaling::Proportional { pairs } => format!("not stretched, {pairs} pairs of each head"),
        RopeScaling::Long { original_context, .. } => {
            format!("stretched pair by pair, otherwise beyond {original_context} tokens (LongRoPE)")
        }
    };
    scaling + divisors
}
