//! `kvik serve`: starts the server, prints how to use it, and shuts it down gracefully.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, bail};
use clap::{Args, builder::FalseyValueParser};
use kvik_memory::{memory::MemoryConfig, records::Records};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use super::example;
use super::flags::{
    access::AccessArgs,
    accounts::{AccountArgs, StateArgs},
    embedding::EmbeddingArgs,
    kv_events::KvEventArgs,
    memory::MemoryArgs,
};
use super::shelf::{self, LoadSetup, Models, ShelfModel, ShelfSource};
use crate::{
    accounts::{
        ledger::Ledger,
        prices::Prices,
        tenants::{Secret, Share, Source, Tenants},
    },
    api,
    app::{
        App, AppConfig, keys::Keys, loading, server::Server, shelf::Shelf, spans::Spans,
        supervisor::Supervisor, upkeep, usage_account::Clock, watchdog,
    },
    http::{self, ConnectionLimits, Front, Senders},
    kv_events::KvEvents,
    serving::{
        ModelCard, Serving,
        budget::KvBudget,
        load::{self, Capacity, Handle, Loaded},
    },
    settings::{
        keep_alive::KeepAlive,
        logging::{self, LogFormat},
        model::{CacheArgs, ModelArgs},
        sampling::SamplingArgs,
        size::ByteSize,
    },
    system::{open_files, stop_signal},
};

/// Open connections at most.
pub(super) const CONNECTIONS_MAX: u64 = 1024;
/// File descriptors left for everything but connections.
const FILES_RESERVED: u64 = 128;
/// Timeout for a request's headers, and for an idle connection.
const HEAD_TIME: Duration = Duration::from_secs(75);
/// Timeout of a write to a client that reads nothing.
const WRITE_TIME: Duration = Duration::from_secs(60);

/// Of the time that running answers have, leaving what is hot to other nodes and telling them of it takes at most this.
const LEAVE_SHARE: f32 = 0.75;
/// How long a server that stops waits for a file.
const LAST_TIME: Duration = Duration::from_secs(5);

/// Serves OpenAI's API and llama-server's over HTTP
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik serve                                       the embedded model, on http://127.0.0.1:8080
  kvik serve -m model.gguf --context 8192          a GGUF file
  kvik serve -m hf:Qwen/Qwen3-0.6B-GGUF            from the Hugging Face hub, downloaded once
  kvik serve --shelf                               all models of `kvik list`, each when it is asked for
  kvik serve --cache-ram 4GiB --parallel 16        a larger cache, more requests at a time
  kvik serve --host 0.0.0.0 --api-key SECRET       for other machines
  kvik serve --tenants tenants.toml --admin-key K  for clients isolated from each other
  kvik serve --kv-events 'tcp://*:5557'            one node of many: a router follows what is cached here

A socket that systemd opened (socket activation) is taken over, and --host and --port are not used.

Each of these flags is also an environment variable (--cache-ram: KVIK_CACHE_RAM) and a key of
config.toml (cache-ram = \"4GiB\"). KVIK_LOG=debug says more; --log is KVIK_LOG_FORMAT.
llama-server's flags are read as well: -c, -np, -n, -a, -ctk, -ctv, -hf and their long names.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) capacity: Capacity,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// Bytes of a request body at most
    #[arg(long, value_name = "SIZE", default_value = "32MiB", help_heading = "Server")]
    pub(crate) body_limit: ByteSize,
    /// Name of the model in the API [default: the model's own]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) alias: Option<String>,
    /// Serve all models of `kvik list`, beside those of config.toml
    #[arg(long, value_parser = FalseyValueParser::new(), help_heading = "Server")]
    pub(super) shelf: bool,
    /// Memory for the weights, keys and values of all models of config.toml ([models.NAME]) [default: three quarters of the
    /// free memory]
    #[arg(long, value_name = "SIZE", help_heading = "Server")]
    shelf_ram: Option<ByteSize>,
    /// How long a model of config.toml stays in memory without a use: 5m, 1h, forever
    #[arg(long, value_name = "TIME", default_value = "forever", help_heading = "Capacity")]
    pub(crate) keep_alive: KeepAlive,
    /// Refuse requests that name another model, instead of answering them with this model
    #[arg(long, value_parser = FalseyValueParser::new(), help_heading = "Server")]
    strict_model: bool,
    /// Answer 501 to GET /slots, which shows how many requests run
    #[arg(long, value_parser = FalseyValueParser::new(), help_heading = "Server")]
    no_slots: bool,
    /// Seconds that running answers may take to finish after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Server")]
    pub(crate) grace: u64,
    /// Seconds after SIGTERM in which requests are still taken while /ready and /health say no, so that a router learns
    /// of it before any is refused
    #[arg(long, value_name = "SECONDS", default_value_t = 0, help_heading = "Server")]
    pub(crate) drain: u64,
    /// Send a span of each answer to this OpenTelemetry collector (OTLP over HTTP, JSON), as http://127.0.0.1:4318
    #[arg(long, value_name = "URL", help_heading = "Server")]
    otlp: Option<String>,
    /// Format of log lines
    #[arg(long, value_enum, default_value = "text", help_heading = "Server")]
    pub(crate) log: LogFormat,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) accounts: AccountArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) embedding: EmbeddingArgs,
    #[command(flatten)]
    kv_events: KvEventArgs,
}

/// The settings of clients: keys, tenants, prices and records.
struct Clients {
    keys: Arc<Keys>,
    /// The tenants file, when there is one.
    source: Option<Source>,
    prices: Option<Prices>,
    records: Option<Records>,
    conversations: Option<Records>,
}

/// What all models of the server are set up with.
pub(crate) struct ServerSetup {
    senders: Senders,
    clock: Clock,
    prices: Option<Prices>,
    pub(super) records: Option<Records>,
    conversations: Option<Records>,
}

/// The open port, before and after the model is loaded.
struct Port {
    address: SocketAddr,
    front: Arc<Front>,
    stop: watch::Sender<bool>,
    /// Returns the number of connections that were cut off.
    connections: JoinHandle<usize>,
}

/// Runs the command: with the models of a shelf, or with one where there are none.
pub(crate) fn run(args: &ServeArgs, shelf: Option<(ShelfSource, Vec<ShelfModel>)>) -> anyhow::Result<()> {
    let inherited = http::inherited()?;
    logging::start(args.log, "info");
    logging::log_panics();
    check_clock(SystemTime::now())?;
    if let Some(number) = args.model.domain.memory_domain {
        tracing::info!("threads and memory stay in memory domain {number}");
    }
    let clients = args.clients()?;
    let runtime = tokio::runtime::Runtime::new().context("the server's threads cannot be started")?;
    let port = runtime.block_on(open_port(args, &clients.keys, inherited))?;
    let kv_events = runtime.block_on(args.kv_events(&clients, shelf.is_some()))?;
    let loaded = shelf.is_none().then(|| args.load(kv_events.as_ref())).transpose()?;
    let served = runtime.block_on(async {
        let around = ServerSetup::new(args, &clients, port.address.ip());
        let (shelf, banner) = match (loaded, shelf) {
            (Some(loaded), _) => one_model(args, &clients, loaded, (&around, port.address))?,
            (None, shelf) => {
                let shelf = shelf.context("there is no model to serve")?;
                models_of(args, &clients, shelf, (around, port.address))
            }
        };
        serve(args, clients, shelf, banner, port).await
    });
    // What a file that hangs still holds is left behind.
    runtime.shutdown_timeout(LAST_TIME);
    served
}

/// Refuses a clock that HTTP cannot represent: the `Date` of an answer has four digits for the year.
pub(super) fn check_clock(now: SystemTime) -> anyhow::Result<()> {
    const FROM_1970_TO_9999: Duration = Duration::from_secs(253_402_300_800);
    match now.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) if since < FROM_1970_TO_9999 => Ok(()),
        _ => bail!("the clock of this machine is not between the years 1970 and 9999; set it right"),
    }
}

/// Listens, or takes over the socket that a supervisor opened, and answers 503 while the model loads.
async fn open_port(args: &ServeArgs, keys: &Keys, inherited: Option<TcpListener>) -> anyhow::Result<Port> {
    let listener = match inherited {
        Some(listener) => tokio::net::TcpListener::from_std(listener)?,
        None => args.access.listen().await?,
    };
    let address = listener.local_addr()?;
    args.access.check_exposure(address, keys)?;
    let front = Front::new(loading::router(args.access.senders(address.ip()), keys.are_open()));
    let (stop, stopped) = watch::channel(false);
    let connections = tokio::spawn(http::serve(listener, front.clone(), args.connection_limits(), stopped));
    tracing::info!("{} answers 503 until the model is loaded", url(address));
    Ok(Port { address, front, stop, connections })
}

/// A server of one model, which was loaded, and what is printed of it.
fn one_model(
    args: &ServeArgs,
    clients: &Clients,
    loaded: Loaded,
    (around, address): (&ServerSetup, SocketAddr),
) -> anyhow::Result<(Arc<Shelf>, String)> {
    let Loaded { serving, budget, device, disk, remote, draft, handle } = loaded;
    let url = url(address);
    let example =
        example::curl(&url, &serving.model.name, args.model.is_embedded(), !clients.keys.are_open());
    let attached = [&disk, &draft, &device, &remote].map(Option::as_deref);
    let banner = banner(&serving.model, &budget, attached, &url, &example);
    handle.set_tenants(clients.keys.tenants());
    handle.warm(args.cache.remote.warm());
    let bytes = serving.model.bytes + budget.bytes();
    let app = app(args, clients, serving, (around, &handle))?;
    let runtime = tokio::runtime::Handle::current();
    Ok((Shelf::of(shelf::begin(&runtime, app, handle, (bytes, args.grace()))), banner))
}

/// A server of several models, which are loaded when somebody asks for them.
fn models_of(
    args: &ServeArgs,
    clients: &Clients,
    (source, models): (ShelfSource, Vec<ShelfModel>),
    (around, address): (ServerSetup, SocketAddr),
) -> (Arc<Shelf>, String) {
    let budget = shelf::budget(args.shelf_ram);
    let ledger = Ledger::new(clients.records.as_ref(), SystemTime::now);
    let server = Server::new(clients.keys.clone(), Arc::new(ledger), &around.config(args));
    let (runtime, grace) = (tokio::runtime::Handle::current(), args.grace());
    let setup = Arc::new(LoadSetup { server: server.clone(), around, runtime, grace });
    let catalogue = Models { source, setup, budget };
    let entries = catalogue.entries(models);
    let banner = shelf::banner(&entries, budget, &url(address));
    (Shelf::new(server, entries, budget, Box::new(catalogue)), banner)
}

async fn serve(
    args: &ServeArgs,
    mut clients: Clients,
    shelf: Arc<Shelf>,
    banner: String,
    port: Port,
) -> anyhow::Result<()> {
    let server = shelf.server.clone();
    let accounts = tokio::spawn(upkeep::keep_accounts(server.clone()));
    tokio::spawn(upkeep::follow_hangups(shelf.clone(), clients.source.take()));
    let supervisor = Arc::new(Supervisor::of_process());
    let times = (Duration::from_secs(args.drain), args.grace());
    let stopping = tokio::spawn(stop_on_signal(shelf.clone(), times, port.stop, supervisor.clone()));
    tokio::spawn(shelf.clone().keep());
    tokio::spawn(upkeep::tell_nodes(shelf.clone()));
    port.front.replace(api::over(shelf.clone()));
    print(banner)?;
    let watched = shelf.clone();
    supervisor.ready();
    watchdog::start(supervisor, move || (!watched.server.is_stopping()).then(|| watched.life()))?;
    let cut_off = port.connections.await?;
    if cut_off > 0 {
        tracing::warn!("{cut_off} connections did not end in time and were cut off");
    }
    stopping.await?;
    accounts.abort();
    if timeout(LAST_TIME, upkeep::write_accounts(server)).await.is_err() {
        tracing::warn!("the accounts of the last seconds were not written: their file does not answer");
    }
    let _ = tokio::task::spawn_blocking(move || shelf.open_apps().iter().for_each(|app| app.close())).await;
    tracing::info!("stopped");
    Ok(())
}

/// Prints on a thread of its own: neither a closed standard output stops the server, nor one that nobody reads.
fn print(banner: String) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("kvik-banner".to_owned());
    let print = move || {
        let _ = writeln!(std::io::stdout(), "{banner}");
    };
    thread.spawn(print).map(drop)
}

/// The state shared by the routes of a server of one model.
fn app(
    args: &ServeArgs,
    clients: &Clients,
    serving: Serving,
    (around, handle): (&ServerSetup, &Handle),
) -> anyhow::Result<Arc<App>> {
    let ledger = Ledger::new(clients.records.as_ref(), SystemTime::now);
    let config = args.app_config(around, &serving.model)?;
    let config = AppConfig { shared_records: handle.shared_records(), ..config };
    Ok(App::new(serving, clients.keys.clone(), Arc::new(ledger), config))
}

/// The state without a port, for tests that call the routes in process.
#[cfg(any(test, fuzzing))]
pub(crate) fn without_port(args: &ServeArgs) -> anyhow::Result<Arc<App>> {
    let clients = args.clients()?;
    let Loaded { serving, handle, .. } = args.load(None)?;
    handle.set_tenants(clients.keys.tenants());
    let around = ServerSetup::new(args, &clients, std::net::Ipv4Addr::LOCALHOST.into());
    app(args, &clients, serving, (&around, &handle))
}

/// The number of connections that the limit on file descriptors allows, after raising that limit as
/// far as the system permits.
pub(super) fn connections_max() -> usize {
    let files = open_files(CONNECTIONS_MAX + FILES_RESERVED);
    let connections = files.saturating_sub(FILES_RESERVED).clamp(16, CONNECTIONS_MAX);
    if connections < CONNECTIONS_MAX {
        tracing::warn!(
            "the limit of {files} open files allows {connections} connections; `ulimit -n` raises it"
        );
    }
    connections as usize
}

/// The first signal lets routers learn of it for `drain`, then gives running answers up to `grace` to finish; the second
/// ends the process.
async fn stop_on_signal(
    shelf: Arc<Shelf>,
    (drain, grace): (Duration, Duration),
    stop: watch::Sender<bool>,
    supervisor: Arc<Supervisor>,
) {
    stop_signal().await;
    supervisor.stopping();
    tokio::spawn(async {
        stop_signal().await;
        // The status that a shell reports for a process ended by SIGINT.
        std::process::exit(130);
    });
    let sharing = tokio::task::spawn_blocking({
        let shelf = shelf.clone();
        move || shelf.leave_to_nodes(drain + grace / 2)
    });
    if !drain.is_zero() {
        tracing::info!(
            "leaving: requests are taken for {} s more, for routers to learn of it",
            drain.as_secs()
        );
        shelf.server.leave();
        tokio::time::sleep(drain).await;
    }
    tracing::info!(
        "stopping: running answers finish, new requests are refused; a second signal stops at once"
    );
    shelf.server.stop();
    stop.send_replace(true);
    let left = Instant::now() + grace;
    // It ends by itself in time; a store that hangs is not waited for, nor does a slow one take all the time there is.
    let _ = timeout(grace.mul_f32(LEAVE_SHARE), sharing).await;
    shelf.shutdown(left.saturating_duration_since(Instant::now())).await;
}

impl ServeArgs {
    fn clients(&self) -> anyhow::Result<Clients> {
        let fleet = self.cache.remote.key()?;
        let source = self.accounts.source(&self.state, fleet.as_ref())?;
        let mut keys = self.access.keys()?.with_admin(self.accounts.admin_key()?.as_deref());
        if let Some(source) = &source {
            keys = keys.with_tenants(source.read(&Tenants::none())?);
        }
        let (records, conversations) = (self.state.records(), self.state.conversations());
        Ok(Clients { keys: Arc::new(keys), source, prices: self.accounts.prices()?, records, conversations })
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(self.grace)
    }

    fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            max: connections_max(),
            head_time: HEAD_TIME,
            write_time: WRITE_TIME,
            // The engine finishes within the grace period; its last output still has to reach the clients.
            drain_time: self.grace() + Duration::from_secs(5),
        }
    }

    /// Publishes KV events where that is asked for: of prompts that are nobody's, and of those of tenants that share.
    async fn kv_events(&self, clients: &Clients, has_shelf: bool) -> anyhow::Result<Option<KvEvents>> {
        let Some(config) = self.kv_events.config()? else { return Ok(None) };
        if has_shelf {
            bail!("--kv-events tells of one model: serve each of a shelf by a kvik of its own");
        }
        let shared = clients.source.as_ref().map(|source| source.secret.salt("", Share::Shared));
        let salts = std::iter::once([0; 16]).chain(shared).collect();
        KvEvents::open(config, salts).await.map(Some)
    }

    /// Loads the model.
    fn load(&self, kv_events: Option<&KvEvents>) -> anyhow::Result<Loaded> {
        let mut loaded = load::open_told(&self.model, &self.cache, self.capacity, kv_events)?;
        if let Some(alias) = &self.alias {
            loaded.serving.model.name.clone_from(alias);
        }
        self.embedding.apply(&mut loaded.serving.embedder);
        Ok(loaded)
    }

    /// How a model of this server treats its clients.
    pub(super) fn app_config(&self, around: &ServerSetup, model: &ModelCard) -> anyhow::Result<AppConfig> {
        let memory = self.memory.config(false)?;
        if memory.is_wanted() {
            memory.settings(model.context).context("--memory")?;
        }
        let spans = self.otlp.as_ref().map(|address| {
            Spans::new(address, &model.name).map(Arc::new).with_context(|| format!("--otlp {address}"))
        });
        Ok(AppConfig {
            memory,
            secret: match self.cache.remote.key()? {
                Some(key) => Some(Secret::of_fleet(&key)),
                None => self.state.secret(),
            },
            spans: spans.transpose()?,
            ..around.config(self)
        })
    }
}

impl ServerSetup {
    /// Of a server that listens at this address.
    fn new(args: &ServeArgs, clients: &Clients, ip: IpAddr) -> ServerSetup {
        let started = Instant::now();
        ServerSetup {
            senders: args.access.senders(ip),
            clock: Arc::new(move || started.elapsed()),
            prices: clients.prices,
            records: clients.records.clone(),
            conversations: clients.conversations.clone(),
        }
    }

    /// Those of one model of several: what it writes down stands beside what others do.
    pub(super) fn of_model(&self, name: &str) -> ServerSetup {
        let of_model = |records: &Records| records.of_model(name);
        ServerSetup {
            records: self.records.as_ref().map(of_model),
            senders: self.senders.clone(),
            clock: self.clock.clone(),
            conversations: self.conversations.clone(),
            ..*self
        }
    }

    /// How clients are treated where no model is concerned.
    fn config(&self, args: &ServeArgs) -> AppConfig {
        AppConfig {
            senders: self.senders.clone(),
            shows_slots: !args.no_slots,
            strict_model: args.strict_model,
            body_limit: args.body_limit,
            prices: self.prices,
            clock: self.clock.clone(),
            admission_slots: args.capacity.parallel + args.capacity.queue,
            records: self.records.clone(),
            conversations: self.conversations.clone(),
            shared_records: None,
            memory: MemoryConfig::default(),
            secret: None,
            spans: None,
            sampling: args.sampling,
        }
    }
}

/// The URL for a client on this machine.
fn url(address: SocketAddr) -> String {
    let host = match address.ip() {
        ip if ip.is_unspecified() => "127.0.0.1".to_owned(),
        ip if ip.is_ipv6() => format!("[{ip}]"),
        ip => ip.to_string(),
    };
    format!("http://{host}:{}", address.port())
}

/// What is printed when the server listens; `disk` and `draft` are what is attached to the model, `device` is the GPU that
/// it is on, `remote` where the store is that nodes share.
fn banner(
    model: &ModelCard,
    budget: &KvBudget,
    [disk, draft, device, remote]: [Option<&str>; 4],
    url: &str,
    example: &str,
) -> String {
    let draft = draft.map_or_else(String::new, |name| {
        let bytes = ByteSize(budget.blocks as u64 * budget.draft_bytes as u64);
        format!("  drafts   by {name}, with {bytes} of cache for as many tokens\n")
    });
    let remote =
        remote.map_or_else(String::new, |place| format!("  fleet    shares its cache through {place}\n"));
    let threads = || format!("{} threads", budget.threads);
    format!(
        "\
kvik {version}
  model    {name} ({source}), {bytes}
  context  {context} tokens
  cache    {cache}: {tokens} tokens, {block} for {positions} in {kv}
  disk     {disk}
{remote}{draft}  runs     {parallel} requests at a time on {place}

listening on {url}
the page is at {url}/

Try it:

{example}
",
        version = env!("CARGO_PKG_VERSION"),
        name = model.name,
        source = model.source,
        bytes = ByteSize(model.bytes),
        context = model.context,
        cache = ByteSize(budget.bytes()),
        tokens = budget.tokens(),
        block = ByteSize(budget.block_bytes as u64),
        positions = kvik_cache::BLOCK_POSITIONS,
        kv = budget.kv,
        disk = disk.unwrap_or("off"),
        parallel = model.parallel,
        place = device.map_or_else(threads, str::to_owned),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_http_cannot_write_down_is_refused() {
        let epoch = SystemTime::UNIX_EPOCH;
        let second = Duration::from_secs(1);
        let end = epoch + Duration::from_secs(253_402_300_799);
        for (now, expect) in [(epoch - second, false), (epoch, true), (end, true), (end + second, false)] {
            assert_eq!(check_clock(now).is_ok(), expect, "{now:?}");
        }
    }
}
