//! One turn: what the model reads of a conversation, and what is to be done behind the answer.

use std::sync::Arc;

use kvik_cache::Token;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::Memory;
use super::book::Book;
use super::compaction::Compaction;
use super::rebuild::{Latest, MemoryJob, MemoryTask, Rebuild, Said};
use super::report;
use super::view::{LongConversation, View};
use crate::app::{keys::Caller, state::App};
use crate::clock::unix_seconds;
use crate::http::error::ApiError;

/// What messages are rendered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be answered.
    Answer,
    /// To be computed ahead: nobody is asked anything.
    Ahead,
    /// To be summarised where it stands: as it is answered, without thoughts.
    InPlace,
    /// To be summarised as a text: without the tools and the settings of the conversation.
    Summary,
}

/// Makes tokens of messages, as the request's template and settings have it.
pub(crate) type Render = Arc<dyn Fn(&App, &[Value], Purpose) -> Result<Vec<Token>, ApiError> + Send + Sync>;

/// The message that an answer will be when the client sends it back.
pub(crate) type ReadAnswer = Box<dyn Fn(&str) -> Value + Send>;

/// A conversation as it is asked.
pub(crate) struct History<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) messages: &'a [Value],
    /// What stands before them.
    pub(crate) before: Option<&'a Compaction>,
    /// It is to be compacted, at so many tokens where it says so, and the item be given to the client.
    pub(crate) compacting: Option<Option<usize>>,
    /// Tokens to leave for the answer.
    pub(crate) room: usize,
    pub(crate) render: Render,
}

/// What a turn reads.
pub(crate) struct RememberedTurn {
    /// The messages that the model reads.
    pub(crate) messages: Vec<Value>,
    report: Value,
    /// The compaction item for the client.
    compaction: Option<Value>,
    after: Option<After>,
}

/// What is to be done behind the answer.
struct After {
    work: MemoryJob,
    /// How the conversation has gone, where a summary is to be made.
    said: Option<Said>,
    read_answer: Option<ReadAnswer>,
    queue: UnboundedSender<MemoryJob>,
    latest: Arc<Latest>,
    book: Arc<Book>,
}

impl Memory {
    /// What a turn reads of its messages.
    ///
    /// # Errors
    /// If the server's bounds do not fit its context, or a template refuses the messages.
    pub(crate) fn turn(&self, app: &App, asked: &History<'_>) -> Result<RememberedTurn, ApiError> {
        let settings = self.settings()?;
        let settings = asked.compacting.flatten().map_or(*settings, |threshold| settings.due_at(threshold));
        let mut conversation = LongConversation::new(app, asked, settings, self.words.as_ref());
        let mut known = self.book.of(&conversation.tenant, &conversation.chain);
        known.extend(asked.before.map(Compaction::base));
        let view = conversation.view(&known)?;
        if view.covered() > 0 {
            self.book.note_read(&conversation.key(view.covered()), unix_seconds());
        }
        app.metrics.memory.turn(view.summary.is_some(), view.forced.is_some(), view.quotes.len());
        let due = self.due(&conversation, &view);
        let mut report = report::of(&conversation, &view, due.is_some());
        let systems = &asked.messages[..conversation.systems];
        if let Some(advice) = self.systems.note(&conversation.chain, systems) {
            report["advice"] = json!(advice);
        }
        let messages = conversation.messages(&view);
        let after = self.task(&conversation, &view, due).map(|kind| After {
            work: MemoryJob { caller: asked.caller.clone(), kind, pending: self.pending.clone() },
            said: due.map(|_| Said::of(&conversation)),
            read_answer: None,
            queue: self.work.clone(),
            latest: self.latest.clone(),
            book: self.book.clone(),
        });
        let compacted = asked.compacting.and_then(|_| conversation.compacted(&view));
        let compaction = compacted.and_then(|compacted| self.seal.item(&conversation.tenant, &compacted));
        Ok(RememberedTurn { messages, report, compaction, after })
    }

    /// Messages that the next summary covers, where one is due and not ready.
    fn due(&self, conversation: &LongConversation<'_>, view: &View) -> Option<usize> {
        let covers = view.covered() + view.segments.due(&conversation.settings)?.messages;
        let made = self.book.get(&conversation.key(covers));
        (!made.is_some_and(|summary| summary.ready)).then_some(covers)
    }

    /// What is to be done behind the answer: the summary that is due, or, where something was quoted, the conversation
    /// as the next turn reads it.
    fn task(
        &self,
        conversation: &LongConversation<'_>,
        view: &View,
        due: Option<usize>,
    ) -> Option<MemoryTask> {
        let Some(covers) = due else {
            let (messages, render) = (conversation.unquoted(view), conversation.asked.render.clone());
            return (!view.quotes.is_empty()).then_some(MemoryTask::Ahead { messages, render });
        };
        let rebuild = Box::new(Rebuild::of(conversation, view, covers));
        Some(MemoryTask::Rebuild { key: conversation.key(covers), rebuild })
    }
}

impl RememberedTurn {
    /// The compaction item for the client, once.
    pub(crate) fn take_compaction(&mut self) -> Option<Value> {
        self.compaction.take()
    }

    /// From now on the answer is read so, to be computed ahead with what it answers.
    pub(crate) fn reads_answer(&mut self, read: ReadAnswer) {
        if let Some(after) = &mut self.after {
            after.read_answer = Some(read);
        }
    }

    /// The object `kvik.memory`.
    pub(crate) fn report(&self) -> &Value {
        &self.report
    }

    /// The answer is complete: what is to be done behind it begins.
    pub(crate) fn answered(&mut self, text: &str) {
        if let Some(words) = report::in_words(&self.report) {
            tracing::debug!("{words}");
        }
        let Some(After { mut work, said, read_answer, queue, latest, book }) = self.after.take() else {
            return;
        };
        let answer = read_answer.map(|read| read(text));
        let begins = match &mut work.kind {
            MemoryTask::Rebuild { key, .. } => said.is_some_and(|mut said| {
                said.messages.extend(answer);
                latest.note(key, &said, &book)
            }),
            MemoryTask::Ahead { messages, .. } => {
                messages.extend(answer);
                true
            }
        };
        if begins {
            // Nobody receives it where the server stops.
            let _ = queue.send(work);
        }
    }
}
