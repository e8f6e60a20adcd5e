//! A server of several models: the catalogue, the shared memory, and the loading of a model.

mod files;

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use clap::{Command, CommandFactory, FromArgMatches};
use kvik_engine::free_memory::available_bytes;
use kvik_memory::memory::make_summaries;
use kvik_model::load::{SamplingSource, url_name};
use kvik_shelf::Kind;
use tokio::runtime::Handle as Runtime;

use super::config;
use super::{
    Cli, Task,
    serve_args::{ServeArgs, ServerSetup, warn_without_template},
};
use files::Files;
use kvik_server::{
    api,
    app::{
        App,
        server::Server,
        shelf::{Catalogue, Described, Entry, LoadModel, OpenModel},
    },
};
use kvik_serving::{
    fetch::{self, Cancelled},
    handle::Handle,
    load::{self, Around, Loaded},
    settings::{model::EMBEDDED, size::ByteSize},
};

/// Default share of the free memory for models, as a fraction.
const BUDGET_SHARE: [u64; 2] = [3, 4];
/// Default memory for models if the free memory is unknown.
const BUDGET_BLIND: u64 = 8 << 30;
/// Divisor of the budget for the default share of one model's keys and values.
const KV_SHARE: u64 = 8;

/// The sources of a server's catalogue: config.toml, and with `--shelf` the named models on disk.
pub(crate) struct ShelfSource {
    /// The command line of this process.
    args: Vec<OsString>,
    /// The models on disk, if they are served.
    pulled: Option<kvik_shelf::Shelf>,
}

/// A model of the shelf, with its flags.
pub(crate) struct ShelfModel {
    name: String,
    aliases: Vec<String>,
    tenants: Option<Vec<String>>,
    args: ServeArgs,
    is_pulled: bool,
    /// The flags in force, as words.
    flags: Vec<String>,
}

/// The source of the models to serve, and its current models; `None` if a flag names the only model, or there is only
/// the embedded one.
pub(crate) fn models(
    serve: &ServeArgs,
    args: Vec<OsString>,
) -> anyhow::Result<Option<(ShelfSource, Vec<ShelfModel>)>> {
    if serve.model.model.is_some() {
        return Ok(None);
    }
    let pulled = serve.shelf.then(|| serve.model.models_dir.shelf()).transpose()?;
    let source = ShelfSource { args, pulled };
    let models = source.read()?;
    Ok((serve.shelf || !models.is_empty()).then_some((source, models)))
}

impl ShelfSource {
    /// Reads the catalogue: tables of the configuration, then models on disk that have no table.
    fn read(&self) -> anyhow::Result<Vec<ShelfModel>> {
        let command = config::of_tables(config::configure(Cli::command(), &self.args)?);
        let tables = config::models(&command, &self.args)?;
        let names: Vec<String> = tables.iter().map(|table| table.name.clone()).collect();
        let pulled = self.pulled()?.into_iter().filter(|table| !names.contains(&table.name));
        let of_config = tables.into_iter().map(|table| ShelfModel::read(&command, table, false));
        of_config.chain(pulled.map(|table| ShelfModel::read(&command, table, true))).collect()
    }

    /// The models of `kvik list`, each with the command line of `kvik serve`.
    fn pulled(&self) -> anyhow::Result<Vec<config::ModelTable>> {
        let Some(shelf) = &self.pulled else { return Ok(Vec::new()) };
        let models = shelf.list()?.manifests.into_iter().filter(|manifest| manifest.kind == Kind::Model);
        let table = |name: String| config::ModelTable {
            name,
            aliases: Vec::new(),
            tenants: None,
            args: self.args.clone(),
            flags: Vec::new(),
        };
        Ok(models.map(|manifest| table(manifest.name.to_string())).collect())
    }
}

/// Bytes that the weights, keys and values of all models share.
pub(super) fn budget(asked: Option<ByteSize>) -> u64 {
    let free = || available_bytes().map_or(BUDGET_BLIND, |free| free / BUDGET_SHARE[1] * BUDGET_SHARE[0]);
    asked.map_or_else(free, |size| size.0)
}

/// The text printed when the server listens.
pub(super) fn banner(entries: &[Entry], (budget, state): (u64, &str), url: &str) -> String {
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let line = |entry: &Entry| {
        let (Entry { name, bytes, .. }, source) = (entry, entry.source.for_host());
        // A pulled model is its own source.
        let source = if source == name { String::new() } else { format!("  {source}") };
        // What it may take, which the models make room for each other by.
        format!("  {name:width$}  up to {:>9}{source}\n", ByteSize(*bytes).to_string())
    };
    let models: String = entries.iter().map(line).collect();
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "kvik {version}\n{models}  share up to {} of memory, and are loaded when they are asked for\n  state    {state}\n\nlistening on {url}\nthe page is at {url}/\n",
        ByteSize(budget)
    )
}

impl ShelfModel {
    fn read(command: &Command, table: config::ModelTable, is_pulled: bool) -> anyhow::Result<ShelfModel> {
        let place = || format!("[models.{}]", table.name);
        let sets = |long: &str| table.flags.iter().any(|flag| flag == long);
        let in_table = |long: &str| sets(long).then(|| format!("{long} in {}", place()));
        let matches = command.clone().try_get_matches_from(&table.args);
        let matches = matches.map_err(|error| config::placed(error, in_table)).with_context(place)?;
        let mut args = match Cli::from_arg_matches(&matches).with_context(place)?.task {
            Task::Serve(args) => *args,
            Task::Doctor(args) => args.serve,
            _ => bail!("a model is served by `kvik serve`"),
        };
        // A table without a source has settings for the model of its name; `embedded` is the built-in model, as behind `-m`.
        if !sets("model") && table.name != EMBEDDED {
            args.model.take_of_shelf(table.name.clone());
        }
        // A pulled one has the flags of the server alone, which are checked for themselves.
        if !is_pulled {
            args.check_model().with_context(place)?;
        }
        let flags = config::flags_in_force(command, &matches);
        let config::ModelTable { name, aliases, tenants, .. } = table;
        Ok(ShelfModel { name, aliases, tenants, args, is_pulled, flags })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its flags of `kvik serve`.
    pub(super) fn args(&self) -> &ServeArgs {
        &self.args
    }

    /// Gives its keys and values a share of the budget, if no flag sets their size.
    pub(super) fn within(mut self, budget: u64) -> ShelfModel {
        self.args.cache.cache_ram.get_or_insert(ByteSize((budget / KV_SHARE).max(1)));
        self
    }

    /// Its entry on the shelf by the files that are here, loaded with the settings of `setup`.
    fn entry(self: Arc<Self>, setup: &Arc<LoadSetup>) -> Entry {
        let args = &self.args;
        let Files { model: file, weight_bytes, are_absent, stamps } = Files::of(args);
        let adapters = args.cache.lora.files();
        Entry {
            name: self.name.clone(),
            aliases: self.aliases(),
            adapters: adapters.iter().map(|file| fetch::adapter_name(&file.path)).collect(),
            source: args.model.source().into(),
            bytes: weight_bytes + args.cache.cache_ram.map_or(0, |size| size.0),
            file,
            is_absent: are_absent,
            keep_alive: args.keep_alive.0,
            tenants: self.tenants.clone(),
            is_pulled: self.is_pulled,
            flags: [&self.flags[..], &stamps].concat(),
            loader: Some(Arc::new(Loader { setup: setup.clone(), model: self })),
        }
    }

    /// Its other names, also those whose clients assume a window.
    fn aliases(&self) -> Vec<String> {
        let mut aliases = self.aliases.clone();
        for told in &self.args.told_window {
            if told.name != self.name && !aliases.contains(&told.name) {
                aliases.push(told.name.clone());
            }
        }
        aliases
    }
}

/// Settings for loading any model of a server.
pub(super) struct LoadSetup {
    pub(super) server: Arc<Server>,
    pub(super) around: ServerSetup,
    pub(super) runtime: Runtime,
    /// How long running requests may take when a model is unloaded.
    pub(super) grace: Duration,
}

/// The models of a server, which share `budget` bytes.
pub(super) struct Models {
    pub(super) source: ShelfSource,
    pub(super) setup: Arc<LoadSetup>,
    pub(super) budget: u64,
}

impl Models {
    /// Their entries on the shelf.
    pub(super) fn entries(&self, models: Vec<ShelfModel>) -> Vec<Entry> {
        models.into_iter().map(|model| Arc::new(model.within(self.budget)).entry(&self.setup)).collect()
    }
}

impl Catalogue for Models {
    fn read(&self) -> anyhow::Result<Vec<Entry>> {
        let models = self.source.read()?;
        // Those of tables were checked with their flags; pulled models have the flags outside the tables, which are read
        // again as well.
        models.iter().filter(|model| model.is_pulled).try_for_each(|model| model.args.check_model())?;
        Ok(self.entries(models))
    }

    fn pulled(&self) -> Option<kvik_shelf::Shelf> {
        self.source.pulled.clone()
    }
}

/// The loader of a model.
struct Loader {
    model: Arc<ShelfModel>,
    setup: Arc<LoadSetup>,
}

impl LoadModel for Loader {
    fn fetch(&self, cancelled: Cancelled<'_>) -> anyhow::Result<Entry> {
        files::fetch_all(&self.model.args, cancelled)?;
        Ok(self.model.clone().entry(&self.setup))
    }

    fn load(&self) -> anyhow::Result<OpenModel> {
        let (ShelfModel { name, args, .. }, setup) = (&*self.model, &self.setup);
        let around = Around { kv_events: None, variables: args.template.variables()? };
        let loaded = load::open_with(&args.model, &args.cache, args.capacity, around)?;
        let Loaded { mut serving, bytes, handle, .. } = loaded;
        serving.model.name.clone_from(name);
        args.embedding.apply(&mut serving.embedder);
        warn_without_template(&serving);
        // Their quotas hold for the prompts that are restored.
        handle.set_tenants(setup.server.keys().tenants().parts());
        handle.warm(args.cache.remote.warm());
        let config = args.app_config(&setup.around.of_model(name), &serving.model)?;
        let app = App::of(setup.server.clone(), serving, config);
        Ok(begin(&setup.runtime, app, handle, (bytes, setup.grace)))
    }

    fn describe(&self) -> anyhow::Result<Described> {
        described(&self.model.args)
    }

    fn cache_disk(&self) -> Option<PathBuf> {
        self.model.args.cache.cache_disk.directory()
    }
}

/// The description that the model of these flags has once it is loaded, by its headers and those of its draft model.
fn described(args: &ServeArgs) -> anyhow::Result<Described> {
    let loaded = files::headers(&args.model)?;
    let draft = args.draft().and_then(|draft| files::headers(&draft).ok());
    Ok(Described {
        own_name: url_name(&loaded.config.name),
        family: loaded.config.arch.name().to_owned(),
        context: args.context_of((&loaded, draft.as_ref()), available_bytes())?,
        vocabulary: loaded.tokenizer.vocab_len(),
        template: loaded.own_template()?.map(|template| template.source().to_owned()),
        sampling: loaded.sampling_defaults().under(&args.sampling.options(), SamplingSource::Flag),
        told_windows: args.told_window.clone(),
    })
}

/// A loaded model that takes `bytes` bytes, with its background tasks; closing it gives running requests `grace` to
/// finish.
pub(super) fn begin(
    runtime: &Runtime,
    app: Arc<App>,
    handle: Handle,
    (bytes, grace): (u64, Duration),
) -> OpenModel {
    let summaries = runtime.spawn(make_summaries(app.clone())).abort_handle();
    let restored = app.clone();
    runtime.spawn_blocking(move || api::restore_prompts(&restored));
    let (routes, engine) = (api::of_model(app.clone()), handle.clone());
    let next_turns = app.serving.next_turns.clone();
    let close = Box::new(move || {
        summaries.abort();
        next_turns.stop();
        engine.forget();
        engine.shutdown(grace);
    });
    OpenModel { app, routes, bytes, handle: Some(handle), close }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use kvik_serving::settings::{model::Meant, models_dir::ModelsDirArgs};

    /// What `kvik serve` serves with this file and these words, in a directory of its own; `None` for a single model.
    fn served(dir: &Path, file: &str, words: &[&str]) -> anyhow::Result<Option<Vec<ShelfModel>>> {
        let (path, models_dir) = (dir.join("config.toml"), dir.join("models"));
        fs::write(&path, file)?;
        let mut args: Vec<OsString> = vec!["kvik".into(), "--config".into(), path.into(), "serve".into()];
        args.push("--models-dir".into());
        args.push(models_dir.into());
        args.extend(words.iter().map(OsString::from));
        let matches = config::matches(&config::configure(Cli::command(), &args)?, &args)?;
        let mut task = Cli::from_arg_matches(&matches)?.task;
        task.take_model(matches.subcommand_matches("serve").unwrap())?;
        let Task::Serve(serve) = task else { panic!("the command is serve") };
        Ok(models(&serve, args)?.map(|(_, models)| models))
    }

    fn refused(dir: &Path, file: &str, words: &[&str]) -> String {
        let error = served(dir, file, words).map(|models| models.is_some()).unwrap_err();
        format!("{error:#}")
    }

    /// The embedded model answered under the name of such a table.
    #[test]
    fn a_table_without_a_source_has_settings_for_the_model_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file.gguf");
        fs::write(&path, b"GGUF").unwrap();
        let models_dir = ModelsDirArgs { models_dir: Some(dir.path().join("models")) };
        for name in ["m", "other"] {
            models_dir.shelf().unwrap().add(&path, &name.parse().unwrap()).unwrap();
        }
        let file = "[models.e]\nsource = \"embedded\"\n[models.embedded]\ncontext = 256\n\
            [models.m]\ncontext = 512\n";
        let models = served(dir.path(), file, &["--shelf"]).unwrap().unwrap();
        let facts = |model: &ShelfModel| {
            let meant = model.args.model.meant().map(Meant::text).map(str::to_owned);
            (meant, model.args.model.is_of_shelf, model.args.cache.context, model.is_pulled)
        };
        let own = |name: &str| Some(name.to_owned());
        assert_eq!(
            models.iter().map(facts).collect::<Vec<_>>(),
            [
                (None, false, None, false),
                (None, false, Some(256), false),
                (own("m"), true, Some(512), false),
                (own("other"), true, None, true)
            ]
        );
    }

    /// A model of the file or the environment turned the flag `--shelf` off, and nothing said so.
    #[test]
    fn a_shelf_is_served_where_its_flag_comes_before_a_model() {
        let dir = tempfile::tempdir().unwrap();
        for (file, words, expect) in [
            ("", &["-m", "embedded"][..], false),
            ("", &["--shelf"][..], true),
            ("model = \"embedded\"", &["--shelf"][..], true),
            ("shelf = true", &[][..], true),
            ("shelf = true", &["-m", "embedded"][..], false),
            ("shelf = true", &["embedded"][..], false),
        ] {
            let models = served(dir.path(), file, words).unwrap();
            assert_eq!(models.is_some(), expect, "{file} {words:?}");
        }
        for (file, words) in [
            ("", &["--shelf", "-m", "embedded"][..]),
            ("", &["--shelf", "embedded"][..]),
            ("model = \"embedded\"\nshelf = true", &[][..]),
        ] {
            let error = refused(dir.path(), file, words);
            assert!(error.contains("--shelf") && error.contains("embedded"), "{file} {words:?}: {error}");
        }
    }

    /// A reload accepted them, and took away the model that worked.
    #[test]
    fn settings_of_a_table_that_contradict_each_other_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (outside, settings, says) in [
            ("", "chat-template-kwargs = \"{enable_thinking: false}\"", "--chat-template-kwargs {enable"),
            ("kv = \"q8\"", "kv-map = \"x\"", "--kv-map"),
            ("device = \"cpu\"", "gpu-layers = 4", "--gpu-layers 4"),
        ] {
            let file = format!("{outside}\n[models.a]\nsource = \"embedded\"\n{settings}\n");
            let error = refused(dir.path(), &file, &[]);
            assert!(error.contains("[models.a]") && error.contains(says), "{error}");
        }
    }

    /// The context before the first load was the model's own, whatever memory keys and values have.
    #[test]
    fn a_model_is_described_as_it_is_once_it_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        for settings in
            ["cache-ram = \"1MiB\"", "cache-ram = \"1MiB\"\ndraft = \"embedded\"", "cache-ram = \"16MiB\""]
        {
            let own = "source = \"embedded\"\ndevice = \"cpu\"\ncache-disk = \"off\"\nparallel = 1";
            let file = format!("[models.a]\n{own}\n{settings}\n");
            let models = served(dir.path(), &file, &[]).unwrap().unwrap();
            let args = &models[0].args;
            let described = described(args).unwrap();
            let loaded = load::open_with(&args.model, &args.cache, args.capacity, Around::default()).unwrap();
            loaded.handle.shutdown(Duration::ZERO);
            let (model, template) = (&loaded.serving.model, &loaded.serving.texts.template);
            let template = template.as_ref().map(|template| template.source());
            assert_eq!(
                (described.context, &described.own_name, described.template.as_deref()),
                (model.context, &model.own_name, template),
                "{settings}"
            );
        }
    }
}
