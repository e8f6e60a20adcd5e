//! `context_management`: when a conversation is compacted, and the compaction items in its messages.

use kvik_memory::context::leading_systems;
use serde::Deserialize;
use serde_json::Value;

use super::{number::Whole, parts::Part};
use crate::{described::JsonSchema, http::error::ApiError};

pub(crate) use crate::app::seal::ForeignItem as Foreign;
pub(crate) use kvik_memory::memory::Compaction as Opened;

/// Opens compaction items.
pub(crate) type Open<'a> = &'a dyn Fn(&str) -> Result<Opened, Foreign>;

/// Maximum of `compact_threshold`, in tokens.
const THRESHOLD_MAX: i64 = 1 << 30;

/// How the context is managed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct ContextFields {
    /// Compact the conversation when it is long: the answer's message then brings a `compaction` item, which stands
    /// for all that was said before it. Sent back, as that field or as an entry of `messages`, it is read instead.
    #[schemars(length(max = 1))]
    context_management: Option<Vec<Management>>,
}

impl Part for ContextFields {}

/// One way to manage it.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
struct Management {
    #[serde(rename = "type")]
    _kind: ManagementKind,
    /// Tokens of the conversation at which it is compacted; what the server's memory is set to when absent.
    compact_threshold: Option<Whole<1, THRESHOLD_MAX>>,
}

/// Which ways there are.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ManagementKind {
    Compaction,
}

/// A request to compact a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compacting {
    /// Number of tokens in its messages at which it is compacted.
    pub(crate) threshold: Option<usize>,
}

impl ContextFields {
    /// Returns whether and when to compact.
    pub(crate) fn compacting(self) -> Result<Option<Compacting>, ApiError> {
        let ways = self.context_management.unwrap_or_default();
        if ways.len() > 1 {
            let message = "`context_management` holds more than one entry; send one of type `compaction`";
            return Err(ApiError::field("context_management", message));
        }
        let compacting =
            |way: &Management| Compacting { threshold: way.compact_threshold.and_then(Whole::count) };
        Ok(ways.first().map(compacting))
    }
}

/// Replaces a compaction item by its messages, and returns it. The messages before it are dropped; the item's
/// system messages are used unless the request has its own.
pub(crate) fn expand(
    messages: &mut Vec<Value>,
    open: impl FnOnce(&str) -> Result<Opened, Foreign>,
) -> Result<Option<Opened>, ApiError> {
    let Some(item) = take_item(messages) else { return Ok(None) };
    let foreign = |error| ApiError::field(&item.path, format!("`{}` {error}", item.path));
    let opened = open(&item.content).map_err(foreign)?;
    let systems = if item.systems.is_empty() { &opened.systems } else { &item.systems };
    *messages = [&systems[..], &opened.opening, &opened.recent, messages].concat();
    Ok(Some(opened))
}

/// Removes the last item and all messages before it, which it replaces, from `messages`. Returns the system
/// messages before it and its content, with its path for errors.
fn take_item(messages: &mut Vec<Value>) -> Option<TakenItem> {
    let at = messages.iter().rposition(|message| item_of(message).is_some())?;
    let mut rest = messages.split_off(at);
    let (content, path) = match item_of(&rest[0])? {
        Item::Alone(content) => (content.to_owned(), format!("messages[{at}]")),
        Item::Field(content) => (content.to_owned(), format!("messages[{at}].compaction")),
    };
    if rest[0].get("role").is_none() {
        rest.remove(0);
    } else if let Some(message) = rest[0].as_object_mut() {
        message.shift_remove("compaction");
    }
    let mut systems = std::mem::replace(messages, rest);
    systems.truncate(leading_systems(&systems));
    Some(TakenItem { systems, content, path })
}

/// A compaction item that the client sent back.
struct TakenItem {
    /// System messages before the item.
    systems: Vec<Value>,
    content: String,
    /// Path of the item.
    path: String,
}

/// The position of an item's content in a message.
enum Item<'a> {
    /// The message is the item.
    Alone(&'a str),
    /// The message has the item in a field; the item precedes the message.
    Field(&'a str),
}

fn item_of(message: &Value) -> Option<Item<'_>> {
    let content = |item: &'_ Value| item.get("type").is_some_and(|kind| kind == "compaction");
    if message.get("role").is_none() && content(message) {
        return message.get("encrypted_content")?.as_str().map(Item::Alone);
    }
    let item = message.get("compaction").filter(|item| content(item))?;
    item.get("encrypted_content")?.as_str().map(Item::Field)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(role: &str, text: &str) -> Value {
        json!({"role": role, "content": text})
    }

    #[test]
    fn the_last_item_stands_for_all_before_it() {
        let item = |content: &str| json!({"type": "compaction", "id": "cmp_1", "encrypted_content": content});
        let mut answer = said("assistant", "b");
        answer["compaction"] = item("two");
        let mut messages = vec![
            said("system", "s"),
            said("user", "a"),
            item("one"),
            said("user", "c"),
            answer,
            said("user", "d"),
        ];
        let taken = take_item(&mut messages).unwrap();
        assert_eq!((taken.content.as_str(), taken.path.as_str()), ("two", "messages[4].compaction"));
        assert_eq!(taken.systems, [said("system", "s")]);
        assert_eq!(messages, [said("assistant", "b"), said("user", "d")]);

        let mut messages = vec![item("one"), said("user", "c")];
        let taken = take_item(&mut messages).unwrap();
        assert_eq!((taken.content.as_str(), taken.path.as_str()), ("one", "messages[0]"));
        assert_eq!(messages, [said("user", "c")]);

        let mut plain = vec![said("user", "c"), json!({"role": "assistant", "compaction": 7, "content": ""})];
        let before = plain.clone();
        assert!(take_item(&mut plain).is_none());
        assert_eq!(plain, before);
    }
}
