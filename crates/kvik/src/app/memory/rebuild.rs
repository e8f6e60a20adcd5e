//! Behind the answer: a new summary, and the conversation as it goes on from it, computed ahead.
//!
//! All of it is work of nobody who waits. It is paid by the tenant whose conversation it is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_engine::conversation::ChainId;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::book::{Book, Summary, SummaryKey};
use super::summary::{Making, compute};
use super::turn::Render;
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
    Rebuild { key: SummaryKey, rebuild: Box<Rebuild> },
    /// These messages are computed.
    Ahead { messages: Vec<Value>, render: Render },
}

/// What a summary is made of.
pub(crate) struct Rebuild {
    /// What is never let go.
    pub(super) prefix: Vec<Value>,
    /// System messages of the prefix.
    pub(super) systems: usize,
    /// The summary before it.
    pub(super) before: Option<Summary>,
    /// Messages that it covers beyond that.
    pub(super) let_go: Vec<Value>,
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
        let (prefix, messages) = conversation.asked.messages.split_at(conversation.prefix);
        Rebuild {
            prefix: prefix.to_vec(),
            systems: conversation.systems,
            before: view.summary.clone(),
            let_go: messages[view.covered()..covers].to_vec(),
            covers,
            summary_max: conversation.settings.summary_max,
            chunk_max: conversation.settings.recent_max,
            words: conversation.words.clone(),
            render: conversation.asked.render.clone(),
        }
    }
}

/// A conversation as far as it has gone.
pub(crate) struct Said {
    pub(super) tenant: String,
    /// What is never let go.
    pub(super) prefix: Vec<Value>,
    /// System messages of the prefix.
    pub(super) systems: usize,
    /// What follows.
    pub(super) messages: Vec<Value>,
    /// Identities of those that the request sent.
    pub(super) chain: Vec<ChainId>,
}

impl Said {
    pub(super) fn of(conversation: &LongConversation<'_>) -> Said {
        let (prefix, messages) = conversation.asked.messages.split_at(conversation.prefix);
        Said {
            tenant: conversation.tenant.clone(),
            prefix: prefix.to_vec(),
            systems: conversation.systems,
            messages: messages.to_vec(),
            chain: conversation.chain.clone(),
        }
    }

    /// Messages that a summary covers of it; `None` where it is of another conversation.
    fn covered_by(&self, key: &SummaryKey) -> Option<usize> {
        let covers = self.chain.iter().position(|&chain| chain == key.chain)? + 1;
        (self.tenant == key.tenant).then_some(covers)
    }

    fn ahead(&self, covers: usize) -> Ahead {
        let (prefix, recent) = (self.prefix.clone(), self.messages[covers..].to_vec());
        Ahead { prefix, systems: self.systems, recent }
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
        let MemoryJob { caller, kind, pending } = work;
        let (app, slots) = (app.clone(), slots.clone());
        let (key, rebuild) = match kind {
            MemoryTask::Rebuild { key, rebuild } => (key, rebuild),
            MemoryTask::Ahead { messages, render } => {
                if let Ok(slot) = ahead_slots.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _held = (slot, pending);
                        compute(&app, &caller, &render, &messages).await
                    });
                }
                continue;
            }
        };
        tokio::spawn(async move {
            let _held = (slots.acquire().await, pending);
            let making = Making::new(&app, &caller, &key, &rebuild);
            if let Err(error) = making.run().await {
                tracing::warn!(
                    "a conversation goes on without a new summary for now: {}",
                    error.body()["error"]["message"]
                );
                app.metrics.memory.summary(SummaryOutcome::Failed);
                app.memory.latest.forget(&key);
            }
        });
    }
}

/// How the conversations whose summaries are being made have gone on meanwhile.
#[derive(Default)]
pub(crate) struct Latest(Mutex<BTreeMap<SummaryKey, (u64, Ahead)>>);

impl Latest {
    /// Notes how a conversation goes on, behind the summary `key` and all others that are being made of it: until that
    /// is computed they are not ready. Whether nobody is at `key` yet.
    pub(super) fn note(&self, key: &SummaryKey, said: &Said, book: &Book) -> bool {
        let mut latest = self.lock();
        let of_tenant = latest.keys().filter(|other| other.tenant == key.tenant).count();
        let has_room = latest.len() < PENDING_MAX && of_tenant < OF_TENANT_MAX;
        let begins = !latest.contains_key(key) && has_room;
        let mut behind: Vec<SummaryKey> =
            latest.keys().filter(|key| said.covered_by(key).is_some()).cloned().collect();
        behind.extend(begins.then(|| key.clone()));
        for key in behind {
            let Some(covers) = said.covered_by(&key) else { continue };
            let turns = latest.get(&key).map_or(0, |(turns, _)| turns + 1);
            book.set_ready(&key, false);
            latest.insert(key, (turns, said.ahead(covers)));
        }
        begins
    }

    /// Whether a summary of some beginning of a conversation is being made, or what follows it computed.
    pub(super) fn is_at(&self, tenant: &str, chain: &[ChainId]) -> bool {
        self.lock().keys().any(|key| key.tenant == tenant && chain.contains(&key.chain))
    }

    /// How it goes on, and how many turns have been noted.
    pub(super) fn get(&self, key: &SummaryKey) -> Option<(u64, Ahead)> {
        self.lock().get(key).cloned()
    }

    /// Takes it out, its summary being ready, if nothing has happened since `turns`.
    pub(super) fn ends(&self, key: &SummaryKey, turns: u64, book: &Book) -> bool {
        let mut latest = self.lock();
        let ends = latest.get(key).is_none_or(|(now, _)| *now == turns);
        if ends {
            latest.remove(key);
            book.set_ready(key, true);
        }
        ends
    }

    fn forget(&self, key: &SummaryKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SummaryKey, (u64, Ahead)>> {
        // Every change of the map is one call, so it is whole whatever panicked.
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
        Said { tenant: tenant.to_owned(), prefix: Vec::new(), systems: 0, messages, chain }
    }

    fn key(tenant: &str, chain: u8) -> SummaryKey {
        SummaryKey { tenant: tenant.to_owned(), chain: ChainId([chain; 32]) }
    }

    #[test]
    fn how_a_conversation_goes_on_is_noted_behind_all_its_summaries() {
        let (latest, book) = (Latest::default(), Book::open(None));
        assert!(latest.note(&key("a", 2), &said("a", &[1, 2, 3]), &book));
        assert!(latest.note(&key("a", 4), &said("a", &[1, 2, 3, 4, 5]), &book));
        assert!(!latest.note(&key("a", 4), &said("b", &[1, 2]), &book), "another tenant's changes nothing");
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
            (0..100).filter(|&id| latest.note(&key(tenant, id), &said(tenant, &[id]), &book)).count()
        };
        assert_eq!(begun("a"), OF_TENANT_MAX);
        assert_eq!(
            (0..9).map(|tenant| begun(&tenant.to_string())).sum::<usize>(),
            PENDING_MAX - OF_TENANT_MAX
        );
    }
}
