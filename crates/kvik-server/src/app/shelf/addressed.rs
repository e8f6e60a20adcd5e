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
    http::{body_memory::SMALL_BYTES, error::ApiError, json, readers::Reader},
};
use kvik_serving::settings::keep_alive::KeepAlive;

/// Why a request goes to no model.
pub(crate) enum Unaddressed {
    /// There is no such model, it cannot be loaded, or the body was not received.
    Refused(ApiError),
    /// It asks for nothing but that this model leaves memory, where it is not.
    Absent(String),
}

type Result<T> = std::result::Result<T, Unaddressed>;

/// The fields of a body that may select a model.
#[derive(Default)]
struct Named {
    model: Option<String>,
    /// The conversation that the request continues: where it names no model, the last one there is used.
    conversation: Option<String>,
    /// The stored answer that the request continues, likewise.
    previous: Option<String>,
    /// The field of old clients of Ollama; in other APIs it has a different meaning.
    name: Option<String>,
    /// How long an Ollama client wants the model to stay loaded.
    keep_alive: Option<KeepAlive>,
    /// Whether an Ollama client asks for nothing but that the model leaves memory.
    only_unloads: bool,
}

/// Those of Ollama's API.
const OF_OLLAMA: [&str; 4] = ["model", "name", "keep_alive", "kvik"];
/// Those of the other APIs.
const OF_OTHERS: [&str; 5] = ["model", "kvik", "conversation", "previous_response_id", "thread"];
/// The fields in which an Ollama client asks for something.
const ASKED: [&str; 4] = ["prompt", "suffix", "messages", "input"];

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
    /// If the request goes to no model.
    pub(crate) async fn addressed(self: &Arc<Self>, request: Request) -> Result<(Lease, Request)> {
        let (lease, request) = self.found(request).await?;
        Ok((lease, anew(request)))
    }

    async fn found(self: &Arc<Self>, request: Request) -> Result<(Lease, Request)> {
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
    async fn by_body(self: &Arc<Self>, request: Request) -> Result<(Lease, Request)> {
        let (parts, body) = request.into_parts();
        let fields: &'static [&'static str] =
            if parts.uri.path().starts_with("/api/") { &OF_OLLAMA } else { &OF_OTHERS };
        let body = JsonBody::receive(Request::from_parts(parts.clone(), body), &self.server).await?;
        let caller = body.caller.clone();
        let (mut body, mut named) = self.named_in(body, fields).await?;
        let name = named.model.take().or(named.name.take()).unwrap_or_default();
        let name = if name.is_empty() { self.model_continued(&caller, &named).await? } else { name };
        let asked = self.server.now();
        let lease = match named.only_unloads {
            true => self.to_unload(&name, &caller)?,
            false => self.take(&name, &caller).await?,
        };
        body.came.loading = self.server.now().saturating_sub(asked);
        let mut request = Request::from_parts(parts, Body::empty());
        request.extensions_mut().insert(ReadBody::new(body));
        Ok((lease.keeping(named.keep_alive), request))
    }

    /// Leases a model for a request that only unloads it, and therefore does not load it.
    fn to_unload(self: &Arc<Self>, name: &str, caller: &Caller) -> Result<Lease> {
        let found = self.find(name, caller)?;
        let lease = self.lease(&found, self.now(), caller)?;
        lease.ok_or(Unaddressed::Absent(found.name))
    }

    /// The model of what a request continues; empty if that does not exist, which the request's route reports.
    async fn model_continued(&self, caller: &Caller, named: &Named) -> Result<String> {
        let model = match (&named.conversation, &named.previous) {
            (Some(reference), _) => self.model_of(caller, reference.clone()).await?,
            (None, Some(id)) => self.model_of_answer(caller, id.clone()).await?,
            (None, None) => None,
        };
        Ok(model.unwrap_or_default())
    }

    /// The model last used in a conversation.
    async fn model_of(&self, caller: &Caller, reference: String) -> Result<Option<String>> {
        let tenant = caller.tenant.name.clone();
        let found =
            self.server.ask_conversations(move |conversations| conversations.find(&tenant, &reference));
        Ok(found.await?.ok().and_then(|(_, head)| head.model))
    }

    /// The model that gave a stored answer.
    async fn model_of_answer(&self, caller: &Caller, id: String) -> Result<Option<String>> {
        let (tenant, responses) = (caller.tenant.name.clone(), self.server.responses.clone());
        let Ok(bytes) = responses.bytes(&tenant, &id) else { return Ok(None) };
        let reader = Reader { tenant: caller.tenant.id, large: bytes > SMALL_BYTES };
        let read = move |_| {
            let stored = responses.get(&tenant, &id).ok();
            Ok(stored.and_then(|stored| stored.response["model"].as_str().map(str::to_owned)))
        };
        Ok(self.server.readers.in_turn(reader, read).await?)
    }

    /// The names in a body; none if the body is invalid, which its route reports. A small body is split here, a large one
    /// on a thread that may take its time; its route finds the fields split.
    async fn named_in(&self, body: JsonBody, fields: &'static [&'static str]) -> Result<(JsonBody, Named)> {
        if !body.is_large() {
            let named = Named::of(&body, fields);
            return Ok((body, named));
        }
        let reader = Reader { tenant: body.caller.tenant.id, large: true };
        let read = move |_| {
            let named = Named::of(&body, fields);
            Ok((body, named))
        };
        Ok(self.server.readers.in_turn(reader, read).await?)
    }
}

impl From<ApiError> for Unaddressed {
    fn from(error: ApiError) -> Unaddressed {
        Unaddressed::Refused(error)
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
        let within = |name: &str, field: &str| Some(value(name)?[field].as_str()?.to_owned());
        let keep_alive: Option<KeepAlive> =
            value("keep_alive").and_then(|time| serde_json::from_value(time).ok());
        Named {
            model: text("model"),
            // That of the Responses API, by itself or as an object, before kvik's own.
            conversation: (text("conversation").or_else(|| within("conversation", "id")))
                .or_else(|| within("kvik", "conversation")),
            previous: text("previous_response_id").or_else(|| within("thread", "previous_message_id")),
            name: text("name"),
            keep_alive,
            only_unloads: keep_alive.is_some_and(KeepAlive::unloads) && asks_nothing(&body),
        }
    }
}

/// Whether an Ollama client asks for nothing.
fn asks_nothing(body: &json::Body) -> bool {
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    body.copy(&ASKED)
        .is_ok_and(|fields| fields.as_object().is_some_and(|fields| fields.values().all(is_nothing)))
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
