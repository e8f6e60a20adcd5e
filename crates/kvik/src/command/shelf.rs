//! A server of several models: which there are, what memory they share, and how one of them is loaded.

use std::{ffi::OsString, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use clap::{Command, FromArgMatches};
use kvik_shelf::Kind;
use tokio::runtime::Handle as Runtime;

use super::{
    Cli, Task,
    serve::{ServeArgs, ServerSetup},
};
use crate::{
    api,
    app::{
        App,
        memory::rebuild::make_summaries,
        server::Server,
        shelf::{Entry, OpenModel, OpenModels},
    },
    serving::{
        load::{self, Handle, Loaded},
        memory,
    },
    settings::{config, size::ByteSize},
};

/// Of the free memory, models take this much by default.
const BUDGET_SHARE: [u64; 2] = [3, 4];
/// Where the free memory is unknown.
const BUDGET_BLIND: u64 = 8 << 30;
/// The part of the budget that the keys and values of one model have by default.
const KV_SHARE: u64 = 8;

/// A model of the shelf, with the flags that hold for it.
pub(crate) struct ShelfModel {
    pub(crate) name: String,
    aliases: Vec<String>,
    args: ServeArgs,
}

/// The models of the configuration, and with `--shelf` those that were pulled; none where a flag names the one to serve.
pub(crate) fn models(
    serve: &ServeArgs,
    command: Command,
    args: &[OsString],
) -> anyhow::Result<Vec<ShelfModel>> {
    if serve.model.model.is_some() {
        return Ok(Vec::new());
    }
    let mut tables = config::models(&command, args)?;
    if serve.shelf {
        let named: Vec<String> = tables.iter().map(|table| table.name.clone()).collect();
        tables.extend(pulled(serve, args)?.into_iter().filter(|table| !named.contains(&table.name)));
        if tables.is_empty() {
            bail!(
                "--shelf: there are no models yet; `kvik pull` fetches one, and config.toml takes [models.NAME]"
            );
        }
    }
    // What a table says stands behind the flags, and wins.
    let command = command.mut_subcommand("serve", |serve| serve.args_override_self(true));
    let read = |table: config::ModelTable| {
        let matches = command.clone().try_get_matches_from(&table.args);
        let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
        let task = parsed.with_context(|| format!("[models.{}]", table.name))?.task;
        let Task::Serve(args) = task else { bail!("a model is served by `kvik serve`") };
        Ok(ShelfModel { name: table.name, aliases: table.aliases, args: *args })
    };
    tables.into_iter().map(read).collect()
}

/// The models of `kvik list`, each with the words of `kvik serve`.
fn pulled(serve: &ServeArgs, args: &[OsString]) -> anyhow::Result<Vec<config::ModelTable>> {
    let manifests = serve.model.models_dir.shelf()?.list()?.manifests;
    let models = manifests.into_iter().filter(|manifest| manifest.kind == Kind::Model);
    let table = |name: String| {
        let mut args = args.to_vec();
        args.push(format!("--model={name}").into());
        config::ModelTable { name, aliases: Vec::new(), args }
    };
    Ok(models.map(|manifest| table(manifest.name.to_string())).collect())
}

/// Bytes that the weights, keys and values of all models share.
pub(super) fn budget(asked: Option<ByteSize>) -> u64 {
    let free =
        || memory::available_bytes().map_or(BUDGET_BLIND, |free| free / BUDGET_SHARE[1] * BUDGET_SHARE[0]);
    asked.map_or_else(free, |size| size.0)
}

/// What is printed when the server listens.
pub(super) fn banner(entries: &[Entry], budget: u64, url: &str) -> String {
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let line = |entry: &Entry| {
        let Entry { name, source, bytes, .. } = entry;
        format!("  {name:width$}  {:>9}  {source}\n", ByteSize(*bytes).to_string())
    };
    let models: String = entries.iter().map(line).collect();
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "kvik {version}\n{models}  share {} of memory, and are loaded when they are asked for\n\nlistening on {url}\nthe page is at {url}/\n",
        ByteSize(budget)
    )
}

impl ShelfModel {
    /// Gives its keys and values a share of the budget, if no flag says how much they have.
    pub(super) fn within(mut self, budget: u64) -> ShelfModel {
        self.args.cache.cache_ram.get_or_insert(ByteSize((budget / KV_SHARE).max(1)));
        self
    }

    /// Bytes of its files; 0 where they are not there yet.
    fn file_bytes(&self) -> u64 {
        let source = self.args.model.source();
        let named = || Some(self.args.model.models_dir.shelf().ok()?.find(source).ok()?.bytes());
        bytes_at(Path::new(source)).or_else(named).unwrap_or(0)
    }

    /// How it stands on the shelf.
    pub(super) fn entry(&self) -> Entry {
        let kv = self.args.cache.cache_ram.map_or(0, |size| size.0);
        let source = self.args.model.source().to_owned();
        Entry {
            name: self.name.clone(),
            aliases: self.aliases.clone(),
            bytes: self.file_bytes() + kv,
            source,
            keep_alive: self.args.keep_alive.0,
        }
    }
}

/// Bytes of a file, or of those in a folder.
fn bytes_at(path: &Path) -> Option<u64> {
    let found = path.metadata().ok()?;
    if !found.is_dir() {
        return Some(found.len());
    }
    let entries = path.read_dir().into_iter().flatten().flatten();
    Some(entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum())
}

/// Loads the models of a server.
pub(super) struct Opener {
    pub(super) models: Vec<ShelfModel>,
    pub(super) server: Arc<Server>,
    pub(super) around: ServerSetup,
    pub(super) runtime: Runtime,
    /// How long what a model computes for others may take when it is to go.
    pub(super) grace: Duration,
}

impl OpenModels for Opener {
    fn open(&self, name: &str) -> anyhow::Result<OpenModel> {
        let model = self.models.iter().find(|model| model.name == name).context("it is not on the shelf")?;
        let args = &model.args;
        let Loaded { mut serving, budget, handle, .. } = load::open(&args.model, &args.cache, args.capacity)?;
        name.clone_into(&mut serving.model.name);
        args.embedding.apply(&mut serving.embedder);
        handle.set_tenants(self.server.keys().tenants());
        let bytes = serving.model.bytes + budget.bytes();
        let config = args.app_config(&self.around.of_model(name), &serving.model)?;
        let app = App::of(self.server.clone(), serving, config);
        Ok(begin(&self.runtime, app, handle, (bytes, self.grace)))
    }
}

/// A loaded model that takes so many bytes, with what it does beside answering; its end gives what runs so much time.
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
    let close = Box::new(move || {
        summaries.abort();
        engine.shutdown(grace);
    });
    OpenModel { app, routes, bytes, handle: Some(handle), close }
}
