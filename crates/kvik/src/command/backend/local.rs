//! A model loaded in this process with the routes over it; another one can be opened in its place.

use std::{
    net::Ipv4Addr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context;
use kvik_memory::{
    memory::{MemoryConfig, make_summaries},
    records::Records,
};
use kvik_shelf::Kind;
use tokio::task::AbortHandle;

use super::{ModelFacts, Remembering};
use crate::command::{client::Client, flags::memory::MemoryArgs};
use kvik_server::{
    accounts::ledger::Ledger,
    api,
    app::{App, AppConfig, keys::Keys, upkeep},
    http::{Hosts, Senders},
};
use kvik_serving::{
    Serving, fetch,
    handle::Handle,
    load::{self, Loaded},
    settings::{
        capacity::Capacity,
        home,
        model::{CacheArgs, ModelArgs},
        size::ByteSize,
    },
};

/// Maximum body of a request in this process; a prompt of `kvik run` is shorter, also where its JSON is twice as long.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// Flags and records of a command, whichever model it has.
pub(crate) struct Setup {
    pub(crate) cache: CacheArgs,
    pub(crate) memory: MemoryArgs,
    /// The records of conversations, if they outlast the program.
    pub(crate) records: Option<Records>,
    pub(crate) places: Places,
    pub(crate) capacity: Capacity,
}

/// Directories of the prompt log and of the disk cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) cache_disk: Option<PathBuf>,
}

/// A loaded model, and what another one is opened with.
pub(crate) struct LocalModel {
    pub(super) app: Arc<App>,
    handle: Handle,
    /// Deletes what earlier deletions have left: for as long as the model is here.
    deleting: AbortHandle,
    args: ModelArgs,
    setup: Arc<Setup>,
}

/// A loaded model, and a client of the routes over it.
pub(super) type Opened = (LocalModel, Client, ModelFacts, Remembering);

impl Setup {
    /// Flags of one answer, of which nothing is kept.
    pub(crate) fn of_one_answer(cache: &CacheArgs) -> Setup {
        Setup {
            cache: cache.clone(),
            memory: MemoryArgs::default(),
            records: None,
            places: Places::default(),
            capacity: Capacity::ONE,
        }
    }
}

/// Loads a model, and starts the routes. With `for_chats` it must be one that answers them.
pub(super) fn open(setup: &Arc<Setup>, model: &ModelArgs, for_chats: bool) -> anyhow::Result<Opened> {
    let began = Instant::now();
    let Loaded { serving, handle, .. } = load::open(model, &setup.cache, setup.capacity)?;
    let loaded_in = began.elapsed();
    let over = || {
        if for_chats {
            serving.chat_template()?;
        }
        let (config, remembering) = remembering(&setup.memory, serving.model.context)?;
        anyhow::Ok((config, remembering))
    };
    // A model that cannot be talked with must not stay in memory beside the one before it.
    let (config, remembering) = over().inspect_err(|_| handle.shutdown(Duration::ZERO))?;
    let facts = facts(&serving, loaded_in);
    let app = app(serving, config, setup);
    let (client, deleting) = client(app.clone()).inspect_err(|_| handle.shutdown(Duration::ZERO))?;
    let local = LocalModel { app, handle, deleting, args: model.clone(), setup: setup.clone() };
    Ok((local, client, facts, remembering))
}

impl LocalModel {
    /// Ends running work and gives the memory of the model back.
    pub(super) fn close(&self) {
        self.deleting.abort();
        self.app.close();
        self.handle.shutdown(Duration::ZERO);
    }

    /// The models of this machine by name, and whether each is the loaded one.
    pub(super) fn others(&self) -> anyhow::Result<Vec<(String, bool)>> {
        let listing = self.args.models_dir.shelf()?.list()?;
        let models = listing.manifests.iter().filter(|manifest| manifest.kind == Kind::Model);
        let is_own = |name: &str| self.args.named() == Some(name);
        Ok(models.map(|manifest| (manifest.name.to_string(), is_own(manifest.name.as_str()))).collect())
    }

    /// Opens another model in place of this one, or this one again with the reason why not.
    pub(super) fn exchange(&self, name: &str) -> anyhow::Result<(Opened, anyhow::Result<()>)> {
        let model = self.args.of(&home::text(name)?);
        if let Some(named) = model.named() {
            // What is not there, or takes long to fetch, is found out while the other one still answers.
            fetch::model(named, &model.models_dir)?;
        }
        // Both at once may not fit, and there is one disk cache.
        self.close();
        match open(&self.setup, &model, true) {
            Ok(opened) => Ok((opened, Ok(()))),
            Err(error) => {
                let before = open(&self.setup, &self.args, true);
                let before = before.context("nor can the model before be opened again")?;
                Ok((before, Err(error.context(format!("{} goes on", self.args.source())))))
            }
        }
    }
}

fn facts(serving: &Serving, loaded_in: Duration) -> ModelFacts {
    let model = &serving.model;
    ModelFacts {
        name: model.name.clone(),
        source: model.source.for_host().to_owned(),
        context: model.context,
        is_embedded: model.embedded,
        sampling: model.sampling,
        loaded_in: Some(loaded_in),
    }
}

/// Settings of memory for a context. Explicit bounds that do not fit are an error; default ones that do not fit a small
/// context switch memory off.
pub(crate) fn remembering(args: &MemoryArgs, context: usize) -> anyhow::Result<(MemoryConfig, Remembering)> {
    let mut config = args.config(true)?;
    let settings = match config.settings(context) {
        Err(error) if args.config(false)?.is_wanted() => return Err(error).context("--memory"),
        Err(error) => Err(error.to_string()),
        Ok(settings) => Ok(Some(settings)),
    };
    config.on &= settings.is_ok();
    let on = config.on;
    Ok((config, Remembering { on, settings }))
}

/// The state behind the routes, for one user without a key.
fn app(serving: Serving, memory: MemoryConfig, setup: &Setup) -> Arc<App> {
    let started = Instant::now();
    let Setup { records, places, capacity, .. } = setup;
    let config = AppConfig {
        senders: Senders { hosts: Hosts::new(Ipv4Addr::LOCALHOST.into(), Vec::new()), origins: Vec::new() },
        shows_slots: false,
        strict_model: false,
        settle_prompts: false,
        body_limit: ByteSize(BODY_BYTES_MAX),
        prices: None,
        clock: Arc::new(move || started.elapsed()),
        admission_slots: capacity.parallel + capacity.queue,
        conversations: records.clone(),
        shared_records: None,
        records: records.clone(),
        memory,
        secret: None,
        spans: None,
        sampling: Default::default(),
        told_windows: Vec::new(),
        state_dir: places.state_dir.clone(),
        cache_disk: places.cache_disk.clone(),
    };
    let ledger = Ledger::new(None, SystemTime::now);
    App::new(serving, Keys::new([]), Arc::new(ledger), config)
}

/// The routes in this process, and their background tasks; with that of deletions.
fn client(app: Arc<App>) -> anyhow::Result<(Client, AbortHandle)> {
    let runtime = tokio::runtime::Runtime::new().context("the threads of the routes cannot be started")?;
    runtime.spawn(make_summaries(app.clone()));
    let shelf = api::shelf_of(app);
    let deleting = runtime.spawn(upkeep::finish_deletions(shelf.clone())).abort_handle();
    Ok((Client::in_process(runtime, api::over(shelf)), deleting))
}
