//! Endpoints of Ollama that kvik does not support.

use crate::http::error::ApiError;

/// `POST /api/push`
pub(super) async fn push() -> ApiError {
    ApiError::not_supported("models are not pushed: nothing is sent anywhere")
}

/// `POST /api/create`
pub(super) async fn create() -> ApiError {
    ApiError::not_supported(
        "models are not created: a table [models.NAME] of config.toml gives one settings of its own, and a system \
         prompt is sent with each request, as `system` or as a message",
    )
}
