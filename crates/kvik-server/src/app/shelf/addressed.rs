//! The model that a request addresses.

use std::sync::Arc;

use axum::{
    body::{Body, HttpBody},
    extract::{Query, Request},
    http::Method,
};
use serde::Deserialize;
use serde_json::Value;

use super::{Lease, Shelf};
use crate::{
    app::{
        body::{JsonBody, ReadBody},
        keys::Caller,
    },
    http::{error::ApiError, readers::Reader},
};
use kvik_serving::settings::keep_alive::KeepAlive;

/// The fields of a body that may select a model.
#[derive(Default)]
struct Named {
    model: Option<String>,
    /// May name, in `conversation`, the conversation that the request continues; its last model is then used. Any JSON
    /// value is accepted here.
    kvik: Value,
    /// The field of old clients of Ollama; in other APIs it has a different meaning.
    name: Option<String>,
    /// How long an Ollama client wants the model to stay loaded.
    keep_alive: Option<KeepAlive>,
}

/// The field of a query that selects a model.
#[derive(Deserialize)]
struct NamedInQuery {
    model: Option<String>,
}

impl Shelf {
    /// Leases the model that a request names in its body or its query, and returns it with the request. A request that
    /// names none and only reads is answered by a model in memory, if there is one.
    ///
    /// # Errors
    /// If there is no such model, it cannot be loaded, or the body is not received.
    pub(crate) async fn addressed(self: &Arc<Self>, request: Request) -> Result<(Lease, Request), ApiError> {
        let (lease, request) = self.found(request).await?;
        Ok((lease, anew(request)))
    }

    async fn found(self: &Arc<Self>, request: Request) -> Result<(Lease, Request), ApiError> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| self.server.keys().refusal())?;
        if self.has_one() {
            return Ok((self.take("", &caller).await?, request));
        }
        if let Ok(Query(NamedInQuery { model: Some(name) })) = Query::try_from_uri(request.uri()) {
            let only_reads = request.method().is_safe();
            let lease =
                if only_reads { self.in_memory(&name, &caller)? } else { self.take(&name, &caller).await? };
            return Ok((lease, request));
        }
        if request.method() == Method::GET || request.body().is_end_stream() {
            return Ok((self.for_a_question(&caller).await?, request));
        }
        self.by_body(request).await
    }

    /// Leases the model of a request whose body may name one.
    async fn by_body(self: &Arc<Self>, request: Request) -> Result<(Lease, Request), ApiError> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        let fields: &'static [&'static str] = if path.starts_with("/api/") {
            &["model", "name", "keep_alive", "kvik"]
        } else {
            &["model", "kvik"]
        };
        let body = JsonBody::receive(Request::from_parts(parts.clone(), body), &self.server).await?;
        let caller = body.caller.clone();
        let (body, Named { model, name, keep_alive, kvik }) = self.named_in(body, fields).await?;
        let conversation = kvik.get("conversation").and_then(Value::as_str);
        let name = match (model.or(name).unwrap_or_default(), conversation) {
            (name, Some(reference)) if name.is_empty() => {
                self.model_of(&caller, reference.to_owned()).await?
            }
            (name, _) => name,
        };
        let lease = self.take(&name, &caller).await?.keeping(keep_alive);
        let mut request = Request::from_parts(parts, Body::empty());
        request.extensions_mut().insert(ReadBody::new(body));
        Ok((lease, request))
    }

    /// The model last used in a conversation; empty if the conversation does not exist.
    async fn model_of(&self, caller: &Caller, reference: String) -> Result<String, ApiError> {
        let tenant = caller.tenant.name.clone();
        let found =
            self.server.ask_conversations(move |conversations| conversations.find(&tenant, &reference));
        // The request's route reports the error.
        Ok(found.await?.ok().and_then(|(_, head)| head.model).unwrap_or_default())
    }

    /// The names in a body; none if the body is invalid, which its route reports. A small body is split here, a large one
    /// on a thread that may take its time; its route finds the fields split.
    async fn named_in(
        &self,
        body: JsonBody,
        fields: &'static [&'static str],
    ) -> Result<(JsonBody, Named), ApiError> {
        if !body.is_large() {
            let named = Named::of(&body, fields);
            return Ok((body, named));
        }
        let reader = Reader { tenant: body.caller.tenant.id, large: true };
        let read = move |_| {
            let named = Named::of(&body, fields);
            Ok((body, named))
        };
        self.server.readers.in_turn(reader, read).await
    }
}

impl Named {
    /// Reads these fields of a body, each by itself: one that is wrong, which its route reports, must not hide the name of
    /// the model.
    fn of(body: &JsonBody, fields: &[&str]) -> Named {
        let Ok(body) = body.parse() else { return Named::default() };
        let value = |name: &str| {
            let known = fields.iter().find(|known| **known == name)?;
            body.copy(&[*known]).ok()?.get_mut(name).map(Value::take)
        };
        let text = |name: &str| serde_json::from_value::<String>(value(name)?).ok();
        Named {
            model: text("model"),
            kvik: value("kvik").unwrap_or_default(),
            name: text("name"),
            keep_alive: value("keep_alive").and_then(|time| serde_json::from_value(time).ok()),
        }
    }
}

/// A request for the inner router: path parameters, which that router extracts again, would occur twice.
fn anew(mut request: Request) -> Request {
    let found = std::mem::take(request.extensions_mut());
    let extensions = request.extensions_mut();
    if let Some(caller) = found.get::<Caller>() {
        extensions.insert(caller.clone());
    }
    if let Some(body) = found.get::<ReadBody>() {
        extensions.insert(body.clone());
    }
    request
}
