//! Tools for models whose template does not support them: messages describe what the template omits.

use serde_json::{Value, json};

use super::learn::Learned;
use crate::answer::ToolForm;

/// Adds to the messages what the template would omit: the tools, the calls and their results. Calls have the form
/// of the model.
pub(super) fn explain(messages: &mut Vec<Value>, tools: Option<&Value>, learned: &Learned, form: &ToolForm) {
    if !learned.calls {
        messages.iter_mut().for_each(|message| write_calls(message, form));
    }
    if !learned.results {
        write_results(messages);
    }
    if learned.calls && !form.several {
        *messages = one_call_each(std::mem::take(messages));
    }
    let offered = tools.and_then(Value::as_array).filter(|tools| !tools.is_empty() && !learned.offers);
    match offered {
        Some(tools) if learned.offers_in_system => offer_in_system(messages, tools),
        Some(tools) => instruct(messages, &instruction(tools, form), learned.system),
        None => {}
    }
}

/// Splits messages with several calls, each followed by its result, for templates that render one call per
/// message.
fn one_call_each(messages: Vec<Value>) -> Vec<Value> {
    let mut divided = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        let calls = message["tool_calls"].as_array().filter(|calls| calls.len() > 1).cloned();
        let Some(calls) = calls else {
            divided.push(message);
            continue;
        };
        let mut results = Vec::new();
        while let Some(result) = messages.next_if(|next| next["role"] == "tool") {
            results.push(result);
        }
        for call in calls {
            let id = call.get("id").cloned();
            message["tool_calls"] = json!([call]);
            divided.push(message);
            let own = results.iter().position(|result| result.get("tool_call_id") == id.as_ref());
            divided.extend((!results.is_empty()).then(|| results.remove(own.unwrap_or(0))));
            // The text before the calls is rendered once.
            message = json!({"role": "assistant", "content": ""});
        }
        divided.extend(results);
    }
    divided
}

/// Puts the tools into the system message, as text, where its template expects them.
fn offer_in_system(messages: &mut Vec<Value>, tools: &[Value]) {
    if messages.first().is_none_or(|first| first["role"] != "system") {
        messages.insert(0, json!({"role": "system", "content": ""}));
    }
    let functions: Vec<&Value> = tools.iter().map(|tool| tool.get("function").unwrap_or(tool)).collect();
    messages[0]["tools"] = json!(functions).to_string().into();
}

/// The instruction for a model whose template describes no tools; it requests calls in this form.
fn instruction(tools: &[Value], form: &ToolForm) -> String {
    let lines: Vec<String> = tools.iter().map(Value::to_string).collect();
    let example = form.write(&[("name of the tool", json!({}))]);
    let what = match *form == ToolForm::tagged() {
        true => "with a JSON object of its name and its arguments inside of <tool_call></tool_call>",
        false => "like this",
    };
    format!(
        "You can call tools. Each line between <tools> and </tools> describes one, with a JSON schema of its arguments:\n\
         <tools>\n{}\n</tools>\n\n\
         To call a tool, answer {what}, and nothing behind it:\n\
         {example}\n\
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

/// Writes the calls of an earlier answer into its content.
fn write_calls(message: &mut Value, form: &ToolForm) {
    let Some(calls) = message.get("tool_calls").and_then(Value::as_array) else { return };
    let functions = calls.iter().map(|call| call.get("function").unwrap_or(call));
    let calls: Vec<(&str, Value)> = functions
        .map(|function| (function["name"].as_str().unwrap_or_default(), function["arguments"].clone()))
        .collect();
    let mut text = message["content"].as_str().unwrap_or_default().to_owned();
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(&form.write(&calls));
    message["content"] = text.into();
    if let Some(fields) = message.as_object_mut() {
        fields.remove("tool_calls");
    }
}

/// Writes the results of calls as user messages: consecutive ones are joined, since templates may require
/// alternating roles.
fn write_results(messages: &mut Vec<Value>) {
    let mut written: Vec<Value> = Vec::with_capacity(messages.len());
    let mut after_result = false;
    for message in std::mem::take(messages) {
        let is_result = message["role"] == "tool";
        if is_result {
            let content = message["content"].as_str().unwrap_or_default();
            let text = format!("<tool_response>\n{content}\n</tool_response>");
            match written.last_mut().filter(|_| after_result) {
                Some(last) => {
                    let before = last["content"].as_str().unwrap_or_default();
                    last["content"] = [before, &text].join("\n").into();
                }
                None => written.push(json!({"role": "user", "content": text})),
            }
        } else {
            written.push(message);
        }
        after_result = is_result;
    }
    *messages = written;
}
