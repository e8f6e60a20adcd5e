//! The events of a stream. Each has its type and its sequence number after its content.

use serde::Serialize;

use super::{
    item::{Item, Part},
    output::Response,
};
use crate::{api::logprobs::Logprob, described::JsonSchema, http::answer::words};

words! {
    ArgumentsDelta = "response.function_call_arguments.delta";
    ArgumentsDone = "response.function_call_arguments.done";
    InputDelta = "response.custom_tool_call_input.delta";
    InputDone = "response.custom_tool_call_input.done";
}

/// The data of an event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseEvent")]
pub(super) struct StreamEvent {
    #[serde(flatten)]
    pub(super) said: Said,
    pub(super) sequence_number: u64,
}

/// What an event says.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "made and sent at once")]
pub(super) enum Said {
    Response(ResponseSaid),
    Item(ItemSaid),
    Part(PartSaid),
    Delta(DeltaSaid),
    Text(TextSaid),
    ArgumentsDelta(ArgumentsDeltaSaid),
    Arguments(ArgumentsSaid),
    InputDelta(InputDeltaSaid),
    Input(InputSaid),
}

/// How the response stands.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseStateEvent")]
pub(super) struct ResponseSaid {
    pub(super) response: Response,
    pub(super) r#type: ResponseKind,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum ResponseKind {
    #[serde(rename = "response.created")]
    Created,
    #[serde(rename = "response.in_progress")]
    InProgress,
    #[serde(rename = "response.completed")]
    Completed,
    #[serde(rename = "response.incomplete")]
    Incomplete,
    #[serde(rename = "response.failed")]
    Failed,
}

/// An item begins, or is complete.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OutputItemEvent")]
pub(super) struct ItemSaid {
    pub(super) item: Item,
    pub(super) output_index: usize,
    pub(super) r#type: ItemKind,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum ItemKind {
    #[serde(rename = "response.output_item.added")]
    Added,
    #[serde(rename = "response.output_item.done")]
    Done,
}

/// In which item, and in which part of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct InPart {
    pub(super) content_index: u8,
    #[serde(flatten)]
    pub(super) item: InItem,
}

/// In which item.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct InItem {
    pub(super) output_index: usize,
    pub(super) item_id: String,
}

/// A part of an item begins, or is complete.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ContentPartEvent")]
pub(super) struct PartSaid {
    pub(super) part: Part,
    #[serde(flatten)]
    pub(super) at: InPart,
    pub(super) r#type: PartKind,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum PartKind {
    #[serde(rename = "response.content_part.added")]
    Added,
    #[serde(rename = "response.content_part.done")]
    Done,
}

/// More text of a part.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TextDeltaEvent")]
pub(super) struct DeltaSaid {
    pub(super) delta: String,
    /// Of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logprobs: Option<Vec<Logprob>>,
    #[serde(flatten)]
    pub(super) at: InPart,
    pub(super) r#type: DeltaKind,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum DeltaKind {
    #[serde(rename = "response.output_text.delta")]
    Text,
    #[serde(rename = "response.reasoning_text.delta")]
    Reasoning,
}

/// The whole text of a part.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TextDoneEvent")]
pub(super) struct TextSaid {
    pub(super) text: String,
    /// Of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logprobs: Option<Vec<Logprob>>,
    #[serde(flatten)]
    pub(super) at: InPart,
    pub(super) r#type: TextKind,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum TextKind {
    #[serde(rename = "response.output_text.done")]
    Text,
    #[serde(rename = "response.reasoning_text.done")]
    Reasoning,
}

/// More arguments of a call.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ArgumentsDeltaEvent")]
pub(super) struct ArgumentsDeltaSaid {
    pub(super) delta: String,
    #[serde(flatten)]
    pub(super) at: InItem,
    pub(super) r#type: ArgumentsDelta,
}

/// All arguments of a call.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ArgumentsDoneEvent")]
pub(super) struct ArgumentsSaid {
    pub(super) arguments: String,
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) at: InItem,
    pub(super) r#type: ArgumentsDone,
}

/// More text of a call that takes one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CustomInputDeltaEvent")]
pub(super) struct InputDeltaSaid {
    pub(super) delta: String,
    #[serde(flatten)]
    pub(super) at: InItem,
    pub(super) r#type: InputDelta,
}

/// All text of such a call.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CustomInputDoneEvent")]
pub(super) struct InputSaid {
    pub(super) input: String,
    #[serde(flatten)]
    pub(super) at: InItem,
    pub(super) r#type: InputDone,
}
