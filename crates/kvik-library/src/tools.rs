//! Tools as texts, for callers without structures for them.

use kvik_text::tools::{OfferedTool, ToolChoice, no_parameters};
use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;

/// A tool in OpenAI's form.
#[derive(Deserialize)]
struct Entry {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
}

/// Parses tools in OpenAI's form, JSON: `[{"type": "function", "function": {"name", "description",
/// "parameters"}}]`. A tool that leaves out its `parameters` takes none.
///
/// # Errors
/// If the text is not in this form, or a schema is not an object.
pub fn tools_from_json(json: &str) -> Result<Vec<OfferedTool>, Error> {
    let entries: Vec<Entry> =
        serde_json::from_str(json).map_err(|error| Error::BadTools(error.to_string()))?;
    entries.into_iter().map(offered).collect()
}

/// Parses `none`, `auto`, `required`, or the name of the tool that has to be called.
pub fn tool_choice_from_name(choice: &str) -> ToolChoice {
    match choice {
        "none" => ToolChoice::None,
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Any,
        name => ToolChoice::Named(name.to_owned()),
    }
}

fn offered(
    Entry { function: Function { name, description, parameters } }: Entry,
) -> Result<OfferedTool, Error> {
    let parameters = parameters.unwrap_or_else(no_parameters);
    match parameters.is_object() {
        true => Ok(OfferedTool { name, description, parameters }),
        false => Err(Error::BadTools(format!("the parameters of `{name}` are no JSON schema (an object)"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_are_read_as_openai_writes_them() {
        let json = r#"[{"type": "function", "function": {"name": "now"}},
            {"function": {"name": "add", "description": "Adds", "parameters": {"type": "object"}}}]"#;
        let tools = tools_from_json(json).unwrap();
        let names: Vec<(&str, Option<&str>)> =
            tools.iter().map(|tool| (tool.name.as_str(), tool.description.as_deref())).collect();
        assert_eq!(names, [("now", None), ("add", Some("Adds"))]);
        let schemas: Vec<&Value> = tools.iter().map(|tool| &tool.parameters).collect();
        assert_eq!(schemas, [&no_parameters(), &json!({"type": "object"})]);
        for wrong in ["", "{}", "[{}]", r#"[{"function": {"name": "now", "parameters": 1}}]"#] {
            assert!(matches!(tools_from_json(wrong), Err(Error::BadTools(_))), "{wrong}");
        }
        assert_eq!(tool_choice_from_name("required"), ToolChoice::Any);
        assert_eq!(tool_choice_from_name("add"), ToolChoice::Named("add".to_owned()));
    }
}
