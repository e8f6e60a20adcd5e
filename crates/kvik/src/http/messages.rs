//! Checks the messages and tools of a chat request.
//!
//! Bringing them into the shape that a template expects is the template's own work.

use serde_json::{Value, json};

use super::{
    error::ApiError,
    fields::{Fields, wrong},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Messages of one conversation at most.
const MESSAGES_MAX: usize = 65_536;
/// Tools of one request at most.
const TOOLS_MAX: usize = 256;

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

/// Tools offered, and whether one must be called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tools {
    /// As the request brought them; absent when there are none or `tool_choice` is `none`.
    pub(crate) offered: Option<Value>,
    /// Schema of the one call that the answer has to be.
    pub(crate) forced: Option<Value>,
}

impl Tools {
    /// Reads the fields `tools` and `tool_choice`.
    pub(crate) fn read(fields: &mut Fields) -> Result<Tools> {
        let tools = fields.array("tools")?.unwrap_or_default();
        if tools.len() > TOOLS_MAX {
            return Err(
                fields.error("tools", format!("holds {} tools, the limit is {TOOLS_MAX}", tools.len()))
            );
        }
        let functions =
            tools.iter().enumerate().map(|(i, tool)| function(i, tool)).collect::<Result<Vec<_>>>()?;
        let forced = forced(fields, &functions)?;
        let offered = match forced {
            Choice::None => None,
            _ => (!tools.is_empty()).then_some(Value::Array(tools)),
        };
        let forced = if let Choice::Forced(schema) = forced { Some(schema) } else { None };
        Ok(Tools { offered, forced })
    }
}

/// A tool's name and the schema of its arguments.
type Function = (String, Value);

fn function(i: usize, tool: &Value) -> Result<Function> {
    let mut tool = Fields::of(format!("tools[{i}]"), tool.clone())?;
    if let Some(kind) = tool.string("type")?.filter(|kind| kind != "function") {
        return Err(tool.error("type", format!("is {kind:?}; kvik knows \"function\"")));
    }
    let function = tool.object("function")?;
    let mut function = tool.required("function", function)?;
    let name = function.string("name")?;
    let name = function.required("name", name)?;
    let parameters = function.take("parameters")?.unwrap_or_else(|| json!({"type": "object"}));
    if !parameters.is_object() {
        return Err(wrong(function.path("parameters"), "a JSON schema (an object)", &parameters));
    }
    Ok((name, parameters))
}

enum Choice {
    None,
    Auto,
    /// Schema of the call.
    Forced(Value),
}

fn forced(fields: &mut Fields, functions: &[Function]) -> Result<Choice> {
    let unknown = |what: &str| {
        Err(ApiError::field(
            "tool_choice",
            format!("`tool_choice` asks for {what}, which `tools` does not have"),
        ))
    };
    match fields.take("tool_choice")? {
        None => Ok(Choice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "none" => Ok(Choice::None),
            "auto" => Ok(Choice::Auto),
            "required" if functions.is_empty() => unknown("a call"),
            "required" => {
                let call = |(i, function)| call_schema(function, &format!("#/anyOf/{i}"));
                let calls: Vec<Value> = functions.iter().enumerate().map(call).collect();
                Ok(Choice::Forced(json!({"anyOf": calls})))
            }
            other => Err(fields.error(
                "tool_choice",
                format!("is {other:?}; kvik knows \"none\", \"auto\", \"required\" and a named function"),
            )),
        },
        Some(choice) => {
            let mut choice = Fields::of("tool_choice".to_owned(), choice)?;
            let function = choice.object("function")?;
            let mut function = choice.required("function", function)?;
            let name = function.string("name")?;
            let name = function.required("name", name)?;
            match functions.iter().find(|(known, _)| *known == name) {
                Some(function) => Ok(Choice::Forced(call_schema(function, "#"))),
                None => unknown(&format!("{name:?}")),
            }
        }
    }
}

/// Schema of one call, which stands at `place` of the whole schema.
fn call_schema((name, parameters): &Function, place: &str) -> Value {
    let mut arguments = parameters.clone();
    move_references(&mut arguments, &format!("{place}/properties/arguments"));
    json!({
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": false,
    })
}

/// Parameters refer to their own parts from their root (`#/$defs/item`); that root is at `to` now.
fn move_references(schema: &mut Value, to: &str) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "$ref" && text.starts_with('#') => {
                        *text = format!("{to}{}", &text[1..]);
                    }
                    other => move_references(other, to),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| move_references(item, to)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
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

    fn weather() -> Value {
        json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])
    }

    #[test]
    fn tool_choice_decides_what_is_offered_and_forced() {
        let check = |choice: Value, offered: bool, forced: bool| {
            let tools = Tools::read(&mut body(json!({"tools": weather(), "tool_choice": choice}))).unwrap();
            assert_eq!((tools.offered.is_some(), tools.forced.is_some()), (offered, forced), "{choice}");
        };
        check(json!(null), true, false);
        check(json!("auto"), true, false);
        check(json!("none"), false, false);
        check(json!("required"), true, true);
        check(json!({"type": "function", "function": {"name": "weather"}}), true, true);
    }

    #[test]
    fn references_inside_parameters_follow_them() {
        let parameters =
            json!({"properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}});
        let tools = json!([{"function": {"name": "f", "parameters": parameters}}]);
        let forced = |choice: Value| {
            let tools = Tools::read(&mut body(json!({"tools": tools, "tool_choice": choice}))).unwrap();
            tools.forced.unwrap()
        };
        let check = |schema: Value, place: &str| {
            let reference =
                schema.pointer(&format!("{place}/properties/arguments/properties/x/$ref")).unwrap();
            let target = reference.as_str().unwrap().strip_prefix('#').unwrap();
            assert_eq!(schema.pointer(target), Some(&json!({"type": "string"})), "{reference}");
        };
        check(forced(json!("required")), "/anyOf/0");
        check(forced(json!({"function": {"name": "f"}})), "");
    }

    #[test]
    fn wrong_tools_name_their_place() {
        let check = |request: Value, at: &str| {
            let error = Tools::read(&mut body(request)).unwrap_err().body();
            assert_eq!(error["error"]["param"], at, "{error}");
        };
        check(json!({"tools": {}}), "tools");
        check(json!({"tools": [{"type": "search"}]}), "tools[0].type");
        check(json!({"tools": [{"type": "function"}]}), "tools[0].function");
        check(json!({"tools": [{"function": {}}]}), "tools[0].function.name");
        check(
            json!({"tools": [{"function": {"name": "f", "parameters": 1}}]}),
            "tools[0].function.parameters",
        );
        check(json!({"tool_choice": "required"}), "tool_choice");
        check(json!({"tools": weather(), "tool_choice": "maybe"}), "tool_choice");
        check(json!({"tools": weather(), "tool_choice": {"function": {"name": "news"}}}), "tool_choice");
    }
}
