//! Errors in Anthropic's format: `{"type": "error", "error": {"type", "message"}, "request_id"}`.

use axum::http::StatusCode;
use kvik_memory::random::random;
use serde::Serialize;

use crate::{
    described::JsonSchema,
    http::{answer::words, error::ApiError},
};

words! {
    ErrorWord = "error";
}

/// The body of an error; also the data of the event `error` in a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicError")]
pub(super) struct ErrorBody {
    r#type: ErrorWord,
    error: Fault,
    request_id: String,
}

/// What is wrong, and at which field.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Fault {
    r#type: &'static str,
    message: String,
    /// Path of the field.
    param: Option<String>,
    /// Of errors from which clients know how to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Details {
    error_code: &'static str,
}

impl From<&ApiError> for ErrorBody {
    fn from(error: &ApiError) -> ErrorBody {
        let message = match error.overflow() {
            // Agents match this prefix and compact the conversation.
            Some(over) => format!(
                "prompt is too long: {} tokens > {} maximum; {error}",
                over.prompt_tokens, over.context_tokens
            ),
            None if error.is_too_long() => format!("prompt is too long: {error}"),
            None => error.to_string(),
        };
        let param = error.param().map(str::to_owned);
        let details = Some(error.code()).filter(|code| code.starts_with("thread_"));
        let details = details.map(|error_code| Details { error_code });
        ErrorBody {
            r#type: ErrorWord,
            error: Fault { r#type: kind(error.status()), message, param, details },
            request_id: format!("req_{:016x}", random()),
        }
    }
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use kvik_engine::api::RequestError;

    use serde_json::{Value, json};

    use super::*;
    use crate::http::answer::value;

    fn body(error: &ApiError) -> Value {
        value(&ErrorBody::from(error))
    }

    #[test]
    fn every_status_has_its_kind() {
        let check = |error: ApiError, kind: &str| {
            let body = body(&error);
            assert_eq!((&body["type"], body["error"]["type"].as_str()), (&json!("error"), Some(kind)));
        };
        check(ApiError::field("x", "`x` is missing"), "invalid_request_error");
        check(ApiError::unauthorized("of yours"), "authentication_error");
        check(ApiError::admins_only(), "permission_error");
        check(ApiError::new(StatusCode::NOT_FOUND, None, "no"), "not_found_error");
        check(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, None, "large"), "request_too_large");
        check(ApiError::busy("full", 2), "rate_limit_error");
        check(ApiError::stopping(), "overloaded_error");
        check(ApiError::internal("x"), "api_error");
    }

    #[test]
    fn an_overflow_begins_with_what_agents_look_for() {
        let error = RequestError::PromptTooLong { prompt_tokens: 5000, context_tokens: 2048 };
        let body = body(&error.into());
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("prompt is too long: 5000 tokens > 2048 maximum"), "{message}");
        let over_budget = RequestError::OverBudget { needed_blocks: 9, budget_blocks: 4 };
        let message = self::body(&over_budget.into())["error"]["message"].take();
        assert!(message.as_str().unwrap().starts_with("prompt is too long: "), "{message}");
    }
}
