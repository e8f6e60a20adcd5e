//! What this server cannot do: it runs one model, which it was started with.

use axum::http::StatusCode;

use crate::http::error::ApiError;

fn refuse(what: &str, instead: &str) -> ApiError {
    let message = format!("{what}: this server runs the one model that it was started with; {instead}");
    ApiError::new(StatusCode::NOT_IMPLEMENTED, Some("not_supported"), message)
}

/// `POST /api/pull`
pub(super) async fn pull() -> ApiError {
    refuse("models are not pulled", "start kvik with `-m hf:OWNER/NAME` for another one")
}

/// `POST /api/push`
pub(super) async fn push() -> ApiError {
    refuse("models are not pushed", "nothing is sent anywhere")
}

/// `POST /api/create`
pub(super) async fn create() -> ApiError {
    refuse("models are not created", "send `system` and `options` with each request")
}

/// `POST /api/copy`
pub(super) async fn copy() -> ApiError {
    refuse("models are not copied", "it answers to any name")
}

/// `DELETE /api/delete`
pub(super) async fn delete() -> ApiError {
    refuse("models are not deleted", "delete its file when kvik has stopped")
}
