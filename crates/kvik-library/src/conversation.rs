//! Long conversations: stored under names, and remembered beyond the context.
//!
//! Each turn reads a summary of old messages, recent messages verbatim, and those of the others that match the
//! question. The crate `kvik-memory` decides on the contents and the time of a summary; it is made after answers.

use std::sync::{Arc, Weak};

use kvik_engine::api::RequestError;
use kvik_memory::conversations::{ConversationError, ConversationHead, ConversationKey, ConversationTurn};
use kvik_memory::memory::{ComputeTerms, History, RememberedTurn, TurnReport};
use serde_json::Value;

use crate::answer::{Answer, Follow};
use crate::core::{Core, TENANT};
use crate::error::{Error, guard};
use crate::message::Message;
use crate::model::{Model, asked_request};
use crate::options::AnswerOptions;
use crate::prompt::{Asked, json_of};

/// Handle to a stored conversation. Any number of threads may use it; only one at a time can change it. After its model
/// is closed, calls fail.
pub struct Conversation {
    core: Weak<Core>,
    /// Id of the conversation; its future name until the first turn is answered.
    reference: String,
}

/// Metadata of a conversation, known without reading its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationInfo {
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Time of creation, in Unix seconds.
    pub created_s: u64,
    /// Time of the last change, in Unix seconds.
    pub updated_s: u64,
    /// Number of messages.
    pub messages: usize,
}

/// The summary of a conversation's older messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// Text of the newest summary.
    pub summary: String,
    /// Range of the messages that it covers, as start and end.
    pub messages: [usize; 2],
    /// Number of summaries in the series that led to this one, itself included.
    pub updates: u64,
    /// True if the text was corrected by the application.
    pub corrected: bool,
}

impl Model {
    /// Opens the conversation with this name or id; if no conversation has the name, a new one is stored once a turn
    /// was answered in it.
    pub fn conversation(&self, reference: impl Into<String>) -> Conversation {
        Conversation { core: Arc::downgrade(&self.core), reference: reference.into() }
    }

    /// All conversations, the most recently changed first.
    pub fn conversations(&self) -> Vec<ConversationInfo> {
        self.core.opened.conversations.list.of(TENANT).into_iter().map(info).collect()
    }
}

impl Conversation {
    /// Sends messages and answers them. Question and answer are stored together when the answer has ended, before its
    /// end can be read; a turn that is cancelled, dropped or fails leaves no trace.
    ///
    /// # Errors
    /// As [`Model::chat`], if another call is answering or changing the conversation, or it cannot be read.
    pub fn say(&self, messages: &[Message], options: &AnswerOptions) -> Result<Answer, Error> {
        guard(|| {
            let core = self.core()?;
            let opened = &core.opened;
            let new = json_of(messages);
            let (turn, messages) =
                ConversationTurn::begin(&opened.conversations.list, TENANT, &self.reference, &new)?;
            let asked = options.asked()?;
            let (messages, remembered) = core.read(messages, &asked, options)?;
            if remembered.is_some() {
                core.make_summaries();
            }
            let encoded = asked.encode(&opened.session.texts, messages.clone())?;
            let reading = encoded.reading.clone();
            let mut request = asked_request(&opened.session, encoded, (options, &asked));
            // A conversation that is summarised behind its answer is computed ahead with its summary.
            let goes_on = remembered.as_ref().is_none_or(|turn| !turn.has_work());
            let settings = goes_on.then(|| asked.chat(Value::Null));
            let next = core.next_turn(&mut request, (settings, messages));
            let write = Box::new(|message| written(turn, remembered, message));
            core.submit(request, &reading, Some(Follow { write, next }))
        })
    }

    /// Metadata of the conversation.
    ///
    /// # Errors
    /// If no turn was answered in it yet.
    pub fn info(&self) -> Result<ConversationInfo, Error> {
        guard(|| Ok(info(self.core()?.opened.conversations.list.find(TENANT, &self.reference)?)))
    }

    /// Messages of the conversation.
    ///
    /// # Errors
    /// If no turn was answered in it yet, or it cannot be read.
    pub fn messages(&self) -> Result<Vec<Message>, Error> {
        guard(|| Ok(self.said()?.iter().map(Message::of).collect()))
    }

    /// The summary of its older messages, if there is one.
    ///
    /// # Errors
    /// As [`messages`](Conversation::messages).
    pub fn remembered(&self) -> Result<Option<Remembered>, Error> {
        guard(|| Ok(self.core()?.opened.memory.remembered(TENANT, &self.said()?).map(Remembered::of)))
    }

    /// Replaces the text of its newest summary; the next turn reads the new text.
    ///
    /// # Errors
    /// If there is no summary, a new one is being made, or the text is too long.
    pub fn correct(&self, summary: &str) -> Result<Remembered, Error> {
        guard(|| {
            let core = self.core()?;
            let held = core.opened.conversations.list.hold(TENANT, &self.reference)?;
            let corrected = core.opened.memory.correct(TENANT, &held.messages()?, summary)?;
            Ok(Remembered::of(corrected))
        })
    }

    /// Removes the messages from the index `from` on, and the summaries that cover any of them.
    ///
    /// # Errors
    /// If there are fewer messages, or another call is changing the conversation.
    pub fn take_back(&self, from: usize) -> Result<(), Error> {
        guard(|| {
            let core = self.core()?;
            let file = &core.opened.conversations;
            // Held until the summaries are gone, so that no turn reads them.
            let mut held = file.list.hold(TENANT, &self.reference)?;
            held.take_back(from)?;
            file.forget_deleted()
        })
    }

    /// Renames the conversation.
    ///
    /// # Errors
    /// If another conversation has the name, or another call is changing this one.
    pub fn rename(&mut self, name: &str) -> Result<(), Error> {
        guard(|| {
            let mut held = self.core()?.opened.conversations.list.hold(TENANT, &self.reference)?;
            held.rename(name)?;
            self.reference.clone_from(&held.key().id);
            Ok(())
        })
    }

    /// Deletes the conversation and its summaries, those of models that are not open included, even if it cannot be read.
    /// The file is written anew without it. What was computed for it stays in the cache, on disk too, until it is evicted.
    ///
    /// # Errors
    /// If another call is changing it, or something may still be on the disk; then a second call tries that again.
    pub fn delete(&self) -> Result<(), Error> {
        guard(|| {
            let core = self.core()?;
            let file = &core.opened.conversations;
            match file.list.hold(TENANT, &self.reference) {
                // The rest of what an earlier call has deleted.
                Err(ConversationError::NotFound(_)) if file.is_partly_deleted(TENANT, &self.reference) => {}
                held => held?.delete()?,
            }
            file.forget_deleted()
        })
    }

    fn core(&self) -> Result<Arc<Core>, Error> {
        self.core.upgrade().ok_or_else(|| RequestError::Stopping.into())
    }

    fn said(&self) -> Result<Vec<Value>, Error> {
        let (.., messages) = self.core()?.opened.conversations.list.read(TENANT, &self.reference)?;
        Ok(messages)
    }
}

impl Core {
    /// Selects the messages that the model reads; with the turn, if the conversation can be remembered.
    fn read(
        &self,
        messages: Vec<Value>,
        asked: &Asked,
        options: &AnswerOptions,
    ) -> Result<(Vec<Value>, Option<RememberedTurn<Core>>), Error> {
        let opened = &self.opened;
        if !opened.memory.is_possible() {
            return Ok((messages, None));
        }
        let texts = opened.session.texts.clone();
        let context = texts.context_tokens;
        let room = options.max_tokens.unwrap_or(context / 8).min(context / 4);
        let chat = asked.chat(Value::Null);
        let render = Arc::new(move |messages: &[Value], purpose| {
            Ok(texts.tokens(&chat.with_messages(messages, purpose))?)
        });
        let terms = ComputeTerms::default();
        let history = History { caller: &(), messages, before: None, compacting: None, room, render, terms };
        let mut turn = opened.memory.turn(history)?;
        Ok((std::mem::take(&mut turn.messages), Some(turn)))
    }
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Conversation").field(&self.reference).finish()
    }
}

fn info((key, head): (ConversationKey, ConversationHead)) -> ConversationInfo {
    ConversationInfo {
        id: key.id,
        name: head.name,
        created_s: head.created,
        updated_s: head.updated,
        messages: head.messages,
    }
}

impl Remembered {
    fn of(remembered: kvik_memory::memory::Remembered) -> Remembered {
        let kvik_memory::memory::Remembered { summary, messages } = remembered;
        Remembered {
            summary: summary.text,
            messages: [messages.start, messages.end],
            updates: summary.updates,
            corrected: summary.corrected,
        }
    }
}

/// Stores a turn whose answer has ended, and starts the work after it.
fn written(
    turn: ConversationTurn,
    remembered: Option<RememberedTurn<Core>>,
    message: Message,
) -> Result<Option<TurnReport>, Error> {
    let answer = message.json();
    // While the turn holds the conversation: a deletion comes after it, and cancels the work.
    let after = remembered.map(|mut remembered| {
        let answer = answer.clone();
        remembered.reads_answer(Box::new(move |_| answer.clone()));
        (remembered.register(&message.content), remembered.report().clone())
    });
    turn.write(answer)?;
    Ok(after.map(|(work, report)| {
        work.start();
        report
    }))
}
