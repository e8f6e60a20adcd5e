//! Answers that consist of a tenant's stored data: conversations and stored responses.
//!
//! They are read in the tenant's turn, scheduled with the readers of bodies, and hold memory for bodies until
//! the client has received them, however slowly it reads.

use std::sync::Arc;

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::Value;

use super::{answer_memory::no_memory, keys::Caller, server::Server};
use crate::http::{
    body_memory::{SMALL_BYTES, charged},
    error::ApiError,
    readers::{Presence, Reader},
};

/// Stored data as it is sent.
pub(crate) enum KeptAnswer {
    Json(Value),
    /// Text with its content type.
    Text(&'static str, String),
}

impl Server {
    /// Answers with the records that `read` returns, of `bytes` bytes.
    ///
    /// # Errors
    /// If other unread answers leave no memory for it.
    pub(crate) async fn answer_kept(
        self: &Arc<Self>,
        caller: &Caller,
        bytes: u64,
        read: impl FnOnce(&Server) -> Result<KeptAnswer, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let tenant = caller.tenant.id;
        let share = self.bodies.hold(tenant, bytes).ok_or_else(no_memory)?;
        let server = self.clone();
        let work = move |client: Presence| {
            client.check()?;
            let (kind, text) = read(&server)?.written();
            Ok(([(header::CONTENT_TYPE, kind)], Body::from(charged(text, share))).into_response())
        };
        self.readers.in_turn_behind_models(Reader { tenant, large: bytes > SMALL_BYTES }, work).await
    }
}

impl KeptAnswer {
    /// Its content type and bytes.
    fn written(self) -> (&'static str, Vec<u8>) {
        match self {
            KeptAnswer::Json(value) => ("application/json", value.to_string().into_bytes()),
            KeptAnswer::Text(kind, text) => (kind, text.into_bytes()),
        }
    }
}
