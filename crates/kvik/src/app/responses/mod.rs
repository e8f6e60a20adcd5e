//! Answers that clients may go on from by their id: what was said up to each, and the answer as it was given.
//!
//! Each is written down with what is new in it and the id of the one before, so a conversation of a thousand turns is
//! stored once. The oldest are forgotten; those that an answer goes on from are as new as it is.

mod error;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::{error::ResponseError, store::Responses};

/// An answer as it is written down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredResponse {
    /// As the client was given it.
    pub(crate) response: Value,
    /// What the client sent, in its own form.
    pub(crate) input: Vec<Value>,
    /// The messages that are new in it, the answer included.
    pub(crate) said: Vec<Value>,
    /// Id of the answer that it goes on from.
    pub(crate) previous: Option<String>,
}

/// An answer that is to be written down when it is complete.
pub(crate) struct ResponseTurn {
    pub(crate) store: Arc<Responses>,
    pub(crate) tenant: String,
    pub(crate) id: String,
    pub(crate) previous: Option<String>,
    pub(crate) input: Vec<Value>,
    /// The messages that are new.
    pub(crate) new: Vec<Value>,
}

impl ResponseTurn {
    /// Writes down what was said, and the answer as the client is given it.
    pub(crate) fn write(self, message: Value, response: Value) -> Result<(), ResponseError> {
        let ResponseTurn { store, tenant, id, previous, input, new: mut said } = self;
        said.push(message);
        store.keep(&tenant, &id, &StoredResponse { response, input, said, previous })
    }
}
