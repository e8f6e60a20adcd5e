//! `kvik plan`: computes how much memory a model needs, and how many users fit.

use anyhow::{Context, bail};
use clap::{Args, builder::TypedValueParser};
use kvik_cache::retain::Retention;
use kvik_cache::{AuxiliaryState, blocks_for};
use kvik_engine::config::usual::STEP_ROWS;
use kvik_engine::retain::tile_heads;
use kvik_kernels::{KvFormat, KvLayout, Pool};
use kvik_model::load::LoadedModel;
use kvik_model::{LatentConfig, ModelRunner, digest};
use serde::Serialize;

use kvik_serving::{
    budget::machine_bytes,
    kv,
    retaining::check_model,
    settings::{model::ModelArgs, retain::RetainChoice, size::ByteSize},
};

/// Shown for what fits if the system does not report its memory.
const UNKNOWN: &str = "unknown; --ram says how much there is";

/// Shows the memory of weights and of KV per token, per context and per user, and what fits.
#[derive(Debug, Args)]
#[command(after_help = "The KV cache of one sequence takes

  2 x layers x kv_heads x tokens x head_dim x bytes

(keys and values of the layers that store them: recurrent layers do not, nor do layers that read those of others, and
layers of several shapes are added; grouped and multi-query attention have fewer kv_heads than heads).
Latent attention (DeepSeek V2, V3) stores one vector for both and for all heads:

  layers x tokens x (rank + rotated dimensions) x bytes

A token counts all of these layers, with windows in whole pages, which adds up to 2 KiB. A context counts of layers with
windows what they still see, and the states of recurrent layers.

Examples:
  kvik plan -m model.gguf --context 8192 --users 4
  kvik plan -m model.gguf --context 32768 --users 1 --ram 8GiB
  kvik plan -m model.gguf --users 16 --ram 8GiB --retain keydiff:0.25
  kvik plan --json                               the model of `kvik default`, as JSON")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Tokens of one conversation (default: the model's own context)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..).map(|n| n as usize))]
    context: Option<usize>,
    /// Conversations in memory at the same time
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..).map(|n| n as usize))]
    users: usize,
    /// Memory limit, weights included [default: the memory of this machine]
    #[arg(long, value_name = "SIZE")]
    ram: Option<ByteSize>,
    /// Also show what fits when conversations forget by this policy, as snapkv:0.5
    #[arg(long, value_name = "POLICY")]
    retain: Option<RetainChoice>,
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
    /// Tokens that fit in addition to the weights, in whole blocks, when a limit is given.
    tokens_that_fit: Option<u64>,
    /// Users that fit with a full context each.
    users_that_fit: Option<u64>,
    /// The cost with retention, if a policy is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    retained: Option<RetainedCost>,
}

/// The memory of conversations that drop positions.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct RetainedCost {
    /// Bytes of a conversation with a full context, between two points of compression.
    bytes_per_context: u64,
    /// Bytes of a conversation whose prompt fills the context, while it is computed and compressed.
    bytes_per_prompt: u64,
    /// Users that fit with a full context each, one of whom processes such a prompt.
    users_that_fit: Option<u64>,
}

/// The layers that store keys and values of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct KvLayers {
    layers: usize,
    kv_heads: usize,
    key_dim: usize,
    /// 0 if keys hold the values.
    value_dim: usize,
}

/// The whole output.
#[derive(Debug, Serialize)]
struct Plan {
    model: String,
    architecture: &'static str,
    /// All layers, also those that store no keys and values.
    layers: usize,
    heads: usize,
    /// KV heads of the first layer that stores keys and values.
    kv_heads: usize,
    /// Length of that layer's keys.
    head_dim: usize,
    /// What layers store, by shape.
    kv_layers: Vec<KvLayers>,
    #[serde(skip)]
    latent: Option<LatentConfig>,
    context_tokens: usize,
    users: usize,
    weight_bytes: u64,
    ram_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retain: Option<String>,
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
        let (config, pool) = (&loaded.config, args.model.pool()?);
        let context_tokens = args.context.unwrap_or(config.context);
        let weight_bytes = args.model.conversion().bytes(&loaded.tensors);
        let ram_bytes = args.ram.map(|size| size.0).or_else(machine_bytes);
        let retention = args.retention()?;
        let layout = ModelRunner::uniform_layout(config, KvFormat::F16);
        if let Some(retention) = &retention {
            check_model(retention, (config, &layout), || args.digest(loaded, &pool))
                .with_context(|| format!("--retain {retention}"))?;
        }
        let first = layout.layers()[0];
        let cost = |layout: &KvLayout| {
            let auxiliary = ModelRunner::auxiliary(config, layout, STEP_ROWS);
            let cost =
                FormatCost::new(layout, auxiliary, context_tokens, args.users, weight_bytes, ram_bytes);
            let blocks = ram_bytes.map(|ram| ram.saturating_sub(weight_bytes) / layout.block_bytes() as u64);
            let retained = |retention| RetainedCost::new(retention, layout, context_tokens, blocks);
            FormatCost { retained: retention.map(retained), ..cost }
        };
        Ok(Plan {
            model: config.name.clone(),
            architecture: config.arch.name(),
            layers: config.layers,
            heads: config.heads,
            kv_heads: first.kv_heads,
            head_dim: first.key_dim,
            kv_layers: KvLayers::of(&layout),
            latent: config.extras.latent,
            context_tokens,
            users: args.users,
            weight_bytes,
            ram_bytes,
            retain: retention.map(|retention| retention.to_string()),
            kv_formats: layouts(args, loaded, &pool)?.iter().map(cost).collect(),
        })
    }

    /// How attention heads share keys and values.
    fn sharing(&self) -> String {
        if let Some(LatentConfig { rank, rotated, .. }) = self.latent {
            return format!("latent: all heads share one vector of {rank} and {rotated} rotated dimensions");
        }
        let mut groups: Vec<usize> =
            self.kv_layers.iter().map(|stored| self.heads / stored.kv_heads).collect();
        groups.sort_unstable();
        groups.dedup();
        match *groups {
            [1] => "multi-head: every head has its own keys and values".to_owned(),
            [group] if group == self.heads => {
                "multi-query: all heads share one set of keys and values".to_owned()
            }
            _ => {
                let groups: Vec<String> = groups.iter().map(usize::to_string).collect();
                format!("grouped-query: {} heads share one set of keys and values", groups.join(" or "))
            }
        }
    }

    /// The KV heads of each shape, with the length of their keys.
    fn shapes(&self) -> String {
        let shape = |stored: &KvLayers| format!("{} KV heads of {}", stored.kv_heads, stored.key_dim);
        self.kv_layers.iter().map(shape).collect::<Vec<_>>().join(", ")
    }

    /// The formula of the numbers that a sequence stores: a term for each shape.
    fn numbers(&self) -> String {
        let terms: Vec<String> = self.kv_layers.iter().map(|stored| stored.term(self.layers)).collect();
        match terms.len() {
            1 => terms.concat(),
            _ => format!("({})", terms.join(" + ")),
        }
    }

    fn table(&self) -> String {
        let mut text = format!(
            "{} ({}, {} layers, {} heads, {})\n{}\n\nweights   {}\nKV        {} x bytes per value\n\n",
            self.model,
            self.architecture,
            self.layers,
            self.heads,
            self.shapes(),
            self.sharing(),
            ByteSize(self.weight_bytes),
            self.numbers(),
        );
        let context = format!("{} tokens", self.context_tokens);
        let users = format!("{} users", self.users);
        let fits = self.fits();
        text += &row(["KV", "a token", &context, &users, "with weights", &fits]);
        text += &row(["-------", "------------", "------------", "------------", "------------", "----"]);
        for cost in &self.kv_formats {
            text += &cost.row(self.ram_bytes);
        }
        text + &self.retained().unwrap_or_default()
    }

    /// The header of the column that shows what fits.
    fn fits(&self) -> String {
        self.ram_bytes.map_or_else(|| "fits".to_owned(), |ram| format!("fits {}", ByteSize(ram)))
    }

    /// The table of conversations that drop positions; `None` if no policy is named.
    fn retained(&self) -> Option<String> {
        let mut text = format!("\nforgetting by {}\n", self.retain.as_ref()?);
        text += &row(["KV", "", "a context", "at a prompt", "", &self.fits()]);
        text += &row(["-------", "", "------------", "------------", "", "----"]);
        for (cost, retained) in
            self.kv_formats.iter().filter_map(|cost| Some((cost, cost.retained.as_ref()?)))
        {
            let [context, prompt] = [retained.bytes_per_context, retained.bytes_per_prompt].map(ByteSize);
            let fits =
                retained.users_that_fit.map_or_else(|| UNKNOWN.to_owned(), |users| format!("{users} users"));
            text += &row([&cost.kv, "", &context.to_string(), &prompt.to_string(), "", &fits]);
        }
        Some(text)
    }
}

impl KvLayers {
    /// The layers of a layout by shape, in the order of the first one of each.
    fn of(layout: &KvLayout) -> Vec<KvLayers> {
        let mut shapes: Vec<KvLayers> = Vec::new();
        for layer in layout.layers() {
            let (kv_heads, key_dim, value_dim) = (layer.kv_heads, layer.key_dim, layer.stored_value_dim());
            let one = KvLayers { layers: 1, kv_heads, key_dim, value_dim };
            match shapes.iter_mut().find(|shape| KvLayers { layers: 1, ..**shape } == one) {
                Some(shape) => shape.layers += 1,
                None => shapes.push(one),
            }
        }
        shapes
    }

    /// The numbers that they store of a sequence, in a model of `all` layers. Keys and values have one length.
    fn term(&self, all: usize) -> String {
        let KvLayers { layers, kv_heads, key_dim, value_dim } = *self;
        let layers = if layers == all { layers.to_string() } else { format!("{layers} of {all}") };
        match value_dim {
            0 => format!("{layers} layers x tokens x {key_dim}"),
            _ => format!("2 x {layers} layers x {kv_heads} KV heads x tokens x {key_dim}"),
        }
    }
}

impl PlanArgs {
    /// The digest of the model.
    fn digest(&self, loaded: &LoadedModel, pool: &Pool) -> [u8; 32] {
        digest(&loaded.config, &loaded.tensors, self.model.conversion(), pool)
    }

    /// The retention policy of conversations, if any.
    fn retention(&self) -> anyhow::Result<Option<Retention>> {
        match self.retain {
            None | Some(RetainChoice::Everything) => Ok(None),
            Some(RetainChoice::Chosen(retention)) => Ok(Some(retention)),
            Some(RetainChoice::Auto { .. }) => {
                bail!(
                    "--retain auto: which policy that is depends on what was measured; name one, as snapkv:0.5"
                )
            }
        }
    }
}

impl RetainedCost {
    /// The cost of a context of `context` tokens; `blocks` fit in addition to the weights.
    fn new(retention: Retention, layout: &KvLayout, context: usize, blocks: Option<u64>) -> RetainedCost {
        let retention = retention.resolve(layout.token_bytes());
        let points = retention.points(context, context).in_groups(&tile_heads(layout));
        let kept = points.kept_max(context);
        let between = blocks_for(kept.saturating_add(retention.every).min(context)) as u64;
        // Retained positions are copied to new blocks while the original ones are still allocated.
        let prompt = (blocks_for(points.stored_max(context)) + blocks_for(kept)) as u64;
        let others = |blocks: u64| blocks.checked_sub(prompt).map_or(0, |left| 1 + left / between.max(1));
        let bytes = |blocks: u64| blocks.saturating_mul(layout.block_bytes() as u64);
        RetainedCost {
            bytes_per_context: bytes(between),
            bytes_per_prompt: bytes(prompt),
            users_that_fit: blocks.map(others),
        }
    }
}

/// The KV layouts: each uniform format, and the one of the flags.
fn layouts(args: &PlanArgs, loaded: &LoadedModel, pool: &Pool) -> anyhow::Result<Vec<KvLayout>> {
    let config = &loaded.config;
    let mut layouts: Vec<_> =
        KvFormat::ALL.iter().map(|&format| ModelRunner::uniform_layout(config, format)).collect();
    let chosen = kv::layout_of(&args.model.kv, config, || args.digest(loaded, pool))?;
    if !layouts.contains(&chosen) {
        layouts.push(chosen);
    }
    Ok(layouts)
}

impl FormatCost {
    fn new(
        layout: &KvLayout,
        auxiliary: AuxiliaryState,
        context_tokens: usize,
        users: usize,
        weight_bytes: u64,
        ram_bytes: Option<u64>,
    ) -> FormatCost {
        let block_bytes = auxiliary.block_bytes as u64;
        let blocks = auxiliary.needed(context_tokens) as u64;
        // A saturated size fits no machine, as the true one.
        let bytes_per_context = blocks.saturating_mul(block_bytes);
        let bytes_all_users = bytes_per_context.saturating_mul(users as u64);
        let blocks_that_fit = ram_bytes.map(|ram| ram.saturating_sub(weight_bytes) / block_bytes);
        FormatCost {
            kv: layout.format_name(),
            bytes_per_token: layout.token_bytes() as u64,
            bytes_per_context,
            bytes_all_users,
            bytes_with_weights: weight_bytes.saturating_add(bytes_all_users),
            tokens_that_fit: blocks_that_fit
                .map(|fitting| auxiliary.positions_that_fit(fitting as usize) as u64),
            users_that_fit: blocks_that_fit.map(|fitting| fitting / blocks.max(1)),
            retained: None,
        }
    }

    fn row(&self, ram_bytes: Option<u64>) -> String {
        let fits = match (ram_bytes, self.users_that_fit, self.tokens_that_fit) {
            (Some(ram), Some(users), Some(tokens)) => {
                let verdict = if self.bytes_with_weights <= ram { "yes" } else { "no" };
                format!("{verdict}: {tokens} tokens, {users} users")
            }
            _ => UNKNOWN.to_owned(),
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
mod tests;
