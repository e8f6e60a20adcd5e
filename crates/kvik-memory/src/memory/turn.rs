//! A turn: the part of a conversation that the model reads, and the work after the answer.

use std::sync::Arc;

use async_channel::Sender;
use serde_json::Value;

use super::Memory;
use super::book::{Book, Summary, SummaryKey};
use super::compaction::Compaction;
use super::held::{self, HeldHistory, HistoryShare};
use super::host::Host;
use super::job::{MemoryJob, MemoryTask, Pending, Rebuild};
use super::latest::{Latest, Said};
use super::observer::ReadPart;
use super::report::TurnReport;
use super::view::{History, LongConversation, Outline, View};
use crate::clock::unix_seconds;
use crate::context::segments::question_before;

/// Converts the text of an answer to the message that the client will send back.
pub type ReadAnswer = Box<dyn Fn(&str) -> Value + Send>;

/// A turn of a remembered conversation.
pub struct RememberedTurn<H: Host> {
    /// The messages that the model reads.
    pub messages: Vec<Value>,
    report: TurnReport,
    /// Compaction item, if one was requested.
    compaction: Option<Compaction>,
    after: Option<After<H>>,
}

/// Work after an answer, registered and not started. Dropped, it is cancelled.
#[must_use]
pub struct RegisteredWork<H: Host>(Option<(Sender<MemoryJob<H>>, MemoryJob<H>)>);

/// Work after the answer.
struct After<H: Host> {
    caller: H::Caller,
    task: MemoryTask<H::Error>,
    /// Key of the summary to make, or of the conversation to prefill.
    key: SummaryKey,
    /// The latest turn, if a summary is to be made.
    said: Option<Said>,
    read_answer: Option<ReadAnswer>,
    queue: Sender<MemoryJob<H>>,
    pending: Pending,
    latest: Arc<Latest>,
    book: Arc<Book>,
}

/// A summary that is due, and room for its input.
struct Due {
    /// Number of messages that it covers.
    covers: usize,
    share: HistoryShare,
    /// How close the conversation is to dropping messages without it, from 0 to 1.
    pressure: f64,
}

impl<H: Host> Memory<H> {
    /// Selects the messages that a turn reads.
    ///
    /// # Errors
    /// If the bounds do not fit the context, or a template refuses the messages.
    pub fn turn(&self, asked: History<'_, H>) -> Result<RememberedTurn<H>, H::Error> {
        let settings = self.settings()?;
        let settings = asked.compacting.flatten().map_or(*settings, |threshold| settings.due_at(threshold));
        let mut conversation = LongConversation::new(&self.measure, &asked, settings, &self.wording);
        let mut known = self.book.of(&conversation.tenant, &conversation.chain);
        known.extend(asked.before.map(Compaction::base));
        let view = conversation.view(&known)?;
        if view.covered() > 0 {
            self.book.note_read(&conversation.key(view.covered()), unix_seconds());
        }
        self.observer.turn(read_of(&view), view.quotes.len());
        let due = self.due(&conversation, &view);
        let mut report = TurnReport::of(&conversation, &view, due.is_some());
        let systems = &asked.messages[..conversation.systems];
        report.advice = self.systems.note(&conversation.chain, systems);
        let messages = conversation.messages(&view);
        let compaction = asked.compacting.and_then(|_| conversation.compacted(&view));
        let after = match due {
            Some(due) => {
                let outline = conversation.outline();
                Some(self.after(outline, view.summary, due, asked))
            }
            None if view.quotes.is_empty() => None,
            None => Some(self.ahead(&conversation, &view)),
        };
        Ok(RememberedTurn { messages, report, compaction, after })
    }

    /// The next summary, if one is due and not ready, and there is room for its input.
    fn due(&self, conversation: &LongConversation<'_, H>, view: &View) -> Option<Due> {
        let covers = view.covered() + view.segments.due(&conversation.settings)?.messages;
        let made = self.book.get(&conversation.key(covers));
        if made.is_some_and(|summary| summary.ready) {
            return None;
        }
        let share = self.share(conversation, view)?;
        Some(Due { covers, share, pressure: conversation.pressure(view) })
    }

    /// Reserves room for the messages that work after the answer needs.
    pub(super) fn share(&self, conversation: &LongConversation<'_, H>, view: &View) -> Option<HistoryShare> {
        let (prefix, behind) = conversation.asked.messages.split_at(conversation.prefix);
        let question = question_before(behind, view.covered());
        let messages = held::bytes(prefix.iter().chain(question).chain(&behind[view.covered()..]));
        let bytes = messages + size_of_val(&conversation.chain[..]) as u64;
        self.histories.take(&conversation.tenant, bytes)
    }

    /// Work after the answer: the summary that is due.
    fn after(&self, outline: Outline, before: Option<Summary>, due: Due, asked: History<'_, H>) -> After<H> {
        let key = SummaryKey { tenant: outline.tenant.clone(), chain: outline.chain[due.covers - 1] };
        let caller = asked.caller.clone();
        let Due { covers, share, pressure } = due;
        let counts = outline.counts(before.as_ref());
        let history = Arc::new(HeldHistory::new(asked.messages, counts, share));
        let rebuild = Rebuild {
            history: history.clone(),
            before,
            covers,
            summary_max: outline.settings.summary_max,
            chunk_max: outline.chunk_max,
            wording: outline.wording,
            render: asked.render,
            terms: asked.terms,
        };
        let said = Said { tenant: outline.tenant, history, answer: None, chain: outline.chain, pressure };
        self.doing(caller, key, MemoryTask::Rebuild(Arc::new(rebuild)), Some(said))
    }

    /// Work after the answer, if exchanges were quoted: prefills the conversation without them, as the next
    /// turn reads it.
    fn ahead(&self, conversation: &LongConversation<'_, H>, view: &View) -> After<H> {
        let key = conversation.key(conversation.chain.len());
        let (messages, asked) = (conversation.unquoted(view), conversation.asked);
        let (render, terms) = (asked.render.clone(), asked.terms.clone());
        let task = MemoryTask::Ahead { messages, render, terms };
        self.doing(asked.caller.clone(), key, task, None)
    }

    fn doing(
        &self,
        caller: H::Caller,
        key: SummaryKey,
        task: MemoryTask<H::Error>,
        said: Option<Said>,
    ) -> After<H> {
        After {
            caller,
            task,
            key,
            said,
            read_answer: None,
            queue: self.work.clone(),
            pending: self.pending.clone(),
            latest: self.latest.clone(),
            book: self.book.clone(),
        }
    }
}

impl<H: Host> RememberedTurn<H> {
    /// Takes the compaction item, if one was requested and a summary is read.
    pub fn take_compaction(&mut self) -> Option<Compaction> {
        self.compaction.take()
    }

    /// Sets the conversion of the answer to a message, so that it can be prefilled too.
    pub fn reads_answer(&mut self, read: ReadAnswer) {
        if let Some(after) = &mut self.after {
            after.read_answer = Some(read);
        }
    }

    /// Whether work follows the answer: a summary, or the conversation without its quotes.
    pub fn has_work(&self) -> bool {
        self.after.is_some()
    }

    /// Report of the messages that were read.
    pub fn report(&self) -> &TurnReport {
        &self.report
    }

    /// Registers the work after the answer, which is complete: from then on a deletion of the conversation cancels it.
    pub fn register(&mut self, text: &str) -> RegisteredWork<H> {
        if let Some(words) = self.report.in_words() {
            tracing::debug!("{words}");
        }
        let Some(after) = self.after.take() else { return RegisteredWork(None) };
        let After { caller, mut task, key, said, read_answer, queue, pending, latest, book } = after;
        let answer = read_answer.map(|read| read(text));
        let wanted = match &mut task {
            MemoryTask::Rebuild(_) => {
                said.and_then(|said| latest.note(&key, &Said { answer, ..said }, &book))
            }
            MemoryTask::Ahead { messages, .. } => {
                messages.extend(answer);
                Some(latest.watch(&key))
            }
        };
        RegisteredWork(wanted.map(|wanted| (queue, MemoryJob { caller, task, wanted, pending })))
    }
}

impl<H: Host> RegisteredWork<H> {
    /// Starts the work.
    pub fn start(self) {
        if let Some((queue, job)) = self.0 {
            // The queue is closed if the program is stopping.
            let _ = queue.try_send(job);
        }
    }
}

fn read_of(view: &View) -> ReadPart {
    match (&view.summary, &view.forced) {
        (_, Some(_)) => ReadPart::End,
        (Some(_), None) => ReadPart::Summary,
        (None, None) => ReadPart::All,
    }
}
