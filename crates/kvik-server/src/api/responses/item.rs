//! The items of an answer: messages, thoughts, calls and compaction.

use kvik_engine::api::FinishReason;
use kvik_memory::random::random;
use serde::Serialize;

use super::{
    input::sealed,
    tools::{Called, custom_input},
};
use crate::{
    api::{
        chat::{Assistant, CompactionItem},
        logprobs::Logprob,
    },
    app::report::loops,
    described::JsonSchema,
    http::answer::words,
};

words! {
    MessageWord = "message";
    ReasoningWord = "reasoning";
    FunctionCall = "function_call";
    CustomCall = "custom_tool_call";
    OutputText = "output_text";
    ReasoningText = "reasoning_text";
}

/// An item of an answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OutputItem")]
pub(super) enum Item {
    Compaction(CompactionItem),
    Message(MessageItem),
    Reasoning(ReasoningItem),
    Call(CallItem),
    CustomCall(CustomCallItem),
}

/// How an item stands.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct MessageItem {
    id: String,
    r#type: MessageWord,
    pub(super) status: ItemStatus,
    role: Assistant,
    pub(super) content: Vec<TextPart>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ReasoningItem {
    id: String,
    r#type: ReasoningWord,
    pub(super) status: ItemStatus,
    summary: [(); 0],
    pub(super) content: Vec<ReasoningPart>,
    /// The thoughts in a form that clients send back, where they ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    encrypted_content: Option<String>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct CallItem {
    id: String,
    r#type: FunctionCall,
    pub(super) status: ItemStatus,
    call_id: String,
    pub(super) name: String,
    /// Of a tool that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    pub(super) arguments: String,
}

/// The call of a tool that takes a text.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct CustomCallItem {
    id: String,
    r#type: CustomCall,
    pub(super) status: ItemStatus,
    call_id: String,
    name: String,
    /// Of a tool that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// Empty until it is complete.
    pub(super) input: String,
    /// JSON, as the model writes it.
    #[serde(skip)]
    arguments: String,
}

/// A part of a message.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(super) struct TextPart {
    r#type: OutputText,
    pub(super) text: String,
    annotations: [(); 0],
    pub(super) logprobs: Vec<Logprob>,
}

/// A part of thoughts.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(super) struct ReasoningPart {
    r#type: ReasoningText,
    pub(super) text: String,
}

/// A part of either.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum Part {
    Text(TextPart),
    Reasoning(ReasoningPart),
}

/// Returns a new id for an item.
fn id(kind: &str) -> String {
    format!("{kind}_{:016x}", random())
}

impl Item {
    /// Creates an empty message.
    pub(super) fn message() -> Item {
        let status = ItemStatus::InProgress;
        let (id, role) = (id("msg"), Assistant);
        Item::Message(MessageItem { id, r#type: MessageWord, status, role, content: Vec::new() })
    }

    /// Creates empty thoughts.
    pub(super) fn reasoning() -> Item {
        Item::Reasoning(ReasoningItem {
            id: id("rs"),
            r#type: ReasoningWord,
            status: ItemStatus::InProgress,
            summary: [],
            content: Vec::new(),
            encrypted_content: None,
        })
    }

    /// Creates a call without arguments.
    pub(super) fn call(call_id: &str, called: Called) -> Item {
        let Called { name, namespace, custom } = called;
        let (call_id, status) = (call_id.to_owned(), ItemStatus::InProgress);
        let (arguments, input) = (String::new(), String::new());
        if custom {
            let (id, r#type) = (id("ctc"), CustomCall);
            return Item::CustomCall(CustomCallItem {
                id,
                r#type,
                status,
                call_id,
                name,
                namespace,
                input,
                arguments,
            });
        }
        let (id, r#type) = (id("fc"), FunctionCall);
        Item::Call(CallItem { id, r#type, status, call_id, name, namespace, arguments })
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Item::Compaction(item) => &item.id,
            Item::Message(item) => &item.id,
            Item::Reasoning(item) => &item.id,
            Item::Call(item) => &item.id,
            Item::CustomCall(item) => &item.id,
        }
    }

    /// Begins the only part of the item.
    pub(super) fn begin_part(&mut self) {
        match self {
            Item::Message(item) => item.content = vec![TextPart::default()],
            Item::Reasoning(item) => item.content = vec![ReasoningPart::default()],
            Item::Compaction(_) | Item::Call(_) | Item::CustomCall(_) => {}
        }
    }

    /// Returns the only part of the item.
    pub(super) fn part(&self) -> Option<Part> {
        match self {
            Item::Message(item) => item.content.first().cloned().map(Part::Text),
            Item::Reasoning(item) => item.content.first().cloned().map(Part::Reasoning),
            Item::Compaction(_) | Item::Call(_) | Item::CustomCall(_) => None,
        }
    }

    /// Appends text to the item's part, or arguments to the call.
    pub(super) fn grow(&mut self, text: &str, logprobs: &[Logprob]) {
        match self {
            Item::Message(item) => {
                for part in &mut item.content {
                    part.text.push_str(text);
                    part.logprobs.extend_from_slice(logprobs);
                }
            }
            Item::Reasoning(item) => item.content.iter_mut().for_each(|part| part.text.push_str(text)),
            Item::Call(item) => item.arguments.push_str(text),
            Item::CustomCall(item) => item.arguments.push_str(text),
            Item::Compaction(_) => {}
        }
    }

    /// Drops from the end of its text what follows the second copy, if the answer was ended as a loop.
    pub(super) fn cut(&mut self, reason: FinishReason) {
        match self {
            Item::Message(item) => {
                item.content.iter_mut().for_each(|part| loops::cut(&mut part.text, reason));
            }
            Item::Reasoning(item) => {
                item.content.iter_mut().for_each(|part| loops::cut(&mut part.text, reason));
                item.seal(item.encrypted_content.is_some());
            }
            Item::Compaction(_) | Item::Call(_) | Item::CustomCall(_) => {}
        }
    }

    /// Sets the text of a custom tool's call, once it is complete.
    pub(super) fn read_input(&mut self) {
        if let Item::CustomCall(item) = self {
            item.input = custom_input(&item.arguments);
        }
    }

    /// Ends the item, complete or truncated; adds the sealed form of thoughts if clients store it.
    pub(super) fn end(&mut self, done: ItemStatus, seals_thoughts: bool) {
        match self {
            Item::Message(item) => item.status = done,
            Item::Call(item) => item.status = done,
            Item::CustomCall(item) => item.status = done,
            Item::Reasoning(item) => {
                item.status = done;
                item.seal(seals_thoughts);
            }
            Item::Compaction(_) => {}
        }
    }
}

impl ReasoningItem {
    /// Adds its text in the form that clients send back, if they store it.
    fn seal(&mut self, seals: bool) {
        let text = self.content.first().filter(|_| seals);
        self.encrypted_content = text.map(|part| sealed(&part.text));
    }
}
