//! Starts an engine from flags: reads the model, divides the memory, starts the worker.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use kvik_cache::{
    CacheConfig,
    retain::{HeadImportance, Retention, RetentionError},
};
use kvik_engine::config::usual::{DRAFT_ROWS, GHOSTS};
use kvik_engine::engine::{Attached, Engine, EngineConfig};
use kvik_engine::free_memory::default_kv_bytes;
use kvik_engine::load::{repeat_prompt, spoken_name};
use kvik_engine::stats::DraftSources;
use kvik_engine::store::Waker;

use super::{
    budget::{KvBudget, check_memory},
    device, disk,
    draft::DraftFile,
    fleet::Fleet,
    handle::Handle,
    host, kv,
    lora::LoraAdapters,
    open::Opened,
    placed::{Placed, Room},
    remote,
    retaining::{Reach, Retaining},
};
use crate::{
    clock::unix_seconds,
    kv_events::KvEvents,
    measured::{Measured, MeasuredHeads, MeasuredLosses},
    serving::{ModelCard, Serving},
    settings::{
        capacity::{Capacity, Speculate},
        model::{CacheArgs, ModelArgs},
        size::ByteSize,
    },
};

/// Choices of one request at most.
const CHOICES_MAX: u32 = 64;

/// A running engine with its model, and the division of its memory.
pub(crate) struct Loaded {
    pub(crate) serving: Serving,
    pub(crate) budget: KvBudget,
    /// Name of the GPU that computes, when one does.
    pub(crate) device: Option<String>,
    /// The banner's line about the disk tier, when there is one.
    pub(crate) disk: Option<String>,
    /// Where the store is that nodes share, when they do.
    pub(crate) remote: Option<String>,
    /// Name of the draft model, when there is one.
    pub(crate) draft: Option<String>,
    pub(crate) handle: Handle,
}

/// Loads the model and starts the engine.
pub(crate) fn open(args: &ModelArgs, cache: &CacheArgs, capacity: Capacity) -> anyhow::Result<Loaded> {
    open_told(args, cache, capacity, None)
}

/// The same with those who are told what is cached.
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
    let threads = pool.threads();
    let Opened { model, tokenizer, template, embedder } =
        device::open(args, (device::choice(cache)?, cache.gpu_layers), &pool)?;
    let draft =
        cache.draft.as_ref().map(|name| DraftFile::open(name, args, &tokenizer, &pool)).transpose()?;
    let lora =
        model.on_processor().map(|model| LoraAdapters::open(&cache.lora, &args.models_dir, model, &pool));
    let lora = lora.transpose()?.unwrap_or_default();
    let layout = kv::layout_of(&args.kv, model.config(), || model.digest())?;
    let draft_bytes = draft.as_ref().map_or(0, DraftFile::block_bytes);
    let beside = model.beside(&layout);
    let (block_bytes, stored_bytes) = (beside.block_bytes, layout.block_bytes());
    let (flag, asked) = match model.device() {
        Some(_) => ("--cache-device", cache.cache_device),
        None => ("--cache-ram", cache.cache_ram),
    };
    let blocks = blocks((flag, asked), block_bytes + draft_bytes, model.blocks_max(&layout))?;
    let kv = layout.format_name();
    let budget = KvBudget { blocks, flag, block_bytes, stored_bytes, beside, draft_bytes, kv, threads };
    let draft_name = draft.as_ref().map(|draft| draft.name().to_owned());
    let kv_heads: Vec<usize> = layout.layers().iter().map(|layer| layer.kv_heads).collect();
    let repeat = repeat_prompt(&tokenizer, template.as_ref());
    let KeptMeasurements { losses, calibration } = KeptMeasurements::of(&model.digest(), &kv_heads);
    let retaining = Retaining::new(&cache.retain, losses, &budget.kv)?;
    let context = context(cache.context, model.config().context, &budget, retaining.usual().is_some())?;
    let card = card(args, &model, context, capacity);
    let config = EngineConfig::new(&layout, model.blocks_digest(context), context);
    let config = EngineConfig { repeat, calibration, ..within(config, &budget, capacity) };
    let draft_rows_max = if draft.is_some() { DRAFT_ROWS } else { config.draft_rows_max };
    let config = EngineConfig { draft_rows_max, ..config };
    let idle = cache.retain.retain_idle;
    check_retaining(&retaining, idle.as_ref(), &config)?;
    let device = model.device();
    let disk = disk::open(cache, &budget, config.model_digest, &model.place());
    let disk = match &device {
        Some(_) => host::above(disk, kv_bytes(cache.cache_ram), &budget),
        None => disk,
    };
    let waker = disk.as_ref().map_or_else(Waker::default, |disk| disk.setup.waker.clone());
    let remote = remote::open(&cache.remote, &budget, (config.model_digest, &model.place()), waker)?;
    let runner = model.runner(Room {
        pool: pool.clone(),
        layout,
        blocks: budget.blocks,
        context,
        adapters: lora.adapters(),
        states: budget.beside.states_max(budget.blocks),
        resident: true,
    })?;
    let pinned_max = pinned_max(cache.cache_pin, &budget);
    let cache = CacheConfig { blocks, policy: cache.evict, ghosts: GHOSTS, pinned_max };
    let lines =
        [disk.as_ref().map(|disk| disk.line.clone()), remote.as_ref().map(|remote| remote.line.clone())];
    let (disk, records) = remote::behind(disk, remote);
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
    let [disk, remote] = lines;
    Ok(Loaded { serving, budget, device, disk, remote, draft: draft_name, handle })
}

/// For tests: while the file that KVIK_TEST_STALL names is there, the engine takes no step.
fn stall() -> Option<Box<dyn FnMut() + Send>> {
    let file = PathBuf::from(std::env::var_os("KVIK_TEST_STALL")?);
    let wait = move || {
        while file.exists() {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    Some(Box::new(wait))
}

/// Bytes that keys and values may take in the machine's memory: as asked, or a share of what is free.
pub(crate) fn kv_bytes(asked: Option<ByteSize>) -> u64 {
    asked.map_or_else(default_kv_bytes, |size| size.0)
}

/// What `kvik eval` kept of a model that retention goes by.
#[derive(Default)]
struct KeptMeasurements {
    losses: MeasuredLosses,
    calibration: Option<HeadImportance>,
}

impl KeptMeasurements {
    /// Of this model, with so many KV heads in each layer.
    fn of(model: &[u8; 32], kv_heads: &[usize]) -> KeptMeasurements {
        // Without a home directory nothing was ever kept.
        let Ok(measured) = Measured::open() else { return KeptMeasurements::default() };
        let heads: Option<MeasuredHeads> = measured.load(model);
        KeptMeasurements {
            losses: measured.load(model).unwrap_or_default(),
            calibration: heads.and_then(|heads| heads.importance(kv_heads)),
        }
    }
}

/// Refuses what flags say of retention where the model cannot have it; `idle` is that of idle time.
fn check_retaining(
    retaining: &Retaining,
    idle: Option<&Retention>,
    config: &EngineConfig,
) -> anyhow::Result<()> {
    if let Some(retention) = retaining.usual() {
        check_heads(&retention, config).with_context(|| format!("--retain {retention}"))?;
    }
    if let Some(retention) = idle {
        let allowed = retaining.check(*retention, Reach::Prefix).map_err(anyhow::Error::from);
        let checked = allowed.and_then(|_| check_heads(retention, config));
        checked.with_context(|| format!("--retain-idle {retention}"))?;
    }
    Ok(())
}

/// Refuses a retention that the model cannot have, before any request meets it.
fn check_heads(retention: &Retention, config: &EngineConfig) -> anyhow::Result<()> {
    if !config.beside.is_nothing() {
        return Err(RetentionError::Windows.into());
    }
    if config.latent {
        return Err(RetentionError::Latent.into());
    }
    retention.check(&config.kv_heads)?;
    Ok(retention.check_heads(&config.kv_heads, config.calibration.as_ref())?)
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

/// The settings of an engine that has this budget and serves as many.
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

/// Blocks of the requested budget; or of half of the free memory, but no more than `most`.
fn blocks((flag, asked): (&str, Option<ByteSize>), block_bytes: usize, most: usize) -> anyhow::Result<usize> {
    let block_bytes = block_bytes as u64;
    let bytes = kv_bytes(asked);
    let blocks = usize::try_from(bytes / block_bytes).unwrap_or(usize::MAX);
    if blocks == 0 {
        bail!(
            "a KV cache of {} holds not even one block of this model, which takes {}; raise {flag}",
            ByteSize(bytes),
            ByteSize(block_bytes)
        );
    }
    Ok(if asked.is_some() { blocks } else { blocks.min(most) })
}

/// Blocks that may be pinned: as requested, or half of them, so that running requests always have room.
fn pinned_max(asked: Option<ByteSize>, budget: &KvBudget) -> usize {
    let asked = asked.map(|size| size.0 / budget.block_bytes as u64);
    asked.map_or(budget.blocks / 2, |blocks| usize::try_from(blocks).unwrap_or(usize::MAX).min(budget.blocks))
}

/// The requested context, if it fits; without a request the model's own, or as much of it as fits. Where requests
/// forget unless they say otherwise, a context need not fit whole: prompts are thinned while they are read.
fn context(asked: Option<usize>, own: usize, budget: &KvBudget, forgets: bool) -> anyhow::Result<usize> {
    let (fits, flag) = (budget.tokens(), budget.flag);
    match asked {
        Some(asked) if asked > fits && !forgets => {
            let needed = budget.beside.needed(asked) as u64 * budget.block_bytes as u64;
            bail!(
                "a context of {asked} tokens needs {} of KV cache and {flag} is {}, which holds {fits} tokens; raise {flag}, lower --context, or keep a part of each prompt with --retain",
                ByteSize(needed),
                ByteSize(budget.bytes())
            )
        }
        Some(asked) => {
            if asked > own {
                tracing::warn!("the model was trained for {own} tokens; answers beyond may be poor");
            }
            Ok(asked)
        }
        None if forgets => Ok(own),
        None => Ok(own.min(fits)),
    }
}

#[cfg(test)]
mod tests {
    use kvik_cache::Beside;

    use super::*;

    fn budget(blocks: usize) -> KvBudget {
        let beside = Beside::default();
        let block_bytes = 48 << 10;
        let stored_bytes = block_bytes;
        let (flag, kv) = ("--cache-ram", "f16".to_owned());
        KvBudget { blocks, flag, block_bytes, stored_bytes, beside, draft_bytes: 0, kv, threads: 1 }
    }

    #[test]
    fn the_context_fits_the_budget() {
        let check = |asked, own, blocks, expect| {
            assert_eq!(context(asked, own, &budget(blocks), false).unwrap(), expect);
        };
        check(None, 2048, 1000, 2048);
        check(None, 40_960, 1000, 16_000);
        check(Some(512), 2048, 1000, 512);
        check(Some(4096), 2048, 1000, 4096);
    }

    #[test]
    fn a_context_that_is_forgotten_on_the_way_need_not_fit() {
        let check = |asked, expect| assert_eq!(context(asked, 40_960, &budget(1000), true).unwrap(), expect);
        check(None, 40_960);
        check(Some(32_768), 32_768);
    }

    #[test]
    fn a_context_that_does_not_fit_is_refused_with_the_numbers() {
        let error = context(Some(32_768), 40_960, &budget(1000), false).unwrap_err().to_string();
        for word in ["32768", "96 MiB", "46.9 MiB", "16000", "--cache-ram", "--retain"] {
            assert!(error.contains(word), "{error} says {word}");
        }
    }

    #[test]
    fn half_of_the_budget_may_be_pinned_by_default() {
        let check = |asked: Option<u64>, blocks| {
            assert_eq!(pinned_max(asked.map(ByteSize), &budget(1000)), blocks, "{asked:?}");
        };
        check(None, 500);
        check(Some(1), 0);
        check(Some(300 * (48 << 10)), 300);
        check(Some(u64::MAX), 1000);
    }

    #[test]
    fn names_are_fit_for_urls() {
        assert_eq!(spoken_name("Qwen3 0.6B Instruct"), "Qwen3-0.6B-Instruct");
        assert_eq!(spoken_name(" "), "model");
    }
}
