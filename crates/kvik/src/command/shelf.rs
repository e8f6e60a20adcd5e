//! A server of several models: the catalogue, the shared memory, and the loading of a model.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use clap::{Command, CommandFactory, FromArgMatches};
use kvik_engine::free_memory::available_bytes;
use kvik_memory::memory::make_summaries;
use kvik_model::load::{LoadedModel, SamplingSource};
use kvik_shelf::{Kind, Manifest, ShelfFile};
use tokio::runtime::Handle as Runtime;

use super::config;
use super::{
    Cli, Task,
    serve_args::{ServeArgs, ServerSetup, warn_without_template},
};
use kvik_server::{
    api,
    app::{
        App,
        server::Server,
        shelf::{Catalogue, Described, Entry, LoadModel, ModelFile, OpenModel},
    },
};
use kvik_serving::{
    fetch,
    handle::Handle,
    load::{self, Around, Loaded},
    names::{self, Named},
    settings::{model::ModelArgs, size::ByteSize},
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
        let table = |name: String| {
            let mut args = self.args.clone();
            args.push(format!("--model={name}").into());
            config::ModelTable {
                name,
                aliases: Vec::new(),
                tenants: None,
                args,
                flags: vec!["model".to_owned()],
            }
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
        let in_table = |long: &str| {
            table.flags.iter().any(|flag| flag == long).then(|| format!("{long} in {}", place()))
        };
        let matches = command.clone().try_get_matches_from(&table.args);
        let matches = matches.map_err(|error| config::placed(error, in_table)).with_context(place)?;
        let args = match Cli::from_arg_matches(&matches).with_context(place)?.task {
            Task::Serve(args) => *args,
            Task::Doctor(args) => args.serve,
            _ => bail!("a model is served by `kvik serve`"),
        };
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

    /// Its entry on the shelf, loaded with the settings of `setup`.
    pub(super) fn entry(self, setup: &Arc<LoadSetup>) -> Entry {
        let ShelfModel { name, mut aliases, tenants, args, is_pulled, mut flags } = self;
        let kv = args.cache.cache_ram.map_or(0, |size| size.0);
        let (path, file) = file_of(&args.model).unwrap_or_default();
        // Pulling it again may replace the file under the same name.
        flags.push(format!("file={}", path.display()));
        let adapters = args.cache.lora.files();
        for told in &args.told_window {
            if told.name != name && !aliases.contains(&told.name) {
                aliases.push(told.name.clone());
            }
        }
        Entry {
            name: name.clone(),
            aliases,
            adapters: adapters.iter().map(|file| fetch::adapter_name(&file.path)).collect(),
            source: args.model.source().into(),
            bytes: file.bytes + kv,
            file,
            keep_alive: args.keep_alive.0,
            tenants,
            is_pulled,
            flags,
            loader: Some(Arc::new(Loader { name, args, setup: setup.clone() })),
        }
    }
}

/// The path of a model's file, and facts about it; `None` if it is still to be downloaded.
fn file_of(model: &ModelArgs) -> Option<(PathBuf, ModelFile)> {
    let source = model.source();
    if let Some(file) = file_at(Path::new(source)) {
        return Some((source.into(), file));
    }
    let shelf = model.models_dir.shelf().ok()?;
    let Named::Here(manifest) = names::find(&shelf, source, Kind::Model).ok()? else { return None };
    Some((shelf.path(&manifest).ok()?, pulled_file(&manifest)))
}

/// Facts about a file, or the files in a folder. The digest covers their names, sizes and times, since their contents
/// are not read.
fn file_at(path: &Path) -> Option<ModelFile> {
    let parts = match path.metadata().ok()? {
        found if found.is_dir() => {
            let entries = path.read_dir().into_iter().flatten().flatten();
            let mut parts: Vec<_> =
                entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?))).collect();
            parts.sort_by(|(a, _), (b, _)| a.cmp(b));
            parts
        }
        found => vec![(path.to_owned(), found)],
    };
    let mut hash = blake3::Hasher::new();
    let mut file = ModelFile::default();
    for (path, found) in parts {
        let modified_s = found.modified().ok()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        hash.update(path.as_os_str().as_encoded_bytes()).update(&found.len().to_le_bytes());
        hash.update(&modified_s.to_le_bytes());
        file.bytes += found.len();
        file.modified_s = file.modified_s.max(modified_s);
    }
    Some(ModelFile { digest: hash.finalize().to_hex().to_string(), ..file })
}

/// Facts about the files of a manifest. The digest of a single file is its SHA-256, as the hub reports it.
fn pulled_file(manifest: &Manifest) -> ModelFile {
    let digest = match &manifest.files[..] {
        [ShelfFile { sha256: Some(sha256), .. }] => sha256.clone(),
        files => {
            let mut hash = blake3::Hasher::new();
            for ShelfFile { path, size, sha256 } in files {
                hash.update(path.as_bytes()).update(&size.to_le_bytes());
                hash.update(sha256.as_deref().unwrap_or_default().as_bytes());
            }
            hash.finalize().to_hex().to_string()
        }
    };
    ModelFile { bytes: manifest.bytes(), modified_s: manifest.added_s, digest }
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
        models.into_iter().map(|model| model.within(self.budget).entry(&self.setup)).collect()
    }
}

impl Catalogue for Models {
    fn read(&self) -> anyhow::Result<Vec<Entry>> {
        Ok(self.entries(self.source.read()?))
    }

    fn pulled(&self) -> Option<kvik_shelf::Shelf> {
        self.source.pulled.clone()
    }
}

/// The loader of a model.
struct Loader {
    name: String,
    args: ServeArgs,
    setup: Arc<LoadSetup>,
}

impl LoadModel for Loader {
    fn load(&self) -> anyhow::Result<OpenModel> {
        let Loader { name, args, setup } = self;
        let around = Around { kv_events: None, variables: args.template.variables()? };
        let loaded = load::open_with(&args.model, &args.cache, args.capacity, around)?;
        let Loaded { mut serving, budget, handle, .. } = loaded;
        serving.model.name.clone_from(name);
        args.embedding.apply(&mut serving.embedder);
        warn_without_template(&serving);
        // Their quotas hold for the prompts that are restored.
        handle.set_tenants(setup.server.keys().tenants().parts());
        handle.warm(args.cache.remote.warm());
        let bytes = serving.model.bytes + budget.bytes();
        let config = args.app_config(&setup.around.of_model(name), &serving.model)?;
        let app = App::of(setup.server.clone(), serving, config);
        Ok(begin(&setup.runtime, app, handle, (bytes, setup.grace)))
    }

    fn describe(&self) -> anyhow::Result<Described> {
        let args = &self.args;
        file_of(&args.model).context("it is fetched when it is asked for first")?;
        let loaded = args.model.load()?;
        let sampling = loaded.sampling_defaults().under(&args.sampling.options(), SamplingSource::Flag);
        let LoadedModel { config, tokenizer, chat_template, .. } = loaded;
        Ok(Described {
            own_name: config.name,
            family: config.arch.name().to_owned(),
            context: args.cache.context.unwrap_or(config.context),
            vocabulary: tokenizer.vocab_len(),
            template: chat_template,
            sampling,
            told_windows: args.told_window.clone(),
        })
    }

    fn cache_disk(&self) -> Option<PathBuf> {
        self.args.cache.cache_disk.directory()
    }
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
    use std::fs;

    use super::*;
    use kvik_serving::settings::models_dir::ModelsDirArgs;

    #[test]
    fn a_file_is_known_without_reading_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        fs::write(&path, b"GGUF and more").unwrap();
        let file = file_at(&path).unwrap();
        assert_eq!((file.bytes, file.digest.len()), (13, 64));
        assert!(file.modified_s > 1_700_000_000, "{file:?}");
        assert_eq!(file_at(&path).unwrap(), file);
        fs::write(&path, b"GGUF and much more").unwrap();
        assert_ne!(file_at(&path).unwrap().digest, file.digest, "another file has another digest");
        let folder = file_at(dir.path()).unwrap();
        assert_eq!((folder.bytes, folder.digest.len()), (18, 64));
        assert_eq!(file_at(&dir.path().join("nothere")), None);
    }

    #[test]
    fn a_named_model_has_the_size_and_time_of_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        fs::write(&path, b"GGUF and more").unwrap();
        let models_dir = ModelsDirArgs { models_dir: Some(dir.path().join("models")) };
        let manifest = models_dir.shelf().unwrap().add(&path, &"m".parse().unwrap()).unwrap();
        let mut args = ModelArgs::embedded().of("m");
        args.models_dir = models_dir;
        let (found, file) = file_of(&args).unwrap();
        assert!(found.ends_with("m.gguf"));
        assert_eq!((file.bytes, file.modified_s, file.digest.len()), (13, manifest.added_s, 64));
    }
}
