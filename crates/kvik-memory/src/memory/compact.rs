//! Compaction that a client waits for: all that was said, in one item.

use std::sync::Arc;

use kvik_engine::api::Report;

use super::Memory;
use super::book::SummaryKey;
use super::compaction::Compaction;
use super::error::MemoryError;
use super::held::HeldHistory;
use super::host::Host;
use super::job::Rebuild;
use super::summary::Making;
use super::view::{History, LongConversation};
use crate::context::ChainId;

/// A conversation that is to be compacted as a whole.
pub struct CompactJob<E> {
    key: SummaryKey,
    rebuild: Arc<Rebuild<E>>,
}

impl<H: Host> Memory<H> {
    /// What is to be done for a conversation.
    ///
    /// # Errors
    /// If the bounds do not fit the context, a template refuses the messages, nothing was said, or as many
    /// conversations are compacted as there is memory for.
    pub fn to_compact(&self, asked: History<'_, H>) -> Result<CompactJob<H::Error>, H::Error> {
        let settings = *self.settings()?;
        let mut conversation = LongConversation::new(&self.measure, &asked, settings, &self.wording);
        let covers = conversation.chain.len();
        if covers == 0 {
            return Err(MemoryError::NothingSaid.into());
        }
        let mut known = self.book.of(&conversation.tenant, &conversation.chain);
        known.extend(asked.before.map(Compaction::base));
        let view = conversation.view(&known)?;
        let share = self.share(&conversation, &view).ok_or(MemoryError::Busy)?;
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

    /// Makes the summary; what stands for the conversation, and what that has cost.
    ///
    /// # Errors
    /// If the engine refuses the summary, or the model gave none.
    pub async fn compact(
        &self,
        host: &Arc<H>,
        caller: &H::Caller,
        job: CompactJob<H::Error>,
    ) -> Result<(Compaction, Report), H::Error> {
        let CompactJob { key, rebuild } = job;
        let wanted = self.latest.watch(&key);
        let making = Making::new(host.clone(), caller.clone(), rebuild.clone(), wanted).waited_for();
        let summary = making.summary().await?;
        if let (Some(why), true) = (&summary.failed, summary.text.is_empty()) {
            return Err(MemoryError::NoSummary(why.clone()).into());
        }
        // Who has deleted it meanwhile has this alone.
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
        Ok((compaction, making.spent()))
    }
}
