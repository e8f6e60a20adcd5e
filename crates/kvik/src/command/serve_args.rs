//! The flags of `kvik serve`, and the settings of servers and models derived from them.

use std::{
    cmp::Ordering,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::{ArgMatches, Args, builder::FalseyValueParser};
use kvik_memory::{memory::MemoryConfig, records::Records};
use kvik_model::load::LoadedModel;

use super::{
    flags::{
        access::AccessArgs,
        accounts::{AccountArgs, StateArgs},
        embedding::EmbeddingArgs,
        kv_events::KvEventArgs,
        memory::MemoryArgs,
    },
    talk,
};
use kvik_server::{
    accounts::{
        prices::Prices,
        tenants::{Share, Source, Tenants},
    },
    app::{AppConfig, keys::Keys, spans::Spans},
    clock::Clock,
    http::{ConnectionLimits, Senders},
};
use kvik_serving::{
    ModelCard, Serving,
    budget::check_memory,
    device,
    kv_events::KvEvents,
    load::{self, Around, Loaded},
    settings::{
        SECONDS_MAX,
        capacity::Capacity,
        home,
        keep_alive::KeepAlive,
        logging::LogFormat,
        model::{CacheArgs, ModelArgs},
        sampling::SamplingArgs,
        size::ByteSize,
        template::TemplateArgs,
        told_window::ToldWindow,
    },
    system::open_files,
};

/// Maximum open connections.
pub(super) const CONNECTIONS_MAX: u64 = 1024;
/// File descriptors left for everything but connections.
const FILES_RESERVED: u64 = 128;
/// Timeout for a request's headers, and for an idle connection.
const HEAD_TIME: Duration = Duration::from_secs(75);
/// Timeout of a write to a client that reads nothing.
const WRITE_TIME: Duration = Duration::from_secs(60);

/// Serves OpenAI's API and llama-server's over HTTP
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik serve                                       the model of `kvik default`, on http://127.0.0.1:8080
  kvik serve qwen3:0.6b                            a model by its name or short name
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
llama-server's flags are read as well: -c, -np, -n, -a, -ctk, -ctv, -hf and the others of its command lines.")]
pub(crate) struct ServeArgs {
    /// The model, as -m names it: a name, a short name, a file, a source of the hub
    #[arg(value_name = "NAME", value_parser = home::text)]
    pub(super) name: Option<String>,
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
    /// Name of the model in the API [default: the name under which it was pulled, else that in its file]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) alias: Option<String>,
    /// Another name of the model, whose clients assume this window, as claude-sonnet-4=200k: they are told token counts as
    /// if it were the context, so that an agent compacts its conversation in time; may be repeated
    #[arg(long, value_name = "NAME=TOKENS", value_delimiter = ',', help_heading = "Capacity")]
    pub(super) told_window: Vec<ToldWindow>,
    /// Serve all models of `kvik list`, beside those of config.toml
    #[arg(long, value_parser = FalseyValueParser::new(), help_heading = "Server")]
    pub(super) shelf: bool,
    /// Memory for the weights, keys and values of all models of config.toml ([models.NAME]) [default: three quarters of the
    /// free memory]
    #[arg(long, value_name = "SIZE", help_heading = "Server")]
    pub(super) shelf_ram: Option<ByteSize>,
    /// How long a model of config.toml stays in memory without a use: 5m, 1h, forever
    #[arg(long, value_name = "TIME", default_value = "forever", help_heading = "Capacity")]
    pub(crate) keep_alive: KeepAlive,
    /// Refuse requests that name another model, instead of answering them with this model
    #[arg(long, value_parser = FalseyValueParser::new(), help_heading = "Server")]
    strict_model: bool,
    /// Move the sentences of system messages that change from request to request, such as a directory or a date, behind
    /// the system message and the tools, so that what follows them is reused; told in answers as `kvik.settled`
    #[arg(long, value_parser = FalseyValueParser::new(), help_heading = "Cache")]
    settle_prompts: bool,
    /// Answer 501 to GET /slots, which shows how many requests run
    #[arg(long, value_parser = FalseyValueParser::new(), help_heading = "Server")]
    no_slots: bool,
    /// Seconds that running answers may take to finish after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Server",
        value_parser = clap::value_parser!(u64).range(..=SECONDS_MAX))]
    pub(crate) grace: u64,
    /// Seconds after SIGTERM in which requests are still taken while /ready and /health say no, so that a router learns
    /// of it before any is refused
    #[arg(long, value_name = "SECONDS", default_value_t = 0, help_heading = "Server",
        value_parser = clap::value_parser!(u64).range(..=SECONDS_MAX))]
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
    pub(super) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
    #[command(flatten)]
    pub(crate) embedding: EmbeddingArgs,
    #[command(flatten)]
    kv_events: KvEventArgs,
}

/// The settings of clients: keys, tenants, prices and records.
pub(super) struct Clients {
    pub(super) keys: Arc<Keys>,
    /// The tenants file, if there is one.
    pub(super) source: Option<Source>,
    prices: Option<Prices>,
    pub(super) records: Option<Records>,
    conversations: Option<Records>,
}

/// Settings shared by all models of the server.
pub(crate) struct ServerSetup {
    senders: Senders,
    clock: Clock,
    prices: Option<Prices>,
    pub(super) records: Option<Records>,
    conversations: Option<Records>,
}

impl ServeArgs {
    /// Takes the model that the word behind the command or a flag names; none where `--shelf` comes before what names one,
    /// as a flag comes before a variable, and that before the file.
    pub(super) fn take_model(&mut self, matches: &ArgMatches) -> anyhow::Result<()> {
        self.model.take_word(self.name.take(), matches)?;
        let Some(model) = self.model.model.as_deref().filter(|_| self.shelf) else { return Ok(()) };
        let named = matches.value_source("name").or_else(|| matches.value_source("model"));
        match matches.value_source("shelf").cmp(&named) {
            Ordering::Less => {}
            Ordering::Equal => {
                bail!(
                    "--shelf serves all models of `kvik list`, and --model {model} names one; leave one out"
                )
            }
            Ordering::Greater => self.model.model = None,
        }
        Ok(())
    }

    /// Refuses flags that contradict each other or name something that does not exist, before anything is opened or
    /// waited for.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.check_model()?;
        self.kv_events.config()?;
        check_memory("--body-limit", self.body_limit)?;
        self.shelf_ram.map_or(Ok(()), |size| check_memory("--shelf-ram", size))
    }

    /// The same for the flags that concern a model, of which a shelf has some for each.
    pub(super) fn check_model(&self) -> anyhow::Result<()> {
        self.model.kv.choice()?;
        device::choice(&self.cache)?;
        self.memory.config(false)?;
        self.template.variables()?;
        self.cache.remote.place().map(drop)
    }

    /// The flags of the draft model, if there is one.
    pub(super) fn draft(&self) -> Option<ModelArgs> {
        self.cache.draft.as_deref().map(|draft| self.model.of(draft))
    }

    /// Checks the files that flags of clients name, as [`ServeArgs::clients`] does, but creates nothing.
    pub(super) fn check_clients(&self) -> anyhow::Result<()> {
        let keys = self.keys()?;
        self.accounts.prices()?;
        self.accounts.check_tenants(&keys)
    }

    /// The keys of the default tenant and of the admin.
    fn keys(&self) -> anyhow::Result<Keys> {
        Ok(self.access.keys()?.with_admin(self.accounts.admin_key()?.as_deref())?)
    }

    /// The settings of clients, without their records.
    pub(super) fn clients(&self) -> anyhow::Result<Clients> {
        let fleet = self.cache.remote.key()?;
        let source = self.accounts.source(&self.state, fleet.as_ref())?;
        let mut keys = self.keys()?;
        if let Some(source) = &source {
            keys = keys.with_tenants(source.read(&Tenants::none())?)?;
        }
        let prices = self.accounts.prices()?;
        Ok(Clients { keys: Arc::new(keys), source, prices, records: None, conversations: None })
    }

    pub(super) fn grace(&self) -> Duration {
        Duration::from_secs(self.grace)
    }

    pub(super) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            max: connections_max(),
            head_time: HEAD_TIME,
            write_time: WRITE_TIME,
            // The engine finishes within the grace period; its last output still has to reach the clients.
            drain_time: self.grace() + Duration::from_secs(5),
        }
    }

    /// Refuses KV events of several models.
    pub(super) fn check_events(&self, has_shelf: bool) -> anyhow::Result<()> {
        if has_shelf && self.kv_events.config()?.is_some() {
            bail!("--kv-events tells of one model: serve each of a shelf by a kvik of its own");
        }
        Ok(())
    }

    /// Starts publishing KV events if requested: of prompts without a tenant, and of tenants that share.
    pub(super) async fn kv_events(
        &self,
        clients: &Clients,
        has_shelf: bool,
    ) -> anyhow::Result<Option<KvEvents>> {
        let Some(config) = self.kv_events.config()? else { return Ok(None) };
        self.check_events(has_shelf)?;
        let shared = clients.source.as_ref().map(|source| source.secret.salt("", Share::Shared));
        let salts = std::iter::once([0; 16]).chain(shared).collect();
        KvEvents::open(config, salts).await.map(Some)
    }

    /// Loads the model.
    pub(super) fn load(&self, kv_events: Option<&KvEvents>) -> anyhow::Result<Loaded> {
        talk::tell_of_demonstration(self.model.is_embedded());
        let around = Around { kv_events, variables: self.template.variables()? };
        let mut loaded = load::open_with(&self.model, &self.cache, self.capacity, around)?;
        if let Some(alias) = &self.alias {
            loaded.serving.model.name.clone_from(alias);
        }
        self.embedding.apply(&mut loaded.serving.embedder);
        warn_without_template(&loaded.serving);
        Ok(loaded)
    }

    /// The context that a model gets beside its draft model, of both of which only the headers are known. Where a GPU
    /// computes, it may be less.
    ///
    /// # Errors
    /// If it does not fit the memory of keys and values.
    pub(super) fn context_of(
        &self,
        (loaded, draft): (&LoadedModel, Option<&LoadedModel>),
        free_bytes: Option<u64>,
    ) -> anyhow::Result<usize> {
        // What fits a GPU is known only when the server starts.
        let known = match device::is_processor(&self.cache) {
            true => load::context_of(&self.model, &self.cache, (loaded, draft), free_bytes)?,
            false => None,
        };
        // Wherever it is computed, and whatever its formats, the context is no longer than this.
        let longest = self.cache.context.unwrap_or(loaded.config.context);
        Ok(known.unwrap_or(longest))
    }

    /// The settings of memory, which have to fit this context if they are wanted.
    pub(super) fn memory_within(&self, context_tokens: usize) -> anyhow::Result<MemoryConfig> {
        let memory = self.memory.config(false)?;
        if memory.is_wanted() {
            memory.settings(context_tokens).context("--memory")?;
        }
        Ok(memory)
    }

    /// Settings of a model of this server.
    pub(super) fn app_config(&self, around: &ServerSetup, model: &ModelCard) -> anyhow::Result<AppConfig> {
        let spans = self.otlp.as_ref().map(|address| {
            Spans::new(address, &model.name).map(Arc::new).with_context(|| format!("--otlp {address}"))
        });
        Ok(AppConfig {
            memory: self.memory_within(model.context)?,
            secret: self.accounts.secret(&self.state, self.cache.remote.key()?.as_ref())?,
            spans: spans.transpose()?,
            ..around.config(self)
        })
    }
}

impl Clients {
    /// Opens the records of clients. Waits for another process that is about to close them.
    pub(super) fn open_records(&mut self, state: &StateArgs) {
        (self.records, self.conversations) = (state.records(), state.conversations());
    }

    /// The banner's line about data that outlasts the process.
    pub(super) fn state_line(&self, state: &StateArgs) -> String {
        let lost = match (&self.records, &self.conversations) {
            (Some(_), Some(_)) => {
                return state.folder().unwrap_or_default().display().to_string();
            }
            (None, None) => "accounts, kept prompts and conversations",
            (None, Some(_)) => "accounts and kept prompts",
            (Some(_), None) => "conversations",
        };
        let why = state.holder().map_or_else(
            || "nothing can be kept".to_owned(),
            |pid| format!("process {pid} has those of this directory"),
        );
        format!("{lost} END WITH THIS PROCESS: {why}; --state-dir names a directory for them")
    }
}

impl ServerSetup {
    /// The settings of a server that listens at this address.
    pub(super) fn new(args: &ServeArgs, clients: &Clients, ip: IpAddr) -> ServerSetup {
        let started = Instant::now();
        ServerSetup {
            senders: args.access.senders(ip),
            clock: Arc::new(move || started.elapsed()),
            prices: clients.prices,
            records: clients.records.clone(),
            conversations: clients.conversations.clone(),
        }
    }

    /// The settings of one model of several, with records of its own within the shared ones.
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

    /// Settings that do not depend on a model.
    pub(super) fn config(&self, args: &ServeArgs) -> AppConfig {
        AppConfig {
            senders: self.senders.clone(),
            shows_slots: !args.no_slots,
            strict_model: args.strict_model,
            settle_prompts: args.settle_prompts,
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
            told_windows: args.told_window.clone(),
            state_dir: args.state.folder().filter(|_| self.conversations.is_some()),
            cache_disk: args.cache.cache_disk.directory(),
        }
    }
}

/// Warns about a model that cannot answer chats, before the first client finds out.
pub(super) fn warn_without_template(serving: &Serving) {
    if let Err(error) = serving.chat_template() {
        tracing::warn!("{error}");
    }
}

/// The number of connections that the limit on file descriptors allows, after raising that limit as far as the system
/// permits.
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::command::Cli;

    /// A deadline that the clock cannot represent would end the process.
    #[test]
    fn seconds_have_bounds() {
        for flag in ["--grace", "--drain", "--cache-remote-warm"] {
            let read = |seconds: u64| Cli::try_parse_from(["kvik", "serve", flag, &seconds.to_string()]);
            assert!(read(0).is_ok() && read(SECONDS_MAX).is_ok(), "{flag}");
            assert!(read(SECONDS_MAX + 1).is_err() && read(u64::MAX).is_err(), "{flag}");
        }
    }
}
