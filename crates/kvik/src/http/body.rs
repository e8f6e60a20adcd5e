//! Bodies: bounded in size, in time, and in number at once.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{app::App, error::ApiError, fields::Fields, keys::Caller};

/// A client has this long to send its body.
const BODY_TIME: Duration = Duration::from_secs(60);

/// Bodies up to this length are not counted against the room for large ones.
const SMALL_BYTES: u64 = 64 << 10;

/// A body that is all there and not parsed yet, and who sent it.
pub(crate) struct JsonBody {
    bytes: Bytes,
    pub(crate) caller: Caller,
    /// Room taken by a large body; given back with it.
    _room: Option<OwnedSemaphorePermit>,
}

impl JsonBody {
    /// Whether reading it may take seconds.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.len() as u64 > SMALL_BYTES
    }

    /// Finds its fields; nothing is built before it is read.
    pub(crate) fn parse(&self) -> Result<Fields, ApiError> {
        if let Err(error) = std::str::from_utf8(&self.bytes) {
            let at = error.valid_up_to();
            return Err(ApiError::bad_request(format!(
                "the body is not UTF-8: byte {at} is not part of a character"
            )));
        }
        Fields::parse(&self.bytes)
    }
}

/// Makes axum refuse longer bodies, whether they are announced or streamed.
pub(crate) fn limit(app: &App) -> DefaultBodyLimit {
    DefaultBodyLimit::max(usize::try_from(app.config.body_limit.0).unwrap_or(usize::MAX))
}

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let caller = request.extensions().get::<Caller>().cloned().ok_or_else(ApiError::unauthorized)?;
        check_form(request.headers())?;
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse().ok());
        let room = room(announced, app).await?;
        let read = Bytes::from_request(request, app);
        match tokio::time::timeout(BODY_TIME, read).await {
            Ok(Ok(bytes)) => Ok(JsonBody { bytes, caller, _room: room }),
            Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => Err(too_large(app)),
            Ok(Err(rejection)) => Err(ApiError::bad_request(format!("the body broke off: {rejection}"))),
            Err(_) => {
                let message = format!("the body did not arrive within {} s", BODY_TIME.as_secs());
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, Some("body_timeout"), message))
            }
        }
    }
}

/// Waits until a large body fits in memory beside the others; one of unknown length may be as
/// large as the limit.
async fn room(announced_bytes: Option<u64>, app: &App) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
    let limit = app.config.body_limit.0;
    let bytes = announced_bytes.unwrap_or(limit);
    if bytes > limit {
        return Err(too_large(app));
    }
    if bytes <= SMALL_BYTES {
        return Ok(None);
    }
    let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
    app.bodies.clone().acquire_many_owned(kib).await.map(Some).map_err(|_| ApiError::stopping())
}

/// Refuses what does not say that it is plain JSON. A foreign page can make a browser send forms
/// and text unasked, but not this type.
fn check_form(headers: &HeaderMap) -> Result<(), ApiError> {
    let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
    if let Some(encoding) = encoding.filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        let message = format!(
            "the body is encoded as `{encoding}` (its content-encoding), which kvik does not read; send it as it is"
        );
        return Err(unsupported("content_encoding_not_supported", message));
    }
    let kind = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?"));
    if kind.is_some_and(is_json) {
        return Ok(());
    }
    let found = kind.map_or("has no content-type".to_owned(), |kind| format!("says that it is `{kind}`"));
    let message = format!(
        "the body {found} and kvik reads JSON only; send the header `Content-Type: application/json` (curl: -H 'Content-Type: application/json')"
    );
    Err(unsupported("content_type_not_json", message))
}

/// Whether a content type is `application/json` or a relative of it, with or without parameters.
fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.strip_prefix("application/").is_some_and(|form| form == "json" || form.ends_with("+json"))
}

fn unsupported(code: &'static str, message: String) -> ApiError {
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some(code), message)
}

fn too_large(app: &App) -> ApiError {
    let message = format!(
        "the body is larger than {}; shorten the prompt or start kvik with a larger --body-limit",
        app.config.body_limit
    );
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Some("body_too_large"), message)
}
