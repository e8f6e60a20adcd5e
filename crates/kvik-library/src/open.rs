//! Opening of a model: loads it, divides the memory, opens the disk, starts the engine's thread.

use std::sync::Arc;
use std::time::Duration;

use kvik_cache::{Beside, CacheConfig, Policy};
use kvik_engine::config::usual::{GHOSTS, STEP_ROWS, WARM_SHARE};
use kvik_engine::engine::{Attached, Engine, EngineConfig, TimeShare};
use kvik_engine::free_memory::default_kv_bytes;
use kvik_engine::load::{LoadedModel, repeat_prompt, spoken_name};
use kvik_engine::model::{Conversion, Model, ModelRunner};
use kvik_engine::schedule::disk::{DiskOpened, DiskSetup, store_config};
use kvik_engine::store::StoreConfig;
use kvik_kernels::{Isa, KvLayout, Pool, performance_cores};
use kvik_memory::clock::unix_seconds;
use kvik_memory::conversations::Conversations;
use kvik_memory::memory::{Memory, MemoryConfig, MemoryError, Surroundings};
use kvik_memory::records::Records;
use kvik_text::files::KnownDigests;
use kvik_text::tokenizer::Tokenizer;

use crate::core::{Core, Opened};
use crate::error::Error;
use crate::kept::KeptPrompts;
use crate::options::{DiskOptions, Options};
use crate::texts::Texts;

/// Fraction of the RAM budget, as a divisor, for the buffers of blocks on their way to and from the disk; they are
/// additional to the budget.
const BUFFERS_PART: usize = 8;
/// Minimum number of buffers: with fewer, the disk would wait for the engine.
const BUFFERS_MIN: usize = 8;
/// Fraction of the RAM budget, as a divisor, that pinned prompts may take, so that answers always have room.
const PINNED_SHARE: usize = 2;

/// Maximum time to wait for another process to close the records of conversations.
const RECORDS_WAIT: Duration = Duration::from_secs(1);
/// Maximum bytes of conversations that are held while their summaries are made.
const HISTORY_BYTES: u64 = 16 << 20;

/// Division of the memory for keys and values.
struct Budget {
    layout: KvLayout,
    beside: Beside,
    blocks: usize,
    bytes: u64,
}

/// Opens a model.
pub(crate) fn open(options: Options) -> Result<Opened, Error> {
    // A wrong choice of instruction set must fail before the model is loaded.
    Isa::chosen()?;
    let Options {
        source,
        kv_bytes,
        kv_formats,
        context_tokens,
        threads,
        time_share,
        parallel,
        disk,
        conversations,
        memory,
    } = options;
    let time_share = TimeShare::new(time_share)?;
    let loaded = source.load()?;
    let template = loaded.own_template()?;
    let LoadedModel { config, tensors, tokenizer, embedding, .. } = loaded;
    let known = disk.as_ref().map(|disk| KnownDigests::new(&disk.dir.join("digests")));
    let tensors = tensors.with_known_digests(known);
    let pool = Arc::new(Pool::new(threads.unwrap_or_else(performance_cores)));
    let model = Model::load(config, tensors, Conversion::Halves, &pool, &|_, _| {})?;
    let layout = ModelRunner::uniform_layout(model.config(), kv_formats);
    let budget = Budget::new(&model, layout, kv_bytes.unwrap_or_else(default_kv_bytes))?;
    let context_tokens = budget.context(context_tokens, model.config().context)?;
    let digest = model.digest_within(context_tokens);
    let config = EngineConfig {
        parallel_max: parallel,
        block_bytes: budget.beside.block_bytes,
        beside: budget.beside,
        repeat: repeat_prompt(&tokenizer, template.as_ref()),
        ..EngineConfig::new(&budget.layout, digest, context_tokens)
    };
    let kept = KeptPrompts::open(disk.as_ref().map(|disk| disk.dir.as_path()), &digest);
    let disk = disk.map(|disk| open_disk(disk, &budget, digest)).transpose()?;
    let name = spoken_name(&model.config().name);
    let attached = Attached { disk, time_share, ..Attached::default() };
    let engine = start(model, pool, &tokenizer, (budget, config), attached)?;
    let texts = Arc::new(Texts { tokenizer, template, context_tokens });
    let records = conversations.map(|dir| Records::open(&dir, RECORDS_WAIT)).transpose()?;
    let memory = remembering(&memory, (&texts, &name), records.as_ref())?;
    let conversations = Conversations::open(records.as_ref());
    Ok(Opened { engine, texts, pooling: embedding.pooling, kept, conversations, memory })
}

impl Budget {
    fn new(model: &Model, layout: KvLayout, bytes: u64) -> Result<Budget, Error> {
        let beside = ModelRunner::beside(model.config(), &layout, STEP_ROWS);
        let block_bytes = beside.block_bytes;
        let blocks = usize::try_from(bytes / block_bytes as u64).unwrap_or(usize::MAX);
        match blocks {
            0 => Err(Error::BudgetTooSmall { kv_bytes: bytes, block_bytes }),
            blocks => Ok(Budget { layout, beside, blocks, bytes }),
        }
    }

    /// The requested context, if it fits; otherwise that of the model, or as much of it as fits.
    fn context(&self, asked: Option<usize>, own: usize) -> Result<usize, Error> {
        let fits_tokens = self.beside.positions_that_fit(self.blocks);
        match asked {
            Some(context_tokens) if context_tokens > fits_tokens => {
                Err(Error::ContextTooLarge { context_tokens, fits_tokens })
            }
            Some(context_tokens) => Ok(context_tokens),
            None => Ok(own.min(fits_tokens)),
        }
    }
}

fn open_disk(options: DiskOptions, budget: &Budget, model: [u8; 32]) -> Result<DiskSetup, Error> {
    let DiskOptions { dir, bytes_max } = options;
    let names = (budget.layout.format_name(), Isa::current().name());
    let block_bytes = budget.layout.block_bytes();
    let config = store_config((&dir, bytes_max), model, (&names.0, names.1), block_bytes);
    let buffers = budget.blocks / BUFFERS_PART;
    let config =
        StoreConfig { buffers: buffers.clamp(BUFFERS_MIN.min(config.buffers), config.buffers), ..config };
    let DiskOpened { setup, notes, .. } =
        DiskSetup::open(&config, budget.blocks / WARM_SHARE, unix_seconds())?;
    notes.iter().for_each(|note| tracing::info!("disk cache: {note}"));
    Ok(setup)
}

fn start(
    model: Model,
    pool: Arc<Pool>,
    tokenizer: &Tokenizer,
    (budget, config): (Budget, EngineConfig),
    attached: Attached,
) -> Result<Engine, Error> {
    let Budget { layout, beside, blocks, bytes } = budget;
    let no_memory = |source| Error::NoMemory { kv_bytes: bytes, source };
    let runner = ModelRunner::new(Arc::new(model), pool, layout, blocks, config.context_tokens);
    let runner = runner.map_err(no_memory)?.with_states(beside.states_max(blocks)).map_err(no_memory)?;
    let cache =
        CacheConfig { blocks, policy: Policy::default(), ghosts: GHOSTS, pinned_max: blocks / PINNED_SHARE };
    Ok(Engine::start_with(Box::new(runner), tokenizer, cache, config, attached)?)
}

/// Memory of conversations. Configured bounds have to fit the context; default bounds that do not fit switch it off.
fn remembering(
    config: &MemoryConfig,
    (texts, name): (&Arc<Texts>, &str),
    records: Option<&Records>,
) -> Result<Arc<Memory<Core>>, Error> {
    if config.is_wanted() {
        config.settings(texts.context_tokens).map_err(MemoryError::from)?;
    }
    let around = Surroundings {
        model: texts.clone(),
        model_name: name,
        observer: Arc::new(()),
        records,
        history_bytes: HISTORY_BYTES,
        is_shared: false,
    };
    Ok(Memory::new(config, around))
}
