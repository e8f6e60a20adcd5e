//! Stored conversations, of a server or of this process, as the terminal uses them.

use std::collections::BTreeSet;

use anyhow::anyhow;
use axum::http::{Method, StatusCode};
use kvik_memory::context::chain::text_of;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::command::{
    backend::Backend,
    client::{AskError, Client},
    remote::escaped,
};

const PATH: &str = "/v1/conversations";
/// Conversations of one page of the list.
const PAGE: usize = 1000;
/// Maximum bytes of a name made from the first question, without the number after it.
const NAME_BYTES: usize = 48;

/// All stored conversations.
#[derive(Clone, Copy)]
pub(super) struct KeptConversations<'a>(pub(super) &'a Backend);

/// A conversation in the list.
#[derive(Debug, Deserialize)]
pub(super) struct ListedConversation {
    pub(super) id: String,
    pub(super) name: Option<String>,
    /// Time of the last change, in Unix seconds.
    pub(super) updated: u64,
    pub(super) messages: usize,
}

impl ListedConversation {
    /// The name by which a user finds it.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }
}

/// A conversation with all its messages.
#[derive(Debug, Deserialize)]
pub(super) struct FoundConversation {
    pub(super) id: String,
    pub(super) name: Option<String>,
    pub(super) messages: Vec<Value>,
}

/// A conversation that nobody reads any more.
#[derive(Debug, Deserialize)]
pub(super) struct DeletedConversation {
    pub(super) id: String,
    /// Something of it is left, and is deleted as soon as that can be done.
    #[serde(default)]
    pub(super) pending: bool,
}

impl KeptConversations<'_> {
    fn client(&self) -> &Client {
        &self.0.client
    }

    /// All conversations, most recently changed first.
    pub(super) fn all(self) -> anyhow::Result<Vec<ListedConversation>> {
        #[derive(Deserialize)]
        struct Page {
            data: Vec<ListedConversation>,
            has_more: bool,
        }
        let mut all: Vec<ListedConversation> = Vec::new();
        loop {
            let after = all.last().map_or_else(String::new, |last| format!("&after={}", last.id));
            let page = self.client().call(Method::GET, &format!("{PATH}?limit={PAGE}{after}"), None)?;
            let page: Page = serde_json::from_value(page)?;
            all.extend(page.data);
            if !page.has_more {
                return Ok(all);
            }
        }
    }

    /// The conversation of this name or id.
    pub(super) fn find(self, name: &str) -> anyhow::Result<FoundConversation> {
        let found =
            self.client().call(Method::GET, &path(name), None).map_err(|error| in_terminal(error, name))?;
        Ok(serde_json::from_value(found)?)
    }

    /// Creates a conversation of this name with these messages, and returns its id.
    pub(super) fn begin(self, name: &str, messages: &[Value]) -> anyhow::Result<String> {
        let body = json!({"name": name, "messages": messages});
        let begun = self.client().call(Method::POST, PATH, Some(&body))?;
        Ok(begun["id"].as_str().unwrap_or_default().to_owned())
    }

    pub(super) fn rename(self, id: &str, name: &str) -> anyhow::Result<()> {
        self.client().call(Method::POST, &path(id), Some(&json!({"name": name})))?;
        Ok(())
    }

    /// Deletes the conversation of this name.
    pub(super) fn delete(self, name: &str) -> anyhow::Result<DeletedConversation> {
        let deleted = self
            .client()
            .call(Method::DELETE, &path(name), None)
            .map_err(|error| in_terminal(error, name))?;
        Ok(serde_json::from_value(deleted)?)
    }

    /// Removes the message of this index and all after it.
    pub(super) fn take_back(self, id: &str, from: usize) -> anyhow::Result<()> {
        self.client().call(Method::DELETE, &format!("{}/messages?from={from}", path(id)), None)?;
        Ok(())
    }

    /// Adds messages behind the last one.
    pub(super) fn add(self, id: &str, messages: &[Value]) -> Result<(), AskError> {
        let items: Vec<Value> = messages.iter().flat_map(items_of).collect();
        self.client().call(Method::POST, &format!("{}/items", path(id)), Some(&json!({"items": items})))?;
        Ok(())
    }

    /// Its newest summary; null if it has none.
    pub(super) fn summary(self, id: &str) -> anyhow::Result<Value> {
        let mut memory = self.client().call(Method::GET, &self.memory_path(id), None)?;
        Ok(memory["summary"].take())
    }

    /// Replaces the text of its newest summary.
    pub(super) fn correct(self, id: &str, text: &str) -> anyhow::Result<()> {
        self.client().call(Method::POST, &self.memory_path(id), Some(&json!({"summary": text})))?;
        Ok(())
    }

    /// The route of a conversation's summary, which belongs to a model.
    fn memory_path(self, id: &str) -> String {
        format!("{}/memory{}", path(id), self.0.query())
    }

    /// The conversation as text, in `json` or `markdown`.
    pub(super) fn export(self, id: &str, format: &str) -> anyhow::Result<String> {
        Ok(self.client().text(Method::GET, &format!("{}/export?format={format}", path(id)), None)?)
    }

    /// An unused name, made of the first words of a text.
    pub(super) fn unused_name(self, text: &str) -> anyhow::Result<String> {
        let names: BTreeSet<String> = self.all()?.into_iter().filter_map(|listed| listed.name).collect();
        let name = first_words(text);
        let numbered = (2..).map(|n| format!("{name} ({n})"));
        let mut candidates = std::iter::once(name.clone()).chain(numbered);
        candidates.find(|name| !names.contains(name)).ok_or_else(|| anyhow!("all names are taken"))
    }
}

fn path(name: &str) -> String {
    format!("{PATH}/{}", escaped(name))
}

/// A message as the items of OpenAI's Conversations API that the server reads as this message.
fn items_of(message: &Value) -> Vec<Value> {
    let (role, text) = (&message["role"], text_of(message));
    if role == "tool" {
        let call = &message["tool_call_id"];
        return vec![json!({"type": "function_call_output", "call_id": call, "output": text})];
    }
    let thoughts = message["reasoning_content"].as_str().map(|thoughts| {
        let content = json!([{"type": "reasoning_text", "text": thoughts}]);
        json!({"type": "reasoning", "summary": [], "content": content})
    });
    let said =
        (!message["content"].is_null()).then(|| json!({"type": "message", "role": role, "content": text}));
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(item_of_call);
    thoughts.into_iter().chain(said).chain(calls).collect()
}

fn item_of_call(call: &Value) -> Value {
    let function = &call["function"];
    let arguments = match &function["arguments"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    json!({"type": "function_call", "call_id": call["id"], "name": function["name"], "arguments": arguments})
}

/// The error for a conversation that does not exist, worded for the terminal.
fn in_terminal(error: AskError, name: &str) -> anyhow::Error {
    match error {
        AskError::Refused { status: StatusCode::NOT_FOUND, .. } => {
            anyhow!("there is no conversation `{name}`; /list shows them")
        }
        error => error.into(),
    }
}

/// The first words of a text, as a name.
fn first_words(text: &str) -> String {
    let mut name = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        let space = if name.is_empty() { "" } else { " " };
        let room = NAME_BYTES.saturating_sub(name.len() + space.len());
        // Where words are not spaced, half of a name or more may stand before its end.
        if word.len() > room && name.len() * 2 >= NAME_BYTES {
            break;
        }
        name.push_str(space);
        name.push_str(&word[..word.floor_char_boundary(room)]);
        if word.len() > room {
            break;
        }
    }
    if name.is_empty() {
        return "Conversation".to_owned();
    }
    // A name must not look like an id.
    if name.starts_with("conv_") { format!("about {name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_called_by_its_first_words() {
        let check = |text: &str, expect: &str| assert_eq!(first_words(text), expect, "{text}");
        check("My dog is called Bolt.", "My dog is called Bolt.");
        check("one\ttwo\n\nthree", "one two three");
        check(&"word ".repeat(20), "word word word word word word word word word");
        check(&"é".repeat(100), &"é".repeat(24));
        check("KV Cache的前缀树管理与分页注意力相比，在哪些设备上", "KV Cache的前缀树管理与分页注意力相");
        check("a word 我在上海的港口上班，柜子的号码是", "a word 我在上海的港口上班，柜子的");
        check("twenty-four bytes of text 我在上海的港口上班", "twenty-four bytes of text");
        check("conv_1", "about conv_1");
        check(" \n", "Conversation");
    }
}
