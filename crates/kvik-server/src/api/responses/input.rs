//! Conversion of the items of `input` to the messages that templates expect.
//!
//! The assistant's thoughts, texts and calls are consecutive items in this format, and one message in
//! templates.

use base64::{Engine, prelude::BASE64_STANDARD};
use kvik_memory::conversations::MESSAGES_MAX;
use kvik_text::template::{question_start, says_nothing, unseen};
use serde_json::{Map, Value, json};

use super::tools::{custom_arguments, full_name};
use crate::{
    api::{chat::arguments_text, request::place::Place},
    app::responses::{ReferredItems, is_reference},
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Reads the messages from the items, or the text, in the field `path`, with `referred` in the place of references; adds
/// a note for each dropped item.
pub(super) fn told(
    path: &str,
    input: &Value,
    referred: &ReferredItems,
    notes: &mut Vec<String>,
) -> Result<Vec<Value>> {
    let place = Place::new(path, input);
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
    let all: Vec<&Value> =
        input.as_array().into_iter().flatten().map(|item| referred.resolved(item)).collect();
    let question = question_in(&all);
    for (index, item) in items.enumerate() {
        told.is_asked = index >= question;
        told.item(&Place::new(item.path, referred.resolved(item.value)))?;
    }
    notes.append(&mut told.notes);
    Ok(told.messages)
}

/// Calls that are read. Those of server-side tools are dropped.
const CALLS: [&str; 5] =
    ["function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call"];

/// Returns the index of the first item of the question. At the end, items of the assistant without a text and a call that
/// is read answer no question.
fn question_in(items: &[&Value]) -> usize {
    let is_empty = |item: &Value| match item["type"].as_str() {
        None | Some("message") => says_nothing(&item["content"]),
        Some(kind) => !CALLS.contains(&kind),
    };
    let answers = |item: &&Value| role(item) != "assistant" || !is_empty(item);
    let count = items.iter().rposition(answers).map_or(0, |last| last + 1);
    question_start(items[..count].iter().map(|item| role(item)))
}

/// Returns the role of an item: calls and thoughts are the assistant's, outputs a tool's.
fn role(item: &Value) -> &str {
    match item["type"].as_str() {
        None | Some("message") => item["role"].as_str().unwrap_or_default(),
        Some(kind) if kind.ends_with("_output") => "tool",
        Some(kind) if kind.ends_with("_call") || kind == "reasoning" => "assistant",
        Some(_) => "",
    }
}

/// Returns an input as items, for the list of an answer's inputs.
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

/// Messages read so far.
#[derive(Default)]
struct Told {
    messages: Vec<Value>,
    /// The last message is the assistant's, and further items may extend it.
    open: bool,
    /// The current item belongs to the question.
    is_asked: bool,
    notes: Vec<String>,
}

impl Told {
    fn item(&mut self, item: &Place<'_>) -> Result<()> {
        if is_reference(item.value) {
            let text = "names an item that only the server which stored it can read; send the item itself";
            return Err(item.at("id", text));
        }
        let kind = item.get("type").map(|kind| kind.text()).transpose()?.unwrap_or("message");
        match kind {
            "message" => self.message(item),
            "function_call" => {
                let arguments = item.need_text("arguments")?.to_owned();
                self.call(item, &called_name(item)?, arguments)
            }
            "custom_tool_call" => {
                let arguments = arguments_text(&custom_arguments(item.need_text("input")?));
                self.call(item, &called_name(item)?, arguments)
            }
            "function_call_output" | "custom_tool_call_output" => self.call_output(item),
            "local_shell_call" | "shell_call" | "apply_patch_call" => self.own_call(item, kind),
            "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output" => {
                self.own_output(item)
            }
            "reasoning" => self.reasoning(item),
            "compaction" | "compaction_summary" => {
                let content = item.need_text("encrypted_content")?;
                self.push(json!({"type": "compaction", "encrypted_content": content}));
                Ok(())
            }
            // Items of server-side tools and unknown items are dropped: the messages contain their results.
            other => {
                let path = &item.path;
                self.notes.push(format!("`{path}` is an item of type {other:?}, which is not read here"));
                Ok(())
            }
        }
    }

    fn push(&mut self, message: Value) {
        self.messages.push(message);
        self.open = false;
    }

    /// Returns the assistant's open message, or a new one if a new part begins and the open one has text or
    /// calls.
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
        let text = self.content(&item.need("content")?, self.is_asked)?;
        match role.text()? {
            "assistant" => {
                self.assistant(true).insert("content".to_owned(), json!(text));
            }
            role @ ("user" | "system" | "developer") => self.push(json!({"role": role, "content": text})),
            _ => return Err(role.error("must be `user`, `assistant`, `system` or `developer`")),
        }
        Ok(())
    }

    fn call(&mut self, item: &Place<'_>, name: &str, arguments: String) -> Result<()> {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": call_id(item)?, "type": "function", "function": function});
        let calls = self.assistant(false).entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
        Ok(())
    }

    fn call_output(&mut self, item: &Place<'_>) -> Result<()> {
        let text = self.content(&item.need("output")?, false)?;
        self.push(json!({"role": "tool", "tool_call_id": call_id(item)?, "content": text}));
        Ok(())
    }

    /// Reads a call of a tool that OpenAI defines and a client runs: the action is its argument.
    fn own_call(&mut self, item: &Place<'_>, kind: &str) -> Result<()> {
        let does = item.get("action").or_else(|| item.get("operation")).map(|does| does.value.clone());
        let name = kind.strip_suffix("_call").unwrap_or(kind);
        self.call(item, name, arguments_text(&does.unwrap_or_else(|| json!({}))))
    }

    /// Reads the output of such a call: a text, or an object for each command.
    fn own_output(&mut self, item: &Place<'_>) -> Result<()> {
        let output = item.get("output").map_or(Value::Null, |output| output.value.clone());
        let text = match &output {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => arguments_text(other),
        };
        self.push(json!({"role": "tool", "tool_call_id": call_id(item)?, "content": text}));
        Ok(())
    }

    /// Reads thoughts: their text, or its sealed form from clients that store nothing else, or what another server told of
    /// them.
    fn reasoning(&mut self, item: &Place<'_>) -> Result<()> {
        let mut text = match (item.get("content"), item.get("encrypted_content")) {
            (Some(content), _) if content.value.as_array().is_some_and(|parts| !parts.is_empty()) => {
                self.texts(&content, false)?
            }
            (_, Some(sealed)) => unsealed(sealed.text()?).unwrap_or_else(|| {
                self.notes
                    .push(format!("`{}` was made by another server, and is not read here", sealed.path));
                String::new()
            }),
            _ => String::new(),
        };
        if text.is_empty() {
            // Nobody refuses a history for what another server wrote here.
            let parts = item.value["summary"].as_array().into_iter().flatten();
            text = parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n");
        }
        if !text.is_empty() {
            self.think(text);
        }
        Ok(())
    }

    /// Adds a thought; one that follows another is a line of the same message.
    fn think(&mut self, text: String) {
        let message = self.assistant(true);
        let thoughts = match message.get("reasoning_content").and_then(Value::as_str) {
            Some(earlier) => format!("{earlier}\n{text}"),
            None => text,
        };
        message.insert("reasoning_content".to_owned(), json!(thoughts));
    }

    /// Returns a text, or joined parts of text, one per line. Other parts get a placeholder unless the
    /// question is about them.
    fn content(&mut self, content: &Place<'_>, is_asked: bool) -> Result<String> {
        match content.value.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => self.texts(content, is_asked),
        }
    }

    fn texts(&mut self, parts: &Place<'_>, is_asked: bool) -> Result<String> {
        let mut texts = Vec::new();
        for part in parts.items()? {
            texts.push(match part.need_text("type")? {
                "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => {
                    part.need_text("text")?
                }
                "refusal" => part.need_text("refusal")?,
                kind => self.instead(&part, kind, is_asked)?,
            });
        }
        Ok(texts.join("\n"))
    }

    /// Returns the placeholder for a part that is not text.
    fn instead(&mut self, part: &Place<'_>, kind: &str, is_asked: bool) -> Result<&'static str> {
        let wrong = match (unseen(kind), kind) {
            (Some(words), _) if !is_asked => {
                self.notes
                    .push(format!("`{}` is a part of type {kind:?}, which is not read here", part.path));
                return Ok(words);
            }
            (Some(_), "input_image") => {
                "is an image, and kvik reads text only; describe it in words".to_owned()
            }
            (Some(_), "input_file") => "is a file; send its text as `input_text`".to_owned(),
            _ => format!("is {kind:?}, which kvik does not know here; send text"),
        };
        Err(part.at("type", &wrong))
    }
}

/// Returns the id that links a call and its output; some items have only their own id.
fn call_id<'a>(item: &Place<'a>) -> Result<&'a str> {
    let id = item.get("call_id").or_else(|| item.get("id"));
    id.ok_or_else(|| item.at("call_id", "is missing"))?.text()
}

/// Returns the name by which the model called a tool.
fn called_name(item: &Place<'_>) -> Result<String> {
    let space = item.get("namespace").map(|space| space.text()).transpose()?;
    Ok(full_name(space, item.need_text("name")?))
}

/// Encodes a thought for clients that ask for `reasoning.encrypted_content`.
pub(super) fn sealed(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn unsealed(text: &str) -> Option<String> {
    String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(path: &str, input: &Value, notes: &mut Vec<String>) -> Result<Vec<Value>> {
        super::told(path, input, &ReferredItems::default(), notes)
    }

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
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "A"}], "content": null},
            {"type": "web_search_call", "id": "ws", "status": "completed"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "B"}]},
            {"role": "assistant", "content": "Found."},
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
            {"role": "assistant", "content": "Found.", "reasoning_content": "A\nB"},
        ]);
        assert_eq!(told("input", &items, &mut Vec::new()).map(Value::Array), Ok(expect));
        assert_eq!(
            told("input", &json!("hi"), &mut Vec::new()),
            Ok(vec![json!({"role": "user", "content": "hi"})])
        );
    }

    #[test]
    fn calls_of_every_kind_are_calls_and_what_a_server_did_is_left_out() {
        let items = json!([
            {"role": "user", "content": "go"},
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "+\"a\"\n"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            {"type": "function_call", "call_id": "c2", "namespace": "mcp__sea", "name": "dive", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c2", "output": "deep"},
            {"type": "local_shell_call", "id": "c3", "call_id": null, "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c3", "output": "a"},
            {"type": "apply_patch_call", "call_id": "c4", "operation": {"type": "delete_file", "path": "a"}},
            {"type": "apply_patch_call_output", "call_id": "c4", "status": "completed", "output": null},
            {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "x"}},
            {"type": "an item of tomorrow"}, {"type": "reasoning", "summary": [], "encrypted_content": "gAAA%"},
        ]);
        let call = |id: &str, name: &str, arguments: &str| {
            let function = json!({"name": name, "arguments": arguments});
            let calls = json!([{"id": id, "type": "function", "function": function}]);
            json!({"role": "assistant", "content": null, "tool_calls": calls})
        };
        let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        let expect = json!([
            {"role": "user", "content": "go"},
            call("c1", "patch", "{\"input\": \"+\\\"a\\\"\\n\"}"), result("c1", "done"),
            call("c2", "mcp__sea__dive", "{}"), result("c2", "deep"),
            call("c3", "local_shell", "{\"type\": \"exec\", \"command\": [\"ls\"]}"), result("c3", "a"),
            call("c4", "apply_patch", "{\"type\": \"delete_file\", \"path\": \"a\"}"), result("c4", ""),
        ]);
        let mut notes = Vec::new();
        assert_eq!(told("input", &items, &mut notes).map(Value::Array), Ok(expect));
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(notes[0].starts_with("`input[9]`") && notes[0].contains("web_search_call"), "{notes:?}");
    }

    /// Agents view images on their own, and resend everything with each turn.
    #[test]
    fn a_picture_that_a_tool_returned_or_was_asked_about_before_ends_no_conversation() {
        let image = json!({"type": "input_image", "image_url": "data:image/png;base64,eA=="});
        let items = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "look"}, image]},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [image, {"type": "input_file", "file_id": "f"}]},
            {"role": "user", "content": [image]},
        ]);
        let mut notes = Vec::new();
        let told = told("input", &items, &mut notes).unwrap();
        let image = "[an image, which this model cannot see]";
        assert_eq!(told[0]["content"], format!("look\n{image}"));
        assert_eq!(told[2]["content"], format!("{image}\n[a file, which this model cannot read]"));
        assert_eq!(told[3]["content"], image, "a client that has no pictures in results says them behind");
        assert_eq!(notes.len(), 4, "{notes:?}");
    }

    #[test]
    fn a_picture_is_not_answered_by_items_that_say_nothing() {
        let asked = json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]});
        let said = |content: Value| json!({"type": "message", "role": "assistant", "content": content});
        let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
        for (item, is_answer) in [
            (said(json!("")), false),
            (said(json!([{"type": "output_text", "text": ""}])), false),
            (json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}), false),
            (json!({"type": "web_search_call", "id": "ws", "status": "completed"}), false),
            (said(json!("A dog.")), true),
            (said(json!([{"type": "refusal", "refusal": "No."}])), true),
            (call, true),
        ] {
            let told = told("input", &json!([asked, item]), &mut Vec::new());
            let refused = told.as_ref().err().and_then(ApiError::param);
            let expect = (!is_answer).then_some("input[0].content[0].type");
            assert_eq!(refused, expect, "{item}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let check = |input: Value, at: &str| {
            assert_eq!(told("input", &input, &mut Vec::new()).unwrap_err().param(), Some(at), "{input}");
        };
        check(json!(7), "input");
        check(json!(["hi"]), "input[0]");
        check(json!([{"role": "user"}]), "input[0].content");
        check(json!([{"role": "tool", "content": "x"}]), "input[0].role");
        check(json!([{"type": "item_reference", "id": "x"}]), "input[0].id");
        check(json!([{"type": null, "id": "x"}]), "input[0].id");
        check(json!([{"id": "x", "content": "hi"}]), "input[0].role");
        let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
        check(image, "input[0].content[0].type");
        check(json!([{"type": "function_call", "call_id": "c", "name": "f"}]), "input[0].arguments");
        check(json!([{"type": "function_call_output", "output": "x"}]), "input[0].call_id");
        check(json!([{"type": "reasoning", "encrypted_content": 7}]), "input[0].encrypted_content");
    }
}
