//! `thread`: a conversation whose messages the server stores, so that a client sends only the new ones
//! (Anthropic's beta `message-threads-2026-08-12`, which the tool runners of its SDKs use).
//!
//! The answers of a thread are stored with those of `/v1/responses`, each with its new messages. The first
//! answer holds the thread's system prompt and tools; the others hold its id.

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    app::{
        keys::Caller,
        responses::{ResponseError, ResponseTurn, StoredResponse},
        state::App,
    },
    described::JsonSchema,
    http::{error::ApiError, json::Json},
};

type Result<T> = std::result::Result<T, ApiError>;

const PREVIOUS: &str = "thread.previous_message_id";

/// The field `thread`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ThreadField {
    r#type: ThreadKind,
    /// Of `continue`: the id of the answer that this one goes on from.
    previous_message_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ThreadKind {
    Create,
    Continue,
}

/// The state of a thread so far.
#[derive(Default)]
pub(super) struct Thread {
    /// Ids of the first and the last answer; none for a new thread.
    ids: Option<(String, String)>,
    /// Messages of the thread, without the system prompt.
    pub(super) said: Vec<Value>,
    /// The fields `system` and `tools` with which the thread began.
    begun: Value,
}

impl ThreadField {
    /// Loads the thread.
    ///
    /// # Errors
    /// If the previous answer is not found: by the error's code, clients then resend the whole conversation.
    pub(super) fn thread(&self, app: &App, tenant: &str) -> Result<Thread> {
        if self.r#type == ThreadKind::Create {
            return Ok(Thread::default());
        }
        let missing = || ApiError::field(PREVIOUS, format!("`{PREVIOUS}` is missing"));
        let previous = self.previous_message_id.as_deref().ok_or_else(missing)?;
        let store = &app.server.responses;
        let found = store.said_up_to(tenant, previous).and_then(|said| {
            let last = store.get(tenant, previous)?;
            let first = last.input.first().and_then(|input| input["first"].as_str()).map(str::to_owned);
            let begun = match &first {
                Some(first) => store.get(tenant, first)?,
                None => last,
            };
            let first = first.unwrap_or_else(|| previous.to_owned());
            Ok(Thread { ids: Some((first, previous.to_owned())), said, begun: begun_with(begun) })
        });
        found.map_err(not_continued)
    }
}

/// The error of a thread that cannot go on, by whose code clients send the whole conversation again.
pub(super) fn not_continued(error: ResponseError) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, Some("thread_not_found"), error.to_string()).at(PREVIOUS)
}

fn begun_with(first: StoredResponse) -> Value {
    first.input.into_iter().next().unwrap_or_default()
}

impl Thread {
    /// Returns a field of the request, or else the value with which the thread began.
    pub(super) fn field(&self, name: &str, own: Option<Json>) -> Option<Json> {
        own.or_else(|| self.begun.get(name).filter(|value| !value.is_null()).cloned().map(Json))
    }

    /// Returns the record of the answer `id` to the messages `new`, with this system prompt and these tools.
    pub(super) fn turn(
        self,
        (app, caller, id): (&App, &Caller, &str),
        new: Vec<Value>,
        (system, tools): (Option<&Json>, Option<&Json>),
    ) -> ResponseTurn {
        let value = |field: Option<&Json>| field.map(|Json(value)| value.clone());
        let (input, previous) = match self.ids {
            Some((first, previous)) => (json!({"first": first}), Some(previous)),
            None => (json!({"system": value(system), "tools": value(tools)}), None),
        };
        ResponseTurn {
            store: app.server.responses.clone(),
            tenant: caller.tenant.name.clone(),
            id: id.to_owned(),
            previous,
            input: vec![input],
            new,
        }
    }
}
