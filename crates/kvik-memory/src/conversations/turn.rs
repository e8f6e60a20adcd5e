//! A turn of a conversation: the messages for the model, and what is written before the client gets the end of the
//! answer.

use std::sync::Arc;

use crate::context::leading_systems;
use serde_json::Value;

use super::error::ConversationError;
use super::head::{ConversationHead, ConversationKey, is_id};
use super::held::Held;
use super::store::Conversations;

/// A turn that is not answered yet. Dropped before the answer, it leaves no trace.
pub struct ConversationTurn {
    held: Held,
    /// Messages of the request.
    new: Vec<Value>,
}

impl ConversationTurn {
    /// Begins a turn that adds the messages `new`. Returns it with all messages of the conversation, the new ones
    /// included.
    ///
    /// # Errors
    /// If another request is changing the conversation, there is no room for the messages, or it cannot be read.
    pub fn begin(
        store: &Arc<Conversations>,
        tenant: &str,
        reference: &str,
        new: &[Value],
    ) -> Result<(ConversationTurn, Vec<Value>), ConversationError> {
        let held = store.hold_or_begin(tenant, reference)?;
        held.make_room(new)?;
        let messages = joined(&held.messages()?, new);
        Ok((ConversationTurn { held, new: new.to_vec() }, messages))
    }

    /// All messages that a turn with the messages `new` would have, the new ones included. The conversation is read and
    /// not taken; a name that no conversation has would begin one.
    ///
    /// # Errors
    /// If no conversation has this id, or it cannot be read.
    pub fn preview(
        store: &Conversations,
        tenant: &str,
        reference: &str,
        new: &[Value],
    ) -> Result<Vec<Value>, ConversationError> {
        match store.read(tenant, reference) {
            Err(ConversationError::NotFound(_)) if !is_id(reference) => Ok(new.to_vec()),
            read => read.map(|(_, _, stored)| joined(&stored, new)),
        }
    }

    /// Sets the model that answers this turn, and later turns that name none.
    pub fn asks(&mut self, model: &str) {
        self.held.head.model = Some(model.to_owned());
    }

    /// Key of the conversation.
    pub fn key(&self) -> &ConversationKey {
        self.held.key()
    }

    /// Whether the conversation exists only once this turn is written.
    pub fn is_first(&self) -> bool {
        !self.held.shelf.heads().all.contains_key(self.key())
    }

    /// Metadata of the conversation before this turn.
    pub fn head(&self) -> &ConversationHead {
        self.held.head()
    }

    /// Number of messages in the conversation after this turn, including the answer.
    pub fn messages(&self) -> usize {
        let (own, head) = (leading_systems(&self.new), self.held.head());
        let before = if own > 0 { head.messages - head.systems } else { head.messages };
        before + self.new.len() + 1
    }

    /// Writes the new messages and the answer; then the next turn can begin.
    ///
    /// # Errors
    /// If the records cannot be written.
    pub fn write(mut self, answer: Value) -> Result<(), ConversationError> {
        self.new.push(answer);
        self.held.append(&self.new)
    }
}

/// Appends new messages to a conversation. Its system messages stay unless the new ones begin with others.
fn joined(stored: &[Value], new: &[Value]) -> Vec<Value> {
    let own = leading_systems(new);
    let kept = if own > 0 { &stored[leading_systems(stored)..] } else { stored };
    [&new[..own], kept, &new[own..]].concat()
}
