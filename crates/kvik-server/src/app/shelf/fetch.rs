//! Models whose files are still on the hub: each is downloaded by a task of its own, while the keeper loads others.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, anyhow};

use super::{Entry, LoadFailure, Place, Shelf, keeper::blocking};

impl Shelf {
    /// Begins the downloads of awaited models that lack files.
    pub(super) fn fetch_absent(self: &Arc<Self>) {
        let mut places = self.places();
        let absent = places.iter_mut().enumerate().filter(|(_, place)| place.is_to_be_fetched());
        for (index, place) in absent {
            place.is_fetching = true;
            tokio::spawn(self.clone().fetch(index, place.entry.clone()));
        }
    }

    /// Downloads the files of a model for as long as a request waits for it. The next request resumes a download that was
    /// given up.
    async fn fetch(self: Arc<Self>, index: usize, entry: Arc<Entry>) {
        tracing::info!("fetching the model {}", entry.name);
        let (loader, shelf, wanted) = (entry.loader.clone(), self.clone(), entry.clone());
        let fetch = move || {
            let is_given_up = AtomicBool::new(false);
            let cancelled = || {
                let is_left = shelf.is_left(index, &wanted);
                is_given_up.fetch_or(is_left, Ordering::Relaxed) || is_left
            };
            match loader.context("nothing loads it")?.fetch(&cancelled) {
                Err(_) if is_given_up.load(Ordering::Relaxed) => Ok(None),
                fetched => fetched.map(Some),
            }
        };
        let fetched = blocking(fetch).await;
        // The keeper loads nothing any more, and who waits is told so.
        let fetched =
            if self.server.is_stopping() { Err(anyhow!("the server is stopping")) } else { fetched };
        self.put_fetched(index, &entry, fetched);
    }

    /// Whether nobody waits any more for what this entry of a model names.
    fn is_left(&self, index: usize, entry: &Entry) -> bool {
        let place = &self.places()[index];
        self.server.is_stopping() || place.waiting == 0 || place.entry.flags != entry.flags
    }

    /// Renews the entry of a model by its files, or records why they could not be fetched.
    fn put_fetched(&self, index: usize, entry: &Arc<Entry>, fetched: anyhow::Result<Option<Entry>>) {
        let mut places = self.places();
        // Read under the lock: a failure that is older than a request that waits would not be told to it.
        let now = self.now();
        let place = &mut places[index];
        place.is_fetching = false;
        // An entry that has changed in the meantime names other files.
        let is_current = !place.is_gone && place.entry.flags == entry.flags;
        match fetched {
            // One that was read again may have other tenants: it finds the files here.
            Ok(Some(new)) if is_current && Arc::ptr_eq(&place.entry, entry) => {
                place.renew((place.order, Entry { is_absent: false, ..new }));
            }
            Err(error) if is_current => {
                let failure = LoadFailure::from(error);
                tracing::warn!("the model {} cannot be fetched: {}", entry.name, failure.why.for_host());
                (place.failed, place.standing.awaited) = (Some((now, failure)), None);
            }
            _ => {}
        }
        drop(places);
        self.loaded.notify_waiters();
        self.changed.notify_one();
    }
}

impl Place {
    fn is_to_be_fetched(&self) -> bool {
        self.standing.is_absent && self.standing.awaited.is_some() && !self.is_fetching
    }
}
