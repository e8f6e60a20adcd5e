//! Tools for models whose template does not support them: describes in messages what the template omits.

use serde_json::{Value, json};

use super::learn::Learned;

/// Adds to the messages what the template would omit: the tools, the calls and their results.
pub(super) fn explain(messages: &mut Vec<Value>, tools: Option<&Value>, learned: &Learned) {
    if !learned.calls {
        messages.iter_mut().for_each(write_calls);
    }
    if !learned.results {
        messages.iter_mut().for_each(write_result);
    }
    let offered = tools.and_then(Value::as_array).filter(|tools| !tools.is_empty() && !learned.offers);
    if let Some(tools) = offered {
        instruct(messages, &instruction(tools), learned.system);
    }
}

/// The instruction for a model that was trained on no form of calls; it asks for the most common form.
fn instruction(tools: &[Value]) -> String {
    let lines: Vec<String> = tools.iter().map(Value::to_string).collect();
    format!(
        "You can call tools. Each line between <tools> and </tools> describes one, with a JSON schema of its arguments:\n\
         <tools>\n{}\n</tools>\n\n\
         To call a tool, answer with a JSON object of its name and its arguments inside of <tool_call></tool_call>, and nothing behind it:\n\
         <tool_call>\n{{\"name\": \"name of the tool\", \"arguments\": {{}}}}\n</tool_call>\n\
         What it returns comes back inside of <tool_response></tool_response>. Call a tool only where it helps; otherwise just answer.",
        lines.join("\n")
    )
}

/// Adds to the first system message, or to the first user message if the template has no system role.
fn instruct(messages: &mut Vec<Value>, text: &str, system: bool) {
    let role = if system { "system" } else { "user" };
    match messages.iter_mut().find(|message| message["role"] == role) {
        Some(message) => {
            let content = message["content"].as_str().unwrap_or_default();
            let whole = if system { [content, text] } else { [text, content] };
            message["content"] = whole.join("\n\n").trim().into();
        }
        None => messages.insert(0, json!({"role": role, "content": text})),
    }
}

/// Writes the calls of an earlier answer in the form that the instruction asks for.
fn write_calls(message: &mut Value) {
    let Some(calls) = message.get("tool_calls").and_then(Value::as_array) else { return };
    let mut text = message["content"].as_str().unwrap_or_default().to_owned();
    for call in calls {
        let function = call.get("function").unwrap_or(call);
        let arguments = match &function["arguments"] {
            Value::String(text) if !text.trim().is_empty() => text.clone(),
            Value::Object(arguments) => Value::from(arguments.clone()).to_string(),
            _ => "{}".to_owned(),
        };
        if !text.is_empty() {
            text.push('\n');
        }
        let name = &function["name"];
        text.push_str(&format!(
            "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
        ));
    }
    message["content"] = text.into();
    if let Some(fields) = message.as_object_mut() {
        fields.remove("tool_calls");
    }
}

/// Writes the result of a call as a user message.
fn write_result(message: &mut Value) {
    if message["role"] == "tool" {
        let content = message["content"].as_str().unwrap_or_default();
        *message =
            json!({"role": "user", "content": format!("<tool_response>\n{content}\n</tool_response>")});
    }
}
