//! Which model a request is for.

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
    settings::keep_alive::KeepAlive,
};

/// What may name a model.
#[derive(Default, Deserialize)]
struct Named {
    #[serde(default)]
    model: Option<String>,
    /// In it, of whatever kind it is, the conversation that the request goes on with, which has the model that was asked last
    /// in it.
    #[serde(default)]
    kvik: Value,
    /// The field of old clients of Ollama; in bodies of others it names something else.
    #[serde(default)]
    name: Option<String>,
    /// How long Ollama's clients want it to stay: `"5m"` or seconds.
    #[serde(default)]
    keep_alive: Option<KeepAlive>,
}

impl Shelf {
    /// The model that a request names in its body or its query, in memory, and the request. What names none and only asks
    /// is answered by a model that is there.
    ///
    /// # Errors
    /// If there is no such model, it cannot be loaded, or the body does not come.
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
        if let Ok(Query(Named { model: Some(name), .. })) = Query::try_from_uri(request.uri()) {
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

    /// The same of a request whose body may name a model.
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

    /// The model that was asked last in a conversation; none of one that is not there yet.
    async fn model_of(&self, caller: &Caller, reference: String) -> Result<String, ApiError> {
        let tenant = caller.tenant.name.clone();
        let found =
            self.server.ask_conversations(move |conversations| conversations.find(&tenant, &reference));
        // Its route says what is wrong with it.
        Ok(found.await?.ok().and_then(|(_, head)| head.model).unwrap_or_default())
    }

    /// The name in a body; none where its route is to say what is wrong with it.
    async fn named_in(
        &self,
        body: JsonBody,
        fields: &'static [&'static str],
    ) -> Result<(JsonBody, Named), ApiError> {
        let reader = Reader { tenant: body.caller.tenant.id, large: body.is_large() };
        let read = move |_| {
            let named = || serde_json::from_value(body.parse().ok()?.copy(fields).ok()?).ok();
            let named: Option<Named> = named();
            Ok((body, named.unwrap_or_default()))
        };
        self.server.readers.in_turn(reader, read).await
    }
}

/// A request for other routes: parts of its path, which these find again, would be there twice.
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
