//! The items of stored responses, to which later requests refer by their ids.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StoredResponse;

/// Maximum ids of one response that are found. The ids of a tenant are held in memory: 4,096 responses with 64 ids of at
/// most 64 bytes each take 22 MiB with their pointers.
pub(super) const IDS_MAX: usize = 64;
/// Maximum bytes of an id, as OpenAI has it.
const ID_BYTES_MAX: usize = 64;

/// The ids by which the items of a response are found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ItemIds {
    /// Of the answer, whose items have a record of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    output: Vec<String>,
    /// Of the input, whose items are in the record of the response.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    input: Vec<String>,
}

/// The part of a response that has an item. An answer is the origin of its items, so it ranks above an input that
/// repeats them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ItemSource {
    Input,
    Output,
}

/// The items to which an input refers, by their ids.
#[derive(Debug, Default)]
pub(crate) struct ReferredItems(BTreeMap<String, Value>);

impl ItemIds {
    pub(super) fn of(stored: &StoredResponse) -> ItemIds {
        let output: Vec<String> = ids(output_of(&stored.response)).take(IDS_MAX).collect();
        // A client that refers to its own items refers to the newest ones sooner than to those of long ago.
        let given = stored.input.iter().rev().filter(|item| !is_reference(item));
        let input = ids(given).take(IDS_MAX - output.len()).collect();
        ItemIds { output, input }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&str, ItemSource)> {
        let output = self.output.iter().map(|id| (id.as_str(), ItemSource::Output));
        output.chain(self.input.iter().map(|id| (id.as_str(), ItemSource::Input)))
    }
}

impl ReferredItems {
    pub(super) fn of(items: BTreeMap<String, Value>) -> ReferredItems {
        ReferredItems(items)
    }

    /// Returns the item to which `item` refers, and any other item itself.
    pub(crate) fn resolved<'a>(&'a self, item: &'a Value) -> &'a Value {
        let id = item["id"].as_str().filter(|_| is_reference(item));
        id.and_then(|id| self.0.get(id)).unwrap_or(item)
    }
}

/// True if an item of an input stands for another one, which its id names. OpenAI's API lets clients leave out its type.
pub(crate) fn is_reference(item: &Value) -> bool {
    let has = |name: &str| item.get(name).is_some_and(|value| !value.is_null());
    match item.get("type") {
        None | Some(Value::Null) => has("id") && !has("role") && !has("content"),
        Some(kind) => kind == "item_reference",
    }
}

/// The items of an answer; none where it is in another dialect.
pub(super) fn output_of(response: &Value) -> &[Value] {
    response["output"].as_array().map_or(&[][..], Vec::as_slice)
}

fn ids<'a>(items: impl IntoIterator<Item = &'a Value>) -> impl Iterator<Item = String> {
    let ids = items.into_iter().filter_map(|item| item["id"].as_str());
    ids.filter(|id| (1..=ID_BYTES_MAX).contains(&id.len())).map(str::to_owned)
}
