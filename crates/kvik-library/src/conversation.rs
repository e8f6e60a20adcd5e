//! Conversations that go on without end: kept under names, and remembered beyond the context.
//!
//! Each turn reads a summary of what was said long ago, recent messages as they were said, and what of the others fits the
//! question. What a summary is made of and when is the crate `kvik-memory`'s; it is made behind answers.

use std::sync::{Arc, Weak};

use kvik_engine::api::RequestError;
use kvik_memory::conversations::{ConversationHead, ConversationKey, ConversationTurn};
use kvik_memory::memory::{History, RememberedTurn, TurnReport};
use serde_json::Value;

use crate::answer::Answer;
use crate::core::{Core, TENANT};
use crate::error::{Error, guard};
use crate::message::Message;
use crate::model::{Model, asked_request};
use crate::options::AnswerOptions;
use crate::prompt::{Asked, json_of};

/// A conversation that is kept. It may be used from any number of threads; one at a time changes it. When its model is
/// closed it is at rest.
pub struct Conversation {
    core: Weak<Core>,
    /// Its id; the name that it is to have, until its first turn is answered.
    reference: String,
}

/// What is known of a conversation without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationInfo {
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// When it began, Unix seconds.
    pub created_s: u64,
    /// When it was changed last, Unix seconds.
    pub updated_s: u64,
    /// Messages of it.
    pub messages: usize,
}

/// What is remembered of a conversation beyond its recent messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// The newest summary.
    pub summary: String,
    /// The messages that it covers: the first, and the one behind the last.
    pub messages: [usize; 2],
    /// Summaries that it was made from, itself included.
    pub updates: u64,
    /// Whether somebody who knows better has said it.
    pub corrected: bool,
}

impl Model {
    /// The conversation of this name or id; a new one, where nothing has the name, that is kept once something was
    /// answered in it.
    pub fn conversation(&self, reference: impl Into<String>) -> Conversation {
        Conversation { core: Arc::downgrade(&self.core), reference: reference.into() }
    }

    /// All conversations, those that were changed last first.
    pub fn conversations(&self) -> Vec<ConversationInfo> {
        self.core.opened.conversations.of(TENANT).into_iter().map(info).collect()
    }
}

impl Conversation {
    /// Says something, and answers it. Question and answer are written down together when the answer has ended, before
    /// its end can be read; one that is cancelled, dropped or fails leaves nothing behind.
    ///
    /// # Errors
    /// As [`Model::chat`], if the conversation is being answered or changed by somebody else, or cannot be read.
    pub fn say(&self, messages: &[Message], options: &AnswerOptions) -> Result<Answer, Error> {
        guard(|| {
            let core = self.core()?;
            let opened = &core.opened;
            let new = json_of(messages);
            let (turn, messages) =
                ConversationTurn::begin(&opened.conversations, TENANT, &self.reference, &new)?;
            let asked = Arc::new(options.asked()?);
            let (messages, remembered) = core.read(messages, &asked, options)?;
            if remembered.is_some() {
                core.make_summaries();
            }
            let encoded = opened.texts.encode_chat(messages, &asked)?;
            let reading = encoded.reading.clone();
            let request = asked_request(&opened.texts, encoded, options);
            core.submit(request, &reading, Some(Box::new(|message| written(turn, remembered, message))))
        })
    }

    /// What is known of it without reading it.
    ///
    /// # Errors
    /// If nothing was answered in it yet.
    pub fn info(&self) -> Result<ConversationInfo, Error> {
        guard(|| Ok(info(self.core()?.opened.conversations.find(TENANT, &self.reference)?)))
    }

    /// What was said in it.
    ///
    /// # Errors
    /// If nothing was answered in it yet, or it cannot be read.
    pub fn messages(&self) -> Result<Vec<Message>, Error> {
        guard(|| Ok(self.said()?.iter().map(Message::of).collect()))
    }

    /// What is remembered of it beyond its recent messages, if anything.
    ///
    /// # Errors
    /// As [`messages`](Conversation::messages).
    pub fn remembered(&self) -> Result<Option<Remembered>, Error> {
        guard(|| Ok(self.core()?.opened.memory.remembered(TENANT, &self.said()?).map(Remembered::of)))
    }

    /// From now on its newest summary says this, which its next turn is told.
    ///
    /// # Errors
    /// If there is none, the next one is being made, or this is too long.
    pub fn correct(&self, summary: &str) -> Result<Remembered, Error> {
        guard(|| {
            let core = self.core()?;
            let held = core.opened.conversations.hold(TENANT, &self.reference)?;
            let corrected = core.opened.memory.correct(TENANT, &held.messages()?, summary)?;
            Ok(Remembered::of(corrected))
        })
    }

    /// Takes back the messages from this index on, and what is remembered of them.
    ///
    /// # Errors
    /// If there are not so many, or somebody else changes it.
    pub fn take_back(&self, from: usize) -> Result<(), Error> {
        guard(|| {
            let core = self.core()?;
            let mut held = core.opened.conversations.hold(TENANT, &self.reference)?;
            let messages = held.messages()?;
            held.take_back(from)?;
            Ok(core.opened.memory.forget_from(TENANT, &messages, from)?)
        })
    }

    /// Gives it another name.
    ///
    /// # Errors
    /// If another one has the name, or somebody else changes it.
    pub fn rename(&mut self, name: &str) -> Result<(), Error> {
        guard(|| {
            let mut held = self.core()?.opened.conversations.hold(TENANT, &self.reference)?;
            held.rename(name)?;
            self.reference.clone_from(&held.key().id);
            Ok(())
        })
    }

    /// Deletes it, and all that is remembered of it.
    ///
    /// # Errors
    /// If somebody else changes it, or it may still be on the disk.
    pub fn delete(self) -> Result<(), Error> {
        guard(|| {
            let core = self.core()?;
            let held = core.opened.conversations.hold(TENANT, &self.reference)?;
            let messages = held.messages()?;
            held.delete()?;
            Ok(core.opened.memory.forget_from(TENANT, &messages, 0)?)
        })
    }

    fn core(&self) -> Result<Arc<Core>, Error> {
        self.core.upgrade().ok_or_else(|| RequestError::Stopping.into())
    }

    fn said(&self) -> Result<Vec<Value>, Error> {
        let (.., messages) = self.core()?.opened.conversations.read(TENANT, &self.reference)?;
        Ok(messages)
    }
}

impl Core {
    /// What is read of it, and the turn where it can be remembered.
    fn read(
        &self,
        messages: Vec<Value>,
        asked: &Arc<Asked>,
        options: &AnswerOptions,
    ) -> Result<(Vec<Value>, Option<RememberedTurn<Core>>), Error> {
        let opened = &self.opened;
        if !opened.memory.is_possible() {
            return Ok((messages, None));
        }
        let context = opened.texts.context_tokens;
        let room = options.max_tokens.unwrap_or(context / 8).min(context / 4);
        let (texts, asked) = (opened.texts.clone(), asked.clone());
        let render = Arc::new(move |messages: &[Value], purpose| texts.render(messages, &asked, purpose));
        let history = History { caller: &(), messages, before: None, compacting: None, room, render };
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

/// Writes a turn down, whose answer has ended, and begins what is to be done behind it.
fn written(
    turn: ConversationTurn,
    remembered: Option<RememberedTurn<Core>>,
    message: Message,
) -> Result<Option<TurnReport>, Error> {
    let answer = message.json();
    turn.write(answer.clone())?;
    Ok(remembered.map(|mut remembered| {
        remembered.reads_answer(Box::new(move |_| answer.clone()));
        remembered.answered(&message.content);
        remembered.report().clone()
    }))
}
