//! `kvik serve`: starts the server, prints how to use it, and shuts it down gracefully.

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, bail};
use kvik_memory::shared::SharedRecords;
use kvik_session::KvBudget;
use kvik_shelf::Kind;
use tokio::{
    runtime::Runtime,
    sync::watch,
    task::{AbortHandle, JoinHandle},
    time::timeout,
};

use super::serve_args::{Clients, ServeArgs, ServerSetup};
use super::shelf::{self, LoadSetup, Models, ShelfModel, ShelfSource};
use super::{example, pid_file, pid_file::OwnRecord, remote::url_of, variables};
use kvik_server::{
    accounts::ledger::Ledger,
    api,
    app::{
        App, AppConfig, keys::Keys, loading, server::Server, shelf::Shelf, supervisor::Supervisor, upkeep,
        watchdog,
    },
    http::{self, Front},
};
use kvik_serving::{
    ModelCard, Serving, fetch,
    load::Loaded,
    remote,
    settings::{
        logging,
        model::{EMBEDDED, ModelArgs},
        size::ByteSize,
    },
    system::{Hangups, Stops},
    titled,
};

/// Maximum share of the grace period spent on handing hot blocks over to other nodes.
const LEAVE_SHARE: f32 = 0.75;
/// How long a server that stops waits for blocking file operations.
const LAST_TIME: Duration = Duration::from_secs(5);

/// The open port, before and after the model is loaded.
struct Port {
    address: SocketAddr,
    /// By this, commands find the server; absent where it cannot be written.
    record: Option<OwnRecord>,
    front: Arc<Front>,
    stop: watch::Sender<bool>,
    /// Returns the number of connections that were cut off.
    connections: JoinHandle<usize>,
}

/// Runs the command: with the models of a shelf, or with one if there is no shelf.
pub(crate) fn run(args: &ServeArgs, shelf: Option<(ShelfSource, Vec<ShelfModel>)>) -> anyhow::Result<()> {
    let inherited = http::inherited()?;
    logging::start(args.log, "info");
    tracing::info!("kvik {}", env!("CARGO_PKG_VERSION"));
    logging::log_panics();
    variables::notes(variables::is_set).iter().for_each(|note| logging::say(&format!("note: {note}")));
    check_clock(SystemTime::now())?;
    if let Some(number) = args.model.domain.memory_domain {
        tracing::info!("threads and memory stay in memory domain {number}");
    }
    args.check()?;
    let mut clients = args.clients()?;
    variables::check_key(&clients.keys, variables::is_set)?;
    let runtime = Runtime::new().context("the server's threads cannot be started")?;
    let until_served = end_at_signals(&runtime)?;
    let port = runtime.block_on(open_port(args, &clients.keys, inherited))?;
    // Held until the end.
    let record = port.record.clone();
    let kv_events = runtime.block_on(args.kv_events(&clients, shelf.is_some()))?;
    let began = Instant::now();
    let loaded = shelf.is_none().then(|| args.load(kv_events.as_ref())).transpose()?;
    if let (Some(record), Some(model)) = (&record, loaded.as_ref().and_then(|_| file_of(&args.model))) {
        // A record without it is of a server whose model is found by its name alone.
        let _ = record.add_model(&model);
    }
    // Last, because a server that is stopping may hold them for seconds: other errors are reported at once.
    clients.open_records(&args.state);
    if clients.records.is_some() {
        args.state.write_address(&url(port.address));
    }
    let served = runtime.block_on(async {
        let around = ServerSetup::new(args, &clients, port.address.ip());
        let (shelf, banner) = match (loaded, shelf) {
            (Some(loaded), _) => one_model(args, &clients, (loaded, began), (&around, port.address))?,
            (None, shelf) => {
                let shelf = shelf.expect("a server without a shelf has loaded its model");
                models_of(args, &clients, shelf, (around, port.address))?
            }
        };
        serve(args, clients, (shelf, banner), port, until_served).await
    });
    // Threads that still hang in a file operation are abandoned.
    runtime.shutdown_timeout(LAST_TIME);
    served
}

/// Ends the process at a signal while its model loads, as the system does by itself: but for the first process of a
/// container, to which Linux delivers only signals that it takes.
fn end_at_signals(runtime: &Runtime) -> anyhow::Result<Option<AbortHandle>> {
    if std::process::id() != 1 {
        return Ok(None);
    }
    let _runtime = runtime.enter();
    let mut stops = Stops::new().context("signals cannot be taken")?;
    let ending = runtime.spawn(async move {
        let status = stops.next().await;
        std::process::exit(status);
    });
    Ok(Some(ending.abort_handle()))
}

/// The path of a model's file, by which it is the same under every name, or the word for the embedded one.
fn file_of(model: &ModelArgs) -> Option<String> {
    let Some(meant) = model.meant() else { return Some(EMBEDDED.to_owned()) };
    let path = fetch::without_download(meant, Kind::Model, &model.models_dir).ok().flatten()?;
    path.canonicalize().ok()?.to_str().map(str::to_owned)
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
    let record = pid_file::hold(address.port(), &url(address))
        .inspect_err(|error| tracing::debug!("commands will not find this server by themselves: {error}"));
    Ok(Port { address, record: record.ok(), front, stop, connections })
}

/// A server of one model, whose loading began at that instant, and its banner.
fn one_model(
    args: &ServeArgs,
    clients: &Clients,
    (loaded, began): (Loaded, Instant),
    (around, address): (&ServerSetup, SocketAddr),
) -> anyhow::Result<(Arc<Shelf>, String)> {
    let Loaded { serving, budget, bytes, threads, device, disk, remote, draft, handle } = loaded;
    let url = url(address);
    let shows = example::Shows::of(&serving);
    let example = example::curl(&url, &serving.model.name, shows, !clients.keys.are_open());
    let state = Some(clients.state_line(&args.state));
    let place = Some(device.unwrap_or_else(|| format!("{threads} threads")));
    let attached = [&disk, &draft, &place, &remote, &state].map(Option::as_deref);
    let banner = banner(&serving.model, &budget, attached, &url, &example);
    handle.set_tenants(clients.keys.tenants().parts());
    // A store of its own: the engine closes the other when it ends, and conversations are written after that.
    let shared_records = remote::open_records(&args.cache.remote)?;
    handle.warm(args.cache.remote.warm());
    let app = app(args, clients, serving, (around, shared_records))?;
    let runtime = tokio::runtime::Handle::current();
    let open = shelf::begin(&runtime, app, handle, (bytes, args.grace()));
    Ok((Shelf::of(open, began.elapsed()), banner))
}

/// A server of several models, which are loaded on demand.
fn models_of(
    args: &ServeArgs,
    clients: &Clients,
    (source, models): (ShelfSource, Vec<ShelfModel>),
    (around, address): (ServerSetup, SocketAddr),
) -> anyhow::Result<(Arc<Shelf>, String)> {
    let budget = shelf::budget(args.shelf_ram);
    let ledger = Ledger::new(clients.records.as_ref(), SystemTime::now);
    // Conversations outlast the models in memory, so their records are not those of a model's store.
    let shared_records = remote::open_records(&args.cache.remote)?;
    // As for their models: compaction items in stored responses are opened without one.
    let secret = args.accounts.secret(&args.state, args.cache.remote.key()?.as_ref())?;
    let config = AppConfig { shared_records, secret, ..around.config(args) };
    let server = Server::new(clients.keys.clone(), Arc::new(ledger), &config);
    let (runtime, grace) = (tokio::runtime::Handle::current(), args.grace());
    let setup = Arc::new(LoadSetup { server: server.clone(), around, runtime, grace });
    let catalogue = Models { source, setup, budget };
    let entries = catalogue.entries(models);
    let state = clients.state_line(&args.state);
    let banner = shelf::banner(&entries, (budget, &state), &url(address));
    Ok((Shelf::new(server, entries, budget, Box::new(catalogue)), banner))
}

async fn serve(
    args: &ServeArgs,
    mut clients: Clients,
    (shelf, banner): (Arc<Shelf>, String),
    port: Port,
    until_served: Option<AbortHandle>,
) -> anyhow::Result<()> {
    let server = shelf.server.clone();
    // Before anybody learns that this server runs: until then a signal ends the process.
    let stops = Stops::new().context("signals cannot be taken")?;
    until_served.iter().for_each(AbortHandle::abort);
    if let Some(hangups) = Hangups::new() {
        tokio::spawn(upkeep::follow_hangups(hangups, shelf.clone(), clients.source.take()));
    }
    let accounts = tokio::spawn(upkeep::keep_accounts(server.clone()));
    let supervisor = Arc::new(Supervisor::of_process());
    let times = (Duration::from_secs(args.drain), args.grace());
    let ends = (stops, port.stop, port.record);
    let stopping = tokio::spawn(stop_on_signal(ends, shelf.clone(), times, supervisor.clone()));
    tokio::spawn(shelf.clone().keep());
    tokio::spawn(upkeep::tell_nodes(shelf.clone()));
    tokio::spawn(upkeep::finish_deletions(shelf.clone()));
    port.front.replace(api::over(shelf.clone()));
    print(banner)?;
    // Weak: what the last owner drops must not wait for the next look.
    let watched = Arc::downgrade(&shelf);
    supervisor.ready();
    watchdog::start(supervisor, move || {
        let shelf = watched.upgrade()?;
        (!shelf.server.is_stopping()).then(|| shelf.life())
    })?;
    let cut_off = port.connections.await?;
    if cut_off > 0 {
        tracing::warn!("{cut_off} connections did not end in time and were cut off");
    }
    stopping.await?;
    accounts.abort();
    write_last(server).await;
    let _ = tokio::task::spawn_blocking(move || shelf.open_apps().iter().for_each(|app| app.close())).await;
    tracing::info!("stopped");
    Ok(())
}

/// Writes what the requests of the last seconds have left to write, at most for some seconds.
async fn write_last(server: Arc<Server>) {
    // The process may end before the last owner of the conversations drops them, which would do the same.
    let conversations = server.clone();
    let closing = tokio::task::spawn_blocking(move || conversations.close_conversations());
    if timeout(LAST_TIME, upkeep::write_accounts(server)).await.is_err() {
        tracing::warn!("the accounts of the last seconds were not written: their file does not answer");
    }
    let _ = closing.await;
}

/// Prints on a thread of its own, so that neither a closed standard output nor an undrained one stops the server.
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
    (around, shared_records): (&ServerSetup, Option<Arc<dyn SharedRecords>>),
) -> anyhow::Result<Arc<App>> {
    let ledger = Ledger::new(clients.records.as_ref(), SystemTime::now);
    let config = AppConfig { shared_records, ..args.app_config(around, &serving.model)? };
    Ok(App::new(serving, clients.keys.clone(), Arc::new(ledger), config))
}

/// The state without a port, for tests that call the routes in process.
#[cfg(any(test, fuzzing))]
pub(crate) fn without_port(args: &ServeArgs) -> anyhow::Result<Arc<App>> {
    let mut clients = args.clients()?;
    clients.open_records(&args.state);
    let Loaded { serving, handle, .. } = args.load(None)?;
    handle.set_tenants(clients.keys.tenants().parts());
    let around = ServerSetup::new(args, &clients, std::net::Ipv4Addr::LOCALHOST.into());
    app(args, &clients, serving, (&around, None))
}

/// At the first signal gives routers `drain` to notice it, then running answers up to `grace` to finish. The second
/// signal ends the process.
async fn stop_on_signal(
    (mut stops, stop, record): (Stops, watch::Sender<bool>, Option<OwnRecord>),
    shelf: Arc<Shelf>,
    (drain, grace): (Duration, Duration),
    supervisor: Arc<Supervisor>,
) {
    stops.next().await;
    supervisor.stopping();
    record.iter().for_each(OwnRecord::leave);
    shelf.server.leave_records();
    tokio::spawn(async move {
        let status = stops.next().await;
        std::process::exit(status);
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
    // The hand-over is bounded in time, so that neither a hanging store nor a slow one uses up the grace period.
    let _ = timeout(grace.mul_f32(LEAVE_SHARE), sharing).await;
    shelf.shutdown(left.saturating_duration_since(Instant::now())).await;
}

/// The URL for a client on this machine.
fn url(address: SocketAddr) -> String {
    url_of(&address.ip().to_string(), address.port())
}

/// The banner of a server that listens: its disk tier, draft model, place of computing, the store that nodes share, and
/// the folder of accounts and conversations.
fn banner(
    model: &ModelCard,
    budget: &KvBudget,
    [disk, draft, place, remote, state]: [Option<&str>; 5],
    url: &str,
    example: &str,
) -> String {
    let draft = draft.map_or_else(String::new, |name| {
        let bytes = ByteSize(budget.blocks as u64 * budget.draft_bytes as u64);
        format!("  drafts   by {name}, with up to {bytes} of cache for as many tokens\n")
    });
    let remote =
        remote.map_or_else(String::new, |url| format!("  fleet    shares its cache through {url}\n"));
    format!(
        "\
kvik {version}
  model    {model}, {bytes}
  context  {context} tokens
  cache    up to {cache}: {tokens} tokens, {block} for {positions} in {kv}
  disk     {disk}
  state    {state}
{remote}{draft}  runs     {parallel} requests at a time on {place}

listening on {url}
the page is at {url}/

Try it:

{example}
",
        version = env!("CARGO_PKG_VERSION"),
        model = titled(&model.name, model.source.for_host()),
        bytes = ByteSize(model.bytes),
        context = model.context,
        cache = ByteSize(budget.bytes()),
        tokens = budget.tokens(),
        block = ByteSize(budget.block_bytes as u64),
        positions = kvik_cache::BLOCK_POSITIONS,
        kv = budget.kv,
        disk = disk.unwrap_or("off"),
        state = state.unwrap_or("off"),
        parallel = model.parallel,
        place = place.unwrap_or_default(),
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
