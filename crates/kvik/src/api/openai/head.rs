//! What both completion endpoints have in common: fields of the body, and of every frame of the answer.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    api::request::parts::Part, app::state::App, clock::unix_seconds, http::error::ApiError, random::random,
};

/// The fields that say which model is to answer and how the answer is sent.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct HeadFields {
    /// The one model that runs here answers for any name, unless the server is strict.
    #[serde(default)]
    pub(super) model: String,
    /// Send the answer as it is generated.
    #[serde(default)]
    pub(super) stream: bool,
    stream_options: Option<StreamOptions>,
    prompt_cache_options: Option<PromptCacheOptions>,
}

impl Part for HeadFields {}

/// How an answer is streamed.
#[derive(Debug, Deserialize, JsonSchema)]
struct StreamOptions {
    /// End the stream with a frame of usage.
    #[serde(default)]
    include_usage: bool,
}

/// OpenAI's; the other fields are its bills and have no meaning here.
#[derive(Debug, Deserialize, JsonSchema)]
struct PromptCacheOptions {
    /// Id of an earlier answer that this one is to be compared with.
    comparison_response_id: Option<String>,
}

impl HeadFields {
    /// Whether a stream ends with a frame of usage.
    pub(super) fn include_usage(&self) -> Result<bool, ApiError> {
        match &self.stream_options {
            None => Ok(false),
            Some(_) if !self.stream => {
                let message = "`stream_options` is only allowed when `stream` is true";
                Err(ApiError::field("stream_options", message))
            }
            Some(options) => Ok(options.include_usage),
        }
    }

    /// Id of the earlier answer that the client wants this one compared with.
    pub(super) fn compared_with(self) -> Option<String> {
        self.prompt_cache_options.and_then(|options| options.comparison_response_id)
    }
}

/// What the frames of one answer have in common.
#[derive(Debug, Clone)]
pub(super) struct Head {
    /// `chatcmpl-...`
    pub(super) id: String,
    /// Unix time of the request, seconds.
    pub(super) created: u64,
    /// The model's name.
    pub(super) model: String,
}

impl Head {
    /// Names an answer of this kind.
    pub(super) fn new(app: &App, kind: &str) -> Head {
        Head {
            id: format!("{kind}-{:016x}", random()),
            created: unix_seconds(),
            model: app.serving.model.name.clone(),
        }
    }
}

/// The fields that every frame of both of OpenAI's completion endpoints has.
pub(super) fn frame(head: &Head, object: &str, choices: Vec<Value>) -> Map<String, Value> {
    let frame = json!({
        "id": head.id,
        "object": object,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": concat!("kvik-", env!("CARGO_PKG_VERSION")),
        "choices": choices,
    });
    let Value::Object(frame) = frame else { unreachable!("json! of braces is an object") };
    frame
}
