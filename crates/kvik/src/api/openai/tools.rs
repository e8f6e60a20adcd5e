//! Tools of a chat request: which are offered, which must be called, and how calls are written.

use std::sync::Arc;

use kvik_engine::api::Constraint;
use kvik_engine::text::answer::{ForcedCall, Offer, ToolForm};
use kvik_engine::text::constraint::schema::move_references;
use serde_json::{Value, json};

use crate::http::{
    error::ApiError,
    fields::{Fields, wrong},
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

impl Tools {
    /// Reads the fields `tools`, `tool_choice` and `parallel_tool_calls`.
    pub(crate) fn read(fields: &mut Fields) -> Result<Tools> {
        let tools = fields.array("tools")?.unwrap_or_default();
        if tools.len() > TOOLS_MAX {
            return Err(
                fields.error("tools", format!("holds {} tools, the limit is {TOOLS_MAX}", tools.len()))
            );
        }
        let functions =
            tools.iter().enumerate().map(|(i, tool)| function(i, tool)).collect::<Result<Vec<_>>>()?;
        let choice = choice(fields, &functions)?;
        // A call that has to be made is one, unless the request says that it may be several.
        let several = fields.bool("parallel_tool_calls")?.unwrap_or(choice == Choice::Auto);
        let forced = !matches!(choice, Choice::None | Choice::Auto);
        let functions = match choice {
            Choice::Named(at) => vec![functions[at].clone()],
            _ => functions,
        };
        let offered = (choice != Choice::None && !tools.is_empty()).then_some(Value::Array(tools));
        Ok(Tools { offered, functions, forced, calls_max: if several { CALLS_MAX } else { 1 } })
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

#[derive(Debug, PartialEq)]
enum Choice {
    None,
    Auto,
    Any,
    /// Its place among the functions.
    Named(usize),
}

fn choice(fields: &mut Fields, functions: &[Function]) -> Result<Choice> {
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
            "required" => Ok(Choice::Any),
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
            match functions.iter().position(|(known, _)| *known == name) {
                Some(at) => Ok(Choice::Named(at)),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn body(value: Value) -> Fields {
        Fields::of_body(value).unwrap()
    }

    fn weather() -> Value {
        json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])
    }

    #[test]
    fn tool_choice_decides_what_is_offered_and_forced() {
        let check = |choice: Value, offered: bool, forced: bool| {
            let tools = Tools::read(&mut body(json!({"tools": weather(), "tool_choice": choice}))).unwrap();
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
            let tools = Tools::read(&mut body(json!({"tools": tools, "tool_choice": choice}))).unwrap();
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
        check(json!({"tools": weather(), "parallel_tool_calls": "no"}), "parallel_tool_calls");
        check(json!({"tools": weather(), "tool_choice": "maybe"}), "tool_choice");
        check(json!({"tools": weather(), "tool_choice": {"function": {"name": "news"}}}), "tool_choice");
    }

    #[test]
    fn parallel_calls_are_as_many_as_the_request_allows() {
        let check = |more: Value, expect: usize| {
            let mut request = json!({"tools": weather()});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let tools = Tools::read(&mut body(request)).unwrap();
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
