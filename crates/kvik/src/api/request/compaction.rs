//! `context_management`: when a conversation is compacted, and the items that stand for what was said before them.

use kvik_memory::context::leading_systems;
use serde::Deserialize;
use serde_json::Value;

use super::{number::Whole, parts::Part};
use crate::{described::JsonSchema, http::error::ApiError};

pub(crate) use crate::app::seal::ForeignItem as Foreign;
pub(crate) use kvik_memory::memory::Compaction as Opened;

/// Opens compaction items.
pub(crate) type Open<'a> = &'a dyn Fn(&str) -> Result<Opened, Foreign>;

/// Tokens that `compact_threshold` may name.
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

/// A conversation is to be compacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compacting {
    /// At so many tokens of its messages.
    pub(crate) threshold: Option<usize>,
}

impl ContextFields {
    /// Whether to compact, and when.
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

/// Puts what a compaction item stands for in its place, and returns it. What was said before it is not read; its
/// system messages are, where none were sent.
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

/// Takes the last item out of `messages` and everything that it stands for: all before it. Returns the system messages
/// before it and the item's content, with the path of the item for errors.
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

/// An item that was sent back.
struct TakenItem {
    /// System messages that stood before it.
    systems: Vec<Value>,
    content: String,
    /// Where it stood.
    path: String,
}

/// Where a message brings an item's content.
enum Item<'a> {
    /// It is one.
    Alone(&'a str),
    /// It brings one, which stands before it.
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
