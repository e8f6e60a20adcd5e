//! Tools of a chat request: which are offered, which must be called, and the format of calls.

use kvik_text::tools::{Function, NotOffered, OfferedTool, ToolChoice, Tools};
use serde::Deserialize;
use serde_json::json;

use super::parts::Part;
use crate::{
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Json, wrong},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum number of tools in one request.
const TOOLS_MAX: usize = 256;

/// The fields of a request that say which tools there are.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct ToolFields {
    /// `{"type": "function", "function": {"name", "description", "parameters"}}` each.
    #[schemars(schema_with = "tools_schema")]
    tools: Option<Vec<Json>>,
    /// `none`, `auto`, `required`, `{"type": "function", "function": {"name"}}`, or `{"type": "allowed_tools",
    /// "allowed_tools": {"mode": "auto" | "required", "tools": [...]}}`, which leaves the prompt as it is.
    #[schemars(schema_with = "choice_schema")]
    tool_choice: Option<Json>,
    /// Whether an answer may have several calls.
    parallel_tool_calls: Option<bool>,
}

impl Part for ToolFields {}

/// One of `tools`, as far as it is looked at here.
#[derive(Debug, Deserialize, JsonSchema)]
struct ToolField {
    #[serde(rename = "type")]
    _kind: Option<ToolKind>,
    function: FunctionField,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ToolKind {
    Function,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct FunctionField {
    name: String,
    /// JSON schema of the arguments.
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    parameters: Option<Json>,
}

/// The words that `tool_choice` may be.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ChoiceWord {
    None,
    Auto,
    Required,
}

/// A choice that names a tool.
#[derive(Debug, Deserialize, JsonSchema)]
struct NamedChoice {
    function: NamedFunction,
}

/// A choice that names the tools that may be called.
#[derive(Debug, Deserialize, JsonSchema)]
struct AllowedChoice {
    allowed_tools: AllowedTools,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct AllowedTools {
    mode: AllowedMode,
    tools: Vec<NamedChoice>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum AllowedMode {
    Auto,
    Required,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct NamedFunction {
    name: String,
}

#[cfg(test)]
fn tools_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let tool = generator.subschema_for::<ToolField>();
    schemars::json_schema!({"type": ["array", "null"], "items": tool, "maxItems": TOOLS_MAX})
}

#[cfg(test)]
fn choice_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let word = generator.subschema_for::<ChoiceWord>();
    let named = generator.subschema_for::<NamedChoice>();
    let allowed = generator.subschema_for::<AllowedChoice>();
    schemars::json_schema!({"anyOf": [word, named, allowed, {"type": "null"}]})
}

impl ToolFields {
    /// Drops tools that do not run here, with a note for each.
    pub(super) fn leave_out_others(&mut self, note: impl Fn(String)) {
        let mut index = 0;
        self.tools.iter_mut().for_each(|tools| {
            tools.retain(|Json(tool)| {
                let other = tool["type"].as_str().filter(|kind| *kind != "function");
                if let Some(kind) = other {
                    note(format!(
                        "`tools[{index}]` is a tool of type {kind:?}, which does not run here; it is not offered"
                    ));
                }
                index += 1;
                other.is_none()
            });
        });
    }

    /// Combines the fields.
    pub(super) fn tools(self) -> Result<Tools> {
        let tools = self.tools.unwrap_or_default();
        check_count(tools.len())?;
        let functions =
            tools.iter().enumerate().map(|(i, tool)| function(i, tool)).collect::<Result<Vec<_>>>()?;
        let choice = choice(self.tool_choice)?;
        let offered = tools.into_iter().map(|Json(tool)| tool).collect();
        Tools::of(offered, functions, choice, self.parallel_tool_calls).map_err(refused)
    }
}

/// Refuses more tools than a request may have.
fn check_count(tools: usize) -> Result<()> {
    if tools <= TOOLS_MAX {
        return Ok(());
    }
    Err(ApiError::field("tools", format!("`tools` holds {tools} tools, the limit is {TOOLS_MAX}")))
}

/// Returns the offered tools, for any dialect.
pub(crate) fn offered(tools: Vec<OfferedTool>, choice: ToolChoice, several: Option<bool>) -> Result<Tools> {
    check_count(tools.len())?;
    Tools::offered(tools, choice, several).map_err(refused)
}

fn refused(error: NotOffered) -> ApiError {
    ApiError::field("tool_choice", format!("`tool_choice` {error}"))
}

fn function(i: usize, tool: &Json) -> Result<Function> {
    let path = format!("tools[{i}]");
    let ToolField { function, .. } = tool.read(&path)?;
    let parameters = function.parameters.map_or_else(|| json!({"type": "object"}), |Json(schema)| schema);
    if !parameters.is_object() {
        let path = format!("{path}.function.parameters");
        return Err(wrong(path, "a JSON schema (an object)", &parameters));
    }
    Ok((function.name, parameters))
}

/// Reads the field `tool_choice`.
fn choice(field: Option<Json>) -> Result<ToolChoice> {
    let path = "tool_choice";
    let Some(field) = field else { return Ok(ToolChoice::Auto) };
    if field.0.is_string() {
        let Ok(word) = field.read(path) else {
            let known = "\"none\", \"auto\", \"required\", a named function and allowed tools";
            return Err(ApiError::field(path, format!("`{path}` is {}; kvik knows {known}", field.0)));
        };
        return Ok(match word {
            ChoiceWord::None => ToolChoice::None,
            ChoiceWord::Auto => ToolChoice::Auto,
            ChoiceWord::Required => ToolChoice::Any,
        });
    }
    if field.0["type"] == "allowed_tools" {
        let AllowedChoice { allowed_tools: AllowedTools { mode, tools } } = field.read(path)?;
        let names = tools.into_iter().map(|tool| tool.function.name).collect();
        return Ok(ToolChoice::Allowed { names, required: mode == AllowedMode::Required });
    }
    Ok(ToolChoice::Named(field.read::<NamedChoice>(path)?.function.name))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::http::json::Body;

    fn read(body: Value) -> Result<Tools> {
        Body::of(&body)?.read::<ToolFields>()?.tools()
    }

    fn weather() -> Value {
        json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])
    }

    #[test]
    fn tool_choice_decides_what_is_offered_and_forced() {
        let check = |choice: Value, offered: bool, forced: bool| {
            let tools = read(json!({"tools": weather(), "tool_choice": choice})).unwrap();
            assert_eq!((tools.offered.is_some(), tools.forced), (offered, forced), "{choice}");
        };
        check(json!(null), true, false);
        check(json!("auto"), true, false);
        check(json!("none"), false, false);
        check(json!("required"), true, true);
        check(json!({"type": "function", "function": {"name": "weather"}}), true, true);
    }

    #[test]
    fn allowed_tools_stay_beside_the_others_in_the_prompt() {
        let tools = ["f", "g", "h"].map(|name| json!({"type": "function", "function": {"name": name}}));
        let allow = |mode: &str, names: &[&str]| {
            let names: Vec<Value> =
                names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
            let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}});
            read(json!({"tools": tools, "tool_choice": choice}))
        };
        let names =
            |tools: &Tools| tools.functions().iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        for (mode, forced) in [("auto", false), ("required", true)] {
            let allowed = allow(mode, &["h", "f"]).unwrap();
            assert_eq!((names(&allowed), allowed.forced), (vec!["f".into(), "h".into()], forced));
            assert_eq!(allowed.offered, Some(json!(tools)), "{mode}");
        }
        for refused in [allow("auto", &["x"]), allow("auto", &[]), allow("never", &["f"])] {
            let param = refused.unwrap_err().body()["error"]["param"].take();
            assert!(param.as_str().unwrap().starts_with("tool_choice"), "{param}");
        }
    }

    #[test]
    fn wrong_tools_name_their_place() {
        let check = |request: Value, at: &str| {
            let error = read(request).unwrap_err().body();
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
        check(json!({"tools": weather(), "parallel_tool_calls": "no"}), "parallel_tool_calls");
        check(json!({"tools": weather(), "tool_choice": "maybe"}), "tool_choice");
        check(json!({"tools": weather(), "tool_choice": {"function": {"name": "news"}}}), "tool_choice");
    }
}
