//! The models of a server: those in memory, those loaded on demand, and the leases on them.
//!
//! ```text
//! a request names a model ── take ──► a lease ──► its routes
//!                              │ not in memory          '── dropped when the answer has ended
//!                              ▼
//!      keeper: turns::next ──► load, close, unload
//!            '── fetch: a task for each model whose files are still on the hub
//! ```
//!
//! A model's cache is written to disk before the model is unloaded, so it is warm when reloaded. Models can be added
//! and removed while the server runs: `Shelf::reload`.

pub(crate) mod addressed;
mod catalogue;
mod changes;
mod fetch;
mod forget;
mod keeper;
mod lease;
mod pull;
mod stay;
mod turns;

use std::{
    cmp::Reverse,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::Router;
use kvik_model::pulse::Life;
use tokio::sync::Notify;

use super::{keys::Caller, life::is_stuck, server::Server, state::App};
use crate::{accounts::tenants::Tenants, http::error::ApiError};
use kvik_serving::{ModelCard, handle::Handle, means};

use catalogue::LoadFailure;
pub use catalogue::{Catalogue, Described, Entry, Listed, LoadModel, ModelFile};
pub(crate) use lease::Lease;
pub(crate) use pull::{Pull, PulledFile};
use stay::Stay;
use turns::{Phase, Standing};

/// Pause between two attempts to complete deletions before this node leaves.
const DELETE_AGAIN: Duration = Duration::from_millis(100);

/// A model in memory.
pub struct OpenModel {
    /// The model, served.
    pub app: Arc<App>,
    /// The routes that answer requests to it.
    pub routes: Router,
    /// Bytes of its weights, keys and values.
    pub bytes: u64,
    /// Handle of its engine, to pass on tenants and shutdown; absent for a scripted double.
    pub handle: Option<Handle>,
    /// Ends its engine after its cache is written to disk. Blocking.
    pub close: Box<dyn FnOnce() + Send>,
}

impl OpenModel {
    /// Passes the current tenants to its engine. Blocking.
    fn tell_tenants(&self, server: &Server) {
        if let Some(handle) = &self.handle {
            handle.set_tenants(server.keys().tenants().parts());
        }
    }
}

/// The models of a server.
pub struct Shelf {
    /// The part that all models share.
    pub server: Arc<Server>,
    /// The source of the models; absent for the only model of a server.
    catalogue: Option<Box<dyn Catalogue>>,
    /// Held while the catalogue is reread.
    reading: tokio::sync::Mutex<()>,
    /// Bytes for the weights, keys and values of all models in memory.
    budget: u64,
    started: Instant,
    /// An index remains a model's as long as a request holds the model or waits for it, or it is in memory.
    places: Mutex<Vec<Place>>,
    /// The shade of the last unloaded model, while no model is in memory. It answers questions that name no model, so
    /// that polling clients do not reload it.
    shade: Mutex<Option<(Arc<Entry>, Router)>>,
    /// Notified when a model is wanted, no longer used, loaded or removed.
    changed: Notify,
    /// Notifies requests that wait for a model.
    loaded: Notify,
}

/// The model that a request names, and its place at lookup.
struct Found {
    index: usize,
    name: String,
}

/// The state of a model.
struct Place {
    entry: Arc<Entry>,
    /// Rank among the server's models.
    order: usize,
    /// Whether the model was removed from the server.
    is_gone: bool,
    standing: Standing,
    stay: Stay,
    open: Option<OpenModel>,
    /// The model's description in answers, set at its first load.
    card: Option<ModelCard>,
    /// Number of requests waiting for it.
    waiting: usize,
    /// Time and reason of the last failure to load.
    failed: Option<(Duration, LoadFailure)>,
    /// Number of loads.
    loads: u64,
    /// The flags with which it was loaded last.
    flags_in_memory: Vec<String>,
    is_loading: bool,
    is_fetching: bool,
}

impl Shelf {
    /// A shelf with the models of a catalogue, which share `budget` bytes. The first one is the default for requests
    /// that name none.
    pub fn new(
        server: Arc<Server>,
        entries: Vec<Entry>,
        budget: u64,
        catalogue: Box<dyn Catalogue>,
    ) -> Arc<Shelf> {
        server.set_several_models();
        Shelf::with(server, entries, budget, Some(catalogue))
    }

    /// A shelf with a single model, which took `took` to load and is never unloaded.
    pub fn of(open: OpenModel, took: Duration) -> Arc<Shelf> {
        let entry = Entry::alone(&open.app.serving.model);
        let shelf = Shelf::with(open.app.server.clone(), vec![entry], u64::MAX, None);
        let entry = shelf.places()[0].entry.clone();
        shelf.put(0, &entry, Ok(open), took);
        shelf
    }

    fn with(
        server: Arc<Server>,
        entries: Vec<Entry>,
        budget: u64,
        catalogue: Option<Box<dyn Catalogue>>,
    ) -> Arc<Shelf> {
        Arc::new(Shelf {
            server,
            catalogue,
            reading: tokio::sync::Mutex::default(),
            budget,
            started: Instant::now(),
            places: Mutex::new(entries.into_iter().enumerate().map(Place::new).collect()),
            shade: Mutex::default(),
            changed: Notify::new(),
            loaded: Notify::new(),
        })
    }

    /// Whether there is a single model, which answers whatever a request names.
    pub(crate) fn has_one(&self) -> bool {
        self.catalogue.is_none()
    }

    /// The single model.
    pub(crate) fn only(&self) -> Option<Arc<App>> {
        self.has_one().then(|| self.open_apps().pop())?
    }

    /// Leases a model for a request by name; waits until it is in memory.
    ///
    /// # Errors
    /// If there is none of that name, or it cannot be loaded.
    pub(crate) async fn take(self: &Arc<Self>, name: &str, caller: &Caller) -> Result<Lease, ApiError> {
        let found = self.find(name, caller)?;
        let came = self.now();
        let mut waiting = None;
        loop {
            // Registered before the lookup, so that no notification is missed in between.
            let loaded = self.loaded.notified();
            if let Some(lease) = self.lease(&found, came, caller)? {
                return Ok(lease.after(waiting.map(|_| self.now() - came)));
            }
            waiting.get_or_insert_with(|| lease::Waiting::begin(self, found.index)).ask();
            loaded.await;
        }
    }

    /// Leases a model that is in memory, for a read-only request, which loads none.
    ///
    /// # Errors
    /// If there is none of that name, or it is not in memory.
    fn in_memory(self: &Arc<Self>, name: &str, caller: &Caller) -> Result<Lease, ApiError> {
        let found = self.find(name, caller)?;
        let lease = self.lease(&found, self.now(), caller)?;
        lease.ok_or_else(|| ApiError::not_in_memory(&found.name))
    }

    /// Leases a model for a question that names none: the most recently used model in memory, even if it accepts no
    /// more requests, else the shade of an unloaded one, else the first one, once it is loaded.
    async fn for_a_question(self: &Arc<Self>, caller: &Caller) -> Result<Lease, ApiError> {
        let shade = || self.shade().clone().filter(|(entry, _)| entry.is_for(caller));
        let of_shade = || shade().map(|(_, routes)| Lease::of_shade(routes));
        match self.present(caller).or_else(of_shade) {
            Some(lease) => Ok(lease),
            None => self.take("", caller).await,
        }
    }

    fn present(self: &Arc<Self>, caller: &Caller) -> Option<Lease> {
        let mut places = self.places();
        let open =
            places.iter().enumerate().filter(|(_, place)| place.open.is_some() && place.is_for(caller));
        let (index, _) = open.max_by_key(|(_, place)| place.standing.used)?;
        let place = &mut places[index];
        place.standing.in_use += 1;
        let routes = place.open.as_ref()?.routes.clone();
        Some(Lease::of_question(self.clone(), index, routes))
    }

    /// Stops a model from accepting requests; it is unloaded when running requests have ended. The only one of a server
    /// stays.
    ///
    /// # Errors
    /// If there is none of that name.
    pub(crate) fn close(&self, name: &str, caller: &Caller) -> Result<(), ApiError> {
        if self.has_one() {
            return Ok(());
        }
        let found = self.find(name, caller)?;
        let mut places = self.places();
        if let Some(place) = places.get_mut(found.index).filter(|place| place.entry.name == found.name) {
            place.close();
        }
        drop(places);
        self.changed.notify_one();
        Ok(())
    }

    /// Bytes that all models share; `None` for a single model.
    pub(crate) fn budget(&self) -> Option<u64> {
        (!self.has_one()).then_some(self.budget)
    }

    /// All models in memory, including those that accept no more requests.
    pub fn open_apps(&self) -> Vec<Arc<App>> {
        self.places().iter().filter_map(|place| Some(place.open.as_ref()?.app.clone())).collect()
    }

    /// Passes tenants to all models; models loaded later receive them then.
    pub(crate) fn set_tenants(&self, tenants: &Tenants) {
        for handle in self.handles() {
            handle.set_tenants(tenants.parts());
        }
    }

    /// Hands the hot blocks of all models over to other nodes, for at most `within`, unless some of them are still to be
    /// deleted. Blocks that long.
    pub fn leave_to_nodes(&self, within: Duration) {
        let nodes: Vec<Handle> = self.handles().into_iter().filter(Handle::is_node).collect();
        let begun = Instant::now();
        if nodes.is_empty() {
            return;
        }
        if !self.hear_deletions(within / 2) {
            return tracing::info!("leaving nothing to other nodes: some of it is still to be deleted");
        }
        let left = within.saturating_sub(begun.elapsed());
        std::thread::scope(|scope| {
            for handle in nodes {
                scope.spawn(move || handle.leave(left));
            }
        });
    }

    /// Hears of the deletions of other nodes, and completes all that are pending, as far as possible `within` this time.
    /// Returns whether none is left. Blocking.
    pub(crate) fn hear_deletions(&self, within: Duration) -> bool {
        let begun = Instant::now();
        self.server.conversations.hear_deletions();
        while !self.server.deletions.all().is_empty() && self.delete_all() != Some(true) {
            if begun.elapsed() >= within {
                return false;
            }
            std::thread::sleep(DELETE_AGAIN);
        }
        true
    }

    /// Reports the blocks in use on this node to other nodes, and removes what nodes that have ended reported before the
    /// last deletion. Blocking.
    pub(crate) fn tell_nodes(&self) {
        self.handles().iter().for_each(Handle::tell);
        self.server.hot_lists.iter().for_each(|lists| lists.sweep(Instant::now()));
    }

    /// Gives running requests up to `grace` to finish, and ends all engines.
    pub async fn shutdown(&self, grace: Duration) {
        self.open_apps().iter().for_each(|app| app.serving.next_turns.stop());
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

    /// The state of the engine that has been silent for longest.
    pub fn life(&self) -> Life {
        let lives = self.open_apps().into_iter().map(|app| app.serving.engine.life());
        lives.max_by_key(|life| (is_stuck(*life), life.age)).unwrap_or_default()
    }

    fn handles(&self) -> Vec<Handle> {
        self.places().iter().filter_map(|place| place.open.as_ref()?.handle.clone()).collect()
    }

    /// The model that a name denotes. Models that its tenant may not use are treated as absent.
    fn find(&self, name: &str, caller: &Caller) -> Result<Found, ApiError> {
        let places = self.places();
        let is_unnamed = self.has_one() || name.is_empty() || name == "kvik";
        let found = named(&places, (name, caller), &[Place::has_name]).or_else(|| match is_unnamed {
            true => last_used(&places, caller),
            false => {
                let ways = [Place::is_called, Place::answers_to, Place::is_meant_by];
                named(&places, (name, caller), &ways)
            }
        });
        let found = found.map(|index| Found { index, name: places[index].entry.name.clone() });
        found.ok_or_else(|| unknown(&places, (name, caller)))
    }

    /// Leases a model if it accepts requests.
    ///
    /// # Errors
    /// If it was removed, or loading it has failed since the request arrived.
    fn lease(
        self: &Arc<Self>,
        &Found { index, ref name }: &Found,
        came: Duration,
        caller: &Caller,
    ) -> Result<Option<Lease>, ApiError> {
        let mut places = self.places();
        let place = &mut places[index];
        // Its place may have been reused for another model in the meantime.
        if place.is_gone || place.entry.name != *name {
            return Err(ApiError::no_model(name, "it was taken off this server"));
        }
        let failed = place.failed.as_ref().filter(|(at, _)| *at >= came && place.open.is_none());
        if let Some((_, failure)) = failed {
            return Err(catalogue::load_failed(&place.entry.name, failure, caller));
        }
        let Some(open) = place.open.as_ref().filter(|_| place.takes_requests()) else { return Ok(None) };
        place.standing.in_use += 1;
        Ok(Some(Lease::of_use(self.clone(), index, open.routes.clone(), caller.tenant.id)))
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn shade(&self) -> MutexGuard<'_, Option<(Arc<Entry>, Router)>> {
        // The option is consistent after any panic.
        self.shade.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        // The places are consistent after any panic.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The models that a caller may use, in their order.
fn there<'a>(places: &'a [Place], caller: &Caller) -> impl Iterator<Item = &'a Place> {
    let mut there: Vec<&Place> = places.iter().filter(|place| place.is_for(caller)).collect();
    there.sort_by_key(|place| place.order);
    there.into_iter()
}

/// A way to understand a name: whether a model is meant by it.
type IsMeant = fn(&Place, &str) -> bool;

/// The model that a name means in one of these ways, the first before the others.
fn named(places: &[Place], (name, caller): (&str, &Caller), ways: &[IsMeant]) -> Option<usize> {
    let found =
        |is_meant: &IsMeant| places.iter().position(|place| place.is_for(caller) && is_meant(place, name));
    ways.iter().find_map(found)
}

/// The error for a name that means no model.
fn unknown(places: &[Place], (name, caller): (&str, &Caller)) -> ApiError {
    let names: Vec<&str> = there(places, caller).map(|place| place.entry.name.as_str()).collect();
    let there_is = match names.is_empty() {
        true => "this server has no models yet; `kvik pull` and `POST /api/pull` fetch one".to_owned(),
        false => {
            let meant = kvik_shelf::alike(name, names.iter().copied());
            let meant = meant.first().map_or(String::new(), |name| format!("did you mean `{name}`? "));
            format!("{meant}this server has {}", names.join(", "))
        }
    };
    ApiError::no_model(name, &there_is)
}

/// The most recently used model that accepts requests, else the first one.
fn last_used(places: &[Place], caller: &Caller) -> Option<usize> {
    let used = |place: &Place| place.takes_requests().then_some(place.standing.used);
    let there = places.iter().enumerate().filter(|(_, place)| place.is_for(caller));
    there.max_by_key(|(_, place)| (used(place), Reverse(place.order))).map(|(index, _)| index)
}

impl Place {
    fn new((order, entry): (usize, Entry)) -> Place {
        let standing = Standing { bytes: entry.bytes, is_absent: entry.is_absent, ..Standing::default() };
        Place {
            entry: Arc::new(entry),
            order,
            is_gone: false,
            standing,
            stay: Stay::default(),
            open: None,
            card: None,
            waiting: 0,
            failed: None,
            loads: 0,
            flags_in_memory: Vec::new(),
            is_loading: false,
            is_fetching: false,
        }
    }

    /// Whether a caller may use it.
    fn is_for(&self, caller: &Caller) -> bool {
        !self.is_gone && self.entry.is_for(caller)
    }

    /// Whether this is its name, letter by letter: there may be an `m:latest` beside `m`.
    fn has_name(&self, name: &str) -> bool {
        self.entry.name == name
    }

    /// Whether this is its name, as clients may write it.
    fn is_named(&self, name: &str) -> bool {
        means(name, &self.entry.name)
    }

    /// Whether the operator has given it this name.
    fn is_called(&self, name: &str) -> bool {
        self.entry.answers_to(name)
    }

    /// Whether a short name means it.
    fn is_meant_by(&self, short: &str) -> bool {
        self.entry.is_meant_by(short)
    }

    fn takes_requests(&self) -> bool {
        self.open.is_some() && self.standing.phase == Phase::Loaded
    }

    /// Whether a name is that of an adapter, or one that its file gives it.
    fn answers_to(&self, name: &str) -> bool {
        let of_adapter = self.entry.adapters.iter().any(|adapter| adapter == name);
        let of_card = self.card.as_ref().is_some_and(|card| card.name == name || card.own_name == name);
        of_adapter
            || of_card
            || self.open.as_ref().is_some_and(|open| open.app.serving.lora.find(name).is_some())
    }
}
