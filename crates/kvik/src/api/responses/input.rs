//! `input` in items, as the messages that templates know.
//!
//! What the assistant has thought, said and called are items there, one after the other, and one message here.

use base64::{Engine, prelude::BASE64_STANDARD};
use kvik_memory::conversations::MESSAGES_MAX;
use serde_json::{Map, Value, json};

use crate::{api::request::place::Place, http::error::ApiError};

type Result<T> = std::result::Result<T, ApiError>;

/// The messages that an input says.
pub(super) fn told(input: &Value) -> Result<Vec<Value>> {
    let place = Place::new("input", input);
    if let Some(text) = input.as_str() {
        return Ok(vec![json!({"role": "user", "content": text})]);
    }
    if !input.is_array() {
        return Err(place.wrong("a string or an array of items"));
    }
    let items = place.items()?;
    if items.len() > MESSAGES_MAX {
        return Err(place.error(&format!("holds more than {MESSAGES_MAX} items")));
    }
    let mut told = Told::default();
    for item in items {
        told.item(&item)?;
    }
    Ok(told.messages)
}

/// An input as items, for the list of what an answer was given.
pub(super) fn items(input: &Value) -> Vec<Value> {
    match input {
        Value::String(text) => {
            vec![
                json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}),
            ]
        }
        Value::Array(items) => items.clone(),
        _ => Vec::new(),
    }
}

/// Messages as far as they were read.
#[derive(Default)]
struct Told {
    messages: Vec<Value>,
    /// The last one is the assistant's, and further items may be part of it.
    open: bool,
}

impl Told {
    fn item(&mut self, item: &Place<'_>) -> Result<()> {
        let kind = item.get("type").map(|kind| kind.text()).transpose()?.unwrap_or("message");
        match kind {
            "message" => self.message(item),
            "function_call" => self.call(item),
            "function_call_output" => self.call_output(item),
            "reasoning" => self.reasoning(item),
            "compaction" | "compaction_summary" => {
                let content = item.need_text("encrypted_content")?;
                self.push(json!({"type": "compaction", "encrypted_content": content}));
                Ok(())
            }
            "item_reference" => Err(item.at(
                "type",
                "refers to an item by its id; send the item itself, or go on with `previous_response_id`",
            )),
            other => Err(item.at(
                "type",
                &format!(
                    "is {other:?}; kvik knows message, function_call, function_call_output, reasoning and compaction"
                ),
            )),
        }
    }

    fn push(&mut self, message: Value) {
        self.messages.push(message);
        self.open = false;
    }

    /// The assistant's message that goes on, or a new one where that has said or called something.
    fn assistant(&mut self, begins: bool) -> &mut Map<String, Value> {
        let last = self.messages.last().and_then(Value::as_object).filter(|_| self.open);
        let has = |name: &str| last.is_some_and(|last| last.get(name).is_some_and(|value| !value.is_null()));
        if last.is_none() || (begins && (has("content") || has("tool_calls"))) {
            self.messages.push(json!({"role": "assistant", "content": null}));
        }
        self.open = true;
        match self.messages.last_mut() {
            Some(Value::Object(message)) => message,
            _ => unreachable!("the last message was pushed as an object"),
        }
    }

    fn message(&mut self, item: &Place<'_>) -> Result<()> {
        let role = item.need("role")?;
        let text = content(&item.need("content")?)?;
        match role.text()? {
            "assistant" => {
                self.assistant(true).insert("content".to_owned(), json!(text));
            }
            role @ ("user" | "system" | "developer") => self.push(json!({"role": role, "content": text})),
            _ => return Err(role.error("must be `user`, `assistant`, `system` or `developer`")),
        }
        Ok(())
    }

    fn call(&mut self, item: &Place<'_>) -> Result<()> {
        let (id, name) = (item.need_text("call_id")?, item.need_text("name")?);
        let function = json!({"name": name, "arguments": item.need_text("arguments")?});
        let call = json!({"id": id, "type": "function", "function": function});
        let calls = self.assistant(false).entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
        Ok(())
    }

    fn call_output(&mut self, item: &Place<'_>) -> Result<()> {
        let id = item.need_text("call_id")?;
        let text = content(&item.need("output")?)?;
        self.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
        Ok(())
    }

    /// Thoughts: their text, or what stands for it with clients that keep nothing else.
    fn reasoning(&mut self, item: &Place<'_>) -> Result<()> {
        let text = match (item.get("content"), item.get("encrypted_content")) {
            (Some(content), _) if content.value.as_array().is_some_and(|parts| !parts.is_empty()) => {
                texts(&content)?
            }
            (_, Some(sealed)) => unsealed(sealed.text()?)
                .ok_or_else(|| sealed.error("is not what this server has made; leave the item out"))?,
            _ => String::new(),
        };
        if !text.is_empty() {
            self.assistant(true).insert("reasoning_content".to_owned(), json!(text));
        }
        Ok(())
    }
}

/// A text, or parts of text, one to a line.
fn content(content: &Place<'_>) -> Result<String> {
    match content.value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => texts(content),
    }
}

fn texts(parts: &Place<'_>) -> Result<String> {
    let mut texts = Vec::new();
    for part in parts.items()? {
        let text = match part.need_text("type")? {
            "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => {
                part.need_text("text")?
            }
            "refusal" => part.need_text("refusal")?,
            "input_image" => {
                return Err(part.at("type", "is an image, and kvik reads text only; describe it in words"));
            }
            "input_file" => return Err(part.at("type", "is a file; send its text as `input_text`")),
            other => {
                return Err(
                    part.at("type", &format!("is {other:?}, which kvik does not know here; send text"))
                );
            }
        };
        texts.push(text);
    }
    Ok(texts.join("\n"))
}

/// What stands for a thought with clients that ask for `reasoning.encrypted_content`.
pub(super) fn sealed(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn unsealed(text: &str) -> Option<String> {
    String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_assistant_did_in_a_row_is_one_message() {
        let items = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{\"at\":1}"},
            {"type": "function_call_output", "call_id": "c1", "output": "seen"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "not"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": sealed("hm")},
            {"type": "function_call", "call_id": "c3", "name": "look", "arguments": "{}"},
            {"role": "assistant", "content": "Done."},
        ]);
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
        let expect = json!([
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "so",
                "tool_calls": [call("c1", "{}"), call("c2", "{\"at\":1}")]},
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
            {"role": "tool", "tool_call_id": "c2", "content": "not"},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call("c3", "{}")]},
            {"role": "assistant", "content": "Done."},
        ]);
        assert_eq!(told(&items).map(Value::Array), Ok(expect));
        assert_eq!(told(&json!("hi")), Ok(vec![json!({"role": "user", "content": "hi"})]));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let check = |input: Value, at: &str| {
            assert_eq!(told(&input).unwrap_err().param(), Some(at), "{input}");
        };
        check(json!(7), "input");
        check(json!(["hi"]), "input[0]");
        check(json!([{"role": "user"}]), "input[0].content");
        check(json!([{"role": "tool", "content": "x"}]), "input[0].role");
        check(json!([{"type": "magic"}]), "input[0].type");
        check(json!([{"type": "item_reference", "id": "x"}]), "input[0].type");
        let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
        check(image, "input[0].content[0].type");
        check(json!([{"type": "function_call", "call_id": "c", "name": "f"}]), "input[0].arguments");
        check(json!([{"type": "function_call_output", "output": "x"}]), "input[0].call_id");
        check(json!([{"type": "reasoning", "encrypted_content": "%"}]), "input[0].encrypted_content");
    }
}
