//! Errors in the form of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`.
//!
//! The only place that maps kinds of failures to status codes.

use std::{fmt, time::Duration};

use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use kvik_cache::retain::RetentionError;
use kvik_engine::api::{ConstraintError, RequestError};
use kvik_memory::records::RecordsError;
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinError;

use super::answer::value;
use crate::described::JsonSchema;

/// A refused or failed request.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after_s: Option<u64>,
    /// True if the same request fails again, so that clients are told not to repeat it.
    is_final: bool,
    overflow: Option<Overflow>,
}

/// Whether a request is repeated, which OpenAI's and Anthropic's clients decide by the status without it.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A prompt that is longer than the context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Overflow {
    pub(crate) prompt_tokens: usize,
    pub(crate) context_tokens: usize,
    /// Whether the prompt was not counted to its end.
    pub(crate) is_at_least: bool,
}

/// What is wrong, at which field, and under which code.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorFields,
}

/// OpenAI's error object.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ErrorFields {
    pub(crate) message: String,
    pub(crate) r#type: &'static str,
    /// Path of the field, as `messages[2].role`.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// Of a prompt that is longer than the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<usize>,
    /// Likewise: what it would have to fit into.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_ctx: Option<usize>,
}

impl From<&ApiError> for ErrorBody {
    fn from(error: &ApiError) -> ErrorBody {
        ErrorBody {
            error: ErrorFields {
                message: error.message.clone(),
                r#type: error.kind(),
                param: error.param.clone(),
                code: error.code,
                n_prompt_tokens: error.overflow.map(|overflow| overflow.prompt_tokens),
                n_ctx: error.overflow.map(|overflow| overflow.context_tokens),
            },
        }
    }
}

impl ApiError {
    /// The request is wrong at the field `param`.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::bad_request(message) }
    }

    /// The request is wrong as a whole.
    pub(crate) fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, None, message)
    }

    pub(crate) fn new(
        status: StatusCode,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            param: None,
            code,
            retry_after_s: None,
            is_final: false,
            overflow: None,
        }
    }

    /// Says that the same request fails again.
    pub(crate) fn for_good(self) -> ApiError {
        ApiError { is_final: true, ..self }
    }

    /// Sets the offending field, unless one is set.
    pub(crate) fn at(mut self, param: &str) -> ApiError {
        self.param.get_or_insert_with(|| param.to_owned());
        self
    }

    /// The key is missing or unknown; `source` tells where this server's keys are.
    pub(crate) fn unauthorized(source: &str) -> ApiError {
        let message = format!(
            "this server wants an API key: send the header `Authorization: Bearer KEY` with a key {source}"
        );
        ApiError::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message)
    }

    /// There is no model of that name; `there_is` tells which models there are.
    pub(crate) fn no_model(name: &str, there_is: &str) -> ApiError {
        let message = format!("the model `{name}` does not exist here; {there_is}");
        ApiError::new(StatusCode::NOT_FOUND, Some("model_not_found"), message).at("model")
    }

    /// The request reads data of a model that is not loaded, and does not load it.
    pub(crate) fn not_in_memory(name: &str) -> ApiError {
        let message = format!(
            "the model `{name}` is not in memory, and a request that only reads does not load it; `POST /v1/shelf/load` does"
        );
        ApiError::new(StatusCode::CONFLICT, Some("model_not_loaded"), message).at("model").for_good()
    }

    pub(crate) fn stopping() -> ApiError {
        RequestError::Stopping.into()
    }

    pub(crate) fn busy(message: impl Into<String>, retry_after_s: u64) -> ApiError {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), message);
        ApiError { retry_after_s: Some(retry_after_s), ..error }
    }

    /// A resource that the request needs does not respond; other requests are not affected.
    pub(crate) fn unavailable(
        code: &'static str,
        message: impl Into<String>,
        retry_after_s: u64,
    ) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Some(code), message);
        ApiError { retry_after_s: Some(retry_after_s), ..error }
    }

    /// Removes numbers about other clients from the message.
    pub(crate) fn impersonal(mut self) -> ApiError {
        if let (Some("queue_full"), Some(seconds)) = (self.code, self.retry_after_s) {
            self.message = format!("the server is busy; try again in {seconds} s");
        }
        self
    }

    /// Replaces the message.
    pub(crate) fn because(self, message: impl Into<String>) -> ApiError {
        ApiError { message: message.into(), ..self }
    }

    /// The tenant has used up its rate for now.
    pub(crate) fn rate_limited(message: impl Into<String>, retry_after: Duration) -> ApiError {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, Some("rate_limit_exceeded"), message);
        // Rounded up, so that a client that waits this long is admitted.
        let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
        ApiError { retry_after_s: Some(seconds.max(1)), ..error }
    }

    /// The request concerns all tenants, and needs the admin's key.
    pub(crate) fn admins_only() -> ApiError {
        let message = "this concerns all tenants and wants the admin's key: start kvik with --admin-key KEY and send that one";
        ApiError::new(StatusCode::FORBIDDEN, Some("admin_key_required"), message)
    }

    /// This server, or its model, does not support the request.
    pub(crate) fn not_supported(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, Some("not_supported"), message).for_good()
    }

    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, Some("internal_error"), message)
    }

    /// The thread that did `work` panicked; what it said may be of another tenant, and is only for the log.
    pub(crate) fn panicked(work: &str, panic: &JoinError) -> ApiError {
        tracing::error!("{work} failed: {panic}");
        ApiError::internal(format!("{work} failed by a fault of kvik, which the server's log describes"))
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Kind of failure, as a word.
    pub(crate) fn code(&self) -> &'static str {
        self.code.unwrap_or_else(|| self.kind())
    }

    /// The offending field, if there is one.
    pub(crate) fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// The prompt is too long; agents shorten the conversation at this code.
    fn too_long(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, Some("context_length_exceeded"), message)
    }

    /// Whether a shorter prompt would be answered.
    pub(crate) fn is_too_long(&self) -> bool {
        self.code == Some("context_length_exceeded")
    }

    /// The token counts of a prompt that is longer than the context.
    pub(crate) fn overflow(&self) -> Option<Overflow> {
        self.overflow
    }

    /// OpenAI's error object; also the last frame of a stream that fails half-way.
    pub(crate) fn body(&self) -> Value {
        value(&ErrorBody::from(self))
    }

    fn kind(&self) -> &'static str {
        match self.status {
            // llama-server's; OpenAI's clients look at the code.
            _ if self.overflow.is_some() => "exceed_context_size_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
            // llama-server's.
            StatusCode::NOT_IMPLEMENTED => "not_supported_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_final {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // For dialects with another form of errors.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<RetentionError> for ApiError {
    fn from(error: RetentionError) -> ApiError {
        let message = format!("kvik.retain.{error}");
        // The policy may be the server's, and agents shorten a prompt whoever chose it.
        if let RetentionError::PromptLong { prompt, context, .. } = error {
            let overflow = Overflow { prompt_tokens: prompt, context_tokens: context, is_at_least: false };
            let told = ApiError::from(overflow);
            let message = format!("{told}; {message}");
            return told.because(message);
        }
        ApiError::field(format!("kvik.retain.{}", error.field()), message)
    }
}

/// Seconds after which a client should retry, if a file does not respond or has failed.
const FILE_RETRY_AFTER_S: u64 = 10;

impl From<RecordsError> for ApiError {
    fn from(error: RecordsError) -> ApiError {
        let message = error.to_string();
        match error {
            RecordsError::Silent(_) => {
                ApiError::unavailable("storage_unavailable", message, FILE_RETRY_AFTER_S)
            }
            error if error.is_outage() => {
                ApiError::unavailable("storage_unavailable", message, FILE_RETRY_AFTER_S)
            }
            // Their text has the file's path and what the system said.
            RecordsError::Rewrite { .. } => {
                tracing::error!("{message}");
                let message = "the file that this was kept in cannot be written anew, so that some of it may be left in it; \
                               see whether the disk is full, and send it again";
                ApiError::unavailable("storage_unavailable", message, FILE_RETRY_AFTER_S)
            }
            RecordsError::Open { .. } | RecordsError::InUse(_) => {
                tracing::error!("{message}");
                let message = "the file that this is kept in cannot be opened; the server's log says why";
                ApiError::unavailable("storage_unavailable", message, FILE_RETRY_AFTER_S)
            }
            _ => ApiError::internal(message),
        }
    }
}

impl From<Overflow> for ApiError {
    fn from(overflow: Overflow) -> ApiError {
        let Overflow { prompt_tokens, context_tokens, is_at_least } = overflow;
        let mut message = RequestError::PromptTooLong { prompt_tokens, context_tokens }.to_string();
        if is_at_least {
            message = message.replace("the prompt has", "the prompt has at least");
        }
        ApiError { overflow: Some(overflow), ..ApiError::too_long(message) }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        let message = error.to_string();
        match error {
            RequestError::PromptTooLong { prompt_tokens, context_tokens } => {
                Overflow { prompt_tokens, context_tokens, is_at_least: false }.into()
            }
            RequestError::OverBudget { .. } | RequestError::Pinned { .. } => {
                let message = format!("the prompt exceeds the available context size: {message}");
                ApiError::too_long(message)
            }
            RequestError::PinLimit(_) => ApiError::new(StatusCode::BAD_REQUEST, Some("pin_limit"), message),
            RequestError::Retention(error) => error.into(),
            RequestError::BadChoices { .. } => ApiError::field("n", message),
            RequestError::QueueFull { retry_after_s, .. }
            | RequestError::Constraint(ConstraintError::Busy { retry_after_s }) => {
                ApiError::busy(message, retry_after_s)
            }
            RequestError::Constraint(ConstraintError::NoThread(_)) => ApiError::internal(message),
            RequestError::Stopping => ApiError::unavailable("stopping", message, 5),
            RequestError::Device(_) => ApiError::unavailable("device_failed", message, 5),
            RequestError::Internal(_) => ApiError::internal(message),
            _ => ApiError::bad_request(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use kvik_cache::{PinLimit, PinScope};

    use serde_json::json;

    use super::*;

    #[test]
    fn engine_errors_meet_their_status() {
        let check = |error: RequestError, status: u16, code: Option<&str>| {
            let api = ApiError::from(error.clone());
            assert_eq!(api.status.as_u16(), status, "{error}");
            assert_eq!(api.body()["error"]["code"].as_str(), code, "{error}");
            let message = api.body()["error"]["message"].take();
            assert!(message.as_str().unwrap().ends_with(&error.to_string()), "{message}");
        };
        let too_long = RequestError::PromptTooLong { prompt_tokens: 5000, context_tokens: 2048 };
        check(too_long, 400, Some("context_length_exceeded"));
        check(RequestError::EmptyPrompt, 400, None);
        check(RequestError::UnknownToken { token: 9, vocab: 4 }, 400, None);
        check(ConstraintError::Unusable("x".into()).into(), 400, None);
        check(ConstraintError::Busy { retry_after_s: 1 }.into(), 429, Some("queue_full"));
        let over_budget = RequestError::OverBudget { needed_blocks: 9, budget_blocks: 4 };
        check(over_budget, 400, Some("context_length_exceeded"));
        let beyond = RetentionError::PromptLong { policy: "kvzip", prompt: 5000, context: 2048 };
        check(RequestError::Retention(beyond), 400, Some("context_length_exceeded"));
        for scope in [PinScope::Tenant, PinScope::All] {
            let (pinned_blocks, budget_blocks) = (4321, 10);
            let pinned = RequestError::Pinned { needed_blocks: 9, pinned_blocks, budget_blocks, scope };
            check(pinned.clone(), 400, Some("context_length_exceeded"));
            let told = pinned.to_string().contains("4321");
            assert_eq!(told, scope == PinScope::Tenant, "what others have pinned is not said");
            let limit = PinLimit { needed: 9, pinned: 4321, limit: 10, scope };
            check(RequestError::PinLimit(limit), 400, Some("pin_limit"));
            let told = RequestError::PinLimit(limit).to_string().contains("4321");
            assert_eq!(told, scope == PinScope::Tenant, "what others have pinned is not said");
        }
        check(RequestError::QueueFull { waiting: 1, retry_after_s: 2 }, 429, Some("queue_full"));
        check(RequestError::Stopping, 503, Some("stopping"));
        check(RequestError::Device("lost".into()), 503, Some("device_failed"));
        check(RequestError::Internal("x".into()), 500, Some("internal_error"));
    }

    /// litellm looks for either of two phrases, OpenAI's clients for the code, llama-server's for the
    /// type and the numbers.
    #[test]
    fn an_overflow_has_what_every_client_looks_for() {
        let beyond = RetentionError::PromptLong { policy: "kvzip", prompt: 5000, context: 2048 };
        let too_long = RequestError::PromptTooLong { prompt_tokens: 5000, context_tokens: 2048 };
        for error in [too_long, RequestError::Retention(beyond)] {
            let error = ApiError::from(error).body()["error"].take();
            let message = error["message"].as_str().unwrap().to_lowercase();
            assert!(message.contains("this model's maximum context length is 2048 tokens"), "{message}");
            assert!(message.contains("exceeds the available context size"), "{message}");
            assert_eq!(error["type"], "exceed_context_size_error");
            assert_eq!(error["code"], "context_length_exceeded");
            assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(5000), &json!(2048)));
        }
        let over_budget = RequestError::OverBudget { needed_blocks: 9, budget_blocks: 4 };
        assert!(ApiError::from(over_budget).to_string().contains("exceeds the available context size"));
    }

    #[test]
    fn clients_are_told_what_not_to_repeat() {
        let check = |error: ApiError, expect: Option<&str>| {
            let response = error.into_response();
            let told = response.headers().get("x-should-retry").map(|told| told.to_str().unwrap());
            assert_eq!(told, expect, "{}", response.status());
        };
        check(ApiError::not_supported("no"), Some("false"));
        check(ApiError::not_in_memory("tiny"), Some("false"));
        check(ApiError::internal("x"), None);
        check(ApiError::stopping(), None);
        check(ApiError::busy("full", 2), None);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_outage_whose_path_is_not_told() {
        for error in [
            RecordsError::Rewrite { path: "/secret/records".into(), error: "no space left".into() },
            RecordsError::Open { path: "/secret/records".into(), error: "no space left".into() },
            RecordsError::InUse("/secret/records".into()),
        ] {
            let api = ApiError::from(error);
            assert_eq!(
                (api.status.as_u16(), api.code(), api.retry_after_s),
                (503, "storage_unavailable", Some(10))
            );
            assert!(!api.to_string().contains("/secret"), "{api}");
        }
    }

    #[tokio::test]
    async fn what_a_panic_says_is_not_told() {
        let ended: Result<(), JoinError> = tokio::spawn(async { panic!("of another tenant") }).await;
        let Err(panic) = ended else { panic!("it did not panic") };
        let told = ApiError::panicked("the request", &panic).to_string();
        assert!(told.starts_with("the request failed") && !told.contains("tenant"), "{told}");
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let response =
            ApiError::from(RequestError::QueueFull { waiting: 64, retry_after_s: 7 }).into_response();
        assert_eq!(response.headers()["retry-after"], "7");
    }
}
