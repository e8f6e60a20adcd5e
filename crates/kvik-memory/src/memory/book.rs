//! Stored summaries, by the chain identity of the messages that they cover.
//!
//! A summary is a function of messages that its tenant has sent: any conversation of the tenant with the same beginning
//! finds it. Records survive the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::context::ChainId;
use serde::{Deserialize, Serialize};

use super::write_behind::{CLOSING_TIME, WriteBehind};
use crate::hex;
use crate::records::map::{self, RecordKey};
use crate::records::{Records, RecordsError, Table};

/// Name of the table of summaries.
pub(super) const SUMMARIES: &str = "summaries";
/// Maximum number of summaries of one tenant; the least recently used one is evicted.
const SUMMARIES_MAX: usize = 1024;

/// How the text of a summary came about, from best to worst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryKind {
    /// The model summarised.
    #[default]
    Summary,
    /// The model listed facts, since its summary could not be used.
    Facts,
    /// Sentences of the messages, since the model gave nothing that could be used.
    Extracted,
}

impl SummaryKind {
    /// Name in answers and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            SummaryKind::Summary => "summary",
            SummaryKind::Facts => "facts",
            SummaryKind::Extracted => "extracted",
        }
    }
}

/// A summary of the beginning of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Text; empty if none could be made.
    pub text: String,
    /// How the text came about.
    #[serde(default)]
    pub kind: SummaryKind,
    /// Number of covered messages after the system messages.
    pub covers: usize,
    /// Number of summaries in the series that led to this one, itself included.
    pub updates: u64,
    /// Time of creation, in Unix seconds.
    pub made: u64,
    /// Position of the last use in the order of all: Unix seconds, unless a clock was set back.
    #[serde(default)]
    pub used: u64,
    /// True if the conversation after the summary was prefilled in advance. Not stored: after a restart, every summary
    /// is considered ready.
    #[serde(skip, default = "after_a_restart")]
    pub ready: bool,
    /// Reason why the text contains nothing new: the newly covered messages are lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// True if the text was corrected by the client.
    #[serde(default)]
    pub corrected: bool,
    /// True if a turn has read it already.
    #[serde(skip)]
    pub read: bool,
}

fn after_a_restart() -> bool {
    true
}

/// Key of a summary: the tenant, and the identity of the covered messages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SummaryKey {
    pub tenant: String,
    pub chain: ChainId,
}

/// All summaries. Memory is authoritative; the records follow it, so that no turn waits for a disk.
pub(super) struct Book {
    summaries: Arc<Summaries>,
    /// Absent if nothing can be written: then summaries last until the process ends.
    records: Option<WriteBehind<SummaryKey>>,
    /// Position of the last use.
    last_use: AtomicU64,
}

#[derive(Default)]
struct Summaries(Mutex<BTreeMap<SummaryKey, Summary>>);

/// The error that deleted summaries are still on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "what is remembered of the conversation could not be deleted from the disk; see what is wrong with it, and delete the conversation again"
)]
pub struct NotDeleted;

impl Book {
    /// Loads the stored summaries.
    pub(super) fn open(records: Option<&Records>) -> Book {
        let (table, known): (_, BTreeMap<SummaryKey, Summary>) = map::open(records, SUMMARIES);
        let last_use = AtomicU64::new(known.values().map(last_use).max().unwrap_or(0));
        let summaries = Arc::new(Summaries(Mutex::new(known)));
        let records = table.and_then(|table| {
            let summaries = summaries.clone();
            WriteBehind::start(move |keys| summaries.write(keys, &table))
        });
        Book { summaries, records, last_use }
    }

    /// Summaries of the beginnings of a conversation, those that cover most first. The number of covered messages is
    /// counted along this chain: it may have been stored under other settings of the server.
    pub(super) fn of(&self, tenant: &str, chain: &[ChainId]) -> Vec<Summary> {
        // A history may have a million messages, so they are looked up without the lock.
        let known: BTreeSet<ChainId> = of(&self.lock(), tenant).map(|(key, _)| key.chain).collect();
        let found = chain.iter().enumerate().rev().filter(|(_, chain)| known.contains(chain));
        let found: Vec<(usize, ChainId)> = found.map(|(index, &chain)| (index, chain)).collect();
        let summaries = self.lock();
        let found = found.into_iter().filter_map(|(index, chain)| {
            let summary = summaries.get(&SummaryKey { tenant: tenant.to_owned(), chain })?;
            Some(Summary { covers: index + 1, ..summary.clone() })
        });
        found.collect()
    }

    /// Notes that a turn reads a summary at this time.
    pub(super) fn note_read(&self, key: &SummaryKey, now: u64) {
        if let Some(summary) = self.lock().get_mut(key) {
            (summary.used, summary.read) = (self.next_use(now), true);
        }
    }

    /// Position of a use at this time, behind all others: by a clock that was set back, or never set, what is in use
    /// would be evicted. To be called with the summaries locked.
    fn next_use(&self, now: u64) -> u64 {
        let next = now.max(self.last_use.load(Ordering::Relaxed).saturating_add(1));
        self.last_use.store(next, Ordering::Relaxed);
        next
    }

    /// Sets whether the conversation after a summary is prefilled as far as it has continued; not stored.
    pub(super) fn set_ready(&self, key: &SummaryKey, ready: bool) {
        if let Some(summary) = self.lock().get_mut(key) {
            summary.ready = ready;
        }
    }

    /// The summary of exactly the messages of a key.
    pub(super) fn get(&self, key: &SummaryKey) -> Option<Summary> {
        self.lock().get(key).cloned()
    }

    /// Stores a summary, which is used when it is made.
    pub(super) fn keep(&self, key: &SummaryKey, summary: Summary) {
        let mut summaries = self.lock();
        let surplus = surplus(&summaries, &key.tenant);
        let used = self.next_use(last_use(&summary));
        summaries.insert(key.clone(), Summary { used, ..summary });
        let surplus: Vec<SummaryKey> = surplus.into_iter().filter(|old| old != key).collect();
        surplus.iter().for_each(|old| drop(summaries.remove(old)));
        drop(summaries);
        if let Some(records) = &self.records {
            records.queue(surplus.into_iter().chain([key.clone()]));
        }
    }

    /// Removes the summaries of all beginnings of a conversation. [`is_deleted`](Book::is_deleted) confirms their
    /// removal from the disk.
    pub(super) fn forget(&self, tenant: &str, chain: &BTreeSet<ChainId>) {
        let mut summaries = self.lock();
        let known = of(&summaries, tenant).map(|(key, _)| key).filter(|key| chain.contains(&key.chain));
        let known: Vec<SummaryKey> = known.cloned().collect();
        known.iter().for_each(|key| drop(summaries.remove(key)));
        drop(summaries);
        if let Some(records) = &self.records {
            records.queue_deleted(known);
        }
    }

    /// Waits until no deleted summary of these messages is left on the disk.
    ///
    /// # Errors
    /// If the disk fails, or does not respond.
    pub(super) fn is_deleted(&self, tenant: &str, chain: &BTreeSet<ChainId>) -> Result<(), NotDeleted> {
        let Some(records) = &self.records else { return Ok(()) };
        let is_meant = |key: &SummaryKey| key.tenant == tenant && chain.contains(&key.chain);
        if records.is_written(is_meant, CLOSING_TIME) { Ok(()) } else { Err(NotDeleted) }
    }

    /// Waits a bounded time until all summaries are on the disk.
    pub(super) fn close(&self) {
        if !self.is_written(CLOSING_TIME) {
            tracing::warn!("the last summaries of conversations are not written down");
        }
    }

    /// Waits at most `patience` until all summaries are on the disk; returns whether they are.
    pub(super) fn is_written(&self, patience: Duration) -> bool {
        self.records.as_ref().is_none_or(|records| records.is_written(|_| true, patience))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SummaryKey, Summary>> {
        self.summaries.lock()
    }
}

impl Summaries {
    /// Writes the current state of the summaries with these keys.
    fn write(&self, keys: &BTreeSet<SummaryKey>, table: &Table<Summary>) -> Result<(), RecordsError> {
        let now: BTreeMap<String, Option<Summary>> = {
            let summaries = self.lock();
            keys.iter().map(|key| (key.text(), summaries.get(key).cloned())).collect()
        };
        table.change(now.keys().map(String::as_str), |key, _| now.get(key).cloned().flatten())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SummaryKey, Summary>> {
        // Every change of the map is a single call, so a panic leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Summaries of a tenant.
fn of<'a>(
    summaries: &'a BTreeMap<SummaryKey, Summary>,
    tenant: &'a str,
) -> impl Iterator<Item = (&'a SummaryKey, &'a Summary)> {
    let first = SummaryKey { tenant: tenant.to_owned(), chain: ChainId([0; 32]) };
    summaries.range(first..).take_while(move |(key, _)| key.tenant == tenant)
}

/// Position of the last use of a summary. Earlier versions noted none for one that was never read.
fn last_use(summary: &Summary) -> u64 {
    summary.used.max(summary.made)
}

/// Keys of a tenant to evict before another summary is stored.
fn surplus(summaries: &BTreeMap<SummaryKey, Summary>, tenant: &str) -> Vec<SummaryKey> {
    let own = of(summaries, tenant);
    let mut own: Vec<(u64, &SummaryKey)> = own.map(|(key, summary)| (last_use(summary), key)).collect();
    if own.len() < SUMMARIES_MAX {
        return Vec::new();
    }
    own.sort_unstable();
    own.truncate(own.len() + 1 - SUMMARIES_MAX);
    own.into_iter().map(|(_, key)| key.clone()).collect()
}

impl RecordKey for SummaryKey {
    fn parts(&self) -> (&str, String) {
        (&self.tenant, hex::written(self.chain.0))
    }

    fn of_parts(tenant: &str, chain: &str) -> Option<SummaryKey> {
        Some(SummaryKey { tenant: tenant.to_owned(), chain: ChainId(hex::read(chain)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, chain: u8) -> SummaryKey {
        SummaryKey { tenant: tenant.to_owned(), chain: ChainId([chain; 32]) }
    }

    fn summary(text: &str, covers: usize, made: u64) -> Summary {
        let text = text.to_owned();
        Summary {
            text,
            kind: SummaryKind::Summary,
            covers,
            updates: 1,
            made,
            used: made,
            ready: true,
            failed: None,
            corrected: false,
            read: false,
        }
    }

    #[test]
    fn summaries_are_found_by_their_tenants_chain_and_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let records = || Records::open(dir.path(), Duration::ZERO).unwrap();
        let (one, two) = (summary("one", 2, 1), summary("two", 4, 2));
        {
            let book = Book::open(Some(&records()));
            book.keep(&key("a", 2), Summary { ready: false, ..one.clone() });
            assert!(!book.of("a", &[ChainId([2; 32])])[0].ready, "it is not computed ahead yet");
            book.keep(&key("a", 4), two.clone());
        }
        let book = Book::open(Some(&records()));
        let chain = [1, 2, 3, 4, 5].map(|id| ChainId([id; 32]));
        assert_eq!(book.of("a", &chain), [two, one.clone()]);
        assert_eq!(book.of("a", &chain[..3]), [one]);
        assert!(book.of("b", &chain).is_empty(), "another tenant's");
        book.keep(&key("c", 1), summary("three", 1, 0));
        assert_eq!(book.get(&key("c", 1)).unwrap().used, 3, "behind the uses before the restart");
        assert_eq!(book.of("a", &chain[1..3])[0].covers, 1, "counted along this chain");
        assert!(book.get(&key("a", 2)).is_some() && book.get(&key("b", 2)).is_none());
        let messages = |chain: &[ChainId]| chain.iter().copied().collect::<BTreeSet<_>>();
        book.forget("b", &messages(&chain));
        book.forget("a", &messages(&chain[..3]));
        assert_eq!(book.is_deleted("a", &messages(&chain)), Ok(()));
        drop(book);
        assert_eq!(Book::open(Some(&records())).of("a", &chain).len(), 1, "what covers more is another's");
    }

    /// As many as a tenant may have, made one second after the other from this one on; and the key of the first.
    fn full_book(from: u64) -> (Book, SummaryKey) {
        let book = Book::open(None);
        for i in 0..SUMMARIES_MAX as u64 {
            let mut chain = [0; 32];
            chain[..8].copy_from_slice(&i.to_le_bytes());
            let key = SummaryKey { tenant: "a".to_owned(), chain: ChainId(chain) };
            book.keep(&key, summary("x", 1, from + i));
        }
        (book, SummaryKey { tenant: "a".to_owned(), chain: ChainId([0; 32]) })
    }

    /// As on a board that starts in 1970, until it has asked for the time.
    #[test]
    fn those_in_use_stay_where_the_clock_is_behind_the_summaries() {
        let (book, oldest) = full_book(1_800_000_000);
        book.note_read(&oldest, 60);
        for (chain, made) in [(253, 61), (254, 62), (255, 63)] {
            book.keep(&key("a", chain), summary("y", 1, made));
        }
        let used = [oldest, key("a", 253), key("a", 254), key("a", 255)];
        assert!(used.iter().all(|key| book.get(key).is_some()));
        assert_eq!(book.lock().len(), SUMMARIES_MAX);
        assert_eq!(book.get(&used[1]).unwrap().made, 61, "its time is what the clock showed");
    }

    #[test]
    fn a_tenant_has_a_bounded_number_and_those_in_use_stay() {
        let (book, oldest) = full_book(0);
        book.note_read(&oldest, u64::MAX);
        book.keep(&key("a", 255), summary("y", 1, 9999));
        book.keep(&key("b", 255), summary("z", 1, 0));
        assert!([oldest, key("a", 255), key("b", 255)].iter().all(|key| book.get(key).is_some()));
        assert_eq!(book.lock().len(), SUMMARIES_MAX + 1);
    }
}
