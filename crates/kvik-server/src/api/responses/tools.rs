//! `tools` and `tool_choice` in the format of Responses.
//!
//! A model calls functions with JSON arguments. Tools of other types that a client runs are presented as
//! functions, and their calls are converted to the client's format: a custom tool has one argument, its text,
//! and a tool in a namespace has a combined name. Tools that OpenAI's servers run are dropped, with a note in
//! the answer.

use std::collections::{BTreeMap, BTreeSet};

use kvik_text::{
    constraint::schema::{Strictness, normalise},
    tools::{OfferedTool, ToolChoice, Tools, no_parameters},
};
use serde_json::{Value, json};

use super::grammar::{self, Format};
use crate::{
    api::request::{
        place::Place,
        tools::{ReadTool, is_strict, offered as offered_tools},
    },
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Name of a custom tool's only argument.
const INPUT: &str = "input";
/// Separator between a namespace and the name of a tool in it.
const BETWEEN: &str = "__";

/// The tools of a request.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) tools: Tools,
    pub(super) called: CalledNames,
    /// Notes on dropped tools.
    pub(super) notes: Vec<String>,
}

/// The tools whose calls need conversion, by the names that the model uses.
#[derive(Debug, Clone, Default)]
pub(super) struct CalledNames(BTreeMap<String, Called>);

/// The client's description of a tool.
#[derive(Debug, Clone)]
pub(super) struct Called {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// True if the call takes a text instead of arguments.
    pub(super) custom: bool,
}

impl CalledNames {
    /// Returns the tool that the model calls by this name.
    pub(super) fn of(&self, name: &str) -> Called {
        let function = || Called { name: name.to_owned(), namespace: None, custom: false };
        self.0.get(name).cloned().unwrap_or_else(function)
    }
}

/// Returns the name that the model uses for a tool.
pub(super) fn full_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("") => name.to_owned(),
        Some(space) if space.ends_with(BETWEEN) => format!("{space}{name}"),
        Some(space) => format!("{space}{BETWEEN}{name}"),
    }
}

/// Wraps the text of a custom tool's call in arguments.
pub(super) fn custom_arguments(input: &str) -> Value {
    json!({INPUT: input})
}

/// Returns the text of a custom tool's call; truncated arguments are returned as they are.
pub(super) fn custom_input(arguments: &str) -> String {
    let whole = serde_json::from_str::<Value>(arguments).ok();
    let input = whole.and_then(|mut whole| match whole.get_mut(INPUT).map(Value::take) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    });
    input.unwrap_or_else(|| arguments.to_owned())
}

/// Reads the offered tools and the choice among them.
pub(super) fn tools(tools: Option<&Value>, choice: Option<&Value>, several: Option<bool>) -> Result<Offered> {
    let mut reading = Reading::default();
    if let Some(tools) = tools {
        for tool in Place::new("tools", tools).items()? {
            reading.tool(&tool)?;
        }
    }
    let choice =
        choice.map_or(Ok(ToolChoice::Auto), |value| reading.choice(&Place::new("tool_choice", value)))?;
    let Reading { offered, called, notes, .. } = reading;
    Ok(Offered { tools: offered_tools(offered, choice, several)?, called: CalledNames(called), notes })
}

/// The tools read so far.
#[derive(Default)]
struct Reading {
    offered: Vec<ReadTool>,
    called: BTreeMap<String, Called>,
    /// Names or types of the dropped tools.
    left_out: BTreeSet<String>,
    notes: Vec<String>,
}

impl Reading {
    fn tool(&mut self, tool: &Place<'_>) -> Result<()> {
        let kind = tool.need_text("type")?;
        if kind != "namespace" {
            return self.in_namespace(tool, kind, None);
        }
        let space = tool.need_text("name")?;
        for inner in tool.need("tools")?.items()? {
            self.in_namespace(&inner, inner.need_text("type")?, Some(space))?;
        }
        Ok(())
    }

    fn in_namespace(&mut self, tool: &Place<'_>, kind: &str, space: Option<&str>) -> Result<()> {
        match kind {
            "function" => self.function(tool, space),
            "custom" => self.custom(tool, space),
            _ => {
                let names = [Some(kind), tool.value["name"].as_str(), tool.value["server_label"].as_str()];
                self.left_out.extend(names.into_iter().flatten().map(str::to_owned));
                let path = &tool.path;
                self.notes.push(format!(
                    "`{path}` is a tool of type {kind:?}, which does not run here; it is not offered"
                ));
                Ok(())
            }
        }
    }

    fn function(&mut self, tool: &Place<'_>, space: Option<&str>) -> Result<()> {
        let parameters = tool.get("parameters");
        if let Some(parameters) = parameters.as_ref().filter(|parameters| !parameters.value.is_object()) {
            return Err(parameters.wrong("a JSON schema (an object)"));
        }
        let parameters = parameters.map_or_else(no_parameters, |schema| schema.value.clone());
        let description = tool.get("description").map(|text| text.text()).transpose()?;
        let name = self.name(tool, space, false)?;
        let offered = OfferedTool { name, description: description.map(str::to_owned), parameters };
        let (path, strict) = (format!("{}.parameters", tool.path), is_strict(tool)?);
        self.offered.push(ReadTool { tool: offered, path, strict });
        Ok(())
    }

    /// Reads a tool whose call is a text, constrained by its grammar if that is regular.
    fn custom(&mut self, tool: &Place<'_>, space: Option<&str>) -> Result<()> {
        let format = grammar::format(tool.get("format").as_ref())?;
        let mut schema = json!({"type": "string"});
        let description = tool.get("description").map(|text| text.text()).transpose()?;
        let mut description = description.map(str::to_owned);
        if let Format::Grammar { syntax, definition, pattern } = format {
            let said = description.get_or_insert_default();
            said.push_str(&format!("\n\nThe input is text of this grammar ({syntax}):\n{definition}"));
            let (held, why) = input(pattern);
            self.notes.extend(why.map(|why| format!("`{}.format` {why}", tool.path)));
            schema = held;
        }
        let parameters = json!({
            "type": "object", "properties": {INPUT: schema}, "required": [INPUT], "additionalProperties": false,
        });
        let offered = OfferedTool { name: self.name(tool, space, true)?, description, parameters };
        self.offered.push(ReadTool { tool: offered, path: format!("{}.format", tool.path), strict: false });
        Ok(())
    }

    /// Returns the model's name for a tool, and notes the client's where its calls need conversion.
    fn name(&mut self, tool: &Place<'_>, space: Option<&str>, custom: bool) -> Result<String> {
        let own = tool.need_text("name")?;
        let name = full_name(space, own);
        if space.is_some() || custom {
            let namespace = space.map(str::to_owned);
            self.called.insert(name.clone(), Called { name: own.to_owned(), namespace, custom });
        }
        Ok(name)
    }

    fn choice(&self, choice: &Place<'_>) -> Result<ToolChoice> {
        if let Some(word) = choice.value.as_str() {
            return match word {
                "none" => Ok(ToolChoice::None),
                "auto" => Ok(ToolChoice::Auto),
                "required" => Ok(ToolChoice::Any),
                _ => Err(choice.error("must be `none`, `auto`, `required`, a tool or allowed tools")),
            };
        }
        let kind = choice.need("type")?;
        match kind.text()? {
            "function" | "custom" => Ok(ToolChoice::Named(chosen(choice)?)),
            "allowed_tools" => self.allowed(choice),
            other => Err(kind.error(&format!("is {other:?}, a tool that does not run here; choose a function, a custom tool or allowed tools"))),
        }
    }

    fn allowed(&self, choice: &Place<'_>) -> Result<ToolChoice> {
        let mode = choice.need("mode")?;
        let required = match mode.text()? {
            "auto" => false,
            "required" => true,
            _ => return Err(mode.error("must be `auto` or `required`")),
        };
        let mut names = Vec::new();
        for tool in choice.need("tools")?.items()? {
            let name = tool.get("name").or_else(|| tool.get("server_label")).or_else(|| tool.get("type"));
            // Dropped tools are removed from the list of allowed ones.
            if !name.is_some_and(|name| name.value.as_str().is_some_and(|name| self.left_out.contains(name)))
            {
                names.push(chosen(&tool)?);
            }
        }
        match names.is_empty() && !required && !self.left_out.is_empty() {
            true => Ok(ToolChoice::None),
            false => Ok(ToolChoice::Allowed { names, required }),
        }
    }
}

/// Returns the schema of the texts of an expression, and what a text is not held to, as the end of a sentence.
fn input(pattern: std::result::Result<String, String>) -> (Value, Option<String>) {
    let free = |why: String| (json!({"type": "string"}), Some(format!("{why}; the input is not held to it")));
    let schema = match pattern {
        Ok(pattern) => json!({"type": "string", "pattern": pattern}),
        Err(why) => return free(why),
    };
    match normalise(&schema, Strictness::Lenient) {
        Ok(normal) if normal.notes.is_empty() => (schema, None),
        Ok(normal) if normal.schema.get("pattern").is_some() => {
            let why = format!("is not enforced in full ({})", normal.notes.join("; "));
            (normal.schema, Some(why))
        }
        Ok(normal) => free(format!("is no expression to enforce ({})", normal.notes.join("; "))),
        Err(error) => free(format!("is no expression to enforce ({error})")),
    }
}

/// Returns the model's name for a chosen tool.
fn chosen(tool: &Place<'_>) -> Result<String> {
    let space = tool.get("namespace").map(|space| space.text()).transpose()?;
    Ok(full_name(space, tool.need_text("name")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the offered names, the clients' names, and the dropped tools.
    #[test]
    fn tools_are_functions_to_the_model_and_keep_their_names_for_clients() {
        let function = |name: &str| json!({"type": "function", "name": name});
        let all = json!([
            function("look"),
            {"type": "namespace", "name": "mcp__sea", "description": "x", "tools": [function("dive"), {"type": "custom", "name": "sing"}]},
            {"type": "namespace", "name": "mcp__air__", "tools": [function("fly")]},
            {"type": "custom", "name": "patch", "format": {"type": "text"}},
            {"type": "web_search", "external_web_access": true}, {"type": "mcp", "server_label": "deep"},
            {"type": "image_generation"}, {"type": "a type of tomorrow"},
        ]);
        let Offered { tools, called, notes } = tools(Some(&all), None, None).unwrap();
        let names: Vec<&str> = tools.functions().iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["look", "mcp__sea__dive", "mcp__sea__sing", "mcp__air__fly", "patch"]);
        let told = |name: &str| {
            let Called { name, namespace, custom } = called.of(name);
            (name, namespace.unwrap_or_default(), custom)
        };
        let expect = |name: &str, space: &str, custom| (name.to_owned(), space.to_owned(), custom);
        assert_eq!(told("look"), expect("look", "", false));
        assert_eq!(told("mcp__sea__dive"), expect("dive", "mcp__sea", false));
        assert_eq!(told("mcp__sea__sing"), expect("sing", "mcp__sea", true));
        assert_eq!(told("mcp__air__fly"), expect("fly", "mcp__air__", false));
        assert_eq!(told("patch"), expect("patch", "", true));
        assert_eq!(notes.len(), 4, "{notes:?}");
        assert!(notes[0].starts_with("`tools[4]`") && notes[0].contains("web_search"), "{notes:?}");
    }

    #[test]
    fn what_a_text_is_not_held_to_is_noted() {
        let check = |syntax: &str, definition: &str, expect: Value, note: Option<&str>| {
            let format = json!({"type": "grammar", "syntax": syntax, "definition": definition});
            let all = json!([{"type": "custom", "name": "patch", "format": format}]);
            let Offered { tools, notes, .. } = tools(Some(&all), None, None).unwrap();
            let function = &tools.functions()[0];
            assert_eq!(function.parameters["properties"][INPUT], expect, "{notes:?}");
            assert!(function.enforceable && function.notes.is_empty(), "{function:?}");
            assert_eq!(notes.len(), usize::from(note.is_some()), "{notes:?}");
            let told = |note: &str| notes[0].starts_with("`tools[0].format` ") && notes[0].ends_with(note);
            assert!(note.is_none_or(told), "{notes:?}");
        };
        let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
        check("lark", "start: \"a\"", text("^(?:a)$"), None);
        check("regex", "[a-z]+", text("^(?:[a-z]+)$"), None);
        let free = || json!({"type": "string"});
        // More than a pattern may have, and than all patterns of a schema may have.
        for count in [600, 2_000] {
            let words: Vec<String> = (0..count).map(|i| format!("\"word{i}\"")).collect();
            let lark = format!("start: {}", words.join(" | "));
            check("lark", &lark, free(), Some("; the input is not held to it"));
        }
        check("lark", "start: \"a\" start", free(), Some("; the input is not held to it"));
        let rest = Some("the rest of the pattern is enforced)");
        check("regex", "(?!b)[a-z]+", text("^(?:[a-z]+)$"), rest);
    }

    #[test]
    fn a_choice_names_a_tool_in_either_form_and_never_one_that_is_left_out() {
        let all = json!([
            {"type": "function", "name": "look"}, {"type": "custom", "name": "patch"}, {"type": "web_search"},
            {"type": "namespace", "name": "sea", "tools": [{"type": "function", "name": "dive"}]},
        ]);
        let functions = |choice: Value| {
            let offered = tools(Some(&all), Some(&choice), None)?;
            let names: Vec<&str> =
                offered.tools.functions().iter().map(|function| function.name.as_str()).collect();
            Ok::<_, ApiError>((names.join(" "), offered.tools.forced))
        };
        let check = |choice: Value, names: &str, forced: bool| {
            assert_eq!(functions(choice.clone()), Ok((names.to_owned(), forced)), "{choice}");
        };
        check(json!({"type": "function", "name": "look"}), "look", true);
        check(json!({"type": "custom", "name": "patch"}), "patch", true);
        check(json!({"type": "function", "name": "dive", "namespace": "sea"}), "sea__dive", true);
        let allow = |mode: &str, tools: Value| json!({"type": "allowed_tools", "mode": mode, "tools": tools});
        let look = json!({"type": "function", "name": "look"});
        check(allow("auto", json!([look, {"type": "web_search"}])), "look", false);
        check(allow("required", json!([look])), "look", true);
        assert!(functions(allow("auto", json!([{"type": "web_search"}]))).is_ok());
        assert!(functions(allow("required", json!([{"type": "web_search"}]))).is_err());
        assert_eq!(functions(json!({"type": "web_search"})).unwrap_err().param(), Some("tool_choice.type"));
        assert_eq!(functions(json!("maybe")).unwrap_err().param(), Some("tool_choice"));
    }

    #[test]
    fn the_text_of_a_custom_tool_is_its_one_argument() {
        for text in ["", "*** Begin Patch\n+\"a\"\n", "\u{1F600}\\"] {
            assert_eq!(custom_input(&custom_arguments(text).to_string()), text);
        }
        for cut in ["{\"input\": \"*** Be", "{}", "[1]", ""] {
            assert_eq!(custom_input(cut), cut, "what was cut off is told as it came");
        }
    }
}
