//! Conversion of `system` and `messages` from Anthropic's blocks to the messages that templates expect.
//!
//! Tool results are blocks of a user's message in Anthropic's format, and separate messages in templates;
//! thoughts are blocks there, and a field here.

use kvik_memory::conversations::MESSAGES_MAX;
use kvik_text::template::{question_start, unseen};
use serde_json::{Map, Value, json};

use crate::{
    api::{chat::arguments_text, request::place::Place},
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Times to live of all `cache_control` entries of a conversation: `5m`, `1h`, or absent.
pub(super) type Times = Vec<Option<&'static str>>;

/// Returns the messages for the template.
pub(super) fn told(
    system: Option<&Value>,
    messages: &Value,
    times: &mut Times,
    notes: &mut Vec<String>,
) -> Result<Vec<Value>> {
    let mut told = Vec::new();
    if let Some(system) = system {
        let text = system_text(&Place::new("system", system), times, notes)?;
        if !text.is_empty() {
            told.push(json!({"role": "system", "content": text}));
        }
    }
    let place = Place::new("messages", messages);
    let items = place.items()?;
    if items.len() == 0 {
        return Err(place.error("is empty; send at least one message"));
    }
    if items.len() > MESSAGES_MAX {
        return Err(place.error(&format!("holds more than {MESSAGES_MAX} messages")));
    }
    let question = question_in(messages.as_array().map_or(&[][..], Vec::as_slice));
    for (index, item) in items.enumerate() {
        told.extend(message(&item, index >= question, times, notes)?);
    }
    Ok(told)
}

/// Returns the index of the first message of the question. At the end, what the assistant says without a call answers no
/// question: the answer goes on from its text, whatever blocks follow that, or there is none. A compaction stands for
/// answers.
fn question_in(messages: &[Value]) -> usize {
    let answers = |block: &Value| block["type"] == "tool_use" || block["type"] == "compaction";
    let is_open = |message: &Value| {
        let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        role(message) == "assistant" && !blocks.iter().any(answers)
    };
    let count = messages.iter().rposition(|message| !is_open(message)).map_or(0, |last| last + 1);
    question_start(messages[..count].iter().map(role))
}

/// Returns the role of a message; a user's message with tool results counts as a tool's.
fn role(message: &Value) -> &str {
    let blocks = message["content"].as_array();
    if blocks.is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result")) {
        return "tool";
    }
    message["role"].as_str().unwrap_or_default()
}

fn system_text(system: &Place<'_>, times: &mut Times, notes: &mut Vec<String>) -> Result<String> {
    if let Some(text) = system.value.as_str() {
        return Ok(text.to_owned());
    }
    let mut texts = Vec::new();
    for block in system.items()? {
        times.extend(cache_control(&block)?);
        match block.need_text("type")? {
            "text" => texts.push(block.need_text("text")?),
            kind => texts.extend(instead(&block, kind, true, notes)?),
        }
    }
    Ok(texts.join("\n\n"))
}

/// Returns the error for a block that kvik cannot read.
fn refused(block: &Place<'_>, kind: &str) -> ApiError {
    let text = match kind {
        "image" => "is an image, and kvik reads text only; describe it in words".to_owned(),
        "document" => "is a document that is no plain text; send its text".to_owned(),
        other => format!("has the type {other:?}, which kvik does not know here; send text"),
    };
    block.at("type", &text)
}

/// Returns the placeholder for an unreadable block. Images and files get a placeholder text, but are refused
/// if the question is about them; blocks of server-side tools and of unknown types are dropped.
fn instead(
    block: &Place<'_>,
    kind: &str,
    is_asked: bool,
    notes: &mut Vec<String>,
) -> Result<Option<&'static str>> {
    let words = unseen(kind);
    if words.is_some() && is_asked {
        return Err(refused(block, kind));
    }
    notes.push(format!("`{}` is a block of type {kind:?}, which is not read here", block.path));
    Ok(words)
}

/// Converts one of Anthropic's messages, possibly into several.
fn message(
    message: &Place<'_>,
    is_asked: bool,
    times: &mut Times,
    notes: &mut Vec<String>,
) -> Result<Vec<Value>> {
    notes.extend(message.auxiliary(&["role", "content"])?);
    let role = message.need("role")?;
    let content = message.need("content")?;
    if let Some(text) = content.value.as_str() {
        return match role.text()? {
            role @ ("user" | "assistant" | "system") => Ok(vec![json!({"role": role, "content": text})]),
            _ => Err(unknown_role(&role)),
        };
    }
    match role.text()? {
        "user" => user(&content, is_asked, times, notes),
        "assistant" => assistant(&content, times, notes),
        "system" => Ok(vec![json!({"role": "system", "content": system_text(&content, times, notes)?})]),
        _ => Err(unknown_role(&role)),
    }
}

fn unknown_role(role: &Place<'_>) -> ApiError {
    role.error("must be `user` or `assistant`; the system prompt is the field `system`")
}

/// Converts a user's content: texts and tool results, each run of texts as one message in its place.
fn user(
    content: &Place<'_>,
    is_asked: bool,
    times: &mut Times,
    notes: &mut Vec<String>,
) -> Result<Vec<Value>> {
    let mut told: Vec<Value> = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    let say = |texts: &mut Vec<String>, told: &mut Vec<Value>| {
        if !texts.is_empty() {
            told.push(json!({"role": "user", "content": texts.join("\n\n")}));
            texts.clear();
        }
    };
    for block in content.items()? {
        times.extend(cache_control(&block)?);
        match block.need_text("type")? {
            "text" => texts.push(block.need_text("text")?.to_owned()),
            "document" => texts.push(document(&block, is_asked, notes)?),
            "search_result" => texts.push(search_result(&block, is_asked, notes)?),
            "tool_result" => {
                say(&mut texts, &mut told);
                told.push(tool_result(&block, notes)?);
            }
            kind => texts.extend(instead(&block, kind, is_asked, notes)?.map(str::to_owned)),
        }
    }
    say(&mut texts, &mut told);
    if told.is_empty() {
        return Err(content.error("is empty"));
    }
    Ok(told)
}

/// Returns the text of a document: title, context and its own text.
fn document(block: &Place<'_>, is_asked: bool, notes: &mut Vec<String>) -> Result<String> {
    leave_out_citations(block, is_asked, notes)?;
    let source = block.need("source")?;
    let text = match source.need_text("type")? {
        "text" => source.need_text("data")?.to_owned(),
        "content" => texts_of(&source.need("content")?, is_asked, notes)?,
        _ => instead(block, "document", is_asked, notes)?.unwrap_or_default().to_owned(),
    };
    below(block, ["title", "context"], text)
}

/// Returns the text of a client's search result: title, source and texts.
fn search_result(block: &Place<'_>, is_asked: bool, notes: &mut Vec<String>) -> Result<String> {
    leave_out_citations(block, is_asked, notes)?;
    let text = texts_of(&block.need("content")?, is_asked, notes)?;
    below(block, ["title", "source"], text)
}

/// Returns a text behind those that the block has in the fields `head`.
fn below(block: &Place<'_>, head: [&str; 2], text: String) -> Result<String> {
    let mut texts = Vec::new();
    for field in head.iter().filter_map(|name| block.get(name)) {
        texts.push(field.text()?);
    }
    texts.push(&text);
    Ok(texts.join("\n\n"))
}

/// Refuses a block of the question that is to be cited; in an earlier one, adds a note that it is not.
fn leave_out_citations(block: &Place<'_>, is_asked: bool, notes: &mut Vec<String>) -> Result<()> {
    let wanted = block.get("citations").filter(|citations| citations.value["enabled"] == true);
    match wanted {
        Some(citations) if is_asked => {
            Err(citations.error("asks for citations, which an answer does not have here; leave it out"))
        }
        Some(citations) => {
            let path = citations.path;
            notes.push(format!("`{path}` asks for citations, which an answer does not have here"));
            Ok(())
        }
        None => Ok(()),
    }
}

fn tool_result(block: &Place<'_>, notes: &mut Vec<String>) -> Result<Value> {
    let id = block.need_text("tool_use_id")?;
    let text = block.get("content").map_or(Ok(String::new()), |content| result_text(&content, notes))?;
    let failed = block.get("is_error").map_or(Ok(false), |failed| failed.bool())?;
    let content = if failed { format!("Error: {text}") } else { text };
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

/// Returns a text, or the joined texts of blocks.
fn texts_of(content: &Place<'_>, is_asked: bool, notes: &mut Vec<String>) -> Result<String> {
    if let Some(text) = content.value.as_str() {
        return Ok(text.to_owned());
    }
    let mut texts = Vec::new();
    for block in content.items()? {
        match block.need_text("type")? {
            "text" => texts.push(block.need_text("text")?),
            kind => texts.extend(instead(&block, kind, is_asked, notes)?),
        }
    }
    Ok(texts.join("\n\n"))
}

/// Returns the text of a tool result: a text, or blocks that can be read as text.
fn result_text(content: &Place<'_>, notes: &mut Vec<String>) -> Result<String> {
    if let Some(text) = content.value.as_str() {
        return Ok(text.to_owned());
    }
    let mut texts = Vec::new();
    for block in content.items()? {
        match block.need_text("type")? {
            "text" => texts.push(block.need_text("text")?.to_owned()),
            "document" => texts.push(document(&block, false, notes)?),
            "search_result" => texts.push(search_result(&block, false, notes)?),
            // A tool that was found by a search: it is already among the tools.
            "tool_reference" => texts.push(format!("The tool {} is there.", block.need_text("tool_name")?)),
            kind => texts.extend(instead(&block, kind, false, notes)?.map(str::to_owned)),
        }
    }
    Ok(texts.join("\n\n"))
}

/// Converts the assistant's text, thoughts and calls; a compaction block becomes a separate entry.
fn assistant(content: &Place<'_>, times: &mut Times, notes: &mut Vec<String>) -> Result<Vec<Value>> {
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    let mut told = Vec::new();
    for block in content.items()? {
        times.extend(cache_control(&block)?);
        match block.need_text("type")? {
            "text" => text.push_str(block.need_text("text")?),
            "thinking" => thoughts.push_str(block.need_text("thinking")?),
            // Encrypted; only its maker can read it.
            "redacted_thinking" => {}
            "tool_use" => calls.push(tool_use(&block)?),
            "compaction" => {
                let item = block.need_text("content")?;
                told.push(json!({"type": "compaction", "encrypted_content": item}));
            }
            kind => text.push_str(instead(&block, kind, false, notes)?.unwrap_or_default()),
        }
    }
    let mut message = Map::from_iter([("role".to_owned(), json!("assistant"))]);
    let only_calls = text.is_empty() && !calls.is_empty();
    message.insert("content".to_owned(), if only_calls { Value::Null } else { json!(text) });
    if !thoughts.is_empty() {
        message.insert("reasoning_content".to_owned(), json!(thoughts));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    told.push(Value::Object(message));
    Ok(told)
}

fn tool_use(block: &Place<'_>) -> Result<Value> {
    let input = block.need("input")?;
    if !input.value.is_object() {
        return Err(input.wrong("an object"));
    }
    let function = json!({"name": block.need_text("name")?, "arguments": arguments_text(input.value)});
    Ok(json!({"id": block.need_text("id")?, "type": "function", "function": function}))
}

/// Returns the time to live of a block's `cache_control`; none if the block has no such field.
pub(super) fn cache_control(block: &Place<'_>) -> Result<Option<Option<&'static str>>> {
    let Some(control) = block.get("cache_control") else { return Ok(None) };
    ttl(&control).map(Some)
}

/// Reads `{"type": "ephemeral", "ttl": "5m" | "1h"}`.
pub(super) fn ttl(control: &Place<'_>) -> Result<Option<&'static str>> {
    let kind = control.need("type")?;
    if kind.text()? != "ephemeral" {
        return Err(kind.error("must be `ephemeral`"));
    }
    let Some(ttl) = control.get("ttl") else { return Ok(None) };
    match ttl.text()? {
        "5m" => Ok(Some("5m")),
        "1h" => Ok(Some("1h")),
        _ => Err(ttl.error("must be `5m` or `1h`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(system: Value, messages: Value) -> Result<Vec<Value>> {
        let system = Some(&system).filter(|system| !system.is_null());
        told(system, &messages, &mut Vec::new(), &mut Vec::new())
    }

    #[test]
    fn blocks_become_the_messages_that_templates_know() {
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "so", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "seen"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": true},
                {"type": "text", "text": "and now?"},
            ]},
        ]);
        let function = json!({"name": "look", "arguments": "{\"at\": 1}"});
        let expect = json!([
            {"role": "system", "content": "one\n\ntwo"},
            {"role": "user", "content": "a\n\nb"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "so",
                "tool_calls": [{"id": "t1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "t1", "content": "seen"},
            {"role": "tool", "tool_call_id": "t2", "content": "Error: no"},
            {"role": "user", "content": "and now?"},
        ]);
        let system = json!([
            {"type": "text", "text": "one"}, {"type": "text", "text": "two"},
        ]);
        assert_eq!(read(system, messages).map(Value::Array), Ok(expect));
    }

    #[test]
    fn what_a_server_did_and_what_is_not_known_yet_is_left_out() {
        let messages = json!([
            {"role": "user", "content": "x", "name": "y"},
            {"role": "assistant", "content": [
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "text", "text": "Found.", "citations": []},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [
                    {"type": "tool_reference", "tool_name": "f"},
                    {"type": "search_result", "title": "A", "source": "b", "content": [{"type": "text", "text": "c"}]},
                ]},
                {"type": "a block of tomorrow"}, {"type": "text", "text": "and?"},
            ]},
        ]);
        let mut notes = Vec::new();
        let expect = json!([
            {"role": "user", "content": "x"}, {"role": "assistant", "content": "Found."},
            {"role": "tool", "tool_call_id": "t", "content": "The tool f is there.\n\nA\n\nb\n\nc"},
            {"role": "user", "content": "and?"},
        ]);
        assert_eq!(told(None, &messages, &mut Vec::new(), &mut notes).map(Value::Array), Ok(expect));
        assert_eq!(notes.len(), 4, "{notes:?}");
        assert!(notes[0].contains("messages[0].name") && notes[1].contains("server_tool_use"), "{notes:?}");
    }

    fn image_block() -> Value {
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}})
    }

    /// Agents read files on their own, and resend everything with each turn.
    #[test]
    fn a_picture_that_a_tool_returned_or_was_asked_about_before_ends_no_conversation() {
        let image = image_block();
        let file =
            json!({"type": "document", "source": {"type": "base64", "data": "eA=="}, "title": "a.pdf"});
        let asked = json!([{"role": "user", "content": [image]}]);
        assert_eq!(read(Value::Null, asked).unwrap_err().param(), Some("messages[0].content[0].type"));
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [image, {"type": "text", "text": "x"}]}, file,
            ]},
        ]);
        let mut notes = Vec::new();
        let told = told(None, &messages, &mut Vec::new(), &mut notes).unwrap();
        let image = "[an image, which this model cannot see]";
        assert_eq!(told[0]["content"], format!("look\n\n{image}"));
        assert_eq!(told[2]["content"], format!("{image}\n\nx"));
        assert_eq!(told[3]["content"], "a.pdf\n\n[a file, which this model cannot read]");
        assert_eq!(notes.len(), 3, "{notes:?}");
    }

    #[test]
    fn what_has_begun_is_no_answer_to_a_picture_whatever_blocks_it_ends_with() {
        let asked =
            json!({"role": "user", "content": [image_block(), {"type": "text", "text": "What is it?"}]});
        let begun = json!({"type": "text", "text": "The picture shows "});
        let searched = json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}});
        let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
        for (said, is_answer) in [
            (json!(""), false),
            (json!([]), false),
            (json!("The picture shows"), false),
            (json!([begun]), false),
            (json!([begun, {"type": "redacted_thinking", "data": "x"}]), false),
            (json!([begun, {"type": "thinking", "thinking": "so", "signature": "x"}]), false),
            (json!([begun, searched]), false),
            (json!([begun, {"type": "text", "text": ""}]), false),
            (json!([begun, call]), true),
            (json!([call, begun]), true),
        ] {
            let told = read(Value::Null, json!([asked, {"role": "assistant", "content": said}]));
            let refused = told.as_ref().err().and_then(ApiError::param);
            let expect = (!is_answer).then_some("messages[0].content[0].type");
            assert_eq!(refused, expect, "{said}");
        }
        let more = |text: &str| json!({"role": "assistant", "content": text});
        let told = read(Value::Null, json!([asked, more("The picture"), more(" shows")]));
        assert!(told.is_err(), "messages in a row are one turn");
    }

    #[test]
    fn a_document_is_read_whole_or_refused_where_it_is_asked_about() {
        let plain = json!({"type": "text", "media_type": "text/plain", "data": "12"});
        let document = |more: Value| {
            let mut document = json!({"type": "document", "title": "t", "source": plain});
            document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            document
        };
        let pictures = json!({"type": "content", "content": [{"type": "text", "text": "x"}, image_block()]});
        let (pictures, cited) =
            (document(json!({"source": pictures})), document(json!({"citations": {"enabled": true}})));
        let image = "t\n\nx\n\n[an image, which this model cannot see]";
        let upload = json!({"type": "container_upload", "file_id": "f"});
        let file = "[a file, which this model cannot read]";
        // What it is before an answer, and the place at which it is refused in a question.
        for (block, expect, refused) in [
            (document(json!({"context": "In thousands."})), "t\n\nIn thousands.\n\n12", None),
            (document(json!({"citations": {"enabled": false}})), "t\n\n12", None),
            (cited, "t\n\n12", Some("messages[0].content[0].citations")),
            (pictures.clone(), image, Some("messages[0].content[0].source.content[1].type")),
            (upload, file, Some("messages[0].content[0].type")),
        ] {
            let (asked, answer) = (
                json!({"role": "user", "content": [block]}),
                json!({"role": "assistant", "content": "Yes."}),
            );
            let told =
                read(Value::Null, json!([asked, answer, {"role": "user", "content": "And?"}])).unwrap();
            assert_eq!(told[0]["content"], expect, "{block}");
            let told = read(Value::Null, json!([asked]));
            assert_eq!(told.as_ref().err().and_then(ApiError::param), refused, "{block}");
        }
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [pictures]});
        let told = read(Value::Null, json!([{"role": "user", "content": [result]}])).unwrap();
        assert_eq!(told[0]["content"], image);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let check = |messages: Value, at: &str| {
            let error = read(Value::Null, messages).unwrap_err();
            assert_eq!(error.param(), Some(at), "{error}");
        };
        let user = |block: Value| json!([{"role": "user", "content": [block]}]);
        check(json!([]), "messages");
        check(json!("hi"), "messages");
        check(json!([{"role": "user"}]), "messages[0].content");
        check(json!([{"role": "tool", "content": "x"}]), "messages[0].role");
        check(json!([{"role": "user", "content": []}]), "messages[0].content");
        check(user(json!({"type": "image", "source": {}})), "messages[0].content[0].type");
        check(user(json!({"type": "text"})), "messages[0].content[0].text");
        check(user(json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id");
        let control = |control: Value| user(json!({"type": "text", "text": "x", "cache_control": control}));
        check(control(json!({"type": "lasting"})), "messages[0].content[0].cache_control.type");
        check(control(json!({"type": "ephemeral", "ttl": "2h"})), "messages[0].content[0].cache_control.ttl");
        let call = json!([{"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": "x"}]}]);
        check(call, "messages[0].content[0].input");
    }
}
