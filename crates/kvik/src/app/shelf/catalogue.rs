//! What models there are, by name, and how each stands.

use std::time::Duration;

use super::{Place, Shelf, turns::Phase};
use crate::serving::ModelCard;

/// A model by name.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    /// Where its file is.
    pub(crate) source: String,
    /// Bytes that it takes with its keys and values, as far as that is known before it is loaded.
    pub(crate) bytes: u64,
    /// How long it stays in memory without a use; for ever with `None`.
    pub(crate) keep_alive: Option<Duration>,
}

/// A model as it is listed.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) source: String,
    /// Bytes that it takes in memory, or would take.
    pub(crate) bytes: u64,
    /// `loaded`, `loading`, `unloading` or `unloaded`.
    pub(crate) status: &'static str,
    /// Requests that have it, and that wait for it.
    pub(crate) in_use: usize,
    pub(crate) waiting: usize,
    /// Times it was loaded, and what that took last.
    pub(crate) loads: u64,
    pub(crate) load_time: Duration,
    /// How much longer it stays, if nobody asks for it.
    pub(crate) expires_in: Option<Duration>,
    /// What it says of itself, once it was loaded.
    pub(crate) card: Option<ModelCard>,
    /// Why it cannot be loaded.
    pub(crate) failed: Option<String>,
}

impl Entry {
    /// The only model of a server.
    pub(super) fn alone(name: &str) -> Entry {
        let (name, source) = (name.to_owned(), String::new());
        Entry { name, aliases: Vec::new(), source, bytes: 0, keep_alive: None }
    }

    /// Whether a request means it by a name; Ollama's clients add the tag of the latest.
    pub(super) fn answers_to(&self, name: &str) -> bool {
        let name = name.strip_suffix(":latest").filter(|plain| !plain.is_empty()).unwrap_or(name);
        let own = [&self.name].into_iter().chain(&self.aliases);
        own.map(|own| own.strip_suffix(":latest").unwrap_or(own)).any(|own| own == name)
    }
}

impl Shelf {
    /// All models, in their order.
    pub(crate) fn list(&self) -> Vec<Listed> {
        let (now, places) = (self.now(), self.places());
        self.entries.iter().zip(places.iter()).map(|(entry, place)| place.listed(entry, now)).collect()
    }

    /// One of them.
    pub(crate) fn get(&self, name: &str) -> Option<Listed> {
        let index = self.find(name).ok()?;
        Some(self.places()[index].listed(&self.entries[index], self.now()))
    }
}

impl Place {
    fn listed(&self, entry: &Entry, now: Duration) -> Listed {
        let standing = &self.standing;
        let status = match (standing.phase, self.is_loading) {
            (_, true) => "loading",
            (Phase::Cold, _) => "unloaded",
            (Phase::Loaded, _) => "loaded",
            (Phase::Closing, _) => "unloading",
        };
        let stays = standing.keep_alive.filter(|_| standing.phase == Phase::Loaded);
        Listed {
            name: entry.name.clone(),
            aliases: entry.aliases.clone(),
            source: entry.source.clone(),
            bytes: standing.bytes,
            status,
            in_use: standing.in_use,
            waiting: self.waiting,
            loads: self.loads,
            load_time: standing.load_time,
            expires_in: stays.map(|stays| (standing.used + stays).saturating_sub(now)),
            card: self.card.clone(),
            failed: self.failed.as_ref().map(|(_, why)| why.clone()),
        }
    }
}
