//! Lists of items: the inputs of an answer, and the messages of a conversation.

use kvik_memory::context::chain::text_of;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{input, references::referred};
use crate::{
    app::responses::Responses,
    described::JsonSchema,
    http::{
        answer::{value, words},
        error::ApiError,
    },
};

type Result<T> = std::result::Result<T, ApiError>;

words! {
    List = "list";
}

/// Maximum number of listed items.
const LISTED_MAX: usize = 100;

/// A part of a list of items.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct InputItems {
    object: List,
    /// As a request brought them, or as what was said in a conversation.
    #[schemars(with = "Vec<Map<String, Value>>")]
    data: Vec<Value>,
    #[schemars(with = "Option<String>")]
    first_id: Value,
    #[schemars(with = "Option<String>")]
    last_id: Value,
    has_more: bool,
}

/// The requested page of the list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListedItems {
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

/// The parameters of the list, as the OpenAPI document describes them.
pub(in crate::api) const ITEM_PARAMETERS: [(&str, &str); 3] = [
    ("limit", "Items at most; 20 where nothing is asked for"),
    ("order", "`desc`, the newest first, or `asc`"),
    ("after", "The id of the last item of the page before"),
];

impl ListedItems {
    /// Returns the requested page of `items`.
    pub(in crate::api) fn of(&self, mut items: Vec<Value>) -> Result<Value> {
        if self.order.as_deref() != Some("asc") {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = items.iter().position(|item| item["id"] == after.as_str());
            let at = at.ok_or_else(|| ApiError::field("after", format!("there is no item `{after}`")))?;
            items.drain(..=at);
        }
        let limit = self.limit.unwrap_or(20).clamp(1, LISTED_MAX);
        let has_more = items.len() > limit;
        items.truncate(limit);
        Ok(value(&InputItems { has_more, ..InputItems::all(items) }))
    }
}

impl InputItems {
    /// Returns the list of all these items.
    pub(in crate::api) fn all(data: Vec<Value>) -> InputItems {
        let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        let (first_id, last_id) = (id(data.first()), id(data.last()));
        InputItems { object: List, data, first_id, last_id, has_more: false }
    }
}

/// Reads the messages from the items in the field `path`, of which some may be references to items of the tenant's stored
/// responses; drops items that are neither messages nor calls.
pub(in crate::api) fn told(
    path: &str,
    items: &Value,
    responses: &Responses,
    tenant: &str,
) -> Result<Vec<Value>> {
    let referred = referred(path, items, responses, tenant)?;
    let messages = input::told(path, items, &referred, &mut Vec::new())?;
    if messages.iter().any(|message| message.get("role").is_none()) {
        let text = "holds a compaction item, and a conversation that the server keeps is kept as a whole";
        return Err(ApiError::field(path, format!("`{path}` {text}")));
    }
    Ok(messages)
}

/// Returns the items of an input with the types and ids that they were sent without; these ids consist of `label` and
/// their position.
pub(super) fn with_ids(label: &str, mut items: Vec<Value>) -> Vec<Value> {
    let objects = items.iter_mut().map(Value::as_object_mut).enumerate();
    for (index, item) in objects.filter_map(|(index, item)| Some((index, item?))) {
        if is_missing(item, "type") && item.contains_key("role") {
            item.insert("type".to_owned(), json!("message"));
        }
        if is_missing(item, "id") {
            let kind = kind_of_id(item.get("type").and_then(Value::as_str).unwrap_or_default());
            item.insert("id".to_owned(), json!(format!("{kind}_{label}_{index}")));
        }
    }
    items
}

fn is_missing(item: &Map<String, Value>, name: &str) -> bool {
    item.get(name).is_none_or(Value::is_null)
}

/// What the ids of items of a type begin with.
fn kind_of_id(of_type: &str) -> &'static str {
    match of_type {
        "message" => "msg",
        "reasoning" => "rs",
        "function_call" => "fc",
        "function_call_output" => "fco",
        "custom_tool_call" => "ctc",
        "custom_tool_call_output" => "ctco",
        "compaction" | "compaction_summary" => "cmp",
        _ => "item",
    }
}

/// Returns the messages of a conversation as items, whose ids consist of `label` and their position.
pub(in crate::api) fn of_conversation(label: &str, messages: &[Value]) -> Vec<Value> {
    of_messages(label, messages.iter().enumerate())
}

/// Returns some messages of a conversation, with their indexes, as items.
pub(in crate::api) fn of_messages<'a>(
    label: &str,
    messages: impl IntoIterator<Item = (usize, &'a Value)>,
) -> Vec<Value> {
    let mut items = Vec::new();
    for (index, message) in messages {
        let id = |kind: &str, part: usize| format!("{kind}_{label}_{index}_{part}");
        of_message(message, &id, &mut items);
    }
    items
}

/// Appends the items of one message: thoughts, text and calls, or the output of a call.
fn of_message(message: &Value, id: &dyn Fn(&str, usize) -> String, items: &mut Vec<Value>) {
    let role = message["role"].as_str().unwrap_or_default();
    if role == "tool" {
        items.push(json!({
            "type": "function_call_output", "id": id("fco", 0), "status": "completed",
            "call_id": message["tool_call_id"], "output": text_of(message),
        }));
        return;
    }
    if let Some(text) = message["reasoning_content"].as_str() {
        let content = json!([{"type": "reasoning_text", "text": text}]);
        items.push(json!({"type": "reasoning", "id": id("rs", 0), "summary": [], "content": content}));
    }
    if !message["content"].is_null() {
        let text = text_of(message);
        let part = match role {
            "assistant" => json!({"type": "output_text", "text": text, "annotations": []}),
            _ => json!({"type": "input_text", "text": text}),
        };
        items.push(json!({
            "type": "message", "id": id("msg", 0), "status": "completed", "role": role, "content": [part],
        }));
    }
    for (part, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let function = &call["function"];
        items.push(json!({
            "type": "function_call", "id": id("fc", part), "status": "completed", "call_id": call["id"],
            "name": function["name"], "arguments": arguments(function),
        }));
    }
}

/// Returns the arguments of a call: a text, or a value as JSON.
fn arguments(function: &Value) -> String {
    match &function["arguments"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::app::prompt_log::PromptLog;

    #[test]
    fn what_was_said_comes_back_from_its_items() {
        let call =
            json!({"id": "c", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}});
        let messages = vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "Look."}),
            json!({"role": "assistant", "content": "I look.", "reasoning_content": "so", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "c", "content": "seen"}),
            json!({"role": "assistant", "content": "Done."}),
        ];
        let items = of_conversation("a", &messages);
        let kinds: Vec<&str> = items.iter().filter_map(|item| item["type"].as_str()).collect();
        let expect = [
            "message",
            "message",
            "reasoning",
            "message",
            "function_call",
            "function_call_output",
            "message",
        ];
        assert_eq!(kinds, expect);
        let responses = Responses::open(None, Arc::new(PromptLog::open(None)));
        let told = |items: Value| told("items", &items, &responses, "a");
        assert_eq!(told(Value::Array(items)), Ok(messages));
        let item = json!([{"type": "compaction", "encrypted_content": "x"}]);
        assert_eq!(told(item).unwrap_err().param(), Some("items"));
        let unknown = told(json!([{"id": "msg_1"}])).unwrap_err();
        assert_eq!((unknown.status().as_u16(), unknown.param()), (404, Some("items")));
    }

    #[test]
    fn words_stand_in_the_place_of_a_picture() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}});
        let text = json!({"type": "text", "text": "Look."});
        let seen = "Look.\n[an image, which this model cannot see]";
        let messages = [
            json!({"role": "user", "content": [text, image]}),
            json!({"role": "assistant", "content": [text, {"type": "refusal", "refusal": "No."}]}),
            json!({"role": "tool", "tool_call_id": "c", "content": [text, image]}),
        ];
        let items = of_conversation("a", &messages);
        assert_eq!(items[0]["content"], json!([{"type": "input_text", "text": seen}]));
        assert_eq!(items[1]["content"][0]["text"], "Look.\nNo.");
        assert_eq!(items[2]["output"], seen);
    }

    #[test]
    fn an_item_that_was_sent_without_an_id_has_one_that_stays() {
        let items = || {
            vec![
                json!({"role": "user", "content": "Look."}),
                json!({"type": "reasoning", "id": "rs_1", "summary": []}),
                json!({"type": "function_call", "id": null, "call_id": "c", "name": "look", "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": "c", "output": "seen"}),
                json!({"id": "msg_1"}),
            ]
        };
        let listed = with_ids("a", items());
        let ids: Vec<&str> = listed.iter().filter_map(|item| item["id"].as_str()).collect();
        assert_eq!(ids, ["msg_a_0", "rs_1", "fc_a_2", "fco_a_3", "msg_1"]);
        assert_eq!((&listed[0]["type"], &listed[4]["type"]), (&json!("message"), &Value::Null));
        assert_eq!(with_ids("a", items()), listed);
    }

    #[test]
    fn a_list_is_read_page_by_page() {
        let items: Vec<Value> = (0..5).map(|i| json!({"id": format!("i{i}")})).collect();
        let page = |limit, order: &str, after: Option<&str>| {
            let asked = ListedItems {
                limit: Some(limit),
                order: Some(order.to_owned()),
                after: after.map(str::to_owned),
            };
            let page = asked.of(items.clone())?;
            let ids: Vec<&str> = page["data"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|item| item["id"].as_str())
                .collect();
            Ok::<_, ApiError>((ids.join(" "), page["has_more"] == true))
        };
        assert_eq!(page(2, "asc", None), Ok(("i0 i1".to_owned(), true)));
        assert_eq!(page(2, "asc", Some("i1")), Ok(("i2 i3".to_owned(), true)));
        assert_eq!(page(2, "asc", Some("i3")), Ok(("i4".to_owned(), false)));
        assert_eq!(page(9, "desc", Some("i4")), Ok(("i3 i2 i1 i0".to_owned(), false)));
        assert_eq!(page(2, "asc", Some("x")).unwrap_err().param(), Some("after"));
    }
}
