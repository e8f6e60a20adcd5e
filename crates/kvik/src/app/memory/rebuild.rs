//! Behind the answer: a new summary, and the conversation as it goes on from it, computed ahead.
//!
//! All of it is work of nobody who waits. It is paid by the tenant whose conversation it is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_engine::api::{KeptPrompt, Request};
use kvik_engine::conversation::{
    ChainId,
    chain::text_of,
    lighten::{Lighten, lighten},
    segments::exchanges,
};
use kvik_engine::text::answer::{AnswerDelta, AnswerParser};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::book::{Book, Summary, SummaryKey};
use super::turn::{Purpose, Render};
use super::words::Words;
use crate::app::{keys::Caller, state::App};
use crate::http::error::ApiError;

/// Summaries that are made at the same time.
const AT_ONCE: usize = 2;
/// Summaries of one tenant that are being made or wait, at most: each holds its messages. A conversation beyond that
/// goes on without, and tries again at its next turn.
const OF_TENANT_MAX: usize = 8;
/// Those of all tenants.
const PENDING_MAX: usize = 64;
/// Conversations that are computed without what was quoted in them, at the same time; others are not.
const AHEAD_MAX: usize = 8;
/// Pieces of a history that are summarised one after the other; of a longer one, a sample is read.
const PIECES_MAX: usize = 8;
/// Characters of a tool's output that a summary is made from.
const TOOL_CHARS: usize = 1024;

/// What is to be done behind an answer, and for whom.
pub(crate) struct MemoryJob {
    pub(super) caller: Caller,
    pub(super) kind: MemoryTask,
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
struct Ahead {
    prefix: Vec<Value>,
    systems: usize,
    recent: Vec<Value>,
}

/// Makes the summaries that arrive, for ever.
pub(crate) async fn make_summaries(app: Arc<App>) {
    let Some(mut arriving) = app.memory.arriving() else { return };
    let (slots, ahead_slots) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(AHEAD_MAX)));
    while let Some(work) = arriving.recv().await {
        let MemoryJob { caller, kind } = work;
        let (app, slots) = (app.clone(), slots.clone());
        let (key, rebuild) = match kind {
            MemoryTask::Rebuild { key, rebuild } => (key, rebuild),
            MemoryTask::Ahead { messages, render } => {
                if let Ok(slot) = ahead_slots.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _slot = slot;
                        compute(&app, &caller, &render, &messages).await
                    });
                }
                continue;
            }
        };
        tokio::spawn(async move {
            let _slot = slots.acquire().await;
            let making = Making { app: &app, caller: &caller, key: &key, rebuild: &rebuild };
            if let Err(error) = making.run().await {
                tracing::warn!(
                    "a conversation goes on without a new summary for now: {}",
                    error.body()["error"]["message"]
                );
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

    fn get(&self, key: &SummaryKey) -> Option<(u64, Ahead)> {
        self.lock().get(key).cloned()
    }

    /// Takes it out, its summary being ready, if nothing has happened since `turns`.
    fn ends(&self, key: &SummaryKey, turns: u64, book: &Book) -> bool {
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

/// One summary that is being made.
struct Making<'a> {
    app: &'a Arc<App>,
    caller: &'a Caller,
    key: &'a SummaryKey,
    rebuild: &'a Rebuild,
}

impl Making<'_> {
    async fn run(&self) -> Result<(), ApiError> {
        let book = &self.app.memory.book;
        // A turn that began before the summary was there ends after it: only what it said is computed then.
        let summary = match book.get(self.key) {
            Some(summary) => summary,
            None => self.summary().await?,
        };
        book.keep(self.key, summary.clone());
        // Turns that were answered meanwhile are computed as well, so that the next one finds all of it.
        while let Some((turns, ahead)) = self.app.memory.latest.get(self.key) {
            self.compute(&summary, &ahead).await?;
            if self.app.memory.latest.ends(self.key, turns, book) {
                break;
            }
        }
        Ok(())
    }

    /// The new summary; the old one where the model has nothing to say.
    async fn summary(&self) -> Result<Summary, ApiError> {
        let before = self.rebuild.before.as_ref();
        let old = before.map(|summary| summary.text.clone()).unwrap_or_default();
        let (mut text, mut failed) = (old, None);
        for piece in self.pieces() {
            match self.ask(&text, &piece).await? {
                said if said.is_empty() => failed = Some("the model gave no summary".to_owned()),
                said => text = said,
            }
        }
        let updates = before.map_or(0, |summary| summary.updates) + 1;
        let made = super::now();
        Ok(Summary {
            text,
            covers: self.rebuild.covers,
            updates,
            made,
            used: made,
            ready: false,
            failed,
            read: false,
        })
    }

    /// The messages that are let go, in pieces that the context has room for.
    fn pieces(&self) -> Vec<Vec<Value>> {
        let mut messages = self.rebuild.let_go.clone();
        lighten(&mut messages, &Lighten { tool_chars: TOOL_CHARS });
        let size = |message: &Value| {
            let text = text_of(message);
            match text.len() <= self.app.text_bytes_max() {
                true => self.app.serving.tokenizer.encode(&text, false, false).len(),
                false => self.app.serving.model.context,
            }
        };
        let mut pieces: Vec<(usize, Vec<Value>)> = Vec::new();
        for exchange in exchanges(&messages) {
            let exchange = &messages[exchange];
            let tokens: usize = exchange.iter().map(size).sum();
            // What is longer than all that may be read at a time is not read at all.
            if tokens > self.rebuild.chunk_max {
                continue;
            }
            match pieces.last_mut() {
                Some((all, piece)) if *all + tokens <= self.rebuild.chunk_max => {
                    *all += tokens;
                    piece.extend_from_slice(exchange);
                }
                _ => pieces.push((tokens, exchange.to_vec())),
            }
        }
        sample(pieces.into_iter().map(|(_, piece)| piece).collect())
    }

    /// What the model says of a piece, given a summary of what was before.
    async fn ask(&self, summary: &str, piece: &[Value]) -> Result<String, ApiError> {
        let question = self.rebuild.words.ask(summary, piece);
        let prompt = (self.rebuild.render)(self.app, &question, Purpose::Summary)?;
        let request = Request { max_tokens: self.rebuild.summary_max, ignore_eos: false, ..request(prompt) };
        let text = self.app.say(self.caller, request).await?;
        let mut parser = AnswerParser::new(false, None);
        let deltas = parser.push(&text).into_iter().chain(parser.finish());
        let content: String = deltas
            .filter_map(|delta| match delta {
                AnswerDelta::Content(text) => Some(text),
                _ => None,
            })
            .collect();
        Ok(content.trim().to_owned())
    }

    /// Computes the conversation as it goes on behind `summary`.
    async fn compute(&self, summary: &Summary, ahead: &Ahead) -> Result<(), ApiError> {
        let mut messages = [&ahead.prefix[..], &ahead.recent].concat();
        if !summary.text.is_empty() {
            self.rebuild.words.tell(&summary.text, ahead.systems, &mut messages);
        }
        compute(self.app, self.caller, &self.rebuild.render, &messages).await
    }
}

/// Computes a conversation for what it leaves in the cache.
async fn compute(app: &App, caller: &Caller, render: &Render, messages: &[Value]) -> Result<(), ApiError> {
    let prompt = render(app, messages, Purpose::Ahead)?;
    if prompt.len() > app.serving.model.context {
        return Ok(());
    }
    app.say(caller, request(prompt)).await.map(drop)
}

/// A request of nobody who waits, which computes a prompt.
fn request(tokens: Vec<u32>) -> Request {
    let kept = KeptPrompt { tokens, salt: [0; 16], tenant: Default::default(), retention: None };
    Request { lifetime: Default::default(), background: true, ..kept.request() }
}

/// The first and the last quarter of the pieces, and between them as many as may be, evenly: as document 002 thins the
/// input of a summary.
fn sample(pieces: Vec<Vec<Value>>) -> Vec<Vec<Value>> {
    if pieces.len() <= PIECES_MAX {
        return pieces;
    }
    let quarter = PIECES_MAX / 4;
    let (middle, between) = (PIECES_MAX - 2 * quarter, pieces.len() - 2 * quarter);
    let wanted = |index: usize| {
        let inner = index.checked_sub(quarter).filter(|&inner| inner < between);
        inner.is_none_or(|inner| inner * middle % between < middle)
    };
    pieces.into_iter().enumerate().filter(|(index, _)| wanted(*index)).map(|(_, piece)| piece).collect()
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

    #[test]
    fn of_a_long_history_head_tail_and_even_middle_are_read() {
        let pieces = |count: usize| (0..count).map(|i| vec![json!(i)]).collect::<Vec<_>>();
        let sampled = |count: usize| -> Vec<u64> {
            sample(pieces(count)).iter().map(|piece| piece[0].as_u64().unwrap()).collect()
        };
        assert_eq!(sampled(8), (0..8).collect::<Vec<u64>>());
        assert_eq!(sampled(9).len(), PIECES_MAX);
        assert_eq!(sampled(24), [0, 1, 2, 7, 12, 17, 22, 23]);
        assert_eq!(sampled(1000).len(), PIECES_MAX);
    }
}
