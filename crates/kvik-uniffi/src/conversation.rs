//! Conversations that are kept under names, and remembered beyond the context.

use std::sync::{Arc, PoisonError, RwLock};

use kvik_library::Conversation;

use crate::answer::AnswerHandle;
use crate::error::{KvikError, count, signed};
use crate::options::AnswerOptions;
use crate::prompt::Message;

/// What is known of a conversation without reading it.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct ConversationInfo {
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// When it began, Unix seconds.
    pub created_s: i64,
    /// When it was changed last, Unix seconds.
    pub updated_s: i64,
    /// Messages of it.
    pub messages: i64,
}

/// What is remembered of a conversation beyond its recent messages.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Remembered {
    /// The newest summary.
    pub summary: String,
    /// The first message that it covers.
    pub from: i64,
    /// The message behind the last that it covers.
    pub until: i64,
    /// Summaries that it was made from, itself included.
    pub updates: i64,
    /// Whether somebody who knows better has said it.
    pub corrected: bool,
}

/// A conversation that is kept, for any number of threads; one at a time changes it.
#[derive(Debug, uniffi::Object)]
pub struct ConversationHandle {
    /// None after it was deleted.
    conversation: RwLock<Option<Conversation>>,
}

impl ConversationHandle {
    pub(crate) fn new(conversation: Conversation) -> Arc<ConversationHandle> {
        Arc::new(ConversationHandle { conversation: RwLock::new(Some(conversation)) })
    }

    fn call<T>(&self, action: impl FnOnce(&Conversation) -> Result<T, KvikError>) -> Result<T, KvikError> {
        let conversation = self.conversation.read().unwrap_or_else(PoisonError::into_inner);
        action(conversation.as_ref().ok_or_else(deleted)?)
    }
}

#[uniffi::export]
impl ConversationHandle {
    /// Says something, and answers it. Question and answer are written down together when the answer has ended; one that
    /// is cancelled, dropped or fails leaves nothing behind.
    pub fn say(
        &self,
        messages: Vec<Message>,
        options: AnswerOptions,
    ) -> Result<Arc<AnswerHandle>, KvikError> {
        let options = options.read()?;
        let messages: Vec<kvik_library::Message> = messages.into_iter().map(Into::into).collect();
        self.call(|conversation| Ok(AnswerHandle::new(conversation.say(&messages, &options)?)))
    }

    /// What is known of it without reading it.
    pub fn info(&self) -> Result<ConversationInfo, KvikError> {
        self.call(|conversation| Ok(conversation.info()?.into()))
    }

    /// What was said in it.
    pub fn messages(&self) -> Result<Vec<Message>, KvikError> {
        self.call(|conversation| Ok(conversation.messages()?.into_iter().map(Into::into).collect()))
    }

    /// What is remembered of it beyond its recent messages, if anything.
    pub fn remembered(&self) -> Result<Option<Remembered>, KvikError> {
        self.call(|conversation| Ok(conversation.remembered()?.map(Into::into)))
    }

    /// From now on its newest summary says this, which its next turn is told.
    pub fn correct(&self, summary: String) -> Result<Remembered, KvikError> {
        self.call(|conversation| Ok(conversation.correct(&summary)?.into()))
    }

    /// Takes back the messages from this index on, and what is remembered of them.
    pub fn take_back(&self, from: i64) -> Result<(), KvikError> {
        let from = count("from", from)?;
        self.call(|conversation| Ok(conversation.take_back(from)?))
    }

    /// Gives it another name.
    pub fn rename(&self, name: String) -> Result<(), KvikError> {
        let mut conversation = self.conversation.write().unwrap_or_else(PoisonError::into_inner);
        Ok(conversation.as_mut().ok_or_else(deleted)?.rename(&name)?)
    }

    /// Deletes it, and all that is remembered of it. The handle is of no use afterwards.
    pub fn delete(&self) -> Result<(), KvikError> {
        let mut conversation = self.conversation.write().unwrap_or_else(PoisonError::into_inner);
        Ok(conversation.take().ok_or_else(deleted)?.delete()?)
    }
}

fn deleted() -> KvikError {
    KvikError::Conversation("the conversation was deleted".to_owned())
}

impl From<kvik_library::ConversationInfo> for ConversationInfo {
    fn from(info: kvik_library::ConversationInfo) -> ConversationInfo {
        ConversationInfo {
            id: info.id,
            name: info.name,
            created_s: signed(info.created_s),
            updated_s: signed(info.updated_s),
            messages: signed(info.messages),
        }
    }
}

impl From<kvik_library::Remembered> for Remembered {
    fn from(remembered: kvik_library::Remembered) -> Remembered {
        let [from, until] = remembered.messages.map(signed);
        Remembered {
            summary: remembered.summary,
            from,
            until,
            updates: signed(remembered.updates),
            corrected: remembered.corrected,
        }
    }
}
