//! The catalogue of models by name, and the status of each.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use axum::http::StatusCode;
use kvik_model::load::{LoadError, SamplingDefaults};
use kvik_text::files::FileError;

use super::{Found, OpenModel, Place, Shelf, there, turns::Phase};
use crate::{
    app::{keys::Caller, metrics::shelf::ModelNumbers, state::App},
    http::error::ApiError,
};
use kvik_serving::{
    HostText, ModelCard, Serving, causes::with_causes, fetch::Cancelled, is_short_for, means,
    settings::told_window::ToldWindow,
};

/// The source from which a server learns its models.
pub trait Catalogue: Send + Sync {
    /// Reads the catalogue. Blocking.
    fn read(&self) -> anyhow::Result<Vec<Entry>>;
    /// The models on disk by name, if all of them are served: those can be pulled, copied and removed at run time.
    fn pulled(&self) -> Option<kvik_shelf::Shelf>;
}

/// The loader of a model.
pub trait LoadModel: Send + Sync {
    /// Downloads those of its files that are not here, and returns its entry with what they say. Blocking.
    fn fetch(&self, cancelled: Cancelled<'_>) -> anyhow::Result<Entry>;
    /// Loads the model. Blocking.
    fn load(&self) -> anyhow::Result<OpenModel>;
    /// Reads the metadata in the model's file. Blocks briefly.
    fn describe(&self) -> anyhow::Result<Described>;
    /// The directory of its disk cache, if it has one.
    fn cache_disk(&self) -> Option<PathBuf>;
}

/// Facts about a model that need no weights.
pub struct Described {
    /// The name in its file.
    pub own_name: String,
    /// Its architecture, as GGUF names it.
    pub family: String,
    /// Maximum tokens of prompt and answer together.
    pub context: usize,
    /// Size of its vocabulary.
    pub vocabulary: usize,
    /// The source of its chat template.
    pub template: Option<String>,
    /// Sampling of requests that set none.
    pub sampling: SamplingDefaults,
    /// Names of the model under which clients assume another window than its context.
    pub told_windows: Vec<ToldWindow>,
}

impl Described {
    /// The description of a model in memory.
    fn of(app: &App) -> Described {
        let Serving { model, texts, .. } = &*app.serving;
        Described {
            own_name: model.own_name.clone(),
            family: model.family.clone(),
            context: model.context,
            vocabulary: texts.tokenizer.vocab_len(),
            template: texts.template.as_ref().map(|template| template.source().to_owned()),
            sampling: app.sampling(),
            told_windows: app.config.told_windows.clone(),
        }
    }

    /// The context that clients are told under this name.
    pub(crate) fn context_under(&self, name: &str) -> usize {
        ToldWindow::under(&self.told_windows, name).map_or(self.context, |told| told.tokens)
    }
}

/// Facts about a model's file that need no reading of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFile {
    /// Bytes of all its parts; 0 before it is downloaded.
    pub bytes: u64,
    /// Modification time, in seconds since 1970.
    pub modified_s: u64,
    /// Digest that identifies the file: 64 hexadecimal digits.
    pub digest: String,
}

/// A model by name.
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Other names of it.
    pub aliases: Vec<String>,
    /// Names of its adapters, each of which is a model to clients.
    pub adapters: Vec<String>,
    /// Path of its file.
    pub source: HostText,
    /// Bytes that it takes with its keys and values, as far as known before loading.
    pub bytes: u64,
    /// Its file.
    pub file: ModelFile,
    /// Whether some of its files are still to be downloaded.
    pub is_absent: bool,
    /// How long it stays in memory unused; for ever with `None`.
    pub keep_alive: Option<Duration>,
    /// The tenants that may use it; all with `None`.
    pub tenants: Option<Vec<String>>,
    /// Whether the model was pulled, so that it can be removed.
    pub is_pulled: bool,
    /// Its file and settings; when they change, it is reloaded.
    pub flags: Vec<String>,
    /// Its loader; absent for the only model of a server.
    pub loader: Option<Arc<dyn LoadModel>>,
}

impl Listed {
    /// Why it cannot be loaded, as far as a caller may know.
    pub(crate) fn why_failed(&self, caller: &Caller) -> Option<String> {
        self.failed.as_ref().map(|why| why.for_caller(caller.admin, NOT_FOR_TENANTS).to_owned())
    }

    /// Its numbers for the metrics.
    pub(crate) fn numbers(&self) -> ModelNumbers<'_> {
        ModelNumbers {
            name: &self.name,
            is_loaded: self.app.is_some(),
            bytes: self.bytes,
            in_use: self.in_use,
            waiting: self.waiting,
            loads: self.loads,
            load_time: self.load_time,
        }
    }
}

/// Told to a tenant about a failure whose text may name files of the server.
const NOT_FOR_TENANTS: &str = "the server's log says why";

/// Why a model could not be loaded.
pub(super) struct LoadFailure {
    pub(super) why: HostText,
    /// True if its file is unusable. What else was missing, such as memory or the hub, may be there the next time.
    is_final: bool,
}

impl From<anyhow::Error> for LoadFailure {
    fn from(error: anyhow::Error) -> LoadFailure {
        let is_final = match error.downcast_ref::<LoadError>() {
            None | Some(LoadError::File(FileError::Io { .. })) => false,
            Some(_) => true,
        };
        LoadFailure { why: with_causes(&error).into(), is_final }
    }
}

/// The error for a caller's request for a model that cannot be loaded. The next request tries to, but a client that asks
/// again at once would only have a broken file read again.
pub(super) fn load_failed(name: &str, failure: &LoadFailure, caller: &Caller) -> ApiError {
    let why = failure.why.for_caller(caller.admin, NOT_FOR_TENANTS);
    let message = format!("the model `{name}` cannot be loaded: {why}");
    match failure.is_final {
        true => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Some("model_load_failed"), message).for_good(),
        false => ApiError::unavailable("model_load_failed", message, 1),
    }
}

/// A model as it is listed.
pub struct Listed {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) source: HostText,
    /// Whether the model can be removed.
    pub(crate) is_pulled: bool,
    /// Bytes that it may take in memory, with all the keys and values that it may have.
    pub(crate) bytes: u64,
    pub(crate) file: ModelFile,
    /// `loaded`, `loading`, `unloading` or `unloaded`.
    pub(crate) status: &'static str,
    /// Requests that hold it, and that wait for it.
    pub(crate) in_use: usize,
    pub(crate) waiting: usize,
    /// Number of loads, and the duration of the last one.
    pub(crate) loads: u64,
    pub(crate) load_time: Duration,
    /// Time until it is unloaded, if it is not used.
    pub(crate) expires_in: Option<Duration>,
    /// Its card, once it was loaded.
    pub(crate) card: Option<ModelCard>,
    /// Why it cannot be loaded.
    pub(crate) failed: Option<HostText>,
    /// The model itself, while it is in memory.
    pub(crate) app: Option<Arc<App>>,
}

impl Entry {
    /// The only model of a server.
    pub(super) fn alone(card: &ModelCard) -> Entry {
        Entry {
            name: card.name.clone(),
            aliases: Some(card.own_name.clone()).filter(|own| *own != card.name).into_iter().collect(),
            adapters: Vec::new(),
            source: card.source.clone(),
            bytes: 0,
            file: ModelFile::default(),
            is_absent: false,
            keep_alive: None,
            tenants: None,
            is_pulled: false,
            flags: Vec::new(),
            loader: None,
        }
    }

    /// Whether a caller may use it.
    pub(super) fn is_for(&self, caller: &Caller) -> bool {
        let is_one = |tenants: &Vec<String>| tenants.iter().any(|name| *name == *caller.tenant.name);
        caller.admin || self.tenants.as_ref().is_none_or(is_one)
    }

    /// Whether a name in a request denotes it.
    pub(super) fn answers_to(&self, name: &str) -> bool {
        [&self.name].into_iter().chain(&self.aliases).any(|own| means(name, own))
    }

    /// Whether a name in a request is short for its name, which a pull by the short name has given it.
    pub(super) fn is_meant_by(&self, short: &str) -> bool {
        is_short_for(short, &self.name)
    }
}

impl Shelf {
    /// All models for a caller, in their order.
    pub(crate) fn list(&self, caller: &Caller) -> Vec<Listed> {
        let (now, places) = (self.now(), self.places());
        there(&places, caller).map(|place| place.listed(now)).collect()
    }

    /// The model that answers a caller's request which names none; `None` without models.
    pub(crate) fn default_name(&self, caller: &Caller) -> Option<String> {
        self.find("", caller).ok().map(|found| found.name)
    }

    /// A model by name.
    ///
    /// # Errors
    /// If there is none of that name.
    pub(crate) fn get(&self, name: &str, caller: &Caller) -> Result<Listed, ApiError> {
        let Found { index, .. } = self.find(name, caller)?;
        Ok(self.places()[index].listed(self.now()))
    }

    /// The description of a model, which is not loaded for it.
    ///
    /// # Errors
    /// If there is none of that name, or its file cannot be read.
    pub(crate) async fn describe(&self, name: &str, caller: &Caller) -> Result<Described, ApiError> {
        let Found { index, .. } = self.find(name, caller)?;
        let (entry, app) = {
            let place = &self.places()[index];
            (place.entry.clone(), place.open.as_ref().map(|open| open.app.clone()))
        };
        if let Some(app) = app {
            return Ok(Described::of(&app));
        }
        let loader = entry.loader.clone();
        let describe = move || loader.context("nothing loads it")?.describe();
        let described = tokio::task::spawn_blocking(describe).await.context("its reading failed").flatten();
        described.map_err(|error| {
            let failure = LoadFailure::from(error);
            tracing::warn!("the model {} cannot be read: {}", entry.name, failure.why.for_host());
            load_failed(&entry.name, &failure, caller)
        })
    }
}

impl Place {
    fn listed(&self, now: Duration) -> Listed {
        let Place { entry, standing, .. } = self;
        let status = match (standing.phase, self.is_loading || self.is_fetching) {
            (_, true) => "loading",
            (Phase::Cold, _) => "unloaded",
            (Phase::Loaded, _) => "loaded",
            (Phase::Closing, _) => "unloading",
        };
        let stays_until = standing.stays_until.filter(|_| standing.phase == Phase::Loaded);
        Listed {
            name: entry.name.clone(),
            aliases: entry.aliases.clone(),
            source: entry.source.clone(),
            is_pulled: entry.is_pulled,
            bytes: standing.bytes,
            file: entry.file.clone(),
            status,
            in_use: standing.in_use,
            waiting: self.waiting,
            loads: self.loads,
            load_time: standing.load_time,
            expires_in: stays_until.map(|until| until.saturating_sub(now)),
            card: self.card.clone(),
            failed: self.failed.as_ref().map(|(_, failure)| failure.why.clone()),
            app: self.open.as_ref().map(|open| open.app.clone()),
        }
    }
}
