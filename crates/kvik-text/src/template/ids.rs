//! Identifiers of calls in the form that a template requires.
//!
//! Clients send back the identifiers that some server created. Some templates refuse any but their own form, and
//! one writes the name of the tool nowhere else.

use serde_json::Value;

/// The identifiers that a template accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallIds {
    /// Any.
    Any,
    /// Nine letters or digits, as in Mistral.
    Nine,
    /// `functions.NAME:NUMBER`, as in Kimi: calls are numbered through the conversation.
    Named,
}

/// Length of the identifiers of nine characters.
const NINE: usize = 9;

/// A call without a result so far.
struct OpenCall {
    sent: Option<String>,
    told: String,
    name: String,
}

/// Assigns every call an identifier in this form, and every result that of its call: the call that it names, else
/// the first call of the same tool, else the first call.
pub(super) fn tell(messages: &mut [Value], form: CallIds) {
    let mut open: Vec<OpenCall> = Vec::new();
    let mut number = 0;
    for message in messages {
        if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
            open.clear();
            for call in calls {
                let known = tell_call(call, form, number);
                call["id"] = known.told.as_str().into();
                open.push(known);
                number += 1;
            }
        } else if message["role"] == "tool" {
            tell_result(message, form, &mut open);
        }
    }
}

/// Adds the name of the called tool to results without a name.
pub(super) fn name_results(messages: &mut [Value]) {
    let mut open: Vec<(Value, Value)> = Vec::new();
    for message in messages {
        if let Some(calls) = message["tool_calls"].as_array() {
            let name = |call: &Value| call.get("function").unwrap_or(call)["name"].clone();
            open = calls.iter().map(|call| (call["id"].clone(), name(call))).collect();
        } else if message["role"] == "tool" && message["name"].is_null() {
            let id = &message["tool_call_id"];
            if let Some((_, name)) = open.iter().find(|(known, _)| known == id) {
                message["name"] = name.clone();
            }
        }
    }
}

fn tell_call(call: &Value, form: CallIds, number: usize) -> OpenCall {
    let name = call.get("function").unwrap_or(call)["name"].as_str().unwrap_or_default().to_owned();
    let sent = call["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
    let told = match form {
        CallIds::Any => sent.clone().unwrap_or_else(|| format!("call_{number}")),
        CallIds::Nine => nine(sent.as_deref().unwrap_or(&format!("call_{number}"))),
        CallIds::Named => {
            let own = sent.clone().filter(|id| is_named(id, &name));
            own.unwrap_or_else(|| format!("functions.{name}:{number}"))
        }
    };
    OpenCall { sent, told, name }
}

fn tell_result(message: &mut Value, form: CallIds, open: &mut Vec<OpenCall>) {
    let sent = message["tool_call_id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
    let is_sent = |call: &OpenCall| sent.is_some() && call.sent == sent;
    let is_same_tool = |call: &OpenCall| message["name"].as_str() == Some(call.name.as_str());
    let at = match &sent {
        Some(_) => open.iter().position(is_sent),
        None => open.iter().position(is_same_tool).or((!open.is_empty()).then_some(0)),
    };
    let told = match (at, form, sent) {
        (Some(at), ..) => open.remove(at).told,
        (None, CallIds::Nine, sent) => nine(sent.as_deref().unwrap_or_default()),
        (None, _, Some(sent)) => sent,
        // The result belongs to no call.
        (None, _, None) => return,
    };
    if let Some(fields) = message.as_object_mut() {
        fields.insert("tool_call_id".into(), told.into());
    }
}

/// Whether an identifier has the model's own form.
fn is_named(id: &str, name: &str) -> bool {
    let number = id.strip_prefix("functions.").and_then(|rest| rest.strip_prefix(name)?.strip_prefix(':'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Nine letters or digits that represent an identifier; the identifier itself if it has this form.
fn nine(id: &str) -> String {
    if id.len() == NINE && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    blake3::hash(id.as_bytes()).to_hex()[..NINE].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The identifiers of the calls and results of a conversation.
    fn told(messages: Value, form: CallIds) -> Vec<String> {
        let Value::Array(mut messages) = messages else { unreachable!() };
        tell(&mut messages, form);
        let ids = messages.iter().flat_map(|message| match message["tool_calls"].as_array() {
            Some(calls) => calls.iter().map(|call| call["id"].clone()).collect(),
            None => vec![message["tool_call_id"].clone()],
        });
        ids.filter_map(|id| id.as_str().map(str::to_owned)).collect()
    }

    fn call(id: Option<&str>, name: &str) -> Value {
        let mut call = json!({"type": "function", "function": {"name": name, "arguments": "{}"}});
        if let Some(id) = id {
            call["id"] = id.into();
        }
        call
    }

    #[test]
    fn results_have_the_identifiers_of_their_calls() {
        let messages = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [call(Some("call_a"), "f"), call(Some("call_b"), "g")]},
            {"role": "tool", "tool_call_id": "call_b", "content": "2"},
            {"role": "tool", "tool_call_id": "call_a", "content": "1"},
            {"role": "assistant", "tool_calls": [call(Some("functions.f:7"), "f"), call(None, "g"), call(None, "h")]},
            {"role": "tool", "name": "g", "content": "4"},
            {"role": "tool", "content": "3"},
            {"role": "tool", "tool_call_id": "foreign", "content": "?"},
        ]);
        let any = told(messages.clone(), CallIds::Any);
        let expect = [
            "call_a",
            "call_b",
            "call_b",
            "call_a",
            "functions.f:7",
            "call_3",
            "call_4",
            "call_3",
            "functions.f:7",
            "foreign",
        ];
        assert_eq!(any, expect);
        let named = told(messages.clone(), CallIds::Named);
        let expect = [
            "functions.f:0",
            "functions.g:1",
            "functions.g:1",
            "functions.f:0",
            "functions.f:7",
            "functions.g:3",
            "functions.h:4",
            "functions.g:3",
            "functions.f:7",
            "foreign",
        ];
        assert_eq!(named, expect);
        let nine = told(messages, CallIds::Nine);
        assert_eq!((&nine[0], &nine[1], &nine[5]), (&nine[3], &nine[2], &nine[7]));
        for id in &nine {
            assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        }
    }

    #[test]
    fn identifiers_of_the_form_stay() {
        let messages = json!([
            {"role": "assistant", "tool_calls": [call(Some("abcDEF123"), "f")]},
            {"role": "tool", "tool_call_id": "abcDEF123", "content": "1"},
        ]);
        assert_eq!(told(messages, CallIds::Nine), ["abcDEF123"; 2]);
        assert!(
            is_named("functions.f:0", "f")
                && !is_named("functions.g:0", "f")
                && !is_named("functions.f:", "f")
        );
    }
}
