//! The summaries that are known, by the chain of the messages that they cover.
//!
//! A summary is a function of messages that its tenant has sent: who sends the same beginning again finds it, whatever
//! comes after. Records outlive the process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvik_engine::conversation::ChainId;
use serde::{Deserialize, Serialize};

use crate::accounts::ledger::{Records, Table};

/// Summaries of one tenant at most; the one that was not used for longest goes first.
const SUMMARIES_MAX: usize = 1024;

/// A summary of the beginning of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// What it says; empty where none could be made.
    pub(crate) text: String,
    /// Messages that it covers, behind the system messages.
    pub(crate) covers: usize,
    /// Summaries that it was made from, itself included.
    pub(crate) updates: u64,
    /// When it was made, Unix seconds.
    pub(crate) made: u64,
    /// When it was last read, Unix seconds.
    #[serde(default)]
    pub(crate) used: u64,
    /// The conversation as it goes on from here was computed ahead. Lasts as long as the process: a later one reads
    /// whatever there is.
    #[serde(skip, default = "after_a_restart")]
    pub(crate) ready: bool,
    /// Why it says nothing new: what it covers is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
    /// Somebody who knows better has said what it says.
    #[serde(default)]
    pub(crate) corrected: bool,
    /// Somebody has read it already.
    #[serde(skip)]
    pub(crate) read: bool,
}

fn after_a_restart() -> bool {
    true
}

/// Whose summary, and of which messages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SummaryKey {
    pub(crate) tenant: String,
    pub(crate) chain: ChainId,
}

/// All summaries.
pub(crate) struct Book {
    /// Absent where nothing can be written: summaries then last as long as the process.
    table: Option<Table<Summary>>,
    summaries: Mutex<BTreeMap<SummaryKey, Summary>>,
}

impl Book {
    /// The summaries that were known when the records were closed.
    pub(crate) fn open(records: Option<&Records>) -> Book {
        let table = records.map(|records| records.table("summaries"));
        let known = table.as_ref().map(|table: &Table<Summary>| table.all_from(""));
        let known = known.transpose().unwrap_or_else(|error| {
            tracing::warn!("the summaries of conversations cannot be read: {error}");
            None
        });
        let known = known.map(|found| found.records).unwrap_or_default().into_iter();
        let summaries =
            known.filter_map(|(key, summary)| Some((SummaryKey::parse(&key)?, summary))).collect();
        Book { table, summaries: Mutex::new(summaries) }
    }

    /// The summaries of the beginnings of a conversation, those that cover most first. How many messages they cover is
    /// counted along this chain: with other settings of the server it may have been another number.
    pub(crate) fn of(&self, tenant: &str, chain: &[ChainId]) -> Vec<Summary> {
        let summaries = self.lock();
        let known = chain.iter().enumerate().rev().filter_map(|(index, &chain)| {
            let summary = summaries.get(&SummaryKey { tenant: tenant.to_owned(), chain })?;
            Some(Summary { covers: index + 1, ..summary.clone() })
        });
        known.collect()
    }

    /// Notes that a summary is read at this time.
    pub(crate) fn note_read(&self, key: &SummaryKey, now: u64) {
        if let Some(summary) = self.lock().get_mut(key) {
            (summary.used, summary.read) = (now, true);
        }
    }

    /// Whether the conversation behind a summary is computed as far as it has gone; lasts as long as the process.
    pub(crate) fn set_ready(&self, key: &SummaryKey, ready: bool) {
        if let Some(summary) = self.lock().get_mut(key) {
            summary.ready = ready;
        }
    }

    /// The summary of exactly the messages of a chain.
    pub(crate) fn get(&self, key: &SummaryKey) -> Option<Summary> {
        self.lock().get(key).cloned()
    }

    /// Writes a summary down.
    pub(crate) fn keep(&self, key: &SummaryKey, summary: Summary) {
        let mut summaries = self.lock();
        let surplus = surplus(&summaries, &key.tenant);
        summaries.insert(key.clone(), summary.clone());
        let surplus: Vec<SummaryKey> = surplus.into_iter().filter(|old| old != key).collect();
        surplus.iter().for_each(|old| drop(summaries.remove(old)));
        let mine = key.text();
        self.write(surplus.iter().chain([key]), |text| (text == mine).then(|| summary.clone()));
    }

    /// Forgets the summaries of all beginnings of a conversation.
    pub(crate) fn forget(&self, tenant: &str, chain: &[ChainId]) {
        let mut summaries = self.lock();
        let keys = chain.iter().map(|&chain| SummaryKey { tenant: tenant.to_owned(), chain });
        let known: Vec<SummaryKey> = keys.filter(|key| summaries.remove(key).is_some()).collect();
        self.write(known.iter(), |_| None);
    }

    fn write<'a>(
        &self,
        keys: impl Iterator<Item = &'a SummaryKey>,
        summary: impl Fn(&str) -> Option<Summary>,
    ) {
        let Some(table) = &self.table else { return };
        let texts: Vec<String> = keys.map(SummaryKey::text).collect();
        if let Err(error) = table.change(texts.iter().map(String::as_str), |text, _| summary(text)) {
            tracing::warn!("what is known of summaries lasts only as long as this process: {error}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SummaryKey, Summary>> {
        // Every change of the map is one call, so it is whole whatever panicked.
        self.summaries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a tenant has too many of when another one comes.
fn surplus(summaries: &BTreeMap<SummaryKey, Summary>, tenant: &str) -> Vec<SummaryKey> {
    let own = summaries.iter().filter(|(key, _)| key.tenant == tenant);
    let mut own: Vec<(u64, &SummaryKey)> =
        own.map(|(key, summary)| (summary.used.max(summary.made), key)).collect();
    if own.len() < SUMMARIES_MAX {
        return Vec::new();
    }
    own.sort_unstable();
    own.truncate(own.len() + 1 - SUMMARIES_MAX);
    own.into_iter().map(|(_, key)| key.clone()).collect()
}

impl SummaryKey {
    /// As the key of a record; names hold no control characters.
    fn text(&self) -> String {
        let chain: String = self.chain.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}\0{chain}", self.tenant)
    }

    fn parse(text: &str) -> Option<SummaryKey> {
        let (tenant, hex) = text.split_once('\0')?;
        let mut chain = [0; 32];
        if hex.len() != 2 * chain.len() {
            return None;
        }
        for (i, byte) in chain.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
        }
        Some(SummaryKey { tenant: tenant.to_owned(), chain: ChainId(chain) })
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
            covers,
            updates: 1,
            made,
            used: 0,
            ready: true,
            failed: None,
            corrected: false,
            read: false,
        }
    }

    #[test]
    fn summaries_are_found_by_their_tenants_chain_and_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let records = || Records::open(dir.path(), std::time::Duration::ZERO).unwrap();
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
        assert_eq!(book.of("a", &chain[1..3])[0].covers, 1, "counted along this chain");
        assert!(book.get(&key("a", 2)).is_some() && book.get(&key("b", 2)).is_none());
        book.forget("b", &chain);
        book.forget("a", &chain[..3]);
        drop(book);
        assert_eq!(Book::open(Some(&records())).of("a", &chain).len(), 1, "what covers more is another's");
    }

    #[test]
    fn a_tenant_has_a_bounded_number_and_those_in_use_stay() {
        let book = Book::open(None);
        for i in 0..SUMMARIES_MAX as u64 {
            let mut chain = [0; 32];
            chain[..8].copy_from_slice(&i.to_le_bytes());
            book.keep(&SummaryKey { tenant: "a".to_owned(), chain: ChainId(chain) }, summary("x", 1, i));
        }
        let oldest = SummaryKey { tenant: "a".to_owned(), chain: ChainId([0; 32]) };
        book.note_read(&oldest, u64::MAX);
        book.keep(&key("a", 255), summary("y", 1, 9999));
        book.keep(&key("b", 255), summary("z", 1, 0));
        assert!([oldest, key("a", 255), key("b", 255)].iter().all(|key| book.get(key).is_some()));
        assert_eq!(book.lock().len(), SUMMARIES_MAX + 1);
    }
}
