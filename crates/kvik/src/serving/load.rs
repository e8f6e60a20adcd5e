//! Starts an engine from flags: reads the model, divides the memory, starts the worker.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kvik_cache::CacheConfig;
use kvik_engine::config::usual::{DRAFT_ROWS, GHOSTS};
use kvik_engine::engine::{Attached, Engine, EngineConfig};
use kvik_engine::load::{repeat_prompt, spoken_name};
use kvik_engine::stats::DraftSources;
use kvik_kernels::KvLayout;

use super::{
    budget::{KvBudget, blocks, check_memory},
    device,
    draft::DraftFile,
    fleet::Fleet,
    handle::Handle,
    kv,
    lora::LoraAdapters,
    open::Opened,
    placed::{Placed, Room},
    retaining::{KeptMeasurements, Retaining},
    tiers::OpenTiers,
};
use crate::{
    clock::unix_seconds,
    kv_events::KvEvents,
    serving::{ModelCard, Serving},
    settings::{
        capacity::{Capacity, Speculate},
        model::{CacheArgs, ModelArgs},
    },
};

/// Maximum choices of one request.
const CHOICES_MAX: u32 = 64;

/// A running engine with its model, and the division of its memory.
pub(crate) struct Loaded {
    pub(crate) serving: Serving,
    pub(crate) budget: KvBudget,
    /// Name of the GPU that computes, when one does.
    pub(crate) device: Option<String>,
    /// The banner's line about the disk tier, when there is one.
    pub(crate) disk: Option<String>,
    /// The banner's line about the store that nodes share, when they do.
    pub(crate) remote: Option<String>,
    /// Name of the draft model, when there is one.
    pub(crate) draft: Option<String>,
    pub(crate) handle: Handle,
}

/// Loads the model and starts the engine.
pub(crate) fn open(args: &ModelArgs, cache: &CacheArgs, capacity: Capacity) -> anyhow::Result<Loaded> {
    open_told(args, cache, capacity, None)
}

/// Loads the model and starts the engine, with subscribers to cache events.
pub(crate) fn open_told(
    args: &ModelArgs,
    cache: &CacheArgs,
    capacity: Capacity,
    kv_events: Option<&KvEvents>,
) -> anyhow::Result<Loaded> {
    if let Some(asked) = cache.cache_ram {
        check_memory("--cache-ram", asked)?;
    }
    let pool = Arc::new(args.pool());
    let Opened { model, tokenizer, template, embedder } =
        device::open(args, (device::choice(cache)?, cache.gpu_layers), &pool)?;
    let draft =
        cache.draft.as_ref().map(|name| DraftFile::open(name, args, &tokenizer, &pool)).transpose()?;
    let lora =
        model.on_processor().map(|model| LoraAdapters::open(&cache.lora, &args.models_dir, model, &pool));
    let lora = lora.transpose()?.unwrap_or_default();
    let layout = kv::layout_of(&args.kv, model.config(), || model.digest())?;
    let draft_bytes = draft.as_ref().map_or(0, DraftFile::block_bytes);
    let budget = budget(cache, &model, &layout, (draft_bytes, pool.threads()))?;
    let draft_name = draft.as_ref().map(|draft| draft.name().to_owned());
    let kv_heads: Vec<usize> = layout.layers().iter().map(|layer| layer.kv_heads).collect();
    let repeat = repeat_prompt(&tokenizer, template.as_ref());
    let KeptMeasurements { losses, calibration } = KeptMeasurements::of(&model.digest(), &kv_heads);
    let retaining = Retaining::new(&cache.retain, losses, &budget.kv)?;
    let context = budget.context(cache.context, model.config().context, retaining.usual().is_some())?;
    let card = card(args, &model, context, capacity);
    let config = EngineConfig::new(&layout, model.blocks_digest(context), context);
    let config = EngineConfig { repeat, calibration, ..within(config, &budget, capacity) };
    let draft_rows_max = if draft.is_some() { DRAFT_ROWS } else { config.draft_rows_max };
    let config = EngineConfig { draft_rows_max, ..config };
    let idle = cache.retain.retain_idle;
    retaining.check_model(idle.as_ref(), &config)?;
    let device = model.device();
    let place = model.place();
    let tiers = OpenTiers::open(cache, &budget, (config.model_digest, &place), device.is_some())?;
    let runner = model.runner(Room {
        pool: pool.clone(),
        layout,
        blocks: budget.blocks,
        context,
        adapters: lora.adapters(),
        states: budget.beside.states_max(budget.blocks),
        resident: true,
    })?;
    let pinned_max = budget.pinned_max(cache.cache_pin);
    let cache = CacheConfig { blocks: budget.blocks, policy: cache.evict, ghosts: GHOSTS, pinned_max };
    let OpenTiers { setup: disk, records, disk_line, remote_line } = tiers;
    let draft = draft.map(|draft| draft.setup(pool, CacheConfig { pinned_max: 0, ..cache }, context));
    let kv_listener = kv_events.map(|events| events.listener(lora.names()));
    let draft = draft.transpose()?;
    let attached = Attached { disk, draft, kv_listener, before_step: stall(), ..Attached::default() };
    let engine = Engine::start_with(runner, &tokenizer, cache, config, attached)?;
    engine.set_retain_idle(idle)?;
    let handle = Handle::new(engine.clone(), records.map(Fleet::new));
    let cache = Some(engine.clone());
    let (engine, tokenizer) = (Arc::new(engine), Arc::new(tokenizer));
    let (retaining, lora) = (Arc::new(retaining), Arc::new(lora));
    let variables = Default::default();
    let serving =
        Serving { engine, cache, tokenizer, template, variables, model: card, embedder, retaining, lora };
    let (disk, remote, draft) = (disk_line, remote_line, draft_name);
    Ok(Loaded { serving, budget, device, disk, remote, draft, handle })
}

/// The memory budget for a model's keys and values, with `draft_bytes` of a draft model in each block.
fn budget(
    cache: &CacheArgs,
    model: &Placed,
    layout: &KvLayout,
    (draft_bytes, threads): (usize, usize),
) -> anyhow::Result<KvBudget> {
    let beside = model.beside(layout);
    let (block_bytes, stored_bytes) = (beside.block_bytes, layout.block_bytes());
    let (flag, asked) = match model.device() {
        Some(_) => ("--cache-device", cache.cache_device),
        None => ("--cache-ram", cache.cache_ram),
    };
    let blocks = blocks((flag, asked), block_bytes + draft_bytes, model.blocks_max(layout))?;
    let kv = layout.format_name();
    Ok(KvBudget { blocks, flag, block_bytes, stored_bytes, beside, draft_bytes, kv, threads })
}

/// For tests: while the file named by KVIK_TEST_STALL exists, the engine takes no step.
fn stall() -> Option<Box<dyn FnMut() + Send>> {
    let file = PathBuf::from(std::env::var_os("KVIK_TEST_STALL")?);
    let wait = move || {
        while file.exists() {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    Some(Box::new(wait))
}

fn card(args: &ModelArgs, model: &Placed, context: usize, capacity: Capacity) -> ModelCard {
    ModelCard {
        name: spoken_name(&model.config().name),
        own_name: spoken_name(&model.config().name),
        family: model.config().arch.name().to_owned(),
        source: args.source().into(),
        embedded: args.is_embedded(),
        context,
        parallel: capacity.parallel,
        bytes: model.weight_bytes() as u64,
        loaded: unix_seconds(),
        digest: model.digest_within(context),
    }
}

/// The engine's settings for this budget and capacity.
fn within(config: EngineConfig, budget: &KvBudget, capacity: Capacity) -> EngineConfig {
    EngineConfig {
        parallel_max: capacity.parallel,
        waiting_max: capacity.queue,
        choices_max: CHOICES_MAX,
        draft_rows_max: if capacity.speculate == Speculate(DraftSources::NONE) { 0 } else { DRAFT_ROWS },
        draft_sources: capacity.speculate.0,
        block_bytes: budget.block_bytes,
        beside: budget.beside,
        ..config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_urls() {
        assert_eq!(spoken_name("Qwen3 0.6B Instruct"), "Qwen3-0.6B-Instruct");
        assert_eq!(spoken_name(" "), "model");
    }
}
