//! `kvik plan`: how much memory a model needs, and how many users fit.

use clap::Args;
use kvik_cache::BLOCK_POSITIONS;
use kvik_engine::load::LoadedModel;
use kvik_engine::model::{ModelRunner, digest};
use kvik_kernels::{KvFormat, KvLayout};
use serde::Serialize;

use crate::{
    serving::kv,
    settings::{model::ModelArgs, size::ByteSize},
};

/// Shows the memory of weights and of KV per token, per context and per user, and what fits.
#[derive(Debug, Args)]
#[command(after_help = "The KV cache of one sequence takes

  2 x layers x kv_heads x tokens x head_dim x bytes

(keys and values; grouped and multi-query attention have fewer kv_heads than heads).

Examples:
  kvik plan -m model.gguf --context 8192 --users 4
  kvik plan -m model.gguf --context 32768 --users 1 --ram 8GiB
  kvik plan --json                               the embedded model, as JSON")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of one conversation (default: the model's own context)
    #[arg(long)]
    context: Option<usize>,
    /// Conversations in memory at the same time
    #[arg(long, default_value_t = 1)]
    users: usize,
    /// Memory limit, weights included
    #[arg(long)]
    ram: Option<ByteSize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The memory that one KV format takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct FormatCost {
    kv: String,
    bytes_per_token: u64,
    bytes_per_context: u64,
    bytes_all_users: u64,
    bytes_with_weights: u64,
    /// Tokens that fit beside the weights, in whole blocks, when a limit is given.
    tokens_that_fit: Option<u64>,
    /// Users that fit with a full context each.
    users_that_fit: Option<u64>,
}

/// The whole output.
#[derive(Debug, Serialize)]
struct Plan {
    model: String,
    architecture: &'static str,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context_tokens: usize,
    users: usize,
    weight_bytes: u64,
    ram_bytes: Option<u64>,
    kv_formats: Vec<FormatCost>,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let loaded = args.model.load()?;
    let plan = Plan::new(args, &loaded)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&plan)?);
    } else {
        print!("{}", plan.table());
    }
    Ok(())
}

impl Plan {
    fn new(args: &PlanArgs, loaded: &LoadedModel) -> anyhow::Result<Plan> {
        let config = &loaded.config;
        let context_tokens = args.context.unwrap_or(config.context);
        let weight_bytes = loaded.tensors.total_bytes();
        let ram_bytes = args.ram.map(|size| size.0);
        let cost =
            |layout: &KvLayout| FormatCost::new(layout, context_tokens, args.users, weight_bytes, ram_bytes);
        Ok(Plan {
            model: config.name.clone(),
            architecture: config.arch.name(),
            layers: config.layers,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            context_tokens,
            users: args.users,
            weight_bytes,
            ram_bytes,
            kv_formats: layouts(args, loaded)?.iter().map(cost).collect(),
        })
    }

    /// How heads share keys and values.
    fn sharing(&self) -> String {
        match (self.kv_heads, self.heads / self.kv_heads) {
            (_, 1) => "multi-head: every head has its own keys and values".to_owned(),
            (1, _) => "multi-query: all heads share one set of keys and values".to_owned(),
            (_, group) => format!("grouped-query: {group} heads share one set of keys and values"),
        }
    }

    fn table(&self) -> String {
        let mut text = format!(
            "{} ({}, {} layers, {} heads, {} KV heads of {})\n{}\n\nweights   {}\nKV        2 x {} layers x {} KV heads x tokens x {} x bytes per value\n\n",
            self.model,
            self.architecture,
            self.layers,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.sharing(),
            ByteSize(self.weight_bytes),
            self.layers,
            self.kv_heads,
            self.head_dim,
        );
        let context = format!("{} tokens", self.context_tokens);
        let users = format!("{} users", self.users);
        text += &row(["KV", "a token", &context, &users, "with weights", "fits"]);
        text += &row(["-------", "------------", "------------", "------------", "------------", "----"]);
        for cost in &self.kv_formats {
            text += &cost.row(self.ram_bytes);
        }
        text
    }
}

/// What a block stores in each format, and as the flags say.
fn layouts(args: &PlanArgs, loaded: &LoadedModel) -> anyhow::Result<Vec<KvLayout>> {
    let PlanArgs { model, .. } = args;
    let config = &loaded.config;
    let model_digest = || digest(config, &loaded.tensors, model.weights.map(Into::into), &model.pool());
    let mut layouts: Vec<_> =
        KvFormat::ALL.iter().map(|&format| ModelRunner::uniform_layout(config, format)).collect();
    let chosen = kv::layout_of(&model.kv, config, model_digest)?;
    if !layouts.contains(&chosen) {
        layouts.push(chosen);
    }
    Ok(layouts)
}

impl FormatCost {
    fn new(
        layout: &KvLayout,
        context_tokens: usize,
        users: usize,
        weight_bytes: u64,
        ram_bytes: Option<u64>,
    ) -> FormatCost {
        let block_bytes = layout.block_bytes() as u64;
        let blocks = |tokens: usize| tokens.div_ceil(BLOCK_POSITIONS) as u64;
        let bytes_per_context = blocks(context_tokens) * block_bytes;
        let bytes_all_users = bytes_per_context * users as u64;
        let blocks_that_fit = ram_bytes.map(|ram| ram.saturating_sub(weight_bytes) / block_bytes);
        FormatCost {
            kv: layout.format_name(),
            bytes_per_token: layout.token_bytes() as u64,
            bytes_per_context,
            bytes_all_users,
            bytes_with_weights: weight_bytes + bytes_all_users,
            tokens_that_fit: blocks_that_fit.map(|fitting| fitting * BLOCK_POSITIONS as u64),
            users_that_fit: blocks_that_fit.map(|fitting| fitting / blocks(context_tokens).max(1)),
        }
    }

    fn row(&self, ram_bytes: Option<u64>) -> String {
        let fits = match (ram_bytes, self.users_that_fit, self.tokens_that_fit) {
            (Some(ram), Some(users), Some(tokens)) => {
                let verdict = if self.bytes_with_weights <= ram { "yes" } else { "no" };
                format!("{verdict}: {tokens} tokens, {users} users")
            }
            _ => "-".to_owned(),
        };
        row([
            &self.kv,
            &ByteSize(self.bytes_per_token).to_string(),
            &ByteSize(self.bytes_per_context).to_string(),
            &ByteSize(self.bytes_all_users).to_string(),
            &ByteSize(self.bytes_with_weights).to_string(),
            &fits,
        ])
    }
}

fn row(cells: [&str; 6]) -> String {
    let [kv, token, context, users, total, fits] = cells;
    format!("{kv:<7}  {token:>12}  {context:>12}  {users:>12}  {total:>12}  {fits}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvik_engine::model::{Arch, ModelConfig, RopeConfig, RopeScaling, RopeStyle};

    /// Layers, heads, KV heads, head dimension.
    fn config(layers: usize, heads: usize, kv_heads: usize, head_dim: usize) -> ModelConfig {
        ModelConfig {
            arch: Arch::Llama,
            name: "shape".to_owned(),
            layers,
            d_model: heads * head_dim,
            d_ff: 4 * heads * head_dim,
            heads,
            kv_heads,
            head_dim,
            vocab: 32000,
            context: 4096,
            norm_eps: 1e-5,
            rope: RopeConfig {
                theta: 10_000.0,
                dims: head_dim,
                style: RopeStyle::Interleaved,
                scaling: RopeScaling::None,
            },
        }
    }

    /// The figures of published models: 2 x layers x kv_heads x tokens x head_dim x bytes.
    #[test]
    fn the_formula_holds_for_mha_gqa_and_mqa() {
        let cases = [
            (config(32, 32, 32, 128), 2048, KvFormat::F16, 1 << 30),
            (config(28, 16, 8, 128), 1, KvFormat::F32, 224 * 1024),
            (config(28, 16, 8, 128), 4096, KvFormat::F16, 448 << 20),
            (config(32, 32, 1, 128), 2048, KvFormat::F16, 32 << 20),
        ];
        for (config, tokens, format, expected) in cases {
            let layout = ModelRunner::uniform_layout(&config, format);
            let cost = FormatCost::new(&layout, tokens, 1, 0, None);
            assert_eq!(cost.bytes_per_token * tokens as u64, expected);
        }
    }

    #[test]
    fn what_fits_is_counted_in_whole_blocks_beside_the_weights() {
        let model = config(32, 32, 32, 128);
        let layout = ModelRunner::uniform_layout(&model, KvFormat::F16);
        let (gib, weights) = (1u64 << 30, 3u64 << 30);
        let cost = FormatCost::new(&layout, 2048, 2, weights, Some(weights + 5 * gib / 2));
        assert_eq!(cost.bytes_with_weights, weights + 2 * gib);
        assert_eq!((cost.users_that_fit, cost.tokens_that_fit), (Some(2), Some(5120)));
        let none = FormatCost::new(&layout, 2048, 2, weights, Some(gib));
        assert_eq!((none.users_that_fit, none.tokens_that_fit), (Some(0), Some(0)));
    }
}
