//! Answers that consist of a tenant's stored data, conversations and stored responses, or of its own texts.
//!
//! They are read in the tenant's turn, scheduled with the readers of bodies, and hold memory for bodies until
//! the client has received them, however slowly it reads.

use std::sync::Arc;

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use kvik_cache::TenantId;
use serde::Serialize;
use serde_json::Value;

use super::{answer_memory::no_memory, keys::Caller, server::Server};
use crate::http::{
    answer::written,
    body_memory::{BodyShare, SMALL_BYTES, charged},
    error::ApiError,
    readers::{Presence, Reader},
};

/// Stored data as it is sent.
pub(crate) enum KeptAnswer {
    Json(Value),
    /// JSON that is serialised already.
    Written(Vec<u8>),
    /// Text with its content type.
    Text(&'static str, String),
}

impl Server {
    /// Answers with the records that `read` returns, of about `bytes` bytes.
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
            let written = read(&server)?.written();
            // The text may be longer than its records, as by the question that is being answered.
            match share.resize(written.1.len() as u64) {
                true => Ok(holding(written, share)),
                false => Err(no_memory()),
            }
        };
        self.readers.in_turn_behind_models(Reader { tenant, large: bytes > SMALL_BYTES }, work).await
    }

    /// Makes the answer with these records, before what it tells of is stored, or with what was made of a body.
    ///
    /// # Errors
    /// If other unread answers leave no memory for it.
    pub(crate) fn answer_with(&self, tenant: TenantId, answer: KeptAnswer) -> Result<Response, ApiError> {
        let written = answer.written();
        let share = self.bodies.hold(tenant, written.1.len() as u64).ok_or_else(no_memory)?;
        Ok(holding(written, share))
    }
}

/// An answer whose share was reserved before its length was known, and is then no more than that.
pub(crate) fn answer_within(share: BodyShare, answer: &impl Serialize) -> Response {
    let json = written(answer);
    share.resize(json.len() as u64);
    holding(("application/json", json), share)
}

/// An answer of this content type that holds its share of the memory until its client has received it.
fn holding((kind, text): (&'static str, Vec<u8>), share: BodyShare) -> Response {
    ([(header::CONTENT_TYPE, kind)], Body::from(charged(text, share))).into_response()
}

impl KeptAnswer {
    /// Its content type and bytes.
    fn written(self) -> (&'static str, Vec<u8>) {
        match self {
            KeptAnswer::Json(value) => ("application/json", value.to_string().into_bytes()),
            KeptAnswer::Written(json) => ("application/json", json),
            KeptAnswer::Text(kind, text) => (kind, text.into_bytes()),
        }
    }
}
