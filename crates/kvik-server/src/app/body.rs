//! Request bodies, limited in size, in time, and in number at once.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{FromRequest, MatchedPath, Request},
    http::{HeaderMap, StatusCode, header},
};
use tokio::time::{Instant, timeout_at};

use super::{keys::Caller, server::Server, shelf::Shelf, spans::Came, state::App};
use crate::http::{
    body_memory::{BodyShare, SMALL_BYTES, TooSlow},
    error::ApiError,
    json,
};
use kvik_serving::settings::size::ByteSize;

/// Time in which a client has to send its body,
const BODY_TIME: Duration = Duration::from_secs(60);
/// plus a second for each of these bytes.
const RATE_MIN: u64 = 64 << 10;
/// UTF-8's byte order mark, with which PowerShell and .NET begin a text. It is no JSON.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// A complete, unparsed body and its sender.
pub(crate) struct JsonBody {
    bytes: Bytes,
    /// Its fields, once it was split.
    fields: OnceLock<json::BodyFields>,
    pub(crate) caller: Caller,
    /// Origin of the request, for its span.
    pub(crate) came: Came,
    /// Its share of the memory for bodies, freed on drop.
    _share: BodyShare,
}

impl JsonBody {
    /// Whether reading it may take seconds.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.len() as u64 > SMALL_BYTES
    }

    /// Finds its fields, once for all readers. Values are built only when they are read.
    pub(crate) fn parse(&self) -> Result<json::Body, ApiError> {
        if let Some(fields) = self.fields.get() {
            return Ok(fields.clone().into());
        }
        self.check_text()?;
        let fields = json::BodyFields::of(&self.bytes)?;
        Ok(self.fields.get_or_init(|| fields).clone().into())
    }

    /// Wraps the whole body as the field `name`, for a body that is no object.
    pub(crate) fn parse_as(&self, name: &str) -> Result<json::Body, ApiError> {
        self.check_text()?;
        json::Body::wrap(name, &self.bytes)
    }

    fn check_text(&self) -> Result<(), ApiError> {
        if let Err(error) = std::str::from_utf8(&self.bytes) {
            let at = error.valid_up_to();
            return Err(ApiError::bad_request(format!(
                "the body is not UTF-8: byte {at} is not part of a character"
            )));
        }
        Ok(())
    }
}

impl JsonBody {
    /// Receives the body of a request.
    pub(crate) async fn receive(request: Request, server: &Server) -> Result<JsonBody, ApiError> {
        let caller = request.extensions().get::<Caller>().cloned().ok_or_else(|| server.keys().refusal())?;
        let is_a_programs = server.senders.is_a_programs(request.uri(), request.headers());
        check_form(request.headers(), is_a_programs)?;
        let mut came = came(&request);
        let share = server.bodies.begin(caller.tenant.id);
        let bytes = Bytes::from(read(request.into_body(), &share, server).await?);
        share.complete();
        (came.at, came.arrived) = (Some(SystemTime::now()), server.now());
        let mark = if bytes.starts_with(MARK) { MARK.len() } else { 0 };
        let (bytes, fields) = (bytes.slice(mark..), OnceLock::new());
        Ok(JsonBody { bytes, fields, caller, came, _share: share })
    }
}

/// A body that was already read to find out which model it names.
#[derive(Clone)]
pub(super) struct ReadBody(Arc<Mutex<Option<JsonBody>>>);

impl ReadBody {
    pub(super) fn new(body: JsonBody) -> ReadBody {
        ReadBody(Arc::new(Mutex::new(Some(body))))
    }

    fn take(&self) -> Option<JsonBody> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl FromRequest<Arc<Shelf>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, shelf: &Arc<Shelf>) -> Result<Self, ApiError> {
        JsonBody::receive(request, &shelf.server).await
    }
}

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        match request.extensions().get::<ReadBody>().and_then(ReadBody::take) {
            Some(body) => Ok(body),
            None => JsonBody::receive(request, &app.server).await,
        }
    }
}

fn came(request: &Request) -> Came {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let traceparent = traceparent.map(str::to_owned);
    Came { route: route.unwrap_or_default(), traceparent, ..Came::default() }
}

/// Reads a body as fast as it arrives and memory permits.
async fn read(mut body: Body, share: &BodyShare, server: &Server) -> Result<Vec<u8>, ApiError> {
    let limit = server.body_limit.0;
    if body.size_hint().lower() > limit {
        return Err(too_large(server.body_limit));
    }
    let mut bytes = Vec::new();
    // Deadline of the body; time spent waiting for memory is not charged to the client.
    let mut due = Instant::now() + BODY_TIME;
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let frame = tokio::select! {
            frame = timeout_at(due, frame) => frame.map_err(|_| too_slow())?,
            TooSlow = share.given_up() => return Err(given_up()),
        };
        let Some(frame) = frame else { return Ok(bytes) };
        let frame = frame.map_err(|error| ApiError::bad_request(format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if (bytes.len() + data.len()) as u64 > limit {
            return Err(too_large(server.body_limit));
        }
        let waiting = Instant::now();
        share.take(data.len()).await.map_err(|TooSlow| given_up())?;
        due += waiting.elapsed() + Duration::from_secs_f64(data.len() as f64 / RATE_MIN as f64);
        bytes.extend_from_slice(&data);
    }
}

/// Refuses a body that is not declared as plain JSON if a browser may have sent it: a foreign page can make a
/// browser send forms and text without a preflight, but not this type. Programs may declare any type, as curl
/// does with forms.
fn check_form(headers: &HeaderMap, is_a_programs: bool) -> Result<(), ApiError> {
    let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
    if let Some(encoding) = encoding.filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        let message = format!(
            "the body is encoded as `{encoding}` (its content-encoding), which kvik does not read; send it as it is"
        );
        return Err(unsupported("content_encoding_not_supported", message));
    }
    let kind = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?"));
    if is_a_programs || kind.is_some_and(is_json) {
        return Ok(());
    }
    let found = kind.map_or("has no content-type".to_owned(), |kind| format!("says that it is `{kind}`"));
    let message = format!(
        "the body {found} and kvik reads JSON only; send the header `Content-Type: application/json` (curl: -H 'Content-Type: application/json')"
    );
    Err(unsupported("content_type_not_json", message))
}

/// Whether a content type is `application/json` or `application/*+json`, with or without parameters.
fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.strip_prefix("application/").is_some_and(|form| form == "json" || form.ends_with("+json"))
}

fn unsupported(code: &'static str, message: String) -> ApiError {
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some(code), message)
}

fn too_large(limit: ByteSize) -> ApiError {
    let message = format!(
        "the body is larger than {limit}; shorten the prompt or start kvik with a larger --body-limit"
    );
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Some("body_too_large"), message)
}

fn too_slow() -> ApiError {
    let message = format!(
        "the body came too slowly: it may take {} s, and another one for each {} KiB",
        BODY_TIME.as_secs(),
        RATE_MIN >> 10
    );
    ApiError::new(StatusCode::REQUEST_TIMEOUT, Some("body_timeout"), message)
}

fn given_up() -> ApiError {
    let message = "the body came slowly while others waited for the memory that it takes; send it again";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, Some("body_timeout"), message)
}
