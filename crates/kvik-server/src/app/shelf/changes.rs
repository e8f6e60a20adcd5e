//! Models that are added, changed and removed while the server runs.

use std::sync::Arc;

use axum::http::StatusCode;

use super::{Entry, Place, Shelf, stay, turns::Phase};
use crate::http::error::ApiError;
use kvik_serving::causes::with_causes;

impl Shelf {
    /// Reads the catalogue again. New models become available, removed ones accept no more requests, and a loaded one
    /// whose flags have changed is reloaded at its next request. Running requests are unaffected.
    ///
    /// # Errors
    /// If the catalogue is invalid; then nothing changes.
    pub(crate) async fn reload(self: &Arc<Self>) -> Result<(), ApiError> {
        if self.has_one() {
            return Err(ApiError::not_supported(
                "this server has the one model that it was started with; `kvik serve --shelf`, or tables [models.NAME] \
                 in config.toml, make a server of several",
            ));
        }
        // Serialised: an older catalogue must not take effect after a newer one.
        let _reading = self.reading.lock().await;
        let shelf = self.clone();
        let read = move || shelf.catalogue.as_ref().map(|catalogue| catalogue.read());
        let read = tokio::task::spawn_blocking(read).await;
        let entries = match read {
            Ok(Some(Ok(entries))) => entries,
            Ok(Some(Err(error))) => return Err(wrong(&with_causes(&error))),
            Ok(None) => return Ok(()),
            Err(panic) => return Err(ApiError::panicked("reading the models", &panic)),
        };
        self.replace(entries);
        Ok(())
    }

    /// Replaces the models by these entries.
    fn replace(&self, entries: Vec<Entry>) {
        let mut entries: Vec<(usize, Entry)> = entries.into_iter().enumerate().collect();
        let mut places = self.places();
        for place in places.iter_mut().filter(|place| !place.is_gone) {
            match entries.iter().position(|(_, entry)| entry.name == place.entry.name) {
                Some(index) => place.renew(entries.remove(index)),
                None => place.leave(),
            }
        }
        for (order, entry) in entries {
            tracing::info!("the model {} is new on the shelf", entry.name);
            let new = Place::new((order, entry));
            match places.iter_mut().find(|place| place.is_free()) {
                Some(place) => *place = new,
                None => places.push(new),
            }
        }
        drop(places);
        self.changed.notify_one();
        // Requests that wait for a removed model are notified.
        self.loaded.notify_waiters();
    }
}

impl Place {
    /// Replaces the entry of the model.
    pub(super) fn renew(&mut self, (order, entry): (usize, Entry)) {
        if self.entry.keep_alive != entry.keep_alive {
            self.stay.clear();
            self.standing.stays_until = stay::after(self.standing.used, entry.keep_alive);
        }
        if self.entry.flags != entry.flags {
            tracing::info!("the model {} has changed", entry.name);
            self.failed = None;
            self.close();
            if self.open.is_none() {
                self.standing.bytes = entry.bytes;
            }
        }
        self.standing.is_absent = entry.is_absent;
        (self.entry, self.order) = (Arc::new(entry), order);
    }

    /// Removes the model from the shelf.
    fn leave(&mut self) {
        tracing::info!("the model {} is no longer on the shelf", self.entry.name);
        self.is_gone = true;
        self.standing.awaited = None;
        self.close();
    }

    /// Stops the model from accepting requests.
    pub(super) fn close(&mut self) {
        if self.takes_requests() {
            self.standing.phase = Phase::Closing;
        }
    }

    /// Whether its index may be reused for another model.
    fn is_free(&self) -> bool {
        let unused = self.waiting == 0 && self.standing.in_use == 0;
        self.is_gone
            && unused
            && self.open.is_none()
            && !self.is_loading
            && !self.is_fetching
            && self.standing.phase == Phase::Cold
    }
}

fn wrong(why: &str) -> ApiError {
    ApiError::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        Some("bad_catalogue"),
        format!("{why}; the models stay as they were"),
    )
}
