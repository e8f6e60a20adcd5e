//! Checks the messages of a chat request.
//!
//! Bringing them into the shape that a template expects is the template's own work.

use serde_json::Value;

use crate::http::{
    error::ApiError,
    fields::{Fields, wrong},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Messages of one conversation at most.
const MESSAGES_MAX: usize = 65_536;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Reads the field `messages`.
pub(crate) fn read(fields: &mut Fields) -> Result<Value> {
    let messages = fields.array("messages")?;
    let messages = fields.required("messages", messages)?;
    if messages.is_empty() {
        return Err(fields.error("messages", "is empty; send at least one message"));
    }
    if messages.len() > MESSAGES_MAX {
        return Err(fields.error("messages", format!("holds more than {MESSAGES_MAX} messages")));
    }
    messages.iter().enumerate().try_for_each(|(i, message)| check(i, message))?;
    Ok(Value::Array(messages))
}

/// What templates would print without a word, and be wrong: an unknown role, or nothing to say.
fn check(i: usize, message: &Value) -> Result<()> {
    let path = format!("messages[{i}]");
    let Some(message) = message.as_object() else { return Err(wrong(path, "an object", message)) };
    let at = |name: &str, text: String| {
        let path = format!("messages[{i}].{name}");
        Err(ApiError::field(&path, format!("`{path}` {text}")))
    };
    match message.get("role") {
        None => return at("role", "is missing".to_owned()),
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => {}
        Some(Value::String(role)) => {
            return at("role", format!("is {role:?}; kvik knows {}", ROLES.join(", ")));
        }
        Some(other) => return Err(wrong(format!("{path}.role"), "a string", other)),
    }
    let has = |name: &str| message.get(name).is_some_and(|value| !value.is_null());
    let calls = message["role"] == "assistant" && has("tool_calls");
    if !has("content") && !calls {
        return at("content", "is missing".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(value: Value) -> Fields {
        Fields::of_body(value).unwrap()
    }

    #[test]
    fn messages_pass_untouched() {
        let check = |message: Value| {
            assert_eq!(read(&mut body(json!({"messages": [message]}))).unwrap()[0], message);
        };
        check(json!({"role": "developer", "content": "hi", "name": "x"}));
        check(json!({"role": "user", "content": [{"type": "text", "text": "a"}]}));
        check(json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}));
    }

    #[test]
    fn wrong_messages_name_their_place() {
        let check = |messages: Value, at: &str| {
            let error = read(&mut body(json!({"messages": messages}))).unwrap_err().body();
            assert_eq!(error["error"]["param"], at, "{error}");
        };
        check(json!(null), "messages");
        check(json!("hi"), "messages");
        check(json!([]), "messages");
        check(json!(["hi"]), "messages[0]");
        check(json!([{"content": "hi"}]), "messages[0].role");
        check(json!([{"role": "robot", "content": "hi"}]), "messages[0].role");
        check(json!([{"role": 3, "content": "hi"}]), "messages[0].role");
        check(json!([{"role": "user"}]), "messages[0].content");
        check(json!([{"role": "assistant", "content": null}]), "messages[0].content");
        check(
            json!([{"role": "user", "content": "a"}, {"role": "user", "content": null}]),
            "messages[1].content",
        );
    }
}
