//! Opening of a model: loads it, divides the memory, opens the disk, starts the engine's thread.

use std::path::Path;
use std::sync::Arc;

use kvik_cache::Policy;
use kvik_engine::engine::{Attached, EngineConfig, TimeShare};
use kvik_engine::free_memory::MachineMemory;
use kvik_kernels::{Isa, Pool, performance_cores};
use kvik_memory::memory::{Memory, MemoryConfig, MemoryError, Surroundings};
use kvik_memory::records::Records;
use kvik_model::load::url_name;
use kvik_model::{Adapters, Conversion, ModelRunner};
use kvik_session::{KvBudget, NextTurns, OpenedModel, Start, Texts, open_disk};
use kvik_text::files::KnownDigests;

use crate::conversation_file::ConversationFile;
use crate::core::{Core, Opened};
use crate::error::Error;
use crate::kept::KeptPrompts;
use crate::options::Options;

/// Buffers of blocks on their way to and from the disk take at most one part in this many of the budget, in addition
/// to it.
const BUFFERS_PART: usize = 8;
/// With fewer of them the disk would wait for the engine.
const BUFFERS_MIN: usize = 8;
/// Maximum bytes of conversations that are held while their summaries are made.
const HISTORY_BYTES: u64 = 16 << 20;

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
        ahead,
        retokenise,
        conversations,
        memory,
    } = options;
    let time_share = TimeShare::new(time_share)?;
    kv_bytes.map_or(Ok(()), check_memory)?;
    let mut loaded = source.load()?;
    let known = disk.as_ref().map(|disk| KnownDigests::new(&disk.dir.join("digests")));
    loaded.tensors = loaded.tensors.with_known_digests(known);
    let pool = Arc::new(Pool::start(threads.unwrap_or_else(performance_cores))?);
    let opened = OpenedModel::load(loaded, Conversion::Halves, &pool, &|_, _| {})?.on_processor();
    let (model, name) = (&opened.model, url_name(&opened.model.config().name));
    let layout = ModelRunner::uniform_layout(model.config(), kv_formats);
    let budget = KvBudget::new(model, &layout, kv_bytes, 0)?;
    let context_tokens = budget.context(context_tokens, model.config().context, false)?;
    let config = opened.engine_config(&layout, &budget, context_tokens);
    let (digest, place) = (config.model_digest, model.place());
    let kept = KeptPrompts::open(disk.as_ref().map(|disk| disk.dir.as_path()), &digest);
    let buffers_max = (budget.blocks / BUFFERS_PART).max(BUFFERS_MIN);
    let disk =
        disk.map(|disk| open_disk((&disk.dir, disk.bytes_max), &budget, (digest, &place), buffers_max));
    let disk = disk.transpose()?.map(|disk| disk.setup);
    let session = opened.start(Start {
        pool,
        layout,
        cache: budget.cache(Policy::default(), None),
        engine: EngineConfig { parallel_max: parallel, ..config },
        adapters: Adapters::default(),
        variables: Default::default(),
        attached: Attached { disk, retokenise, time_share, ..Attached::default() },
    })?;
    let conversations = ConversationFile::open(conversations.as_deref())?;
    let memory = remembering(&memory, (&session.texts, &name), conversations.records.as_ref())?;
    conversations.add(memory.clone());
    Ok(Opened { session, next_turns: NextTurns::new(ahead), kept, conversations, memory })
}

/// Refuses a budget that this process cannot have. What is not free now may be when it is used.
fn check_memory(kv_bytes: u64) -> Result<(), Error> {
    match MachineMemory::read(Path::new("/")).map(|memory| memory.most_bytes()) {
        Some(most_bytes) if kv_bytes > most_bytes => Err(Error::BudgetTooLarge { kv_bytes, most_bytes }),
        _ => Ok(()),
    }
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
