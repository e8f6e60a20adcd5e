//! Conversion of Ollama's messages and tools to the messages that templates expect.

use kvik_text::{
    template::{question_start, unseen},
    tools::{OfferedTool, ToolChoice, Tools, no_parameters},
};
use serde_json::{Value, json};

use crate::{
    api::{
        chat::arguments_text,
        request::{
            continues::before_answer,
            messages::checked,
            place::Place,
            tools::{ReadTool, offered as offered_tools},
        },
    },
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Returns the messages for the template; adds a note for each image that words replace.
pub(super) fn told(messages: &Value, notes: &mut Vec<String>) -> Result<Value> {
    let place = Place::new("messages", messages);
    let roles = before_answer(messages).iter().map(|message| message["role"].as_str().unwrap_or_default());
    let question = question_start(roles);
    let items = place.items()?.enumerate();
    let told: Result<Vec<Value>> =
        items.map(|(index, item)| message(&item, index >= question, notes)).collect();
    checked(Value::Array(told?))
}

fn message(message: &Place<'_>, is_asked: bool, notes: &mut Vec<String>) -> Result<Value> {
    let role = message.need_text("role")?;
    if is_asked {
        refuse_images(message)?;
    }
    let content = message.get("content").map(|content| content.text()).transpose()?;
    let images = message.get("images").map(|images| images.items()).transpose()?.into_iter().flatten();
    let replaced = images.map(|image| {
        notes.push(format!("`{}` is an image, which is not read here", image.path));
        unseen("image").unwrap_or_default()
    });
    let said = content.filter(|text| !text.is_empty()).into_iter();
    let said: Vec<&str> = said.chain(replaced).collect();
    let mut told = json!({"role": role, "content": said.join("\n")});
    if let Some(thoughts) = message.get("thinking").map(|text| text.text()).transpose()?
        && !thoughts.is_empty()
    {
        told["reasoning_content"] = json!(thoughts);
    }
    if let Some(calls) = message.get("tool_calls") {
        let calls: Result<Vec<Value>> =
            calls.items()?.enumerate().map(|(i, call)| tool_call(i, &call)).collect();
        told["tool_calls"] = Value::Array(calls?);
    }
    for (theirs, ours) in [("tool_name", "name"), ("tool_call_id", "tool_call_id")] {
        if let Some(name) = message.get(theirs) {
            told[ours] = json!(name.text()?);
        }
    }
    Ok(told)
}

/// Refuses images in the question.
pub(super) fn refuse_images(place: &Place<'_>) -> Result<()> {
    match place.get("images") {
        Some(images) if images.items()?.len() > 0 => {
            Err(images.error("holds images, and kvik reads text only; describe them in words"))
        }
        _ => Ok(()),
    }
}

/// Converts a call. Calls may lack an id in Ollama's format; their index then names them.
fn tool_call(i: usize, call: &Place<'_>) -> Result<Value> {
    let function = call.need("function")?;
    let arguments = function.need("arguments")?;
    if !arguments.value.is_object() {
        return Err(arguments.wrong("an object"));
    }
    let id = call.get("id").map(|id| id.text()).transpose()?;
    let id = id.map_or_else(|| format!("call_{i}"), str::to_owned);
    let function = json!({"name": function.need_text("name")?, "arguments": arguments_text(arguments.value)});
    Ok(json!({"id": id, "type": "function", "function": function}))
}

/// Returns the offered tools; an answer may call any of them, or none.
pub(super) fn tools(tools: Option<&Value>) -> Result<Tools> {
    let Some(tools) = tools else { return Ok(Tools::none()) };
    let place = Place::new("tools", tools);
    let offered: Result<Vec<ReadTool>> = place.items()?.map(|item| tool(&item)).collect();
    offered_tools(offered?, ToolChoice::Auto, None)
}

/// Reads a tool. Ollama's have no field that asks for its schema to be kept.
fn tool(tool: &Place<'_>) -> Result<ReadTool> {
    let function = tool.need("function")?;
    let parameters = function.get("parameters");
    if let Some(parameters) = parameters.as_ref().filter(|parameters| !parameters.value.is_object()) {
        return Err(parameters.wrong("a JSON schema (an object)"));
    }
    let description = function.get("description").map(|text| text.text()).transpose()?;
    let offered = OfferedTool {
        name: function.need_text("name")?.to_owned(),
        description: description.map(str::to_owned),
        parameters: parameters.map_or_else(no_parameters, |schema| schema.value.clone()),
    };
    Ok(ReadTool { tool: offered, path: format!("{}.parameters", function.path), strict: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: &Value) -> Result<Value> {
        told(messages, &mut Vec::new())
    }

    #[test]
    fn a_picture_that_was_asked_about_before_ends_no_conversation() {
        let messages = json!([
            {"role": "user", "content": "Look.", "images": ["aGk="]}, {"role": "assistant", "content": "I do."},
            {"role": "user", "content": "And?"},
        ]);
        let mut notes = Vec::new();
        let told = told(&messages, &mut notes).unwrap();
        assert_eq!(told[0]["content"], "Look.\n[an image, which this model cannot see]");
        assert_eq!(told[2]["content"], "And?");
        assert_eq!(notes, ["`messages[0].images[0]` is an image, which is not read here"]);
    }

    #[test]
    fn calls_and_thoughts_become_fields_that_templates_know() {
        let call = json!({"function": {"name": "look", "arguments": {"at": 1}}});
        let messages = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "thinking": "so", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": "look", "content": "seen"},
        ]);
        let function = json!({"name": "look", "arguments": "{\"at\": 1}"});
        let expect = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "reasoning_content": "so",
                "tool_calls": [{"id": "call_0", "type": "function", "function": function}]},
            {"role": "tool", "content": "seen", "name": "look"},
        ]);
        assert_eq!(read(&messages), Ok(expect));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let check = |messages: Value, at: &str| {
            assert_eq!(read(&messages).unwrap_err().param(), Some(at), "{messages}");
        };
        check(json!("hi"), "messages");
        check(json!([]), "messages");
        check(json!([{"content": "hi"}]), "messages[0].role");
        check(json!([{"role": "robot", "content": "hi"}]), "messages[0].role");
        check(json!([{"role": "user", "content": 7}]), "messages[0].content");
        let look = json!({"role": "user", "content": "x", "images": ["aGk="]});
        check(json!([look]), "messages[0].images");
        let begun = |content: &str| json!({"role": "assistant", "content": content});
        check(json!([look, begun("The picture shows")]), "messages[0].images");
        check(json!([look, begun("")]), "messages[0].images");
        check(json!([look, begun(""), begun("The picture shows")]), "messages[0].images");
        let call = json!({"function": {"name": "f", "arguments": "{}"}});
        let at = "messages[0].tool_calls[0].function.arguments";
        check(json!([{"role": "assistant", "tool_calls": [call]}]), at);
    }
}
