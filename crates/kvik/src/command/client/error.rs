//! Why a request to routes had no answer.

use axum::http::StatusCode;
use serde_json::Value;

/// The message of a server that loads its model, which llama-server's clients know too.
const LOADING: &str = "Loading model";

/// Why a request to routes had no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The request was refused.
    #[error("{message}")]
    Refused { status: StatusCode, message: String },
    /// The server wants another key, or one at all.
    #[error("{url} refuses the key, or the lack of one: {message}; --key or KVIK_KEY gives it")]
    Key { url: String, message: String },
    /// The text is no address, or not one of HTTP.
    #[error("{url} is no address of a server; write it as http://127.0.0.1:8080")]
    BadAddress { url: String },
    /// Nothing says where a server is, and this user runs none: whoever listens at the usual port is sent no key.
    #[error(
        "no kvik of this user runs on this machine, and no other one is named; `kvik serve` starts one, --port or --url \
         names one"
    )]
    NoneRuns,
    /// Nothing says which of these servers is meant.
    #[error("several kviks of this user run, and none of them is named: {urls}; --port or --url names one")]
    SeveralRun { urls: String },
    #[error("{url} does not answer; is `kvik serve` running there? --url names another address")]
    Unreachable { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The server took longer than a request takes that computes nothing.
    #[error("{url} has accepted a request and does not answer it")]
    Silent { url: String },
    #[error("{url} did not answer as kvik does")]
    Foreign { url: String },
    /// The server ended, or the network between.
    #[error(
        "{url} was cut off in the middle of its answer: the server ended or cannot be reached; ask again when `kvik health` \
         says that it answers, or load the model here with --local"
    )]
    CutOff { url: String },
    /// The engine of this process ended.
    #[error("the answer ended before it was complete")]
    Incomplete,
    #[error(transparent)]
    Request(#[from] axum::http::Error),
}

impl AskError {
    /// The error of a response with this status and body; `url` is that of its server, if it has one.
    pub(crate) fn refused(url: Option<&str>, status: StatusCode, body: &str) -> AskError {
        let message = said(&serde_json::from_str(body).unwrap_or_default()).unwrap_or_else(|| match url {
            Some(url) => format!("{url} answers {status}, and not as kvik does"),
            None => format!("the request was refused with {status}"),
        });
        match url {
            Some(url) if status == StatusCode::UNAUTHORIZED => AskError::Key { url: url.to_owned(), message },
            _ => AskError::Refused { status, message },
        }
    }

    /// Whether the server answers when it has loaded its model.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self, AskError::Refused { status: StatusCode::SERVICE_UNAVAILABLE, message } if message == LOADING)
    }
}

/// The message of an error of a stream.
pub(super) fn message_of(error: &Value) -> String {
    said(error).unwrap_or_else(|| "the request was refused".to_owned())
}

/// The message of an error in OpenAI's shape, or in Ollama's.
fn said(error: &Value) -> Option<String> {
    let error = &error["error"];
    error["message"].as_str().or(error.as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_their_status() {
        let body = r#"{"error": {"message": "no"}}"#;
        let refused = |url, status, body: &str| AskError::refused(url, status, body);
        let key = refused(Some("http://a"), StatusCode::UNAUTHORIZED, body).to_string();
        assert!(key.contains("http://a") && key.contains("no; --key or KVIK_KEY"), "{key}");
        for (url, status) in [(None, StatusCode::UNAUTHORIZED), (Some("http://a"), StatusCode::NOT_FOUND)] {
            assert_eq!(refused(url, status, body).to_string(), "no");
        }
        for (body, expect) in [
            ("<html>", "http://a answers 404 Not Found, and not as kvik does"),
            (r#"{"detail": "Not Found"}"#, "http://a answers 404 Not Found, and not as kvik does"),
            (r#"{"error": "no such model"}"#, "no such model"),
        ] {
            assert_eq!(refused(Some("http://a"), StatusCode::NOT_FOUND, body).to_string(), expect);
        }
        let unnamed = refused(None, StatusCode::NOT_FOUND, "<html>").to_string();
        assert!(unnamed.contains("404"), "{unnamed}");
        let loading = r#"{"error": {"message": "Loading model", "code": 503}}"#;
        assert!(refused(Some("http://a"), StatusCode::SERVICE_UNAVAILABLE, loading).is_loading());
        assert!(!refused(Some("http://a"), StatusCode::SERVICE_UNAVAILABLE, body).is_loading());
    }
}
