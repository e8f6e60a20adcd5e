//! What is remembered of a conversation, for whoever looks at it, knows better, or wants it forgotten.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use crate::context::ChainId;
use serde_json::Value;

use super::Memory;
use super::book::{NotDeleted, SUMMARIES, Summary, SummaryKey};
use super::host::Host;
use super::identity::Identity;
use crate::records::map::RecordKey;
use crate::records::{Records, RecordsError, Table};

/// The newest summary of a conversation.
pub struct Remembered {
    /// What it says.
    pub summary: Summary,
    /// Those of its messages that it covers.
    pub messages: Range<usize>,
}

/// Why a summary is not corrected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CorrectionError {
    /// There is none.
    #[error("nothing of this conversation is in a summary yet: all of it is read as it was said")]
    NoSummary,
    /// The next one is made of what this one says.
    #[error("a summary of this conversation is being made; correct it when that has ended")]
    InTheMaking,
    /// It would say nothing.
    #[error("the summary is empty; say what is to be remembered")]
    Empty,
    /// It would say too much.
    #[error("the summary has {tokens} tokens, and may have {max} at most; shorten it")]
    TooLong {
        /// Tokens of it.
        tokens: usize,
        /// Tokens of a summary at most.
        max: usize,
    },
}

/// Forgets what is written down of a conversation's messages for any model, also for one that is not in memory or has gone.
///
/// # Errors
/// If it may still be on the disk.
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

/// The identities of a tenant's messages from this index on: those of all summaries that any of them is in.
pub fn chain_behind(tenant: &str, messages: &[Value], from: usize) -> BTreeSet<ChainId> {
    // A protected opening exchange only leaves the first of them out.
    let Identity { systems, chain, .. } = Identity::of(tenant, messages, None, false);
    chain.into_iter().skip(from.saturating_sub(systems)).collect()
}

impl<H: Host> Memory<H> {
    /// Whether the bounds fit the context, so that conversations can be remembered.
    pub fn is_possible(&self) -> bool {
        self.settings.is_ok()
    }

    /// What is remembered of a conversation of these messages.
    pub fn remembered(&self, tenant: &str, messages: &[Value]) -> Option<Remembered> {
        let identity = Identity::of(tenant, messages, None, self.settings.as_ref().ok()?.protect_first);
        let summary = self.book.of(tenant, &identity.chain).into_iter().next()?;
        let messages = identity.prefix..identity.prefix + summary.covers;
        Some(Remembered { summary, messages })
    }

    /// Forgets what is remembered of a conversation's messages from this index on, with what stands before them, ends what
    /// is being made of them, and waits for the disk. A conversation that begins so and goes on makes its summaries anew.
    ///
    /// # Errors
    /// If it may still be on the disk.
    pub fn forget_from(&self, tenant: &str, messages: &[Value], from: usize) -> Result<(), NotDeleted> {
        self.forget(tenant, &chain_behind(tenant, messages, from))
    }

    /// The same of messages with these identities. What was made with other bounds is found as well, and so it is where
    /// the bounds do not fit.
    ///
    /// # Errors
    /// As [`forget_from`](Memory::forget_from).
    pub fn forget(&self, tenant: &str, chain: &BTreeSet<ChainId>) -> Result<(), NotDeleted> {
        self.latest.forget(tenant, chain, &self.book);
        self.book.is_deleted(tenant, chain)
    }

    /// Ends all that is made behind answers, and waits until all summaries are on the disk, not for ever.
    pub fn close(&self) {
        self.arriving.close();
        self.latest.end_all();
        self.book.close();
    }

    /// Ends what is being made behind answers; the next turn that finds a summary due begins it anew. Waits until all
    /// others are on the disk, so long at most; whether they are.
    pub fn settle(&self, patience: Duration) -> bool {
        self.latest.end_all();
        self.book.is_written(patience)
    }

    /// From now on the newest summary of a conversation says this, which its next turn is told.
    ///
    /// # Errors
    /// If there is none, or it is not to be changed now, or not to this.
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
        // The next one is made of what this one said.
        if self.latest.is_at(tenant, &identity.chain) {
            return Err(CorrectionError::InTheMaking);
        }
        let newest = self.remembered(tenant, messages).ok_or(CorrectionError::NoSummary)?;
        let chain = identity.chain[newest.summary.covers - 1];
        let key = SummaryKey { tenant: tenant.to_owned(), chain };
        let summary = Summary { text: text.trim().to_owned(), ..newest.summary };
        // It is read by the next turn, which computes what follows it anew.
        let summary = Summary { corrected: true, ready: true, failed: None, ..summary };
        self.book.keep(&key, summary.clone());
        Ok(Remembered { summary, ..newest })
    }
}
