//! A loaded model with the routes over it in this process; another one can be opened in its place.

use std::{
    net::Ipv4Addr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context;
use kvik_memory::{
    context::MemorySettings,
    memory::{MemoryConfig, make_summaries},
    records::Records,
};

use super::client::LocalClient;
use crate::command::flags::memory::MemoryArgs;
use kvik_server::{
    accounts::ledger::Ledger,
    api,
    app::{App, AppConfig, keys::Keys},
    http::{Hosts, Senders},
};
use kvik_serving::{
    Serving,
    handle::Handle,
    load::{self, Loaded},
    settings::{
        capacity::Capacity,
        model::{CacheArgs, ModelArgs},
        size::ByteSize,
    },
};

/// Room for one answer at a time, and for the summaries computed concurrently.
const CAPACITY: Capacity = Capacity { parallel: 4, queue: 16, ..Capacity::ONE };
/// Maximum body of a request in this process.
const BODY_BYTES_MAX: u64 = 32 << 20;

/// A loaded model, and a client of the routes over it.
pub(super) struct Engine {
    pub(super) app: Arc<App>,
    pub(super) client: LocalClient,
    pub(super) remembering: Remembering,
    /// Memory for keys and values.
    pub(super) cache: ByteSize,
    handle: Handle,
}

/// Settings of memory beyond the context.
pub(super) struct Remembering {
    pub(super) on: bool,
    /// The bounds of its segments, or why memory is unavailable.
    pub(super) settings: Result<MemorySettings, String>,
}

/// Flags and records of a terminal, whichever model it has.
pub(super) struct Setup {
    pub(super) cache: CacheArgs,
    pub(super) memory: MemoryArgs,
    /// The records of conversations, if they outlast the program.
    pub(super) records: Option<Records>,
    pub(super) places: Places,
}

/// Directories of the prompt log and of the disk cache.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    pub(super) state_dir: Option<PathBuf>,
    pub(super) cache_disk: Option<PathBuf>,
}

impl Setup {
    /// Loads a model that answers chats, and starts the routes.
    pub(super) fn open(&self, model: &ModelArgs) -> anyhow::Result<Engine> {
        let Loaded { serving, budget, handle, .. } = load::open(model, &self.cache, CAPACITY)?;
        let cache = ByteSize(budget.bytes());
        self.over(serving)
            .map(|(app, client, remembering)| Engine {
                app,
                client,
                remembering,
                cache,
                handle: handle.clone(),
            })
            // A model that cannot be talked with must not stay in memory beside the one before it.
            .inspect_err(|_| handle.shutdown(Duration::ZERO))
    }

    fn over(&self, serving: Serving) -> anyhow::Result<(Arc<App>, LocalClient, Remembering)> {
        serving.chat_template()?;
        let (config, remembering) = remembering(&self.memory, serving.model.context)?;
        let app = app(serving, config, self);
        let client = client(app.clone())?;
        Ok((app, client, remembering))
    }
}

impl Engine {
    /// Ends running work and gives the memory of the model back.
    pub(super) fn close(&self) {
        self.app.close();
        self.handle.shutdown(Duration::ZERO);
    }
}

/// Settings of memory for a context. Explicit bounds that do not fit are an error; default ones that do not fit a small
/// context switch memory off.
pub(super) fn remembering(args: &MemoryArgs, context: usize) -> anyhow::Result<(MemoryConfig, Remembering)> {
    let mut config = args.config(true)?;
    let settings: Result<MemorySettings, String> = match config.settings(context) {
        Err(error) if args.config(false)?.is_wanted() => return Err(error).context("--memory"),
        Err(error) => Err(error.to_string()),
        Ok(settings) => Ok(settings),
    };
    config.on &= settings.is_ok();
    let on = config.on;
    Ok((config, Remembering { on, settings }))
}

/// The state behind the routes, for one user without a key.
fn app(serving: Serving, memory: MemoryConfig, setup: &Setup) -> Arc<App> {
    let started = Instant::now();
    let Setup { records, places, .. } = setup;
    let config = AppConfig {
        senders: Senders { hosts: Hosts::new(Ipv4Addr::LOCALHOST.into(), Vec::new()), origins: Vec::new() },
        shows_slots: false,
        strict_model: false,
        body_limit: ByteSize(BODY_BYTES_MAX),
        prices: None,
        clock: Arc::new(move || started.elapsed()),
        admission_slots: CAPACITY.parallel + CAPACITY.queue,
        conversations: records.clone(),
        shared_records: None,
        records: records.clone(),
        memory,
        secret: None,
        spans: None,
        sampling: Default::default(),
        state_dir: places.state_dir.clone(),
        cache_disk: places.cache_disk.clone(),
    };
    let ledger = Ledger::new(None, SystemTime::now);
    App::new(serving, Keys::new([]), Arc::new(ledger), config)
}

/// The routes in this process, and their background tasks.
fn client(app: Arc<App>) -> anyhow::Result<LocalClient> {
    let runtime = tokio::runtime::Runtime::new().context("the threads of the routes cannot be started")?;
    runtime.spawn(make_summaries(app.clone()));
    Ok(LocalClient::new(runtime, api::router(app)))
}
