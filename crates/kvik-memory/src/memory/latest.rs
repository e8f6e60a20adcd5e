//! State of the conversations whose summaries are being made: their latest messages, and whether the work is still
//! wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use crate::context::ChainId;
use async_channel::{Receiver, Sender};
use kvik_engine::api::Pace;
use serde_json::Value;

use super::book::{Book, Summary, SummaryKey};
use super::held::HeldHistory;

/// Maximum number of one tenant's summaries that are being made or queued. A further conversation continues without
/// one, and tries again at its next turn.
const OF_TENANT_MAX: usize = 8;
/// Maximum number over all tenants.
const PENDING_MAX: usize = 64;
/// Fraction of the room before messages would be dropped without a summary that may be used up when the summary is
/// finished.
const ROOM_USED_MAX: f64 = 0.9;

/// A conversation with its latest turn.
pub(super) struct Said {
    pub(super) tenant: String,
    pub(super) history: Arc<HeldHistory>,
    /// The answer that follows the messages of the request.
    pub(super) answer: Option<Value>,
    /// Identities of the request's messages after the prefix.
    pub(super) chain: Vec<ChainId>,
    /// How close the conversation is to dropping messages without the next summary, from 0 to 1.
    pub(super) pressure: f64,
}

impl Said {
    /// Number of messages that the summary covers; `None` if it belongs to another conversation.
    fn covered_by(&self, key: &SummaryKey) -> Option<usize> {
        let is_mine = self.tenant == key.tenant;
        is_mine.then(|| self.chain.iter().position(|&chain| chain == key.chain)).flatten().map(|at| at + 1)
    }

    /// True if the next turn reads a newer summary, which is ready.
    fn reads_next(&self, book: &Book) -> bool {
        let known = book.of(&self.tenant, &self.chain);
        known.iter().any(|summary| summary.ready && summary.covers > self.history.covered)
    }

    /// The continuation after a summary; `None` if its messages are not held.
    fn ahead(&self, covers: usize) -> Option<Ahead> {
        self.history.behind(covers)?;
        Some(Ahead { history: self.history.clone(), covers, answer: self.answer.clone() })
    }
}

/// Continuation of a conversation after the messages that a summary covers.
#[derive(Clone)]
pub(super) struct Ahead {
    pub(super) history: Arc<HeldHistory>,
    covers: usize,
    answer: Option<Value>,
}

impl Ahead {
    /// Messages after the summary, behind the question of an exchange that it cuts.
    pub(super) fn recent(&self) -> Vec<Value> {
        let said = self.history.behind(self.covers).unwrap_or_default();
        self.history.question(self.covers).iter().chain(said).chain(&self.answer).cloned().collect()
    }
}

/// Background work on conversations, with the latest messages of each.
#[derive(Default)]
pub(super) struct Latest(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    /// Summaries that are being made.
    making: BTreeMap<SummaryKey, Entry>,
    /// Other work on conversations.
    others: BTreeMap<u64, (SummaryKey, Sender<Infallible>)>,
}

struct Entry {
    id: u64,
    /// Turns that were noted since the work began.
    turns: u64,
    ahead: Ahead,
    /// How close the conversation is to dropping messages without the summary, from 0 to 1.
    pressure: f64,
    deadline: Deadline,
    /// Dropped with this entry, which cancels the work.
    _wanted: Sender<Infallible>,
}

/// Work that is wanted as long as its conversation is not deleted. Dropping this removes its entry.
pub(super) struct Wanted {
    latest: Arc<Latest>,
    key: SummaryKey,
    id: u64,
    gone: Receiver<Infallible>,
}

/// Deadline of the request that is being run for a summary, in terms of the conversation's pressure.
#[derive(Default)]
struct Deadline {
    pace: Pace,
    from: f64,
    to: f64,
}

impl Deadline {
    /// Deadline for work that begins at this pressure and may use `share` of the remaining room.
    fn new(pressure: f64, share: f64) -> Deadline {
        let to = pressure + share * (ROOM_USED_MAX - pressure);
        Deadline { pace: Pace::default(), from: pressure, to }
    }

    /// Updates the pace for the current pressure.
    fn note(&self, pressure: f64) {
        let (gone, all) = (pressure - self.from, self.to - self.from);
        self.pace.set(if all > 0.0 { gone / all } else { 1.0 });
    }
}

impl Latest {
    /// Notes the latest turn of a conversation for each of its summaries that are being made: until the turn is
    /// prefilled too, they are not ready. Begins the summary `key` if none is being made of the conversation and there
    /// is room.
    ///
    /// At most one at a time: turns without a pause would each begin one that covers a little more than the one before,
    /// and all would delay the first. The turn that finds none in progress begins the one that is due then. A ready
    /// summary is read first: it leaves more room for the next one than this turn knows of.
    pub(super) fn note(self: &Arc<Self>, key: &SummaryKey, said: &Said, book: &Book) -> Option<Wanted> {
        let is_read_next = said.reads_next(book);
        let mut state = self.lock();
        state.end_read(said, book);
        for (key, entry) in &mut state.making {
            if let Some(ahead) = said.covered_by(key).and_then(|covers| said.ahead(covers)) {
                (entry.turns, entry.ahead) = (entry.turns + 1, ahead);
                entry.pressure = said.pressure;
                entry.deadline.note(said.pressure);
                book.set_ready(key, false);
            }
        }
        let is_made = state.making.keys().any(|other| said.covered_by(other).is_some());
        if is_made || is_read_next || !state.has_room(&key.tenant) {
            return None;
        }
        let ahead = said.ahead(said.covered_by(key)?)?;
        book.set_ready(key, false);
        state.last += 1;
        let (id, (wanted, gone)) = (state.last, async_channel::bounded(1));
        let (pressure, deadline) = (said.pressure, Deadline::default());
        let entry = Entry { id, turns: 0, ahead, pressure, deadline, _wanted: wanted };
        state.making.insert(key.clone(), entry);
        Some(Wanted { latest: self.clone(), key: key.clone(), id, gone })
    }

    /// Registers other work on the conversation whose identity is `key`.
    pub(super) fn watch(self: &Arc<Self>, key: &SummaryKey) -> Wanted {
        let mut state = self.lock();
        state.last += 1;
        let (id, (wanted, gone)) = (state.last, async_channel::bounded(1));
        state.others.insert(id, (key.clone(), wanted));
        Wanted { latest: self.clone(), key: key.clone(), id, gone }
    }

    /// True if a summary of a beginning of the conversation is being made, or its continuation is being prefilled.
    pub(super) fn is_at(&self, tenant: &str, chain: &[ChainId]) -> bool {
        self.lock().making.keys().any(|key| key.tenant == tenant && chain.contains(&key.chain))
    }

    /// Cancels all work on the beginnings of a conversation and deletes their summaries: none is stored afterwards.
    pub(super) fn forget(&self, tenant: &str, chain: &BTreeSet<ChainId>, book: &Book) {
        let is_meant = |key: &SummaryKey| key.tenant == tenant && chain.contains(&key.chain);
        let mut state = self.lock();
        state.making.retain(|key, _| !is_meant(key));
        state.others.retain(|_, (key, _)| !is_meant(key));
        book.forget(tenant, chain);
    }

    /// Cancels all work.
    pub(super) fn end_all(&self) {
        let mut state = self.lock();
        state.making.clear();
        state.others.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the maps is a single call, so a panic leaves them consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Ends the prefill after the summary that a turn has read: the turn itself has done it.
    fn end_read(&mut self, said: &Said, book: &Book) {
        let read = self.making.keys().find(|key| said.covered_by(key) == Some(said.history.covered)).cloned();
        if let Some(key) = read.filter(|key| book.get(key).is_some()) {
            self.making.remove(&key);
            book.set_ready(&key, true);
        }
    }

    fn has_room(&self, tenant: &str) -> bool {
        let of_tenant = self.making.keys().filter(|other| other.tenant == tenant).count();
        self.making.len() < PENDING_MAX && of_tenant < OF_TENANT_MAX
    }

    fn entry(&self, wanted: &Wanted) -> Option<&Entry> {
        self.making.get(&wanted.key).filter(|entry| entry.id == wanted.id)
    }
}

impl Wanted {
    /// Key of the summary that is being made, or of the conversation that other work is on.
    pub(super) fn key(&self) -> &SummaryKey {
        &self.key
    }

    /// Pace of a request that begins now and may use `share` of the conversation's remaining room.
    pub(super) fn pace(&self, share: f64) -> Pace {
        let mut state = self.latest.lock();
        let entry = state.making.get_mut(&self.key).filter(|entry| entry.id == self.id);
        entry.map_or_else(Pace::default, |entry| {
            entry.deadline = Deadline::new(entry.pressure, share);
            entry.deadline.note(entry.pressure);
            entry.deadline.pace.clone()
        })
    }

    /// Runs `work` as long as it is wanted; `None` if it was cancelled first.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        // Nothing is ever sent: the receiver ends when the sender is dropped.
        let (mut gone, mut work) = (pin!(self.gone.recv()), pin!(work));
        poll_fn(|context| match gone.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => work.as_mut().poll(context).map(Some),
        })
        .await
    }

    /// Stores the summary unless the conversation was deleted meanwhile; returns whether it was stored.
    pub(super) fn keep(&self, summary: Summary, book: &Book) -> bool {
        let state = self.latest.lock();
        let is_wanted = state.entry(self).is_some() || state.others.contains_key(&self.id);
        if is_wanted {
            book.keep(&self.key, summary);
        }
        is_wanted
    }

    /// Number of noted turns, and the continuation of the conversation.
    pub(super) fn ahead(&self) -> Option<(u64, Ahead)> {
        self.latest.lock().entry(self).map(|entry| (entry.turns, entry.ahead.clone()))
    }

    /// Ends the work, with its summary ready, if at most one turn was noted since `turns`: a conversation without
    /// pauses always has one, and the next turn prefills its messages together with the new question.
    pub(super) fn ends(&self, turns: u64, book: &Book) -> bool {
        let mut state = self.latest.lock();
        let Some(entry) = state.entry(self) else { return true };
        let ends = entry.turns <= turns + 1;
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
    use pollster::block_on;
    use serde_json::json;

    use super::*;
    use crate::memory::held::HeldHistories;

    fn said(tenant: &str, chain: &[u8]) -> Said {
        said_behind(0, tenant, chain)
    }

    /// A turn that has read a summary of `covered` messages.
    fn said_behind(covered: usize, tenant: &str, chain: &[u8]) -> Said {
        let chain: Vec<ChainId> = chain.iter().map(|&id| ChainId([id; 32])).collect();
        let messages = chain.iter().map(|id| json!(id.0[0])).collect();
        let share = HeldHistories::new(1, false).take(tenant, 1).unwrap();
        let history = Arc::new(HeldHistory::new(messages, [0, 0, covered], share));
        Said { tenant: tenant.to_owned(), history, answer: None, chain, pressure: 0.0 }
    }

    fn key(tenant: &str, chain: u8) -> SummaryKey {
        SummaryKey { tenant: tenant.to_owned(), chain: ChainId([chain; 32]) }
    }

    fn summary() -> Summary {
        let text = "It was said.".to_owned();
        Summary {
            text,
            kind: Default::default(),
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

    fn recent(wanted: &Wanted) -> Option<(u64, Vec<Value>)> {
        wanted.ahead().map(|(turns, ahead)| (turns, ahead.recent()))
    }

    #[test]
    fn how_a_conversation_goes_on_is_noted_behind_its_summary() {
        let (latest, book) = (Arc::new(Latest::default()), Book::open(None));
        let two = latest.note(&key("a", 2), &said("a", &[1, 2, 3]), &book).unwrap();
        let of_another = said("b", &[1, 2]);
        assert!(latest.note(&key("a", 4), &of_another, &book).is_none(), "another tenant's changes nothing");
        assert_eq!(recent(&two), Some((0, vec![json!(3)])));
        assert!(latest.note(&key("a", 2), &said("a", &[1, 2, 3, 4, 5]), &book).is_none());
        assert_eq!(recent(&two), Some((1, vec![json!(3), json!(4), json!(5)])));
        assert!(latest.note(&key("a", 2), &said("a", &[1, 2, 3, 4, 5, 6]), &book).is_none());
        assert!(!two.ends(0, &book) && two.ends(1, &book), "one turn was noted since");
        assert_eq!(recent(&two), None);
    }

    #[test]
    fn a_summary_is_to_be_there_before_the_room_of_its_conversation_is_gone() {
        let (latest, book) = (Arc::new(Latest::default()), Book::open(None));
        let near = |pressure, chain: &[u8]| Said { pressure, ..said("a", chain) };
        let two = latest.note(&key("a", 2), &near(0.1, &[1, 2, 3]), &book).unwrap();
        let asked = two.pace(0.5);
        assert_eq!(asked.due(), 0.0);
        assert!(latest.note(&key("a", 2), &near(0.4, &[1, 2, 3, 4]), &book).is_none());
        assert!((asked.due() - 0.75).abs() < 1e-5, "the request was begun before, and is due at 0.5");
        let behind = two.pace(0.5);
        assert!(latest.note(&key("a", 9), &near(1.0, &[1, 8, 9]), &book).is_some());
        assert_eq!(behind.due(), 0.0, "others' turns change nothing");
        assert!(latest.note(&key("a", 2), &near(0.95, &[1, 2, 3, 4, 5]), &book).is_none());
        assert_eq!((behind.due(), two.pace(0.5).due()), (1.0, 1.0));
        assert_eq!(latest.watch(&key("a", 3)).pace(1.0).due(), 0.0);
    }

    #[test]
    fn one_summary_of_a_conversation_is_made_at_a_time() {
        let (latest, book) = (Arc::new(Latest::default()), Book::open(None));
        let longer = said("a", &[1, 2, 3, 4, 5]);
        let two = latest.note(&key("a", 2), &said("a", &[1, 2, 3]), &book).unwrap();
        assert!(latest.note(&key("a", 4), &longer, &book).is_none(), "two is being made");
        assert_eq!(recent(&two), Some((1, vec![json!(3), json!(4), json!(5)])), "and knows what was said");
        let apart = latest.note(&key("a", 7), &said("a", &[1, 7]), &book);
        assert!(apart.is_some(), "a conversation that parts before it is another one");
        assert!(two.keep(summary(), &book) && two.ends(1, &book));
        let reads = said_behind(2, "a", &[1, 2, 3, 4, 5]);
        let four = latest.note(&key("a", 4), &reads, &book).expect("none is being made");
        assert_eq!(recent(&four), Some((0, vec![json!(5)])));
        assert!(book.get(&key("a", 2)).unwrap().ready, "it is read until four is there");
    }

    /// Turns without a pause: each prefill ends after the conversation has continued.
    #[test]
    fn a_summary_that_was_read_keeps_no_other_from_being_made() {
        let (latest, book) = (Arc::new(Latest::default()), Book::open(None));
        let two = latest.note(&key("a", 2), &said("a", &[1, 2, 3]), &book).unwrap();
        let reads = said_behind(2, "a", &[1, 2, 3, 4, 5]);
        assert!(latest.note(&key("a", 4), &reads, &book).is_none(), "what it read was not made here");
        assert!(two.keep(summary(), &book) && !book.get(&key("a", 2)).unwrap().ready);
        assert!(latest.note(&key("a", 4), &reads, &book).is_some());
        assert!(two.ahead().is_none() && book.get(&key("a", 2)).unwrap().ready, "the turn has computed it");
    }

    #[test]
    fn what_is_ready_is_read_before_the_next_summary_begins() {
        let (latest, book) = (Arc::new(Latest::default()), Book::open(None));
        let two = latest.note(&key("a", 2), &said("a", &[1, 2, 3]), &book).unwrap();
        assert!(two.keep(summary(), &book) && two.ends(0, &book));
        let longer = [1, 2, 3, 4, 5];
        assert!(
            latest.note(&key("a", 4), &said("a", &longer), &book).is_none(),
            "this turn began before it was ready"
        );
        let edited = said("a", &[1, 9, 3, 4]);
        assert!(latest.note(&key("a", 4), &edited, &book).is_some(), "an edited one cannot read it");
        assert!(latest.note(&key("a", 4), &said_behind(2, "a", &longer), &book).is_some());
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

    #[test]
    fn work_on_a_deleted_conversation_ends_and_nothing_of_it_is_kept() {
        let (latest, book) = (Arc::new(Latest::default()), Book::open(None));
        let begin = || latest.note(&key("a", 2), &said("a", &[1, 2, 3]), &book).unwrap();
        let (making, whole, other) = (begin(), latest.watch(&key("a", 3)), latest.watch(&key("b", 2)));
        assert!(making.keep(summary(), &book));
        latest.forget("a", &[1, 2, 3].map(|id| ChainId([id; 32])).into(), &book);
        assert!(book.get(&key("a", 2)).is_none());
        for wanted in [&making, &whole] {
            assert!(block_on(wanted.during(std::future::pending::<()>())).is_none());
            assert!(!wanted.keep(summary(), &book) && book.get(wanted.key()).is_none());
        }
        assert!(other.keep(summary(), &book), "another tenant's goes on");
        // The same conversation begins anew; work on the deleted one must not affect it.
        let anew = begin();
        assert!(!making.keep(summary(), &book) && making.ahead().is_none());
        drop(making);
        assert!(anew.ahead().is_some() && anew.keep(summary(), &book));
    }
}
