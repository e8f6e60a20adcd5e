//! A turn of a conversation: what the model is asked, and what is written down before anybody hears of the end.

use std::sync::Arc;

use crate::context::leading_systems;
use serde_json::Value;

use super::error::ConversationError;
use super::head::{ConversationHead, ConversationKey};
use super::held::Held;
use super::store::Conversations;

/// A turn that is not answered yet. Dropped before it is, it leaves nothing behind.
pub struct ConversationTurn {
    held: Held,
    /// What the request brought.
    new: Vec<Value>,
}

impl ConversationTurn {
    /// A turn that brings `new` messages, and all messages of the conversation with them.
    ///
    /// # Errors
    /// If somebody else changes the conversation, there is no room for the messages, or it cannot be read.
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

    /// This model answers it, and the turns behind it that name none.
    pub fn asks(&mut self, model: &str) {
        self.held.head.model = Some(model.to_owned());
    }

    /// Which conversation it is.
    pub fn key(&self) -> &ConversationKey {
        self.held.key()
    }

    /// What is known of the conversation before this turn.
    pub fn head(&self) -> &ConversationHead {
        self.held.head()
    }

    /// Messages that the conversation has with this turn, the answer included.
    pub fn messages(&self) -> usize {
        let (own, head) = (leading_systems(&self.new), self.held.head());
        let before = if own > 0 { head.messages - head.systems } else { head.messages };
        before + self.new.len() + 1
    }

    /// Writes down what was said, the answer included; then the next turn may come.
    ///
    /// # Errors
    /// If the records cannot be written.
    pub fn write(mut self, answer: Value) -> Result<(), ConversationError> {
        self.new.push(answer);
        self.held.append(&self.new)
    }
}

/// A conversation with new messages. Its system messages stay unless the new ones begin with others.
fn joined(stored: &[Value], new: &[Value]) -> Vec<Value> {
    let own = leading_systems(new);
    let kept = if own > 0 { &stored[leading_systems(stored)..] } else { stored };
    [&new[..own], kept, &new[own..]].concat()
}
