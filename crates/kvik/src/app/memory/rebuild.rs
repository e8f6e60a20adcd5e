//! Behind the answer: a new summary, and the conversation as it goes on from it, computed ahead.
//!
//! All of it is work of nobody who waits. It is paid by the tenant whose conversation it is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kvik_engine::conversation::ChainId;
use serde_json::Value;
use tokio::sync::{Notify, Semaphore};

use super::book::{Book, Summary, SummaryKey};
use super::room::Taken;
use super::summary::{Making, compute};
use super::turn::{Purpose, Render};
use super::view::{LongConversation, View};
use super::words::Words;
use crate::app::{keys::Caller, metrics::memory::SummaryOutcome, state::App};

/// Summaries that are made at the same time.
const AT_ONCE: usize = 2;
/// Summaries of one tenant that are being made or wait, at most: each holds its messages. A conversation beyond that
/// goes on without, and tries again at its next turn.
const OF_TENANT_MAX: usize = 8;
/// Those of all tenants.
const PENDING_MAX: usize = 64;
/// Conversations that are computed without what was quoted in them, at the same time; others are not.
const AHEAD_MAX: usize = 8;

/// What is to be done behind an answer, and for whom.
pub(crate) struct MemoryJob {
    pub(super) caller: Caller,
    pub(super) kind: MemoryTask,
    pub(super) pending: Pending,
    /// The memory of its messages.
    pub(super) taken: Taken,
}

/// What is to be done behind answers: as many as there are clones.
#[derive(Clone, Default)]
pub(crate) struct Pending(Arc<()>);

impl Pending {
    /// What was begun and has not ended.
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// What is to be done.
pub(crate) enum MemoryTask {
    /// A summary is made, and the conversation is computed as it goes on behind it, which [`Latest`] says.
    Rebuild { key: SummaryKey, rebuild: Arc<Rebuild> },
    /// These messages are computed.
    Ahead { messages: Vec<Value>, render: Render },
}

/// What a summary is made of.
pub(crate) struct Rebuild {
    /// The conversation.
    pub(super) said: Said,
    /// The summary before it.
    pub(super) before: Option<Summary>,
    /// Messages that it covers in all.
    pub(super) covers: usize,
    /// Its tokens at most.
    pub(super) summary_max: usize,
    /// Tokens of messages that are read at a time, about.
    pub(super) chunk_max: usize,
    pub(super) words: Words,
    pub(super) render: Render,
}

impl Rebuild {
    /// The summary of the first `covers` messages, of which `view` reads some.
    pub(super) fn of(conversation: &LongConversation<'_>, view: &View, covers: usize) -> Rebuild {
        Rebuild {
            said: Said::of(conversation),
            before: view.summary.clone(),
            covers,
            summary_max: conversation.settings.summary_max,
            chunk_max: conversation.settings.recent_max,
            words: conversation.words.clone(),
            render: conversation.asked.render.clone(),
        }
    }
}

/// A conversation as far as it has gone; a clone shares its messages.
#[derive(Clone)]
pub(crate) struct Said {
    pub(super) tenant: String,
    /// Messages of it that are never let go.
    prefix: usize,
    /// System messages of the prefix.
    pub(super) systems: usize,
    /// What the request sent.
    messages: Arc<[Value]>,
    /// What was answered.
    pub(super) answer: Option<Value>,
    /// Identities of the messages behind the prefix.
    chain: Arc<[ChainId]>,
}

impl Said {
    pub(super) fn of(conversation: &LongConversation<'_>) -> Said {
        Said {
            tenant: conversation.tenant.clone(),
            prefix: conversation.prefix,
            systems: conversation.systems,
            messages: conversation.asked.messages.into(),
            answer: None,
            chain: conversation.chain.as_slice().into(),
        }
    }

    /// What is never let go.
    pub(super) fn prefix(&self) -> &[Value] {
        &self.messages[..self.prefix]
    }

    /// What the request sent behind the prefix.
    pub(super) fn messages(&self) -> &[Value] {
        &self.messages[self.prefix..]
    }

    /// Messages that a summary covers of it; `None` where it is of another conversation.
    fn covered_by(&self, key: &SummaryKey) -> Option<usize> {
        let covers = self.chain.iter().position(|&chain| chain == key.chain)? + 1;
        (self.tenant == key.tenant).then_some(covers)
    }

    fn ahead(&self, covers: usize) -> Ahead {
        let recent = self.messages()[covers..].iter().chain(&self.answer).cloned().collect();
        Ahead { prefix: self.prefix().to_vec(), systems: self.systems, recent }
    }
}

/// How a conversation goes on behind what a summary covers.
#[derive(Clone)]
pub(super) struct Ahead {
    pub(super) prefix: Vec<Value>,
    pub(super) systems: usize,
    pub(super) recent: Vec<Value>,
}

/// Makes the summaries that arrive, for ever.
pub(crate) async fn make_summaries(app: Arc<App>) {
    let Some(mut arriving) = app.memory.arriving() else { return };
    let (slots, ahead_slots) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(AHEAD_MAX)));
    while let Some(work) = arriving.recv().await {
        let MemoryJob { caller, kind, pending, taken } = work;
        let (app, slots) = (app.clone(), slots.clone());
        let (key, rebuild) = match kind {
            MemoryTask::Rebuild { key, rebuild } => (key, rebuild),
            MemoryTask::Ahead { messages, render } => {
                if let Ok(slot) = ahead_slots.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _held = (slot, pending, taken);
                        compute(&app, &caller, move |app| render(app, &messages, Purpose::Ahead)).await
                    });
                }
                continue;
            }
        };
        tokio::spawn(async move {
            let _held = (slots.acquire().await, pending, taken);
            let Some(forgotten) = app.memory.latest.forgotten(&key) else { return };
            let making = Making::new(&app, &caller, &key, rebuild);
            let made = tokio::select! {
                made = making.run() => made,
                // What the engine computes for it ends with it.
                () = forgotten.notified() => return,
            };
            if let Err(error) = made {
                tracing::warn!(
                    "a conversation goes on without a new summary for now: {}",
                    error.body()["error"]["message"]
                );
                app.metrics.memory.summary(SummaryOutcome::Failed);
                app.memory.latest.give_up(&key);
            }
        });
    }
}

/// How the conversations whose summaries are being made have gone on meanwhile.
#[derive(Default)]
pub(crate) struct Latest(Mutex<State>);

#[derive(Default)]
struct State {
    making: BTreeMap<SummaryKey, Going>,
    /// Turns that are being answered.
    turns: Vec<Weak<Begun>>,
}

/// A conversation whose summary is being made.
struct Going {
    /// Turns that have been noted since that began.
    turns: u64,
    ahead: Ahead,
    /// Told when the conversation is forgotten.
    forgotten: Arc<Notify>,
}

/// A turn that is being answered, of a conversation that may be forgotten meanwhile.
pub(super) struct Begun {
    tenant: String,
    chain: Vec<ChainId>,
    forgotten: AtomicBool,
}

impl Begun {
    /// Whether its conversation was forgotten since it began: nothing is to be made of it then.
    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Acquire)
    }
}

impl Latest {
    /// A turn begins; it knows until its end whether its conversation was forgotten.
    pub(super) fn begin(&self, tenant: &str, chain: &[ChainId]) -> Arc<Begun> {
        let forgotten = AtomicBool::new(false);
        let begun = Arc::new(Begun { tenant: tenant.to_owned(), chain: chain.to_vec(), forgotten });
        let mut state = self.lock();
        state.turns.retain(|turn| turn.strong_count() > 0);
        state.turns.push(Arc::downgrade(&begun));
        begun
    }

    /// Notes how a conversation goes on, behind the summary `key` and all others that are being made of it: until that
    /// is computed they are not ready. Whether nobody is at `key` yet and it is to be made.
    pub(super) fn note(&self, key: &SummaryKey, said: &Said, begun: &Begun, book: &Book) -> bool {
        let mut state = self.lock();
        if begun.is_forgotten() {
            return false;
        }
        let making = &mut state.making;
        let of_tenant = making.keys().filter(|other| other.tenant == key.tenant).count();
        let has_room = making.len() < PENDING_MAX && of_tenant < OF_TENANT_MAX;
        let begins = !making.contains_key(key) && has_room;
        let mut behind: Vec<SummaryKey> =
            making.keys().filter(|key| said.covered_by(key).is_some()).cloned().collect();
        behind.extend(begins.then(|| key.clone()));
        for key in behind {
            let Some(covers) = said.covered_by(&key) else { continue };
            book.set_ready(&key, false);
            let ahead = said.ahead(covers);
            match making.get_mut(&key) {
                Some(going) => (going.turns, going.ahead) = (going.turns + 1, ahead),
                None => drop(making.insert(key, Going { turns: 0, ahead, forgotten: Arc::default() })),
            }
        }
        begins
    }

    /// Whether a summary of some beginning of a conversation is being made, or what follows it computed.
    pub(super) fn is_at(&self, tenant: &str, chain: &[ChainId]) -> bool {
        self.lock().making.keys().any(|key| key.tenant == tenant && chain.contains(&key.chain))
    }

    /// How it goes on, and how many turns have been noted.
    pub(super) fn get(&self, key: &SummaryKey) -> Option<(u64, Ahead)> {
        self.lock().making.get(key).map(|going| (going.turns, going.ahead.clone()))
    }

    /// Tells when the conversation whose summary is being made is forgotten; `None` where it is already.
    fn forgotten(&self, key: &SummaryKey) -> Option<Arc<Notify>> {
        self.lock().making.get(key).map(|going| going.forgotten.clone())
    }

    /// Writes down the summary that was made, unless its conversation was forgotten meanwhile. Whether it was.
    pub(super) fn keep(&self, key: &SummaryKey, summary: &Summary, book: &Book) -> bool {
        let state = self.lock();
        let is_wanted = state.making.contains_key(key);
        if is_wanted {
            book.keep(key, summary.clone());
        }
        is_wanted
    }

    /// Takes it out, its summary being ready, if nothing has happened since `turns`.
    pub(super) fn ends(&self, key: &SummaryKey, turns: u64, book: &Book) -> bool {
        let mut state = self.lock();
        let ends = state.making.get(key).is_none_or(|going| going.turns == turns);
        if ends {
            state.making.remove(key);
            book.set_ready(key, true);
        }
        ends
    }

    /// Forgets a conversation with its summaries: those that are known, those that are being made, and those that its
    /// running turns would have made.
    pub(super) fn forget_conversation(&self, tenant: &str, chain: &[ChainId], book: &Book) {
        let mut state = self.lock();
        if let Some(last) = chain.last() {
            let turns = state.turns.iter().filter_map(Weak::upgrade);
            turns
                .filter(|turn| turn.tenant == tenant && turn.chain.contains(last))
                .for_each(|turn| turn.forgotten.store(true, Ordering::Release));
        }
        state.making.retain(|key, going| {
            let is_kept = key.tenant != tenant || !chain.contains(&key.chain);
            if !is_kept {
                going.forgotten.notify_one();
            }
            is_kept
        });
        book.forget(tenant, chain);
    }

    /// Nobody makes the summary any more; the next turn may try again.
    fn give_up(&self, key: &SummaryKey) {
        self.lock().making.remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the maps is one call, so they are whole whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(tenant: &str, chain: &[u8]) -> Said {
        let chain: Vec<ChainId> = chain.iter().map(|&id| ChainId([id; 32])).collect();
        let messages = chain.iter().map(|id| json!(id.0[0])).collect();
        let (tenant, chain) = (tenant.to_owned(), chain.into());
        Said { tenant, prefix: 0, systems: 0, messages, answer: None, chain }
    }

    fn key(tenant: &str, chain: u8) -> SummaryKey {
        SummaryKey { tenant: tenant.to_owned(), chain: ChainId([chain; 32]) }
    }

    #[test]
    fn how_a_conversation_goes_on_is_noted_behind_all_its_summaries() {
        let (latest, book) = (Latest::default(), Book::open(None));
        let note = |id, said: Said| {
            let begun = latest.begin(&said.tenant, &said.chain);
            latest.note(&key("a", id), &said, &begun, &book)
        };
        assert!(note(2, said("a", &[1, 2, 3])));
        assert!(note(4, said("a", &[1, 2, 3, 4, 5])));
        assert!(!note(4, said("b", &[1, 2])), "another tenant's changes nothing");
        let recent = |chain| latest.get(&key("a", chain)).map(|(turns, ahead)| (turns, ahead.recent));
        assert_eq!(recent(2), Some((1, vec![json!(3), json!(4), json!(5)])));
        assert_eq!(recent(4), Some((0, vec![json!(5)])));
        assert!(!latest.ends(&key("a", 2), 0, &book) && latest.ends(&key("a", 2), 1, &book));
        assert_eq!(recent(2), None);
    }

    #[test]
    fn a_tenant_waits_for_a_bounded_number_of_summaries() {
        let (latest, book) = (Latest::default(), Book::open(None));
        let begun = |tenant: &str| {
            let note = |id: &u8| {
                let begun = latest.begin(tenant, &[]);
                latest.note(&key(tenant, *id), &said(tenant, &[*id]), &begun, &book)
            };
            (0..100).filter(note).count()
        };
        assert_eq!(begun("a"), OF_TENANT_MAX);
        assert_eq!(
            (0..9).map(|tenant| begun(&tenant.to_string())).sum::<usize>(),
            PENDING_MAX - OF_TENANT_MAX
        );
    }

    /// A summary is asked for, made, kept and computed behind: whenever the conversation is deleted, nothing is left.
    #[test]
    fn nothing_is_made_of_a_conversation_that_was_forgotten() {
        let (latest, book) = (Latest::default(), Book::open(None));
        let (conversation, other) = (said("a", &[1, 2, 3, 4]), said("a", &[1, 9]));
        let chain = &conversation.chain[..3];
        let summary = || Summary {
            text: "what was said".to_owned(),
            covers: 2,
            updates: 1,
            made: 1,
            used: 1,
            ready: false,
            failed: None,
            corrected: false,
            read: false,
        };
        let known = || book.get(&key("a", 2)).is_some();
        let begun = latest.begin("a", &conversation.chain);
        let another = latest.begin("a", &other.chain);

        // While it is made, and what follows it computed.
        for is_kept in [false, true] {
            let begun = latest.begin("a", &conversation.chain);
            assert!(latest.note(&key("a", 2), &conversation, &begun, &book));
            let told = latest.forgotten(&key("a", 2)).unwrap();
            assert!(!is_kept || latest.keep(&key("a", 2), &summary(), &book));
            latest.forget_conversation("b", chain, &book);
            assert_eq!(known(), is_kept, "another tenant's changes nothing");
            latest.forget_conversation("a", chain, &book);
            let is_told = told.notified();
            assert!(is_ready(is_told), "whoever makes it stops");
            assert!(!latest.keep(&key("a", 2), &summary(), &book) && !known());
            assert!(latest.get(&key("a", 2)).is_none() && latest.forgotten(&key("a", 2)).is_none());
        }
        // While the turn is answered that would have it made.
        assert!(begun.is_forgotten() && !latest.note(&key("a", 2), &conversation, &begun, &book));
        assert!(!another.is_forgotten() && latest.note(&key("a", 1), &other, &another, &book));
        // One that begins later and says the same is another conversation.
        let again = latest.begin("a", &conversation.chain);
        assert!(latest.note(&key("a", 2), &conversation, &again, &book));
    }

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(future).poll(&mut context).is_ready()
    }
}
