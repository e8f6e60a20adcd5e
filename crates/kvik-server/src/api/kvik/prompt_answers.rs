//! Answers of the routes for pinned prompts.

use serde::Serialize;

use crate::{
    app::report::{retain::RetainReport, usage::Usage},
    described::JsonSchema,
    http::answer::words,
};

words! {
    PromptWord = "prompt";
    DeletedWord = "prompt.deleted";
    List = "list";
}

/// A prompt that is kept, and how much of it is there.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Prompt")]
pub(crate) struct PromptState {
    pub(super) object: PromptWord,
    pub(super) name: String,
    pub(super) tokens: usize,
    pub(super) sha256: String,
    pub(super) public: bool,
    pub(super) builds: u64,
    pub(super) cached: bool,
    pub(super) pinned: bool,
    pub(super) ram: usize,
    pub(super) disk: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retain: Option<RetainReport>,
    /// Whether the prompt it was compared with is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) changed: Option<bool>,
}

/// All prompts of a tenant.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PromptList")]
pub(crate) struct PromptList {
    pub(super) object: List,
    pub(super) data: Vec<PromptState>,
}

/// A prompt that was computed and kept.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "KeptPrompt")]
pub(crate) struct PromptKept {
    pub(super) object: PromptWord,
    pub(super) name: String,
    pub(super) tokens: usize,
    pub(super) sha256: String,
    pub(super) public: bool,
    pub(super) built: bool,
    pub(super) computed_tokens: usize,
    pub(super) cached_tokens: usize,
    /// Null where nothing was to be computed.
    pub(super) usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retain: Option<RetainReport>,
}

/// A prompt that is no longer kept.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeletedPrompt")]
pub(crate) struct PromptDeleted {
    pub(super) object: DeletedWord,
    pub(super) name: String,
    /// Nothing of it is left, in memory or in a file, but what others share.
    pub(super) deleted: bool,
    /// Something of it is left in a file, and is deleted as soon as that can be done, also after a restart.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) pending: bool,
}
