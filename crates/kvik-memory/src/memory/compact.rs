//! Compaction that a client waits for: the whole conversation becomes one item.

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

/// A conversation to be compacted as a whole.
pub struct CompactJob<E> {
    key: SummaryKey,
    rebuild: Arc<Rebuild<E>>,
}

impl<H: Host> Memory<H> {
    /// Prepares the compaction of a conversation.
    ///
    /// # Errors
    /// If the bounds do not fit the context, a template refuses the messages, there is nothing to summarise,
    /// or the memory for histories is occupied by other conversations.
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
            terms: asked.terms,
        });
        Ok(CompactJob { key, rebuild })
    }

    /// Makes the summary; returns the compaction item and the cost.
    ///
    /// # Errors
    /// If the engine refuses the request, or the model gave no summary.
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
        // If the conversation was deleted meanwhile, the summary is only returned and not stored.
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
