//! Tools of a chat request: which are offered, which must be called, and how calls are written.

use std::sync::Arc;

use kvik_engine::api::Constraint;
use kvik_engine::text::answer::{ForcedCall, Offer, ToolForm};
use kvik_engine::text::constraint::schema::move_references;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::parts::Part;
use crate::http::{
    error::ApiError,
    json::{Json, wrong},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Tools of one request at most.
const TOOLS_MAX: usize = 256;
/// Calls of one answer at most, where several are allowed.
const CALLS_MAX: usize = 32;

/// Tools offered, and whether one must be called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tools {
    /// As the request brought them; absent when there are none or `tool_choice` is `none`.
    pub(crate) offered: Option<Value>,
    functions: Vec<Function>,
    /// The answer has to be calls of `functions`.
    pub(crate) forced: bool,
    calls_max: usize,
}

/// The fields of a request that say which tools there are.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct ToolFields {
    /// `{"type": "function", "function": {"name", "description", "parameters"}}` each.
    #[schemars(schema_with = "tools_schema")]
    tools: Option<Vec<Json>>,
    /// `none`, `auto`, `required`, or `{"type": "function", "function": {"name"}}`.
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

#[derive(Debug, Deserialize, JsonSchema)]
struct NamedFunction {
    name: String,
}

fn tools_schema(generator: &mut SchemaGenerator) -> Schema {
    let tool = generator.subschema_for::<ToolField>();
    json_schema!({"type": ["array", "null"], "items": tool, "maxItems": TOOLS_MAX})
}

fn choice_schema(generator: &mut SchemaGenerator) -> Schema {
    let word = generator.subschema_for::<ChoiceWord>();
    let named = generator.subschema_for::<NamedChoice>();
    json_schema!({"anyOf": [word, named, {"type": "null"}]})
}

impl ToolFields {
    /// What they mean together.
    pub(super) fn tools(self) -> Result<Tools> {
        let tools = self.tools.unwrap_or_default();
        if tools.len() > TOOLS_MAX {
            let message = format!("`tools` holds {} tools, the limit is {TOOLS_MAX}", tools.len());
            return Err(ApiError::field("tools", message));
        }
        let functions =
            tools.iter().enumerate().map(|(i, tool)| function(i, tool)).collect::<Result<Vec<_>>>()?;
        let choice = choice(self.tool_choice, &functions)?;
        // A call that has to be made is one, unless the request says that it may be several.
        let several = self.parallel_tool_calls.unwrap_or(choice == Choice::Auto);
        let forced = !matches!(choice, Choice::None | Choice::Auto);
        let functions = match choice {
            Choice::Named(at) => vec![functions[at].clone()],
            _ => functions,
        };
        let is_offered = choice != Choice::None && !tools.is_empty();
        let offered = is_offered.then(|| tools.into_iter().map(|Json(tool)| tool).collect());
        Ok(Tools { offered, functions, forced, calls_max: if several { CALLS_MAX } else { 1 } })
    }
}

impl Tools {
    /// No tools at all.
    pub(super) fn none() -> Tools {
        Tools { offered: None, functions: Vec::new(), forced: false, calls_max: CALLS_MAX }
    }

    /// How calls in this form are read out of the answer.
    pub(crate) fn offer(&self, form: ToolForm) -> Arc<Offer> {
        Arc::new(Offer { form, tools: self.functions.clone(), calls_max: self.calls_max })
    }

    /// What holds the answer to this form. Free text may come before a call that has to be made, up to
    /// and with `after`.
    pub(crate) fn constraint(&self, form: &ToolForm, after: Option<&str>) -> Option<Constraint> {
        let forced = self.forced.then(|| ForcedCall { after: after.map(str::to_owned) });
        form.constraint(&self.functions, forced, self.calls_max).map(Constraint::Calls)
    }

    /// Schema of an answer that is one call, as JSON: for forms that no constraint describes.
    pub(crate) fn one_call(&self) -> Value {
        if let [function] = &self.functions[..] {
            return call_schema(function, "#");
        }
        let call = |(i, function)| call_schema(function, &format!("#/anyOf/{i}"));
        let calls: Vec<Value> = self.functions.iter().enumerate().map(call).collect();
        json!({"anyOf": calls})
    }
}

/// A tool's name and the schema of its arguments.
type Function = (String, Value);

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

#[derive(Debug, PartialEq)]
enum Choice {
    None,
    Auto,
    Any,
    /// Its place among the functions.
    Named(usize),
}

fn choice(field: Option<Json>, functions: &[Function]) -> Result<Choice> {
    let path = "tool_choice";
    let unknown = |what: &str| {
        Err(ApiError::field(path, format!("`{path}` asks for {what}, which `tools` does not have")))
    };
    let Some(field) = field else { return Ok(Choice::Auto) };
    if field.0.is_string() {
        let Ok(word) = field.read(path) else {
            let known = "\"none\", \"auto\", \"required\" and a named function";
            return Err(ApiError::field(path, format!("`{path}` is {}; kvik knows {known}", field.0)));
        };
        return match word {
            ChoiceWord::None => Ok(Choice::None),
            ChoiceWord::Auto => Ok(Choice::Auto),
            ChoiceWord::Required if functions.is_empty() => unknown("a call"),
            ChoiceWord::Required => Ok(Choice::Any),
        };
    }
    let name = field.read::<NamedChoice>(path)?.function.name;
    match functions.iter().position(|(known, _)| *known == name) {
        Some(at) => Ok(Choice::Named(at)),
        None => unknown(&format!("{name:?}")),
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

#[cfg(test)]
mod tests {
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
    fn references_inside_parameters_follow_them() {
        let parameters =
            json!({"properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}});
        let tools = ["f", "g"].map(|name| json!({"function": {"name": name, "parameters": parameters}}));
        let forced = |choice: Value| {
            let tools = read(json!({"tools": tools, "tool_choice": choice})).unwrap();
            tools.one_call()
        };
        let check = |schema: Value, place: &str| {
            let reference =
                schema.pointer(&format!("{place}/properties/arguments/properties/x/$ref")).unwrap();
            let target = reference.as_str().unwrap().strip_prefix('#').unwrap();
            assert_eq!(schema.pointer(target), Some(&json!({"type": "string"})), "{reference}");
        };
        check(forced(json!("required")), "/anyOf/0");
        check(forced(json!("required")), "/anyOf/1");
        check(forced(json!({"function": {"name": "f"}})), "");
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

    #[test]
    fn parallel_calls_are_as_many_as_the_request_allows() {
        let check = |more: Value, expect: usize| {
            let mut request = json!({"tools": weather()});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let tools = read(request).unwrap();
            let Some(Constraint::Calls(calls)) = tools.constraint(&ToolForm::tagged(), None) else {
                panic!("{more}")
            };
            assert_eq!(
                (calls.calls_max, tools.offer(ToolForm::tagged()).calls_max),
                (expect, expect),
                "{more}"
            );
        };
        check(json!({}), CALLS_MAX);
        check(json!({"parallel_tool_calls": true}), CALLS_MAX);
        check(json!({"parallel_tool_calls": false}), 1);
        check(json!({"tool_choice": "required"}), 1);
        check(json!({"tool_choice": "required", "parallel_tool_calls": true}), CALLS_MAX);
    }
}
