//! Carries out the turns: one model is loaded or taken out of memory at a time.

use std::{sync::Arc, time::Duration};

use super::{
    OpenModel, Shelf,
    turns::{Phase, ShelfTurn, next},
};

impl Shelf {
    /// Loads models that are waited for and takes out those that make way, until the server stops.
    pub(crate) async fn keep(self: Arc<Self>) {
        while !self.server.is_stopping() {
            let changed = self.changed.notified();
            match self.next_turn() {
                ShelfTurn::Load(index) => self.load(index).await,
                ShelfTurn::Close(index) => self.places()[index].standing.phase = Phase::Closing,
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
        let name = self.entries[index].name.clone();
        tracing::info!("loading the model {name}");
        self.places()[index].is_loading = true;
        let (shelf, began) = (self.clone(), self.now());
        let opened = tokio::task::spawn_blocking(move || shelf.opener.open(&name)).await;
        let opened = opened.unwrap_or_else(|panic| Err(anyhow::anyhow!("its loading panicked: {panic}")));
        self.put(index, opened.map_err(|error| format!("{error:#}")), self.now() - began);
    }

    /// Puts a model that was loaded in its place, or the reason why it was not.
    pub(super) fn put(&self, index: usize, opened: Result<OpenModel, String>, took: Duration) {
        let (now, name) = (self.now(), &self.entries[index].name);
        let mut places = self.places();
        let place = &mut places[index];
        place.is_loading = false;
        match opened {
            Ok(open) => {
                tracing::info!("the model {name} was loaded in {:.2} s", took.as_secs_f64());
                let standing = &mut place.standing;
                (standing.phase, standing.bytes, standing.load_time) = (Phase::Loaded, open.bytes, took);
                (standing.loaded, standing.used) = (now, now);
                place.card = Some(open.app.serving.model.clone());
                place.loads += 1;
                (place.open, place.failed) = (Some(open), None);
            }
            Err(why) => {
                tracing::warn!("the model {name} cannot be loaded: {why}");
                // Those who wait are told, and nobody waits any more.
                (place.failed, place.standing.awaited) = (Some((now, why)), None);
            }
        }
        let is_there = place.open.is_some();
        drop(places);
        if is_there {
            *self.shade() = None;
        }
        self.loaded.notify_waiters();
    }

    /// Takes a model out of memory that nobody has, when what it knows is on disk.
    async fn unload(self: &Arc<Self>, index: usize) {
        let name = &self.entries[index].name;
        let open = self.places()[index].open.take();
        if let Some(OpenModel { app, routes, close, .. }) = open {
            let began = self.now();
            *self.shade() = Some(routes);
            let ended = tokio::task::spawn_blocking(move || {
                close();
                app.close();
            });
            if let Err(panic) = ended.await {
                tracing::error!("the model {name} did not end cleanly: {panic}");
            }
            let took = (self.now() - began).as_secs_f64();
            tracing::info!("the model {name} is out of memory, after {took:.2} s");
        }
        let mut places = self.places();
        let place = &mut places[index];
        place.standing.phase = Phase::Cold;
        place.standing.bytes = self.entries[index].bytes.max(place.standing.bytes);
        drop(places);
        self.loaded.notify_waiters();
    }
}
