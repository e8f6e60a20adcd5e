//! Tools of a chat request: which are offered, which must be called, and the format of calls.

use kvik_text::{
    constraint::schema::Strictness,
    measure::json_bytes,
    tools::{Function, NotOffered, OfferedTool, ToolChoice, Tools, no_parameters},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    constraint::{placed, read_schema},
    parts::Part,
    place::Place,
};
use crate::{
    api::reading::Reading,
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Json, wrong},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum number of tools in one request.
const TOOLS_MAX: usize = 256;
/// Maximum bytes of the schemas of all tools of a request: each may take as long as the schema of a text, and hundreds
/// would take minutes.
const SCHEMAS_BYTES_MAX: usize = 1 << 20;
/// Maximum notes on the schemas of tools.
const NOTES_MAX: usize = 50;

/// The fields of a request that say which tools there are.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct ToolFields {
    /// `{"type": "function", "function": {"name", "description", "parameters", "strict"}}` each.
    #[schemars(schema_with = "tools_schema")]
    tools: Option<Vec<Json>>,
    /// Their places in the body, if others were left out.
    #[serde(skip)]
    places: Vec<usize>,
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
    #[schemars(with = "Option<serde_json::Map<String, Value>>")]
    parameters: Option<Json>,
    /// Refuse keywords that OpenAI refuses.
    strict: Option<bool>,
}

/// A tool as a dialect reads it.
#[derive(Debug, Clone)]
pub(crate) struct ReadTool {
    pub(crate) tool: OfferedTool,
    /// Path of the schema of its arguments.
    pub(crate) path: String,
    /// Whether the client relies on arguments that satisfy the schema.
    pub(crate) strict: bool,
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
                match other {
                    Some(kind) => note(format!(
                        "`tools[{index}]` is a tool of type {kind:?}, which does not run here; it is not offered"
                    )),
                    None => self.places.push(index),
                }
                index += 1;
                other.is_none()
            });
        });
    }

    /// Combines the fields.
    pub(super) fn tools(self) -> Result<Tools> {
        let ToolFields { tools, places, tool_choice, parallel_tool_calls } = self;
        let tools = tools.unwrap_or_default();
        check_count(tools.len())?;
        let read = |(i, tool): (usize, &Json)| read(places.get(i).copied().unwrap_or(i), tool);
        let functions = functions(tools.iter().enumerate().map(read))?;
        let choice = choice(tool_choice)?;
        let offered = tools.into_iter().map(|Json(tool)| tool).collect();
        Tools::of(offered, functions, choice, parallel_tool_calls).map_err(refused)
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
pub(crate) fn offered(tools: Vec<ReadTool>, choice: ToolChoice, several: Option<bool>) -> Result<Tools> {
    check_count(tools.len())?;
    let functions = functions(tools.iter().cloned().map(Ok))?;
    let tools = tools.into_iter().map(|read| read.tool.json()).collect();
    Tools::of(tools, functions, choice, several).map_err(refused)
}

/// Reads the schemas of all tools of a request, whose bytes together are bounded.
fn functions(tools: impl Iterator<Item = Result<ReadTool>>) -> Result<Vec<Function>> {
    let mut bytes_left = SCHEMAS_BYTES_MAX;
    tools.map(|tool| function(tool?, &mut bytes_left)).collect()
}

/// Reads the field `strict` of a tool.
pub(crate) fn is_strict(tool: &Place<'_>) -> Result<bool> {
    tool.get("strict").map_or(Ok(false), |strict| strict.bool())
}

/// Returns what of the tools' schemas the calls of an answer that is read like this are not held to, with the reasons.
pub(super) fn unenforced(tools: &Tools, reading: &Reading) -> Vec<String> {
    if tools.offered.is_none() || matches!(reading, Reading::Plain) {
        return Vec::new();
    }
    let mut notes: Vec<String> =
        tools.functions().iter().flat_map(|function| function.notes.iter().cloned()).collect();
    if matches!(reading, Reading::Tagged { offer: Some(offer), .. } if !offer.certain) {
        let strict = tools.functions().iter().filter(|function| function.strict);
        notes.extend(strict.map(|Function { name, .. }| {
            format!("`{name}`: not enforced: this model writes calls in a form that only a required call is held to")
        }));
    }
    if let Some(more @ 1..) = notes.len().checked_sub(NOTES_MAX) {
        notes.truncate(NOTES_MAX);
        notes.push(format!("and {more} more"));
    }
    notes
}

fn refused(error: NotOffered) -> ApiError {
    ApiError::field("tool_choice", format!("`tool_choice` {error}"))
}

fn read(i: usize, tool: &Json) -> Result<ReadTool> {
    let path = format!("tools[{i}]");
    let ToolField { function: FunctionField { name, parameters, strict }, .. } = tool.read(&path)?;
    let parameters = parameters.map_or_else(no_parameters, |Json(schema)| schema);
    let path = format!("{path}.function.parameters");
    if !parameters.is_object() {
        return Err(wrong(path, "a JSON schema (an object)", &parameters));
    }
    let tool = OfferedTool { name, description: None, parameters };
    Ok(ReadTool { tool, path, strict: strict.unwrap_or(false) })
}

/// Reads the schema of a tool's arguments. One that cannot be enforced is refused if the client relies on it.
fn function(tool: ReadTool, bytes_left: &mut usize) -> Result<Function> {
    let ReadTool { tool: OfferedTool { name, parameters, .. }, path, strict } = tool;
    let strictness = if strict { Strictness::Strict } else { Strictness::Lenient };
    let mut notes = Vec::new();
    let read = take_bytes(&path, &parameters, bytes_left)
        .and_then(|()| read_schema(&path, &parameters, strictness, &mut notes));
    let enforceable = read.is_ok();
    let notes = match read {
        Ok(_) => notes.iter().map(|note| placed(&path, note)).collect(),
        Err(error) if strict => return Err(error),
        Err(error) => vec![format!("{path}: not enforced: {error}")],
    };
    Ok(Function { name, parameters, enforceable, strict, notes })
}

/// Takes the bytes of the schema at `path` from those that are left for the tools of a request.
fn take_bytes(path: &str, schema: &Value, bytes_left: &mut usize) -> Result<()> {
    let left = bytes_left.checked_sub(json_bytes(schema));
    *bytes_left = left.ok_or_else(|| {
        let message = format!(
            "`{path}` is too long: the schemas of all tools together have more than {SCHEMAS_BYTES_MAX} bytes"
        );
        ApiError::field(path, message)
    })?;
    Ok(())
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
    use kvik_text::constraint::schema::normalise;
    use serde_json::json;

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
        let name = |function: &Function| function.name.clone();
        let names = |tools: &Tools| tools.functions().iter().map(name).collect::<Vec<_>>();
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
    fn a_tool_keeps_its_place_where_others_are_left_out() {
        let wrong = json!({"type": "function", "function": {"name": "f", "parameters": 1}});
        let body = Body::of(&json!({"tools": [{"type": "web_search"}, wrong]})).unwrap();
        let mut fields = body.read::<ToolFields>().unwrap();
        fields.leave_out_others(|_| {});
        assert_eq!(fields.tools().unwrap_err().param(), Some("tools[1].function.parameters"));
    }

    /// OpenAI reads a function without `parameters` as one that takes none; an open schema is open.
    #[test]
    fn a_tool_that_leaves_out_its_parameters_takes_none() {
        let names = ["left_out", "null", "open"];
        let tools = json!([
            {"type": "function", "function": {"name": names[0]}},
            {"type": "function", "function": {"name": names[1], "parameters": null}},
            {"type": "function", "function": {"name": names[2], "parameters": {"type": "object"}}},
        ]);
        let tools = read(json!({"tools": tools})).unwrap();
        let held = tools.functions().iter().map(|function| {
            normalise(&function.parameters, Strictness::Lenient).unwrap().schema["additionalProperties"]
                .clone()
        });
        assert_eq!(held.collect::<Vec<_>>(), [json!(false), json!(false), json!(null)], "{names:?}");
    }

    /// A request may have hundreds of schemas that are within the limits of one.
    #[test]
    fn the_schemas_of_all_tools_are_bounded_together() {
        let five = |strict: bool| {
            let schema = json!({"type": "object", "description": "x".repeat(250_000)});
            let tool = |i: usize| {
                let name = format!("f{i}");
                json!({"function": {"name": name, "parameters": schema, "strict": strict}})
            };
            read(json!({"tools": (0..5).map(tool).collect::<Vec<_>>()}))
        };
        let tools = five(false).unwrap();
        let enforceable: Vec<bool> = tools.functions().iter().map(|function| function.enforceable).collect();
        assert_eq!(enforceable, [true, true, true, true, false]);
        let [note] = &tools.functions()[4].notes[..] else { panic!("{:?}", tools.functions()[4].notes) };
        assert!(note.starts_with("tools[4].function.parameters: not enforced: "), "{note}");
        assert_eq!(five(true).unwrap_err().param(), Some("tools[4].function.parameters"));
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
        let strict = json!([{"function": {"name": "f", "strict": "yes"}}]);
        check(json!({"tools": strict}), "tools[0].function.strict");
        check(json!({"tool_choice": "required"}), "tool_choice");
        check(json!({"tools": weather(), "parallel_tool_calls": "no"}), "parallel_tool_calls");
        check(json!({"tools": weather(), "tool_choice": "maybe"}), "tool_choice");
        check(json!({"tools": weather(), "tool_choice": {"function": {"name": "news"}}}), "tool_choice");
    }
}
