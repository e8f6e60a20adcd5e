//! Conversations that are stored under names, with summaries beyond the context.

use std::sync::{Arc, PoisonError, RwLock};

use kvik_library::Conversation;

use crate::answer::AnswerHandle;
use crate::error::{KvikError, count, signed};
use crate::options::AnswerOptions;
use crate::prompt::Message;

/// Metadata of a conversation, known without reading its messages.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct ConversationInfo {
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Time of creation, in Unix seconds.
    pub created_s: i64,
    /// Time of the last change, in Unix seconds.
    pub updated_s: i64,
    /// Number of messages.
    pub messages: i64,
}

/// The summary of a conversation's older messages.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Remembered {
    /// Text of the newest summary.
    pub summary: String,
    /// The first message that it covers.
    pub from: i64,
    /// The message after the last that it covers.
    pub until: i64,
    /// Number of summaries in the series that led to this one, itself included.
    pub updates: i64,
    /// True if the text was corrected by the program.
    pub corrected: bool,
}

/// A stored conversation. Any number of threads may use it; only one at a time can change it.
#[derive(Debug, uniffi::Object)]
pub struct ConversationHandle {
    /// `None` after it was deleted.
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
    /// Sends messages and answers them. Question and answer are stored together when the answer has ended; a turn that is
    /// cancelled, dropped or fails stores nothing.
    pub fn say(
        &self,
        messages: Vec<Message>,
        options: AnswerOptions,
    ) -> Result<Arc<AnswerHandle>, KvikError> {
        let options = options.read()?;
        let messages: Vec<kvik_library::Message> = messages.into_iter().map(Into::into).collect();
        self.call(|conversation| Ok(AnswerHandle::new(conversation.say(&messages, &options)?)))
    }

    /// Metadata of the conversation.
    pub fn info(&self) -> Result<ConversationInfo, KvikError> {
        self.call(|conversation| Ok(conversation.info()?.into()))
    }

    /// Messages of the conversation.
    pub fn messages(&self) -> Result<Vec<Message>, KvikError> {
        self.call(|conversation| Ok(conversation.messages()?.into_iter().map(Into::into).collect()))
    }

    /// The summary of its older messages, if there is one.
    pub fn remembered(&self) -> Result<Option<Remembered>, KvikError> {
        self.call(|conversation| Ok(conversation.remembered()?.map(Into::into)))
    }

    /// Replaces the text of its newest summary; the next turn reads the new text.
    pub fn correct(&self, summary: String) -> Result<Remembered, KvikError> {
        self.call(|conversation| Ok(conversation.correct(&summary)?.into()))
    }

    /// Removes the messages from the index `from` on, and the summaries that cover any of them.
    pub fn take_back(&self, from: i64) -> Result<(), KvikError> {
        let from = count("from", from)?;
        self.call(|conversation| Ok(conversation.take_back(from)?))
    }

    /// Renames the conversation.
    pub fn rename(&self, name: String) -> Result<(), KvikError> {
        let mut conversation = self.conversation.write().unwrap_or_else(PoisonError::into_inner);
        Ok(conversation.as_mut().ok_or_else(deleted)?.rename(&name)?)
    }

    /// Deletes the conversation and its summaries. Later calls of the handle fail.
    pub fn delete(&self) -> Result<(), KvikError> {
        let mut conversation = self.conversation.write().unwrap_or_else(PoisonError::into_inner);
        conversation.as_ref().ok_or_else(deleted)?.delete()?;
        *conversation = None;
        Ok(())
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
