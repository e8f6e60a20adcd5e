//! `kvik plan`: computes how much memory a model needs, and how many users fit.

use anyhow::{Context, bail};
use clap::Args;
use kvik_cache::retain::Retention;
use kvik_cache::{AuxiliaryState, blocks_for};
use kvik_engine::config::usual::STEP_ROWS;
use kvik_engine::retain::tile_heads;
use kvik_kernels::{KvFormat, KvLayout};
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

(keys and values; grouped and multi-query attention have fewer kv_heads than heads).
Latent attention (DeepSeek V2, V3) stores one vector for both and for all heads:

  layers x tokens x (rank + rotated dimensions) x bytes

Examples:
  kvik plan -m model.gguf --context 8192 --users 4
  kvik plan -m model.gguf --context 32768 --users 1 --ram 8GiB
  kvik plan -m model.gguf --users 16 --ram 8GiB --retain keydiff:0.25
  kvik plan --json                               the model of `kvik default`, as JSON")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Tokens of one conversation (default: the model's own context)
    #[arg(long)]
    context: Option<usize>,
    /// Conversations in memory at the same time
    #[arg(long, default_value_t = 1)]
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

/// The whole output.
#[derive(Debug, Serialize)]
struct Plan {
    model: String,
    architecture: &'static str,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
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
        let config = &loaded.config;
        let context_tokens = args.context.unwrap_or(config.context);
        let weight_bytes = args.model.conversion().bytes(&loaded.tensors);
        let ram_bytes = args.ram.map(|size| size.0).or_else(machine_bytes);
        let retention = args.retention()?;
        let layout = ModelRunner::uniform_layout(config, KvFormat::F16);
        if let Some(retention) = &retention {
            check_model(retention, (config, &layout), || args.digest(loaded))
                .with_context(|| format!("--retain {retention}"))?;
        }
        let stored = layout.layers()[0];
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
            kv_heads: stored.kv_heads,
            head_dim: stored.key_dim,
            latent: config.extras.latent,
            context_tokens,
            users: args.users,
            weight_bytes,
            ram_bytes,
            retain: retention.map(|retention| retention.to_string()),
            kv_formats: layouts(args, loaded)?.iter().map(cost).collect(),
        })
    }

    /// How attention heads share keys and values.
    fn sharing(&self) -> String {
        if let Some(LatentConfig { rank, rotated, .. }) = self.latent {
            return format!("latent: all heads share one vector of {rank} and {rotated} rotated dimensions");
        }
        match (self.kv_heads, self.heads / self.kv_heads) {
            (_, 1) => "multi-head: every head has its own keys and values".to_owned(),
            (1, _) => "multi-query: all heads share one set of keys and values".to_owned(),
            (_, group) => format!("grouped-query: {group} heads share one set of keys and values"),
        }
    }

    /// The formula of the numbers that a sequence stores.
    fn numbers(&self) -> String {
        let Plan { layers, kv_heads, head_dim, .. } = self;
        match self.latent {
            Some(_) => format!("{layers} layers x tokens x {head_dim}"),
            None => format!("2 x {layers} layers x {kv_heads} KV heads x tokens x {head_dim}"),
        }
    }

    fn table(&self) -> String {
        let mut text = format!(
            "{} ({}, {} layers, {} heads, {} KV heads of {})\n{}\n\nweights   {}\nKV        {} x bytes per value\n\n",
            self.model,
            self.architecture,
            self.layers,
            self.heads,
            self.kv_heads,
            self.head_dim,
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

impl PlanArgs {
    /// The digest of the model.
    fn digest(&self, loaded: &LoadedModel) -> [u8; 32] {
        let PlanArgs { model, .. } = self;
        digest(&loaded.config, &loaded.tensors, model.conversion(), &model.pool())
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
        let bytes = |blocks: u64| blocks * layout.block_bytes() as u64;
        RetainedCost {
            bytes_per_context: bytes(between),
            bytes_per_prompt: bytes(prompt),
            users_that_fit: blocks.map(others),
        }
    }
}

/// The KV layouts: each uniform format, and the one of the flags.
fn layouts(args: &PlanArgs, loaded: &LoadedModel) -> anyhow::Result<Vec<KvLayout>> {
    let config = &loaded.config;
    let mut layouts: Vec<_> =
        KvFormat::ALL.iter().map(|&format| ModelRunner::uniform_layout(config, format)).collect();
    let chosen = kv::layout_of(&args.model.kv, config, || args.digest(loaded))?;
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
        let bytes_per_context = blocks * block_bytes;
        let bytes_all_users = bytes_per_context * users as u64;
        let blocks_that_fit = ram_bytes.map(|ram| ram.saturating_sub(weight_bytes) / block_bytes);
        FormatCost {
            kv: layout.format_name(),
            bytes_per_token: layout.token_bytes() as u64,
            bytes_per_context,
            bytes_all_users,
            bytes_with_weights: weight_bytes + bytes_all_users,
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
mod tests {
    use super::*;
    use clap::Parser;
    use kvik_kernels::KvFormats;
    use kvik_model::{Arch, Extras, ModelConfig, RopeConfig, RopeScaling, RopeStyle};

    /// A model with these layers, heads, KV heads and head dimension.
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
            extras: Extras::default(),
        }
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        plan: PlanArgs,
    }

    #[test]
    fn weights_take_what_they_are_converted_to() {
        let bytes = |words: &[&str]| {
            let args = Line::try_parse_from([&["plan"], words].concat()).unwrap().plan;
            Plan::new(&args, &args.model.load().unwrap()).unwrap().weight_bytes
        };
        let (stored, converted) = (bytes(&[]), bytes(&["--weights", "f32"]));
        assert!((3 * stored..4 * stored).contains(&converted), "{stored} in q8_0, {converted} in f32");
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
            let cost = FormatCost::new(
                &layout,
                ModelRunner::auxiliary(&config, &layout, STEP_ROWS),
                tokens,
                1,
                0,
                None,
            );
            assert_eq!(cost.bytes_per_token * tokens as u64, expected);
        }
    }

    /// DeepSeek V2-Lite: 27 layers, 16 heads, one vector of 512 and 64 rotated dimensions.
    #[test]
    fn latent_attention_stores_one_vector_a_position() {
        let latent = LatentConfig { query_rank: 0, rank: 512, unrotated: 128, rotated: 64, value: 128 };
        let extras = Extras { latent: Some(latent), ..Extras::default() };
        let model = ModelConfig { arch: Arch::DeepSeek2, extras, ..config(27, 16, 16, 192) };
        let cost = |format| {
            let layout = ModelRunner::uniform_layout(&model, format);
            FormatCost::new(&layout, AuxiliaryState::default(), 1, 1, 0, None).bytes_per_token
        };
        assert_eq!(cost(KvFormat::F16), 27 * 576 * 2);
        assert_eq!(cost(KvFormat::Q8), 27 * (576 + 8));
        let formats = KvFormats { k: KvFormat::Q8, v: KvFormat::F32 };
        assert_eq!(ModelRunner::uniform_layout(&model, formats).format_name(), "q8", "keys hold the values");
    }

    #[test]
    fn users_that_forget_are_more_and_one_of_them_is_at_its_prompt() {
        let layout = ModelRunner::uniform_layout(&config(2, 4, 2, 64), KvFormat::F16);
        let block = layout.block_bytes() as u64;
        let cost =
            |retain: &str, blocks| RetainedCost::new(retain.parse().unwrap(), &layout, 1600, Some(blocks));
        let quarter = cost("keydiff:0.25,every=16", 4 * 100);
        // 400 positions and 16 more; 1,600 and the 400 that are copied.
        assert_eq!((quarter.bytes_per_context, quarter.bytes_per_prompt), (26 * block, 125 * block));
        assert_eq!(quarter.users_that_fit, Some(1 + 275 / 26));
        assert_eq!(cost("keydiff:0.25,every=16", 124).users_that_fit, Some(0));
        let tokens = cost("keydiff:160,every=16", 100);
        assert_eq!(tokens.bytes_per_context, 11 * block);
        assert_eq!(tokens.bytes_per_prompt, 21 * block, "a long prompt is thinned on the way");
        let bytes = format!("keydiff:{}B,every=16", 160 * layout.token_bytes());
        assert_eq!(cost(&bytes, 100), tokens, "bytes are those of all layers and heads");
    }

    #[test]
    fn what_fits_is_counted_in_whole_blocks_beside_the_weights() {
        let model = config(32, 32, 32, 128);
        let layout = ModelRunner::uniform_layout(&model, KvFormat::F16);
        let (held, gib, weights) =
            (ModelRunner::auxiliary(&model, &layout, STEP_ROWS), 1u64 << 30, 3u64 << 30);
        let cost = FormatCost::new(&layout, held, 2048, 2, weights, Some(weights + 5 * gib / 2));
        assert_eq!(cost.bytes_with_weights, weights + 2 * gib);
        assert_eq!((cost.users_that_fit, cost.tokens_that_fit), (Some(2), Some(5120)));
        let none = FormatCost::new(&layout, held, 2048, 2, weights, Some(gib));
        assert_eq!((none.users_that_fit, none.tokens_that_fit), (Some(0), Some(0)));
    }
}
