//! The keeper carries out the scheduler's decisions: one model is loaded or unloaded at a time.

use std::{sync::Arc, time::Duration};

use anyhow::Context;

use super::{
    Entry, LoadFailure, OpenModel, Shelf, stay,
    turns::{Phase, ShelfTurn, next},
};
use crate::clock::spoken;

impl Shelf {
    /// Loads awaited models and unloads those that make room, until the server stops.
    pub async fn keep(self: Arc<Self>) {
        while !self.server.is_stopping() {
            let changed = self.changed.notified();
            self.fetch_absent();
            match self.next_turn() {
                ShelfTurn::Load(index) => self.load(index).await,
                ShelfTurn::Close(index) => self.places()[index].close(),
                ShelfTurn::Unload(index) => self.unload(index).await,
                ShelfTurn::Wait(None) => changed.await,
                ShelfTurn::Wait(Some(until)) => {
                    let pause = until.saturating_sub(self.now()).max(Duration::from_millis(1));
                    let _ = tokio::time::timeout(pause, changed).await;
                }
            }
        }
    }

    fn next_turn(&self) -> ShelfTurn {
        let standings: Vec<_> = self.places().iter().map(|place| place.standing.clone()).collect();
        next(&standings, self.budget, self.now())
    }

    async fn load(self: &Arc<Self>, index: usize) {
        let entry = self.begin_load(index);
        tracing::info!("loading the model {}", entry.name);
        let (loader, server, began) = (entry.loader.clone(), self.server.clone(), self.now());
        let load = move || {
            let loader = loader.context("nothing loads it")?;
            loader.cache_disk().iter().for_each(|folder| server.cache_folders.note(folder));
            loader.load().inspect(|open| open.tell_tenants(&server))
        };
        let loaded = blocking(load).await;
        self.put(index, &entry, loaded, self.now() - began);
        // If the tenants changed during loading, only the models already in place were told.
        let shelf = self.clone();
        let told = tokio::task::spawn_blocking(move || shelf.set_tenants(shelf.server.keys().tenants()));
        if let Err(panic) = told.await {
            tracing::error!("a model does not know its tenants: {panic}");
        }
    }

    fn begin_load(&self, index: usize) -> Arc<Entry> {
        let place = &mut self.places()[index];
        place.is_loading = true;
        place.entry.clone()
    }

    /// Puts a loaded model in its place, or the reason why it could not be loaded.
    pub(super) fn put(&self, index: usize, entry: &Entry, loaded: anyhow::Result<OpenModel>, took: Duration) {
        let name = &entry.name;
        let mut places = self.places();
        // Read under the lock: a failure that is older than a request that waits would not be told to it.
        let now = self.now();
        let place = &mut places[index];
        place.is_loading = false;
        match loaded {
            Ok(open) => {
                tracing::info!("the model {name} was loaded in {}", spoken(took));
                let standing = &mut place.standing;
                // An entry that has changed in the meantime is reloaded.
                let is_current = !place.is_gone && place.entry.flags == entry.flags;
                standing.phase = if is_current { Phase::Loaded } else { Phase::Closing };
                (standing.bytes, standing.load_time) = (open.bytes, took);
                (standing.loaded, standing.used) = (now, now);
                standing.stays_until = stay::after(now, entry.keep_alive);
                place.stay.clear();
                place.card = Some(open.app.serving.model.clone());
                place.loads += 1;
                place.flags_in_memory.clone_from(&entry.flags);
                (place.open, place.failed) = (Some(open), None);
            }
            Err(error) => {
                let failure = LoadFailure::from(error);
                tracing::warn!("the model {name} cannot be loaded: {}", failure.why.for_host());
                // Waiting requests are notified, and none remain.
                (place.failed, place.standing.awaited) = (Some((now, failure)), None);
            }
        }
        let is_there = place.open.is_some();
        drop(places);
        if is_there {
            *self.shade() = None;
        }
        self.loaded.notify_waiters();
    }

    /// Unloads a model that no request holds, after its cache is written to disk.
    async fn unload(self: &Arc<Self>, index: usize) {
        let (entry, open) = {
            let place = &mut self.places()[index];
            (place.entry.clone(), place.open.take())
        };
        if let Some(OpenModel { app, routes, close, .. }) = open {
            let (began, name) = (self.now(), entry.name.clone());
            *self.shade() = Some((entry, routes));
            let ended = tokio::task::spawn_blocking(move || {
                close();
                app.close();
            });
            if let Err(panic) = ended.await {
                tracing::error!("the model {name} did not end cleanly: {panic}");
            }
            tracing::info!("the model {name} is out of memory, after {}", spoken(self.now() - began));
        }
        let mut places = self.places();
        let place = &mut places[index];
        place.standing.phase = Phase::Cold;
        // Of other flags or another file the last load knows nothing.
        if place.flags_in_memory != place.entry.flags {
            place.standing.bytes = place.entry.bytes;
        }
        drop(places);
        self.loaded.notify_waiters();
    }
}

/// Runs work on a model that blocks.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(anyhow::anyhow!("its loading panicked: {panic}")))
}
