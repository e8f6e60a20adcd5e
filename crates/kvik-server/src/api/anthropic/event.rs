//! The answer message, its blocks, and the events of a stream.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    api::chat::{Assistant, CompactionWord},
    app::report::trailer::KvikReport,
    described::JsonSchema,
    http::answer::words,
};

words! {
    MessageWord = "message";
    TextWord = "text";
    ThinkingWord = "thinking";
    ToolUseWord = "tool_use";
    StandardTier = "standard";
}

/// An answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) r#type: MessageWord,
    pub(super) role: Assistant,
    pub(super) model: String,
    pub(super) content: Vec<Block>,
    #[serde(flatten)]
    pub(super) stop: Stop,
    pub(super) usage: MessageUsage,
    /// At the end.
    #[serde(flatten)]
    pub(super) trailer: Option<MessageTrailer>,
}

/// Why an answer ends.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct Stop {
    pub(super) stop_reason: Option<StopReason>,
    pub(super) stop_sequence: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum StopReason {
    ModelContextWindowExceeded,
    MaxTokens,
    ToolUse,
    StopSequence,
    EndTurn,
}

/// What stands behind all else.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MessageTrailer {
    /// Where the request asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context_management: Option<ContextManagement>,
    /// Where the request asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) diagnostics: Option<Diagnostics>,
    pub(super) kvik: KvikReport,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ContextManagement {
    pub(super) applied_edits: [(); 0],
}

/// What has changed since the earlier answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageDiagnostics")]
pub(super) struct Diagnostics {
    pub(super) cache_miss_reason: Option<MissReason>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum MissReason {
    PreviousMessageNotFound,
    Unavailable,
    ModelChanged { cache_missed_input_tokens: usize },
    ToolsChanged { cache_missed_input_tokens: usize },
    SystemChanged { cache_missed_input_tokens: usize },
    MessagesChanged { cache_missed_input_tokens: usize },
}

/// Every token of the prompt once: read from the cache, computed and left there, or computed and not.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MessageUsage {
    pub(super) input_tokens: usize,
    pub(super) cache_creation_input_tokens: usize,
    pub(super) cache_read_input_tokens: usize,
    pub(super) cache_creation: CacheCreation,
    pub(super) output_tokens: usize,
    pub(super) output_tokens_details: ThinkingTokens,
    pub(super) service_tier: StandardTier,
    /// In the server's currency, where it has prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cost: Option<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct CacheCreation {
    pub(super) ephemeral_5m_input_tokens: usize,
    pub(super) ephemeral_1h_input_tokens: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ThinkingTokens {
    pub(super) thinking_tokens: usize,
}

/// A block of an answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ContentBlock")]
pub(super) enum Block {
    Compaction {
        r#type: CompactionWord,
        content: Option<String>,
    },
    Text {
        r#type: TextWord,
        text: String,
    },
    Thinking {
        r#type: ThinkingWord,
        thinking: String,
        signature: &'static str,
    },
    ToolUse {
        r#type: ToolUseWord,
        id: String,
        name: String,
        /// What the tool is called with.
        input: Map<String, Value>,
    },
}

impl Block {
    pub(super) fn compaction(content: Option<String>) -> Block {
        Block::Compaction { r#type: CompactionWord, content }
    }

    pub(super) fn text() -> Block {
        Block::Text { r#type: TextWord, text: String::new() }
    }

    pub(super) fn thinking() -> Block {
        Block::Thinking { r#type: ThinkingWord, thinking: String::new(), signature: "" }
    }

    pub(super) fn tool_use(id: String, name: String) -> Block {
        Block::ToolUse { r#type: ToolUseWord, id, name, input: Map::new() }
    }
}

/// What is new of a block.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ContentBlockDelta")]
#[allow(clippy::enum_variant_names, reason = "they are sent under these names")]
pub(super) enum Delta {
    CompactionDelta { content: Option<String> },
    TextDelta { text: String },
    ThinkingDelta { thinking: String },
    SignatureDelta { signature: &'static str },
    InputJsonDelta { partial_json: String },
}

/// The data of an event.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageEvent")]
#[allow(clippy::large_enum_variant, reason = "made and sent at once")]
pub(super) enum StreamEvent {
    MessageStart {
        message: Message,
    },
    ContentBlockStart {
        index: usize,
        content_block: Block,
    },
    ContentBlockDelta {
        index: usize,
        delta: Delta,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        delta: Stop,
        usage: MessageUsage,
        #[serde(flatten)]
        trailer: MessageTrailer,
    },
    MessageStop,
    /// Of a stream that is silent; `wire` sends it.
    #[allow(dead_code, reason = "sent between the frames of an answer")]
    Ping,
}
