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

fn tools_schema(generator: &mut SchemaGenerator) -> Schema {
    let tool = generator.subschema_for::<ToolField>();
    json_schema!({"type": ["array", "null"], "items": tool, "maxItems": TOOLS_MAX})
}

fn choice_schema(generator: &mut SchemaGenerator) -> Schema {
    let word = generator.subschema_for::<ChoiceWord>();
    let named = generator.subschema_for::<NamedChoice>();
    let allowed = generator.subschema_for::<AllowedChoice>();
    json_schema!({"anyOf": [word, named, allowed, {"type": "null"}]})
}

impl ToolFields {
    /// What they mean together.
    pub(super) fn tools(self) -> Result<Tools> {
        let tools = self.tools.unwrap_or_default();
        check_count(tools.len())?;
        let functions =
            tools.iter().enumerate().map(|(i, tool)| function(i, tool)).collect::<Result<Vec<_>>>()?;
        let choice = choice(self.tool_choice)?;
        let offered = tools.into_iter().map(|Json(tool)| tool).collect();
        Tools::of(offered, functions, choice, self.parallel_tool_calls)
    }
}

/// Refuses more tools than a request may bring.
fn check_count(tools: usize) -> Result<()> {
    if tools <= TOOLS_MAX {
        return Ok(());
    }
    Err(ApiError::field("tools", format!("`tools` holds {tools} tools, the limit is {TOOLS_MAX}")))
}

/// A tool as any dialect offers it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OfferedTool {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments, an object.
    pub(crate) parameters: Value,
}

impl OfferedTool {
    /// As templates are given it.
    fn json(self) -> Value {
        let mut function = json!({"name": self.name});
        if let Some(description) = self.description {
            function["description"] = json!(description);
        }
        function["parameters"] = self.parameters;
        json!({"type": "function", "function": function})
    }
}

/// Which tools an answer calls.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ToolChoice {
    /// None of them.
    None,
    /// Any, or none.
    Auto,
    /// Any, but at least one.
    Any,
    /// This one.
    Named(String),
    /// These, at least one of them where it is `required`. The others stay in the prompt, so that it is the same.
    Allowed { names: Vec<String>, required: bool },
}

impl Tools {
    /// These tools; `several` says whether an answer may call more than one, where the request does.
    pub(crate) fn offered(
        tools: Vec<OfferedTool>,
        choice: ToolChoice,
        several: Option<bool>,
    ) -> Result<Tools> {
        check_count(tools.len())?;
        let functions = tools.iter().map(|tool| (tool.name.clone(), tool.parameters.clone())).collect();
        Tools::of(tools.into_iter().map(OfferedTool::json).collect(), functions, choice, several)
    }

    fn of(
        tools: Vec<Value>,
        mut functions: Vec<Function>,
        choice: ToolChoice,
        several: Option<bool>,
    ) -> Result<Tools> {
        check_choice(&choice, &functions)?;
        let is_offered = choice != ToolChoice::None && !tools.is_empty();
        let forced = match &choice {
            ToolChoice::None | ToolChoice::Auto => false,
            ToolChoice::Allowed { required, .. } => *required,
            ToolChoice::Any | ToolChoice::Named(_) => true,
        };
        match choice {
            ToolChoice::Named(name) => functions.retain(|(known, _)| *known == name),
            ToolChoice::Allowed { names, .. } => functions.retain(|(known, _)| names.contains(known)),
            ToolChoice::None | ToolChoice::Auto | ToolChoice::Any => {}
        }
        // A call that has to be made is one, unless the request says that it may be several.
        let calls_max = if several.unwrap_or(!forced) { CALLS_MAX } else { 1 };
        Ok(Tools { offered: is_offered.then_some(Value::Array(tools)), functions, forced, calls_max })
    }

    /// No tools at all.
    pub(crate) fn none() -> Tools {
        Tools { offered: None, functions: Vec::new(), forced: false, calls_max: CALLS_MAX }
    }

    /// How calls in this form are read out of the answer; `certain` where a constraint holds it to the form.
    pub(crate) fn offer(&self, form: ToolForm, certain: bool) -> Arc<Offer> {
        Arc::new(Offer { form, tools: self.functions.clone(), calls_max: self.calls_max, certain })
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

/// The field `tool_choice`.
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

/// Refuses a choice of what is not offered.
fn check_choice(choice: &ToolChoice, functions: &[Function]) -> Result<()> {
    let path = "tool_choice";
    let unknown = |what: &str| {
        Err(ApiError::field(path, format!("`{path}` asks for {what}, which `tools` does not have")))
    };
    let missing = |name: &&String| !functions.iter().any(|(known, _)| known == *name);
    let names = match choice {
        ToolChoice::None | ToolChoice::Auto => return Ok(()),
        ToolChoice::Any if functions.is_empty() => return unknown("a call"),
        ToolChoice::Any => return Ok(()),
        ToolChoice::Named(name) => std::slice::from_ref(name),
        ToolChoice::Allowed { names, .. } if names.is_empty() => return unknown("one of no tools"),
        ToolChoice::Allowed { names, .. } => &names[..],
    };
    names.iter().find(missing).map_or(Ok(()), |name| unknown(&format!("{name:?}")))
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
    fn allowed_tools_stay_beside_the_others_in_the_prompt() {
        let tools = ["f", "g", "h"].map(|name| json!({"type": "function", "function": {"name": name}}));
        let allow = |mode: &str, names: &[&str]| {
            let names: Vec<Value> =
                names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
            let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}});
            read(json!({"tools": tools, "tool_choice": choice}))
        };
        let names = |tools: &Tools| tools.functions.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
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
                (calls.calls_max, tools.offer(ToolForm::tagged(), true).calls_max),
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
