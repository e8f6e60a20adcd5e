//! Starts an engine from flags: reads the model, divides the memory, starts the worker.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kvik_cache::CacheConfig;
use kvik_engine::config::usual::DRAFT_ROWS;
use kvik_engine::engine::{Attached, EngineConfig};
use kvik_engine::free_memory::default_kv_bytes_of;
use kvik_engine::stats::DraftSources;
use kvik_model::load::{LoadedModel, SamplingDefaults, url_name};
use kvik_session::{KvBudget, NextTurns, Placed, Session, SessionError, Start, TemplateVariables};

use super::{
    budget::{self, check_memory},
    device,
    draft::{self, DraftFile},
    fetch,
    fleet::Fleet,
    handle::Handle,
    kv,
    lora::LoraAdapters,
    retaining::{KeptMeasurements, Retaining},
    tiers::OpenTiers,
};
use kvik_memory::clock::unix_seconds;

use crate::{
    ModelCard, Serving,
    kv_events::KvEvents,
    settings::{
        capacity::{Capacity, Speculate},
        model::{CacheArgs, ModelArgs, Retokenise},
        retain::RetainChoice,
        size::ByteSize,
    },
};

/// Maximum choices of one request.
const CHOICES_MAX: u32 = 64;

/// A running engine with its model, and the division of its memory.
pub struct Loaded {
    /// The model, ready to answer.
    pub serving: Serving,
    /// Memory for keys and values.
    pub budget: KvBudget,
    /// Bytes of all weights, keys and values, also of the draft model and the adapters.
    pub bytes: u64,
    /// Compute threads.
    pub threads: usize,
    /// Name of the GPU that computes, when one does.
    pub device: Option<String>,
    /// The banner's line about the disk tier, when there is one.
    pub disk: Option<String>,
    /// Address of the store that nodes share, when they do.
    pub remote: Option<String>,
    /// Name of the draft model, when there is one.
    pub draft: Option<String>,
    /// Controls the engine.
    pub handle: Handle,
}

/// What a model is opened with in addition to its own flags.
#[derive(Default)]
pub struct Around<'a> {
    /// Listeners to changes of the cache.
    pub kv_events: Option<&'a KvEvents>,
    /// Variables of the chat template where a request sets none.
    pub variables: TemplateVariables,
}

/// Loads the model and starts the engine.
pub fn open(args: &ModelArgs, cache: &CacheArgs, capacity: Capacity) -> anyhow::Result<Loaded> {
    open_with(args, cache, capacity, Around::default())
}

/// [`open`] with what is around the model.
pub fn open_with(
    args: &ModelArgs,
    cache: &CacheArgs,
    capacity: Capacity,
    around: Around<'_>,
) -> anyhow::Result<Loaded> {
    if let Some(asked) = cache.cache_ram {
        check_memory("--cache-ram", asked)?;
    }
    let pool = Arc::new(args.pool()?);
    let threads = pool.threads();
    let device = (device::choice(cache)?, cache.gpu_layers);
    let opened = device::open(args, device, capacity.speculate, &pool)?;
    let model = &opened.model;
    let draft = cache.draft.as_ref();
    let draft = draft.map(|name| DraftFile::open(name, args, &opened.tokenizer, &pool)).transpose()?;
    let lora = model.on_processor();
    let lora = lora.map(|model| LoraAdapters::open(&cache.lora, &args.models_dir, model, &pool));
    let lora = lora.transpose()?.unwrap_or_default();
    let layout = kv::layout_of(&args.kv, model.config(), || model.digest())?;
    if let Some(model) = model.on_processor() {
        kv::warn_of_biases(&args.kv, &model.key_biases())?;
    }
    let (flag, asked) = kv_memory(cache, model);
    let draft_bytes = draft.as_ref().map_or(0, DraftFile::block_bytes);
    let budget = KvBudget::new(model, &layout, asked.map(|size| size.0), draft_bytes);
    let budget = budget.map_err(|error| budget::refused(error, flag))?;
    let weights =
        [model.weight_bytes(), draft.as_ref().map_or(0, DraftFile::weight_bytes), lora.adapters().bytes()];
    let kv_bytes = budget.bytes() + budget.blocks as u64 * draft_bytes as u64;
    let bytes = weights.into_iter().sum::<usize>() as u64 + kv_bytes;
    let KeptMeasurements { losses, calibration, gates } = KeptMeasurements::of(&model.digest(), &layout);
    let retaining = Retaining::new(&cache.retain, losses, &budget.kv)?;
    let context = budget.context(cache.context, model.config().context, retaining.usual().is_some());
    let context = context.map_err(|error| budget::refused(error, flag))?;
    let engine = opened.engine_config(&layout, &budget, context);
    let engine = EngineConfig { calibration, gates, ..within(engine, capacity, draft.is_some()) };
    let (idle, next_turns) = (cache.retain.retain_idle, NextTurns::new(cache.ahead));
    retaining.check_model(idle.as_ref(), &engine)?;
    let card = card(args, (model, opened.sampling), context, capacity);
    let (device, place) = (model.device(), model.place());
    let host_bytes = device.is_some().then(|| budget::kv_bytes(cache.cache_ram, model.budgets()));
    let OpenTiers { setup: disk, records, disk_line, remote_line } =
        OpenTiers::open(cache, &budget, (engine.model_digest, &place), host_bytes)?;
    let retokenise = cache.retokenise == Retokenise::On;
    let cache = budget.cache(cache.evict, cache.cache_pin.map(|size| size.0));
    let draft_name = draft.as_ref().map(|draft| draft.name().to_owned());
    let draft = draft.map(|draft| draft.setup(pool.clone(), CacheConfig { pinned_max: 0, ..cache }, context));
    let (draft, kv_listener) =
        (draft.transpose()?, around.kv_events.map(|events| events.listener(lora.names())));
    let attached =
        Attached { disk, retokenise, draft, kv_listener, before_step: stall(), ..Attached::default() };
    let (adapters, variables) = (lora.adapters(), around.variables);
    let start = Start { pool, layout, cache, engine, adapters, variables, attached };
    let session = opened.start(start).map_err(|error| match error {
        SessionError::Runner(error) => budget::no_memory(error),
        error => error.into(),
    })?;
    session.engine.set_retain_idle(idle)?;
    let handle = Handle::new(session.engine.clone(), records.map(Fleet::new));
    let serving = serving(session, card, (retaining, lora), next_turns);
    let (disk, remote, draft) = (disk_line, remote_line, draft_name);
    Ok(Loaded { serving, budget, bytes, threads, device, disk, remote, draft, handle })
}

/// The context that [`open_with`] gives a model on the processor, beside a draft model; of both only the headers are
/// known, and `free_bytes` are free before their weights are loaded. `None` if measurements decide about the formats of
/// its keys and values.
///
/// # Errors
/// If it does not fit the memory of keys and values, in the words of [`open_with`].
pub fn context_of(
    args: &ModelArgs,
    cache: &CacheArgs,
    (model, draft): (&LoadedModel, Option<&LoadedModel>),
    free_bytes: Option<u64>,
) -> anyhow::Result<Option<usize>> {
    let config = &model.config;
    let Some(layout) = kv::stated_layout(&args.kv, config)? else { return Ok(None) };
    let draft_bytes = draft.map_or(0, |draft| draft::layout_of(&draft.config).block_bytes());
    let weights = [Some(model), draft].into_iter().flatten();
    let weight_bytes: u64 = weights.map(|loaded| args.conversion().bytes(&loaded.tensors)).sum();
    // Where no size is asked for, keys and values share what the weights leave.
    let left = free_bytes.map(|free| free.saturating_sub(weight_bytes));
    let kv_bytes = cache.cache_ram.map_or_else(|| default_kv_bytes_of(left, 1), |size| size.0);
    let is_thinned = !matches!(cache.retain.retain, None | Some(RetainChoice::Everything));
    let context = KvBudget::on_processor(config, &layout, kv_bytes, draft_bytes)
        .and_then(|budget| budget.context(cache.context, config.context, is_thinned));
    context.map(Some).map_err(|error| budget::refused(error, "--cache-ram"))
}

fn serving(
    session: Session,
    model: ModelCard,
    (retaining, lora): (Retaining, LoraAdapters),
    next_turns: NextTurns,
) -> Serving {
    let Session { engine, texts, embedder, .. } = session;
    let cache = Some(engine.clone());
    let (engine, retaining, lora) = (Arc::new(engine), Arc::new(retaining), Arc::new(lora));
    Serving { engine, cache, texts, next_turns, model, embedder, retaining, lora }
}

/// The flag that says how much memory keys and values have where the model is, and its value.
fn kv_memory(cache: &CacheArgs, model: &Placed) -> (&'static str, Option<ByteSize>) {
    match model.device() {
        Some(_) => ("--cache-device", cache.cache_device),
        None => ("--cache-ram", cache.cache_ram),
    }
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

fn card(
    args: &ModelArgs,
    (model, sampling): (&Placed, SamplingDefaults),
    context: usize,
    capacity: Capacity,
) -> ModelCard {
    let own_name = url_name(&model.config().name);
    let pulled = args.meant().and_then(|text| fetch::name_of(text, &args.models_dir));
    ModelCard {
        name: pulled.unwrap_or_else(|| own_name.clone()),
        own_name,
        family: model.config().arch.name().to_owned(),
        source: args.source().into(),
        embedded: args.is_embedded(),
        context,
        parallel: capacity.parallel,
        bytes: model.weight_bytes() as u64,
        loaded: unix_seconds(),
        digest: model.digest_within(context),
        sampling,
    }
}

/// The settings of an engine that serves as many.
fn within(config: EngineConfig, capacity: Capacity, has_draft_model: bool) -> EngineConfig {
    let drafts = has_draft_model || capacity.speculate != Speculate(DraftSources::NONE);
    EngineConfig {
        parallel_max: capacity.parallel,
        waiting_max: capacity.queue,
        choices_max: CHOICES_MAX,
        draft_rows_max: if drafts { DRAFT_ROWS } else { 0 },
        draft_sources: capacity.speculate.0,
        ..config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers a draft model, whose weights, keys and values a shelf did not count.
    #[test]
    fn the_bytes_are_those_of_all_weights_keys_and_values() {
        const KV_BYTES: u64 = 8 << 20;
        for (draft, models) in [(None, 1), (Some("embedded"), 2)] {
            let draft = draft.map(str::to_owned);
            let cache = CacheArgs { draft, ..CacheArgs::in_ram(512, ByteSize(KV_BYTES)) };
            let loaded = open(&ModelArgs::embedded(), &cache, Capacity::ONE).unwrap();
            loaded.handle.shutdown(Duration::ZERO);
            let kv_bytes = loaded.bytes - models * loaded.serving.model.bytes;
            let block_bytes = (loaded.budget.block_bytes + loaded.budget.draft_bytes) as u64;
            assert_eq!(kv_bytes, loaded.budget.blocks as u64 * block_bytes);
            assert!((KV_BYTES - block_bytes..=KV_BYTES).contains(&kv_bytes), "{models} models: {kv_bytes}");
        }
    }

    #[test]
    fn names_are_fit_for_urls() {
        assert_eq!(url_name("Qwen3 0.6B Instruct"), "Qwen3-0.6B-Instruct");
        assert_eq!(url_name(" "), "model");
    }
}
