//! Compaction that a client waits for: all that was said, in one item.

use std::sync::Arc;

use kvik_engine::{api::Report, conversation::ChainId};
use serde_json::Value;

use super::Memory;
use super::book::SummaryKey;
use super::compaction::Compaction;
use super::held::HeldHistory;
use super::host::Host;
use super::job::Rebuild;
use super::summary::Making;
use super::view::{History, LongConversation};
use crate::app::keys::Caller;
use crate::http::error::ApiError;

/// When to try again where there was no memory.
const RETRY_AFTER_S: u64 = 5;

/// A conversation that is to be compacted as a whole.
pub(crate) struct CompactJob {
    key: SummaryKey,
    rebuild: Arc<Rebuild>,
}

impl Memory {
    /// What is to be done for a conversation.
    ///
    /// # Errors
    /// If the server's bounds do not fit its context, a template refuses the messages, nothing was said, or as many
    /// conversations are compacted as there is memory for.
    pub(crate) fn to_compact(&self, asked: History<'_>) -> Result<CompactJob, ApiError> {
        let settings = *self.settings()?;
        let mut conversation = LongConversation::new(&self.measure, &asked, settings, &self.wording);
        let covers = conversation.chain.len();
        if covers == 0 {
            return Err(ApiError::field("input", "`input` says nothing that could be compacted"));
        }
        let mut known = self.book.of(&conversation.tenant, &conversation.chain);
        known.extend(asked.before.map(Compaction::base));
        let view = conversation.view(&known)?;
        let share = self.share(&conversation, &view).ok_or_else(|| {
            let message = "as many long conversations are summarised as there is memory for; send it again";
            ApiError::busy(message, RETRY_AFTER_S)
        })?;
        let key = conversation.key(covers);
        let outline = conversation.outline();
        let counts = outline.counts(view.summary.as_ref());
        let rebuild = Arc::new(Rebuild {
            history: Arc::new(HeldHistory::new(asked.messages, counts, share)),
            before: view.summary,
            covers,
            summary_max: settings.summary_max,
            chunk_max: settings.recent_max,
            wording: outline.wording,
            render: asked.render,
        });
        Ok(CompactJob { key, rebuild })
    }

    /// Makes the summary, and the item of it; and what that has cost.
    ///
    /// # Errors
    /// If the engine refuses the summary, or the model gave none.
    pub(crate) async fn compact<H: Host>(
        &self,
        host: &Arc<H>,
        caller: &Caller,
        job: CompactJob,
    ) -> Result<(Value, Report), ApiError> {
        let CompactJob { key, rebuild } = job;
        let wanted = self.latest.watch(&key);
        let making = Making::new(host.clone(), caller.clone(), rebuild.clone(), wanted).waited_for();
        let summary = making.summary().await?;
        if let (Some(why), true) = (&summary.failed, summary.text.is_empty()) {
            return Err(ApiError::internal(format!("the conversation was not compacted: {why}")));
        }
        // Who has deleted it meanwhile has the item alone.
        making.wanted.keep(summary.clone(), &self.book);
        let history = &rebuild.history;
        let (systems, opening) = history.prefix().split_at(history.systems);
        let ChainId(chain) = key.chain;
        let compaction = Compaction {
            systems: systems.to_vec(),
            opening: opening.to_vec(),
            summary,
            chain,
            recent: Vec::new(),
        };
        let item = self.seal.item(&key.tenant, &compaction);
        let item = item.ok_or_else(|| ApiError::internal("the system gives no random numbers"))?;
        Ok((item, making.spent()))
    }
}
