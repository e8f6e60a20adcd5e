//! A turn of a conversation: what the model is asked, and what is written down before the client hears of the end.

use std::sync::Arc;

use kvik_engine::conversation::leading_systems;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::task::{JoinError, JoinHandle};

use super::error::ConversationError;
use super::held::Held;
use super::store::Conversations;
use crate::http::{
    error::ApiError,
    json::{VALUES_BYTES_MAX, fit_in_a_body},
};

/// What is being written down.
pub(crate) type Writing = JoinHandle<Result<(), ApiError>>;

/// A turn that is not answered yet. Dropped before it is, it leaves nothing behind.
pub(crate) struct ConversationTurn {
    held: Held,
    /// What the request brought.
    new: Vec<Value>,
}

/// Which conversation of the server an answer belongs to, and how long it is with it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ConversationReport {
    id: String,
    name: Option<String>,
    messages: usize,
}

impl ConversationTurn {
    /// A turn that brings `new` messages, and all messages of the conversation with them.
    pub(crate) fn begin(
        store: &Arc<Conversations>,
        tenant: &str,
        reference: &str,
        new: &[Value],
    ) -> Result<(ConversationTurn, Vec<Value>), ConversationError> {
        let held = store.hold_or_begin(tenant, reference)?;
        held.make_room(new)?;
        let messages = joined(&held.messages()?, new);
        check_values(&messages)?;
        Ok((ConversationTurn { held, new: new.to_vec() }, messages))
    }

    /// The object `kvik.conversation`, of a turn with which the conversation has so many messages.
    pub(crate) fn report(&self) -> ConversationReport {
        let (own, head) = (leading_systems(&self.new), self.held.head());
        let before = if own > 0 { head.messages - head.systems } else { head.messages };
        ConversationReport {
            id: self.held.key().id.clone(),
            name: head.name.clone(),
            messages: before + self.new.len() + 1,
        }
    }

    /// Writes down what was said, the answer included; then the next turn may come.
    pub(crate) fn write(mut self, answer: Value) -> Result<(), ApiError> {
        self.new.push(answer);
        Ok(self.held.append(&self.new)?)
    }
}

/// Whether it was written.
pub(crate) fn written(ended: Result<Result<(), ApiError>, JoinError>) -> Result<(), ApiError> {
    ended.unwrap_or_else(|panic| {
        Err(ApiError::internal(format!("the conversation was not written down: {panic}")))
    })
}

/// Refuses a conversation whose values no body could hold: each turn builds them all, and what is exported can be sent
/// again.
fn check_values(messages: &[Value]) -> Result<(), ConversationError> {
    match fit_in_a_body(messages) {
        true => Ok(()),
        false => Err(ConversationError::Heavy { mebibytes: VALUES_BYTES_MAX >> 20 }),
    }
}

/// A conversation with new messages. Its system messages stay unless the new ones begin with others.
fn joined(stored: &[Value], new: &[Value]) -> Vec<Value> {
    let own = leading_systems(new);
    let kept = if own > 0 { &stored[leading_systems(stored)..] } else { stored };
    [&new[..own], kept, &new[own..]].concat()
}
