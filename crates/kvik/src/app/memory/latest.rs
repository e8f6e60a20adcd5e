//! How the conversations have gone on whose summaries are being made, and whether that is still wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_engine::conversation::ChainId;
use serde_json::Value;
use tokio::sync::watch;

use super::book::{Book, Summary, SummaryKey};
use super::held::HeldHistory;

/// Summaries of one tenant that are being made or wait, at most. A conversation beyond that goes on without, and tries
/// again at its next turn.
const OF_TENANT_MAX: usize = 8;
/// Those of all tenants.
const PENDING_MAX: usize = 64;

/// A conversation as far as it has gone.
pub(crate) struct Said {
    pub(super) tenant: String,
    pub(super) history: Arc<HeldHistory>,
    /// What follows what the request sent.
    pub(super) answer: Option<Value>,
    /// Identities of the messages that it sent.
    pub(super) chain: Vec<ChainId>,
}

impl Said {
    /// Messages that a summary covers of it; `None` where it is of another conversation.
    fn covered_by(&self, key: &SummaryKey) -> Option<usize> {
        let is_mine = self.tenant == key.tenant;
        is_mine.then(|| self.chain.iter().position(|&chain| chain == key.chain)).flatten().map(|at| at + 1)
    }

    /// How it goes on behind a summary; `None` where that is not held.
    fn ahead(&self, covers: usize) -> Option<Ahead> {
        self.history.behind(covers)?;
        Some(Ahead { history: self.history.clone(), covers, answer: self.answer.clone() })
    }
}

/// How a conversation goes on behind what a summary covers.
#[derive(Clone)]
pub(super) struct Ahead {
    pub(super) history: Arc<HeldHistory>,
    covers: usize,
    answer: Option<Value>,
}

impl Ahead {
    /// The messages behind the summary.
    pub(super) fn recent(&self) -> Vec<Value> {
        let said = self.history.behind(self.covers).unwrap_or_default();
        said.iter().chain(&self.answer).cloned().collect()
    }
}

/// Work of the background on conversations: how they have gone on meanwhile.
#[derive(Default)]
pub(crate) struct Latest(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    /// Summaries that are being made.
    making: BTreeMap<SummaryKey, Entry>,
    /// Whatever else is made of conversations.
    others: BTreeMap<u64, (SummaryKey, watch::Sender<()>)>,
}

struct Entry {
    id: u64,
    /// Turns that were noted since it began.
    turns: u64,
    ahead: Ahead,
    /// Dropped with this entry, which ends the work.
    _wanted: watch::Sender<()>,
}

/// Work that is wanted as long as its conversation is not deleted. Its entry is gone when this is dropped.
pub(crate) struct Wanted {
    latest: Arc<Latest>,
    key: SummaryKey,
    id: u64,
    gone: watch::Receiver<()>,
}

impl Latest {
    /// Notes how a conversation goes on, behind the summary `key` and all others that are being made of it: until that
    /// is computed they are not ready. Where nobody is at `key` yet and there is room, it begins.
    pub(super) fn note(self: &Arc<Self>, key: &SummaryKey, said: &Said, book: &Book) -> Option<Wanted> {
        let mut state = self.lock();
        for (key, entry) in &mut state.making {
            if let Some(ahead) = said.covered_by(key).and_then(|covers| said.ahead(covers)) {
                (entry.turns, entry.ahead) = (entry.turns + 1, ahead);
                book.set_ready(key, false);
            }
        }
        let of_tenant = state.making.keys().filter(|other| other.tenant == key.tenant).count();
        let has_room = state.making.len() < PENDING_MAX && of_tenant < OF_TENANT_MAX;
        if state.making.contains_key(key) || !has_room {
            return None;
        }
        let ahead = said.ahead(said.covered_by(key)?)?;
        book.set_ready(key, false);
        state.last += 1;
        let (id, (wanted, gone)) = (state.last, watch::channel(()));
        state.making.insert(key.clone(), Entry { id, turns: 0, ahead, _wanted: wanted });
        Some(Wanted { latest: self.clone(), key: key.clone(), id, gone })
    }

    /// Something else is made of the conversation that ends with `key`.
    pub(super) fn watch(self: &Arc<Self>, key: &SummaryKey) -> Wanted {
        let mut state = self.lock();
        state.last += 1;
        let (id, (wanted, gone)) = (state.last, watch::channel(()));
        state.others.insert(id, (key.clone(), wanted));
        Wanted { latest: self.clone(), key: key.clone(), id, gone }
    }

    /// Whether a summary of some beginning of a conversation is being made, or what follows it computed.
    pub(super) fn is_at(&self, tenant: &str, chain: &[ChainId]) -> bool {
        self.lock().making.keys().any(|key| key.tenant == tenant && chain.contains(&key.chain))
    }

    /// Ends all work on beginnings of a conversation, and forgets their summaries: none is kept afterwards.
    pub(super) fn forget(&self, tenant: &str, chain: &BTreeSet<ChainId>, book: &Book) {
        let is_meant = |key: &SummaryKey| key.tenant == tenant && chain.contains(&key.chain);
        let mut state = self.lock();
        state.making.retain(|key, _| !is_meant(key));
        state.others.retain(|_, (key, _)| !is_meant(key));
        book.forget(tenant, chain);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the maps is one call, so they are whole whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn entry(&self, wanted: &Wanted) -> Option<&Entry> {
        self.making.get(&wanted.key).filter(|entry| entry.id == wanted.id)
    }
}

impl Wanted {
    /// The summary that is made, or the end of what is worked on.
    pub(super) fn key(&self) -> &SummaryKey {
        &self.key
    }

    /// Does this as long as it is wanted; `None` where that has ended first.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut gone = self.gone.clone();
        tokio::select! {
            biased;
            // Nothing is ever sent: the sender is dropped.
            _ = gone.changed() => None,
            done = work => Some(done),
        }
    }

    /// Keeps the summary, unless the conversation was deleted meanwhile; whether it did.
    pub(super) fn keep(&self, summary: Summary, book: &Book) -> bool {
        let state = self.latest.lock();
        let is_wanted = state.entry(self).is_some() || state.others.contains_key(&self.id);
        if is_wanted {
            book.keep(&self.key, summary);
        }
        is_wanted
    }

    /// How the conversation goes on, and how many turns have been noted.
    pub(super) fn ahead(&self) -> Option<(u64, Ahead)> {
        self.latest.lock().entry(self).map(|entry| (entry.turns, entry.ahead.clone()))
    }

    /// Takes it out, its summary being ready, if nothing has happened since `turns`.
    pub(super) fn ends(&self, turns: u64, book: &Book) -> bool {
        let mut state = self.latest.lock();
        let Some(entry) = state.entry(self) else { return true };
        let ends = entry.turns == turns;
        if ends {
            state.making.remove(&self.key);
            book.set_ready(&self.key, true);
        }
        ends
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        let mut state = self.latest.lock();
        if state.entry(self).is_some() {
            state.making.remove(&self.key);
        }
        state.others.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::app::memory::held::HeldHistories;

    fn said(tenant: &str, chain: &[u8]) -> Said {
        let chain: Vec<ChainId> = chain.iter().map(|&id| ChainId([id; 32])).collect();
        let messages = chain.iter().map(|id| json!(id.0[0])).collect();
        let share = HeldHistories::new(1, false).take(tenant, 1).unwrap();
        let history = Arc::new(HeldHistory::new(messages, [0, 0, 0], share));
        Said { tenant: tenant.to_owned(), history, answer: None, chain }
    }

    fn key(tenant: &str, chain: u8) -> SummaryKey {
        SummaryKey { tenant: tenant.to_owned(), chain: ChainId([chain; 32]) }
    }

    fn summary() -> Summary {
        let text = "It was said.".to_owned();
        Summary {
            text,
            covers: 2,
            updates: 1,
            made: 1,
            used: 1,
            ready: false,
            failed: None,
            corrected: false,
            read: false,
        }
    }

    #[test]
    fn how_a_conversation_goes_on_is_noted_behind_all_its_summaries() {
        let (latest, book) = (Arc::new(Latest::default()), Book::open(None));
        let two = latest.note(&key("a", 2), &said("a", &[1, 2, 3]), &book).unwrap();
        let four = latest.note(&key("a", 4), &said("a", &[1, 2, 3, 4, 5]), &book).unwrap();
        let of_another = said("b", &[1, 2]);
        assert!(latest.note(&key("a", 4), &of_another, &book).is_none(), "another tenant's changes nothing");
        let recent = |wanted: &Wanted| wanted.ahead().map(|(turns, ahead)| (turns, ahead.recent()));
        assert_eq!(recent(&two), Some((1, vec![json!(3), json!(4), json!(5)])));
        assert_eq!(recent(&four), Some((0, vec![json!(5)])));
        assert!(!two.ends(0, &book) && two.ends(1, &book));
        assert_eq!(recent(&two), None);
    }

    #[test]
    fn a_tenant_waits_for_a_bounded_number_of_summaries() {
        let (latest, book) = (Arc::new(Latest::default()), Book::open(None));
        let begun = |tenant: &str| -> Vec<Wanted> {
            (0..100).filter_map(|id| latest.note(&key(tenant, id), &said(tenant, &[id]), &book)).collect()
        };
        let own = begun("a");
        assert_eq!(own.len(), OF_TENANT_MAX);
        let others: Vec<Wanted> = (0..9).flat_map(|tenant| begun(&tenant.to_string())).collect();
        assert_eq!(others.len(), PENDING_MAX - OF_TENANT_MAX);
        drop(own);
        assert_eq!(begun("a").len(), OF_TENANT_MAX, "who has ended, however, leaves room");
    }

    #[tokio::test]
    async fn work_on_a_deleted_conversation_ends_and_nothing_of_it_is_kept() {
        let (latest, book) = (Arc::new(Latest::default()), Book::open(None));
        let begin = || latest.note(&key("a", 2), &said("a", &[1, 2, 3]), &book).unwrap();
        let (making, whole, other) = (begin(), latest.watch(&key("a", 3)), latest.watch(&key("b", 2)));
        assert!(making.keep(summary(), &book));
        latest.forget("a", &[1, 2, 3].map(|id| ChainId([id; 32])).into(), &book);
        assert!(book.get(&key("a", 2)).is_none());
        for wanted in [&making, &whole] {
            assert!(wanted.during(std::future::pending::<()>()).await.is_none());
            assert!(!wanted.keep(summary(), &book) && book.get(wanted.key()).is_none());
        }
        assert!(other.keep(summary(), &book), "another tenant's goes on");
        // The same conversation begins anew; what was made of the deleted one is none of its business.
        let anew = begin();
        assert!(!making.keep(summary(), &book) && making.ahead().is_none());
        drop(making);
        assert!(anew.ahead().is_some() && anew.keep(summary(), &book));
    }
}
