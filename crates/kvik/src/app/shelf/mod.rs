//! The models of a server: those in memory, those that are loaded when somebody asks for them, and who has which.
//!
//! ```text
//! a request names a model ── take ──► a lease ──► its routes
//!                              │ not in memory          '── dropped when the answer has ended
//!                              ▼
//!      keeper: turns::next ──► load, close, unload
//! ```
//!
//! What a model knows goes to disk before its memory does, so one that comes back is warm.

mod addressed;
mod catalogue;
mod keeper;
mod lease;
mod turns;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::Router;
use kvik_engine::pulse::Life;
use tokio::sync::Notify;

use super::{life::is_stuck, server::Server, state::App};
use crate::{
    accounts::tenants::Tenants,
    http::error::ApiError,
    serving::{ModelCard, load::Handle},
    settings::keep_alive::KeepAlive,
};

pub(crate) use catalogue::{Entry, Listed};
pub(crate) use lease::Lease;
use turns::{Phase, Standing};

/// A model in memory.
pub(crate) struct OpenModel {
    pub(crate) app: Arc<App>,
    /// What answers requests to it.
    pub(crate) routes: Router,
    /// Bytes of its weights, keys and values.
    pub(crate) bytes: u64,
    /// Its engine, to tell it of tenants and of the end; none with a scripted double.
    pub(crate) handle: Option<Handle>,
    /// Ends its engine, when what it knows is on disk. Takes its time.
    pub(crate) close: Box<dyn FnOnce() + Send>,
}

/// Loads a model. Takes its time.
pub(crate) trait OpenModels: Send + Sync {
    fn open(&self, name: &str) -> anyhow::Result<OpenModel>;
}

/// The models of a server.
pub(crate) struct Shelf {
    pub(crate) server: Arc<Server>,
    entries: Vec<Entry>,
    opener: Box<dyn OpenModels>,
    /// Bytes for the weights, keys and values of all models in memory.
    budget: u64,
    started: Instant,
    places: Mutex<Vec<Place>>,
    /// What is left of the model that was taken out of memory last, while there is none in it: it answers what is asked of
    /// the server and not of a model.
    shade: Mutex<Option<Router>>,
    /// Told when a model is wanted, no longer used, loaded or gone.
    changed: Notify,
    /// Told to those who wait for a model.
    loaded: Notify,
}

/// What there is of a model.
#[derive(Default)]
struct Place {
    standing: Standing,
    open: Option<OpenModel>,
    /// What the model is called in answers, since it was first loaded.
    card: Option<ModelCard>,
    /// How many wait for it.
    waiting: usize,
    /// When loading failed last, and why.
    failed: Option<(Duration, String)>,
    /// Times it was loaded.
    loads: u64,
    is_loading: bool,
}

impl Shelf {
    /// Models that share so many bytes; the first one is that of requests which name none.
    pub(crate) fn new(
        server: Arc<Server>,
        entries: Vec<Entry>,
        budget: u64,
        opener: Box<dyn OpenModels>,
    ) -> Arc<Shelf> {
        let place = |entry: &Entry| Place {
            standing: Standing { bytes: entry.bytes, keep_alive: entry.keep_alive, ..Standing::default() },
            ..Place::default()
        };
        let places = Mutex::new(entries.iter().map(place).collect());
        let (changed, loaded) = (Notify::new(), Notify::new());
        let shelf = Shelf {
            server,
            entries,
            opener,
            budget,
            started: Instant::now(),
            places,
            shade: Mutex::default(),
            changed,
            loaded,
        };
        let shelf = Arc::new(shelf);
        shelf.server.shelve(&shelf);
        shelf
    }

    /// One model, which is there and stays.
    pub(crate) fn of(open: OpenModel) -> Arc<Shelf> {
        struct Nothing;
        impl OpenModels for Nothing {
            fn open(&self, _: &str) -> anyhow::Result<OpenModel> {
                anyhow::bail!("there is one model, and it is open")
            }
        }
        let entry = Entry::alone(&open.app.serving.model.name);
        let shelf = Shelf::new(open.app.server.clone(), vec![entry], u64::MAX, Box::new(Nothing));
        shelf.put(0, Ok(open), Duration::ZERO);
        shelf
    }

    /// Whether there is one model, which answers whatever a request names.
    pub(crate) fn has_one(&self) -> bool {
        self.entries.len() == 1
    }

    /// A model for a request that names it so; waits until it is in memory.
    ///
    /// # Errors
    /// If there is none of that name, or it cannot be loaded.
    pub(crate) async fn take(self: &Arc<Self>, name: &str) -> Result<Lease, ApiError> {
        let index = self.find(name)?;
        let came = self.now();
        let mut waiting = None;
        loop {
            // Registered before looking, so that nothing is missed in between.
            let loaded = self.loaded.notified();
            if let Some(lease) = self.lease(index, came)? {
                return Ok(lease.after(waiting.map(|_| self.now() - came)));
            }
            waiting.get_or_insert_with(|| lease::Waiting::begin(self, index));
            loaded.await;
        }
    }

    /// A model that is in memory, even if it takes no more requests, for a question: that of a name, else the one that was
    /// used last.
    fn present(self: &Arc<Self>, name: &str) -> Option<Lease> {
        let named = self.entries.iter().position(|entry| entry.answers_to(name));
        let mut places = self.places();
        let open = |index: &usize| places[*index].open.is_some();
        let used = |index: &usize| places[*index].standing.used;
        let index = named.filter(open).or_else(|| (0..places.len()).filter(open).max_by_key(used))?;
        let place = &mut places[index];
        place.standing.in_use += 1;
        let routes = place.open.as_ref()?.routes.clone();
        Some(Lease::new(self.clone(), index, routes).for_a_question())
    }

    /// What answers questions about the server, or about a model that need not be in memory for that: one that is, what is
    /// left of one, or the first, once it is loaded.
    async fn of_server(self: &Arc<Self>, name: &str) -> Result<Lease, ApiError> {
        let shade = || self.shade().clone().map(Lease::of_shade);
        match self.present(name).or_else(shade) {
            Some(lease) => Ok(lease),
            None => self.take("").await,
        }
    }

    /// A model takes no more requests, and is out of memory when what runs has ended. The only one of a server stays.
    ///
    /// # Errors
    /// If there is none of that name.
    pub(crate) fn close(&self, name: &str) -> Result<(), ApiError> {
        if self.has_one() {
            return Ok(());
        }
        let index = self.find(name)?;
        let mut places = self.places();
        if places[index].takes_requests() {
            places[index].standing.phase = Phase::Closing;
        }
        drop(places);
        self.changed.notify_one();
        Ok(())
    }

    /// A model stays for so long without a use, until somebody says otherwise.
    fn keep_alive(&self, name: &str, KeepAlive(time): KeepAlive) {
        if let Ok(index) = self.find(name) {
            self.places()[index].standing.keep_alive = time;
            self.changed.notify_one();
        }
    }

    /// Bytes that all models share; `None` where there is one.
    pub(crate) fn budget(&self) -> Option<u64> {
        (!self.has_one()).then_some(self.budget)
    }

    /// All models in memory, also those that take no more requests.
    pub(crate) fn open_apps(&self) -> Vec<Arc<App>> {
        self.places().iter().filter_map(|place| Some(place.open.as_ref()?.app.clone())).collect()
    }

    /// From now on tenants share the models like this; those that are loaded later learn it then.
    pub(crate) fn set_tenants(&self, tenants: &Tenants) {
        for handle in self.handles() {
            handle.set_tenants(tenants);
        }
    }

    /// Gives what runs up to `grace` to finish, and ends all engines.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        let ending: Vec<_> = self
            .handles()
            .into_iter()
            .map(|handle| tokio::task::spawn_blocking(move || handle.shutdown(grace)))
            .collect();
        for ended in ending {
            if let Err(panic) = ended.await {
                tracing::error!("the engine did not shut down cleanly: {panic}");
            }
        }
    }

    /// Where the engines stand: the one that has been silent for longest.
    pub(crate) fn life(&self) -> Life {
        let lives = self.open_apps().into_iter().map(|app| app.serving.engine.life());
        lives.max_by_key(|life| (is_stuck(*life), life.age)).unwrap_or_default()
    }

    fn handles(&self) -> Vec<Handle> {
        self.places().iter().filter_map(|place| place.open.as_ref()?.handle.clone()).collect()
    }

    /// Which model a request means.
    fn find(&self, name: &str) -> Result<usize, ApiError> {
        if self.has_one() {
            return Ok(0);
        }
        if name.is_empty() || name == "kvik" {
            let places = self.places();
            let used = |index: &usize| places[*index].takes_requests().then(|| places[*index].standing.used);
            return Ok((0..places.len()).rev().max_by_key(used).unwrap_or(0));
        }
        let named = self.entries.iter().position(|entry| entry.answers_to(name));
        named.or_else(|| self.places().iter().position(|place| place.answers_to(name))).ok_or_else(|| {
            let names: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
            ApiError::no_model(name, &format!("this server has {}", names.join(", ")))
        })
    }

    /// A lease of a model that takes requests.
    ///
    /// # Errors
    /// If loading it failed since the request came.
    fn lease(self: &Arc<Self>, index: usize, came: Duration) -> Result<Option<Lease>, ApiError> {
        let mut places = self.places();
        let place = &mut places[index];
        if let Some((at, why)) = place.failed.as_ref().filter(|(at, _)| *at >= came && place.open.is_none()) {
            let message = format!("the model `{}` cannot be loaded: {why}", self.entries[index].name);
            tracing::debug!("{message} ({at:?})");
            return Err(ApiError::unavailable("model_load_failed", message, 1));
        }
        let Some(open) = place.open.as_ref().filter(|_| place.takes_requests()) else { return Ok(None) };
        place.standing.in_use += 1;
        Ok(Some(Lease::new(self.clone(), index, open.routes.clone())))
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn shade(&self) -> MutexGuard<'_, Option<Router>> {
        // It is there or not whatever panicked.
        self.shade.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        // Numbers are whole whatever panicked.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn takes_requests(&self) -> bool {
        self.open.is_some() && self.standing.phase == Phase::Loaded
    }

    /// Whether a name is one that its file gives it, or that of an adapter.
    fn answers_to(&self, name: &str) -> bool {
        let of_card = self.card.as_ref().is_some_and(|card| card.name == name || card.own_name == name);
        of_card || self.open.as_ref().is_some_and(|open| open.app.serving.lora.find(name).is_some())
    }
}
