//! `tools` and `tool_choice` in Anthropic's format.
//!
//! Tools that Anthropic's servers run are dropped, with a note in the answer; tools that Anthropic defines
//! and clients run are offered with their schemas.

use kvik_text::tools::{OfferedTool, ToolChoice, Tools};
use serde_json::Value;

use super::{client_tools::client_tool, messages::cache_control};
use crate::{
    api::request::{
        place::Place,
        tools::{ReadTool, is_strict, offered as offered_tools},
    },
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Known fields of a tool; others are ignored with a note.
const KNOWN: [&str; 11] = [
    "type",
    "name",
    "description",
    "input_schema",
    "cache_control",
    "strict",
    "eager_input_streaming",
    "input_examples",
    "defer_loading",
    "allowed_callers",
    "max_characters",
];

/// Returns the tools, and appends the lifetimes that their `cache_control` asks for.
pub(super) fn tools(
    tools: Option<&Value>,
    choice: Option<&Value>,
    times: &mut Vec<Option<&'static str>>,
    notes: &mut Vec<String>,
) -> Result<Tools> {
    let mut offered = Vec::new();
    if let Some(tools) = tools {
        for tool in Place::new("tools", tools).items()? {
            times.extend(cache_control(&tool)?);
            offered.extend(read(&tool, notes)?);
        }
    }
    let (choice, several) = choice
        .map_or(Ok((ToolChoice::Auto, None)), |value| read_choice(&Place::new("tool_choice", value)))?;
    offered_tools(offered, choice, several)
}

/// Reads a tool; returns none if it does not run here.
fn read(tool: &Place<'_>, notes: &mut Vec<String>) -> Result<Option<ReadTool>> {
    match tool.get("type").map(|kind| kind.text()).transpose()? {
        None | Some("custom") => {}
        Some(kind) => return named(tool, kind, notes),
    }
    notes.extend(tool.auxiliary(&KNOWN)?);
    let schema = tool.need("input_schema")?;
    if !schema.value.is_object() {
        return Err(schema.wrong("a JSON schema (an object)"));
    }
    let description = tool.get("description").map(|text| text.text()).transpose()?;
    let offered = OfferedTool {
        name: tool.need_text("name")?.to_owned(),
        description: description.map(str::to_owned),
        parameters: schema.value.clone(),
    };
    Ok(Some(ReadTool { tool: offered, path: schema.path, strict: is_strict(tool)? }))
}

/// Reads a tool that Anthropic defines, whose schema is its type's.
fn named(tool: &Place<'_>, kind: &str, notes: &mut Vec<String>) -> Result<Option<ReadTool>> {
    let Some(known) = client_tool(kind) else {
        let path = &tool.path;
        notes
            .push(format!("`{path}` is a tool of type {kind:?}, which does not run here; it is not offered"));
        return Ok(None);
    };
    notes.extend(tool.auxiliary(&KNOWN)?);
    let name = tool.get("name").map(|name| name.text()).transpose()?;
    let offered = OfferedTool {
        name: name.unwrap_or(known.name).to_owned(),
        description: Some(known.description.to_owned()),
        parameters: known.schema,
    };
    Ok(Some(ReadTool { tool: offered, path: format!("{}.type", tool.path), strict: is_strict(tool)? }))
}

/// Reads the choice, and whether an answer may have several calls if the field says so.
fn read_choice(choice: &Place<'_>) -> Result<(ToolChoice, Option<bool>)> {
    let kind = choice.need("type")?;
    let read = match kind.text()? {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => ToolChoice::Any,
        "tool" => ToolChoice::Named(choice.need_text("name")?.to_owned()),
        _ => return Err(kind.error("must be `auto`, `any`, `tool` or `none`")),
    };
    let single = choice.get("disable_parallel_tool_use").map(|single| single.bool()).transpose()?;
    // Anthropic's answers have several calls unless that is disabled, even if a call is required.
    Ok((read, Some(!single.unwrap_or(false))))
}
