//! Stored responses, from which clients may continue by id: the messages up to each, and the response as it was sent.
//!
//! Each record holds only its new messages and the id of the previous response, so a conversation of a thousand turns
//! is stored once. The least recently used are deleted first; using a response also renews its ancestors. Items of a
//! response are found by their ids as long as it is stored, and using one is a use of its response.

mod error;
mod items;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::{
    error::ResponseError,
    items::{ReferredItems, is_reference},
    store::Responses,
};

/// The record of a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredResponse {
    /// The response as sent to the client.
    pub(crate) response: Value,
    /// The client's input, in its own form.
    pub(crate) input: Vec<Value>,
    /// Its new messages, including the answer.
    pub(crate) said: Vec<Value>,
    /// Id of the response that it continues.
    pub(crate) previous: Option<String>,
}

/// A response to be stored when it is complete.
pub(crate) struct ResponseTurn {
    pub(crate) store: Arc<Responses>,
    pub(crate) tenant: String,
    pub(crate) id: String,
    pub(crate) previous: Option<String>,
    pub(crate) input: Vec<Value>,
    /// Its new messages.
    pub(crate) new: Vec<Value>,
}

impl ResponseTurn {
    /// Refuses a turn that could not be stored with these fields of its request, before anything is computed for it.
    ///
    /// # Errors
    /// If it continues others that leave no room for it.
    pub(crate) fn check_room(&self, echoed: &Value) -> Result<(), ResponseError> {
        let Some(previous) = &self.previous else { return Ok(()) };
        self.store.check_room(&self.tenant, previous, &(&self.input, &self.new, echoed))
    }

    /// Stores the messages, and the response as sent to the client.
    pub(crate) fn write(self, message: Value, response: Value) -> Result<(), ResponseError> {
        let ResponseTurn { store, tenant, id, previous, input, new: mut said } = self;
        said.push(message);
        store.keep(&tenant, &id, &StoredResponse { response, input, said, previous })
    }
}
