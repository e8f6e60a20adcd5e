//! Fields that both completion endpoints share: of the body, and of every frame of the answer.

use kvik_memory::random::random;
use serde::{Deserialize, Serialize};

use crate::{
    api::{progress::PromptProgress, request::parts::Part},
    app::{
        report::{trailer::Ending, usage::Usage},
        state::App,
    },
    clock::unix_seconds,
    described::JsonSchema,
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
    /// True if a stream ends with a frame of usage; a complete answer always has the usage.
    pub(super) fn include_usage(&self) -> bool {
        self.stream && self.stream_options.as_ref().is_some_and(|options| options.include_usage)
    }

    /// Returns the id of the earlier answer to compare this one with.
    pub(super) fn compared_with(self) -> Option<String> {
        self.prompt_cache_options.and_then(|options| options.comparison_response_id)
    }
}

/// System fingerprint. It begins like llama-server's, whose clients parse a build number there.
const FINGERPRINT: &str = concat!("b0-kvik-", env!("CARGO_PKG_VERSION"));

/// The fields that all frames of an answer share.
#[derive(Debug, Clone)]
pub(super) struct Head {
    /// `chatcmpl-...`
    pub(super) id: String,
    /// Unix time of the request, in seconds.
    pub(super) created: u64,
    /// Name of the model.
    pub(super) model: String,
}

impl Head {
    /// Creates a head with a new id of this kind.
    pub(super) fn new(app: &App, kind: &str) -> Head {
        Head {
            id: format!("{kind}-{:016x}", random()),
            created: unix_seconds(),
            model: app.serving.model.name.clone(),
        }
    }
}

/// An answer, or a frame of one, of both of OpenAI's completion endpoints.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{O}{E}")]
pub(super) struct Completion<O, C, E> {
    id: String,
    object: O,
    /// Unix time of the request, seconds.
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    pub(super) choices: Vec<C>,
    #[serde(flatten)]
    pub(super) end: E,
}

/// What a whole answer ends with.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Answer")]
pub(super) struct WholeEnd {
    pub(super) usage: Usage,
    #[serde(flatten)]
    pub(super) ending: Ending,
}

/// What a frame of a stream ends with.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "Frame")]
pub(super) struct FrameEnd {
    /// Where it was asked for: null in all frames but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Option<Usage>>,
    /// Where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_progress: Option<PromptProgress>,
    /// In the last frame.
    #[serde(flatten)]
    pub(super) ending: Option<Ending>,
}

impl FrameEnd {
    /// Ends a frame that is not the last one.
    pub(super) fn open(includes_usage: bool) -> FrameEnd {
        FrameEnd { usage: includes_usage.then_some(None), ..FrameEnd::default() }
    }

    /// Ends the frame with the usage.
    pub(super) fn usage(usage: Usage) -> FrameEnd {
        FrameEnd { usage: Some(Some(usage)), ..FrameEnd::default() }
    }
}

impl Head {
    /// Returns a frame with these choices.
    pub(super) fn completion<O: Default, C, E>(&self, choices: Vec<C>, end: E) -> Completion<O, C, E> {
        Completion {
            id: self.id.clone(),
            object: O::default(),
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: FINGERPRINT,
            choices,
            end,
        }
    }
}
