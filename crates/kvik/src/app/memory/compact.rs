//! Compaction that a client waits for: all that was said, in one item.

use std::sync::Arc;

use kvik_engine::{api::Report, conversation::ChainId};
use serde_json::Value;

use super::Memory;
use super::book::SummaryKey;
use super::compaction::Compaction;
use super::rebuild::Rebuild;
use super::summary::Making;
use super::turn::History;
use super::view::LongConversation;
use crate::app::{keys::Caller, state::App};
use crate::http::error::ApiError;

/// A conversation that is to be compacted as a whole.
pub(crate) struct CompactJob {
    key: SummaryKey,
    rebuild: Rebuild,
    /// System messages, and the opening exchange where that is never let go.
    prefix: Vec<Value>,
    chain: [u8; 32],
}

impl Memory {
    /// What is to be done for a conversation.
    ///
    /// # Errors
    /// If the server's bounds do not fit its context, a template refuses the messages, or nothing was said.
    pub(crate) fn to_compact(&self, app: &App, asked: &History<'_>) -> Result<CompactJob, ApiError> {
        let settings = *self.settings()?;
        let mut conversation = LongConversation::new(app, asked, settings, self.words.as_ref());
        let covers = conversation.chain.len();
        if covers == 0 {
            return Err(ApiError::field("input", "`input` says nothing that could be compacted"));
        }
        let mut known = self.book.of(&conversation.tenant, &conversation.chain);
        known.extend(asked.before.map(Compaction::base));
        let view = conversation.view(&known)?;
        let rebuild = Rebuild::of(&conversation, &view, covers);
        let ChainId(chain) = conversation.chain[covers - 1];
        let prefix = asked.messages[..conversation.prefix].to_vec();
        Ok(CompactJob { key: conversation.key(covers), rebuild, prefix, chain })
    }

    /// Makes the summary, and the item of it; and what that has cost.
    ///
    /// # Errors
    /// If the engine refuses the summary, or the model gave none.
    pub(crate) async fn compact(
        &self,
        app: &Arc<App>,
        caller: &Caller,
        job: CompactJob,
    ) -> Result<(Value, Report), ApiError> {
        let CompactJob { key, rebuild, prefix, chain } = job;
        let making = Making::new(app, caller, &key, &rebuild).waited_for();
        let summary = making.summary().await?;
        if let (Some(why), true) = (&summary.failed, summary.text.is_empty()) {
            return Err(ApiError::internal(format!("the conversation was not compacted: {why}")));
        }
        self.book.keep(&key, summary.clone());
        let (systems, opening) = prefix.split_at(rebuild.systems);
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
