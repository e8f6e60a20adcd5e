//! Inspection, correction and deletion of the summaries of a conversation.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use crate::context::{ChainId, chain_from};
use serde_json::Value;

use super::Memory;
use super::book::{NotDeleted, SUMMARIES, Summary, SummaryKey};
use super::compaction::Compaction;
use super::host::Host;
use super::identity::{Identity, key_of};
use crate::records::map::RecordKey;
use crate::records::{Records, RecordsError, Table};

/// The newest summary of a conversation.
pub struct Remembered {
    /// The summary.
    pub summary: Summary,
    /// Range of the covered messages.
    pub messages: Range<usize>,
}

/// Reasons why a summary cannot be corrected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CorrectionError {
    /// The conversation has no summary.
    #[error("nothing of this conversation is in a summary yet: all of it is read as it was said")]
    NoSummary,
    /// A new summary is being made from the text of this one.
    #[error("a summary of this conversation is being made; correct it when that has ended")]
    InTheMaking,
    /// The new text is empty.
    #[error("the summary is empty; say what is to be remembered")]
    Empty,
    /// The new text is too long.
    #[error("the summary has {tokens} tokens, and may have {max} at most; shorten it")]
    TooLong {
        /// Tokens of the new text.
        tokens: usize,
        /// Maximum tokens of a summary.
        max: usize,
    },
}

/// Deletes the stored summaries of a conversation's messages for all models, including models that are not loaded or no
/// longer served.
///
/// # Errors
/// If summaries may still be on the disk.
pub fn forget_at_rest(
    records: &Records,
    tenant: &str,
    chain: &BTreeSet<ChainId>,
) -> Result<(), RecordsError> {
    for name in records.tables_of_models(SUMMARIES)? {
        let table: Table<Value> = records.named_table(&name);
        let kept = table.between(&format!("{tenant}\0"), &format!("{tenant}\x01"))?;
        let is_meant = |text: &String| SummaryKey::parse(text).is_some_and(|key| chain.contains(&key.chain));
        let meant: Vec<String> = kept.into_iter().map(|(text, _)| text).filter(is_meant).collect();
        if !meant.is_empty() {
            table.change(meant.iter().map(String::as_str), |_, _| None)?;
        }
    }
    Ok(())
}

/// Identities of the beginnings of a conversation that include the message `from` or a later one: those of all
/// summaries that cover any of these messages.
pub fn chain_behind(tenant: &str, messages: &[Value], from: usize) -> BTreeSet<ChainId> {
    // Protecting the opening exchange would only omit identities from the front.
    let Identity { systems, chain, .. } = Identity::of(tenant, messages, None, false);
    chain.into_iter().skip(from.saturating_sub(systems)).collect()
}

/// What precedes messages of a conversation, as far as their identities depend on it.
#[derive(Debug, Clone, Copy)]
pub enum Preceding<'a> {
    /// Nothing.
    Nothing,
    /// The messages with this identity.
    Messages(ChainId),
    /// A compaction item, whose messages these begin with.
    Item(&'a Compaction),
}

/// Identities of the beginnings of a conversation that end with each of these messages; system messages at its very
/// beginning have none.
pub fn chain_after(tenant: &str, preceding: Preceding<'_>, messages: &[Value]) -> Vec<ChainId> {
    match preceding {
        Preceding::Nothing => Identity::of(tenant, messages, None, false).chain,
        Preceding::Messages(before) => chain_from(before, &key_of(tenant), messages),
        Preceding::Item(item) => Identity::of(tenant, messages, Some(item), false).chain,
    }
}

impl<H: Host> Memory<H> {
    /// True if the bounds fit the context, so that conversations can be remembered.
    pub fn is_possible(&self) -> bool {
        self.settings.is_ok()
    }

    /// Newest summary of a conversation with these messages.
    pub fn remembered(&self, tenant: &str, messages: &[Value]) -> Option<Remembered> {
        let identity = Identity::of(tenant, messages, None, self.settings.as_ref().ok()?.protect_first);
        let summary = self.book.of(tenant, &identity.chain).into_iter().next()?;
        let messages = identity.prefix..identity.prefix + summary.covers;
        Some(Remembered { summary, messages })
    }

    /// Deletes the summaries with these identities, cancels work on them, and waits for the disk. Summaries that were made
    /// with other bounds are found too, even if the bounds do not fit the context. A conversation with the same beginning
    /// that continues gets new summaries.
    ///
    /// # Errors
    /// If summaries may still be on the disk.
    pub fn forget(&self, tenant: &str, chain: &BTreeSet<ChainId>) -> Result<(), NotDeleted> {
        self.latest.forget(tenant, chain, &self.book);
        self.book.is_deleted(tenant, chain)
    }

    /// Cancels all work after answers, and waits a bounded time until all summaries are on the disk.
    pub fn close(&self) {
        self.arriving.close();
        self.latest.end_all();
        self.book.close();
    }

    /// Cancels work after answers; the next turn for which a summary is due restarts it. Waits at most `patience` until
    /// all finished summaries are on the disk; returns whether they are.
    pub fn settle(&self, patience: Duration) -> bool {
        self.latest.end_all();
        self.book.is_written(patience)
    }

    /// Replaces the text of a conversation's newest summary; the next turn reads the new text.
    ///
    /// # Errors
    /// If there is no summary, a new one is being made, or the text is empty or too long.
    pub fn correct(
        &self,
        tenant: &str,
        messages: &[Value],
        text: &str,
    ) -> Result<Remembered, CorrectionError> {
        let settings = self.settings.as_ref().map_err(|_| CorrectionError::NoSummary)?;
        let (tokens, max) = (self.measure.text(text), settings.summary_max);
        if tokens > max {
            return Err(CorrectionError::TooLong { tokens, max });
        }
        if text.trim().is_empty() {
            return Err(CorrectionError::Empty);
        }
        let identity = Identity::of(tenant, messages, None, settings.protect_first);
        // The next summary is being made from the old text.
        if self.latest.is_at(tenant, &identity.chain) {
            return Err(CorrectionError::InTheMaking);
        }
        let newest = self.remembered(tenant, messages).ok_or(CorrectionError::NoSummary)?;
        let chain = identity.chain[newest.summary.covers - 1];
        let key = SummaryKey { tenant: tenant.to_owned(), chain };
        let summary = Summary { text: text.trim().to_owned(), ..newest.summary };
        // The next turn reads it, and prefills the messages after it.
        let summary = Summary { corrected: true, ready: true, failed: None, ..summary };
        self.book.keep(&key, summary.clone());
        Ok(Remembered { summary, ..newest })
    }
}
