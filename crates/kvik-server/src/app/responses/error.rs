//! Reasons why a response is not found or not stored.

use axum::http::StatusCode;

use crate::http::error::ApiError;
use kvik_memory::records::RecordsError;

/// An error of the response store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResponseError {
    /// The tenant has none of that id.
    #[error(
        "there is no response `{0}`: it was never stored, was deleted, or is among the oldest, which are forgotten"
    )]
    NotFound(String),
    /// The tenant has no item of that id. OpenAI's words, by which clients know the case.
    #[error("Item with id '{0}' not found.")]
    NoItem(String),
    /// The response is larger than the limit for all responses of a tenant.
    #[error("the response takes {bytes} bytes, and {max} are kept of a tenant; send `store: false`")]
    TooLarge { bytes: u64, max: u64 },
    /// With those that it continues, of which none is deleted for it, the response exceeds the limits of a tenant.
    #[error(
        "the answers that this one continues leave no room to store it: {answers_max} of together {bytes_max} bytes are kept of a tenant; begin another conversation"
    )]
    ChainFull { answers_max: usize, bytes_max: u64 },
    #[error(transparent)]
    Records(#[from] RecordsError),
}

impl From<ResponseError> for ApiError {
    fn from(error: ResponseError) -> ApiError {
        let message = error.to_string();
        match error {
            ResponseError::NotFound(_) => {
                ApiError::new(StatusCode::NOT_FOUND, Some("response_not_found"), message)
            }
            ResponseError::NoItem(_) => ApiError::new(StatusCode::NOT_FOUND, Some("item_not_found"), message),
            ResponseError::TooLarge { .. } => ApiError::field("store", message),
            ResponseError::ChainFull { .. } => ApiError::bad_request(message),
            ResponseError::Records(error) => error.into(),
        }
    }
}
